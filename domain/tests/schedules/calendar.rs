//! Which days match a cron, at any distance, compared with another library.

use std::str::FromStr;

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::schedule::RepeatedSchedule;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::random_cron::RandomCron;
use crate::{schedule, seed};

fn next(schedule: &RepeatedSchedule, now: Time) -> Option<Time> {
    schedule.spec.spans_after(now).map(|(start, _)| start).next()
}

fn any_instant(rng: &mut StdRng) -> Time {
    let second = rng.random_range(946_684_800..4_102_444_800);
    DateTime::from_timestamp(second, rng.random_range(0..1_000_000_000)).expect("in range")
}

#[test]
fn a_utc_cron_matches_another_library() {
    let rng = &mut StdRng::seed_from_u64(seed());
    let mut far = 0;
    for _ in 0..3_000 {
        let plan = RandomCron::random(rng);
        let schedule = schedule(plan.fields(), "UTC", TimeDelta::hours(1));
        let other = croner::Cron::from_str(&plan.texts.join(" ")).expect("it reads them all");
        let now = any_instant(rng);
        // The library includes fractions of a second, so it gets the start of the second.
        let second_start = DateTime::from_timestamp(now.timestamp(), 0).expect("in range");
        let expected = other.find_next_occurrence(&second_start, false).ok();
        assert_eq!(next(&schedule, now), expected, "{:?} at {now}", plan.texts);
        far += usize::from(expected.is_none_or(|next| TimeDelta::days(300) < next - now));
    }
    assert!(10 < far, "only {far} crons have a distant next occurrence or none");
}

#[test]
fn a_cron_as_lists_opens_the_same_windows() {
    let rng = &mut StdRng::seed_from_u64(seed());
    let mut lists_seen = 0;
    for _ in 0..3_000 {
        let plan = RandomCron::random(rng);
        let original = schedule(plan.fields(), "UTC", TimeDelta::hours(1));
        let Some(lists) = original.spec.as_lists() else {
            assert!(plan.day_month.last, "{:?}", plan.texts);
            continue;
        };
        lists_seen += 1;
        for list in &lists {
            assert!(list == "*" || list.split(',').all(|n| n.parse::<u8>().is_ok()), "{list}");
        }
        let same = schedule(lists.each_ref().map(String::as_str), "UTC", TimeDelta::hours(1));
        let now = any_instant(rng);
        let starts = |s: &RepeatedSchedule| s.spec.spans_after(now).take(5).collect::<Vec<_>>();
        assert_eq!(starts(&same), starts(&original), "{:?} as {lists:?}", plan.texts);
    }
    assert!(1_000 < lists_seen);
}
