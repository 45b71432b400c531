//! Windows in many zones, against a judge that watches the clock with the zone data of another library.

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::schedule::RepeatedSchedule;
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::oracle::Watch;
use crate::random::Plan;
use crate::{ahead, schedule, seed};

const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "Europe/Dublin",
    "America/New_York",
    "America/St_Johns",
    "America/Sao_Paulo",
    "America/Havana",
    "America/Santiago",
    "America/Scoresbysund",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Auckland",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Asia/Gaza",
    "Asia/Pyongyang",
    "Africa/Casablanca",
    "Africa/Cairo",
    "Antarctica/Troll",
];

/// 2000 to 2025, of which the tables of both libraries say the same; of the years to come the later one knows more.
const YEARS: (i64, i64) = (946_684_800, 1_767_225_600);

const DAY: i64 = 1440;
const WINDOWS: usize = 120_000;

/// How many windows were compared.
#[derive(Default)]
struct Seen {
    all: usize,
    /// Those that begin where the clock is changed or shows something again.
    odd: usize,
    open: usize,
}

#[test]
fn windows_are_those_that_a_watcher_of_the_clock_sees() {
    let rng = &mut StdRng::seed_from_u64(seed());
    let mut seen = Seen::default();
    while seen.all < WINDOWS {
        let name = ZONES.choose(rng).expect("there are some");
        let zone = TimeZoneDatabase::bundled().get(name).expect("it is known");
        let change = instant(rng, &zone);
        let from = change - rng.random_range(2 * DAY..5 * DAY);
        let watch = Watch::of(&zone, from, from + 8 * DAY);
        for _ in 0..60 {
            let plan = Plan::random(rng);
            compare(rng, &watch, (name, from, change), &plan, &mut seen);
        }
    }
    println!(
        "{} windows, {} open, {} at changes",
        seen.all, seen.open, seen.odd
    );
    assert!(500 < seen.odd, "{} of {} at changes", seen.odd, seen.all);
    assert!(1_000 < seen.open, "{} of {} open", seen.open, seen.all);
}

/// The minute of a change of the clock, or any.
fn instant(rng: &mut StdRng, zone: &TimeZone) -> i64 {
    let any = rng.random_range(YEARS.0..YEARS.1);
    let changes = zone.following(Timestamp::from_second(any).expect("in range"));
    let change = changes.take(1).map(|change| change.timestamp().as_second());
    let soon = change.filter(|change| *change < YEARS.1 && rng.random_ratio(9, 10));
    soon.last().unwrap_or(any).div_euclid(60)
}

fn compare(
    rng: &mut StdRng,
    watch: &Watch,
    (zone, from, change): (&str, i64, i64),
    plan: &Plan,
    seen: &mut Seen,
) {
    let starts = watch.starts(plan);
    let watched = from + DAY..from + 5 * DAY;
    for _ in 0..3 {
        let duration = match rng.random_range(0..3) {
            0 => rng.random_range(1..=600),
            1 => rng.random_range(1..=7_200),
            _ => rng.random_range(1..=86_400),
        };
        let schedule = schedule(plan.fields(), zone, TimeDelta::seconds(duration));
        let now = (from + DAY) * 60 + rng.random_range(0..4 * DAY * 60);
        // Often around the change, and exactly when one opens or when it is over.
        let now = match (starts.choose(rng), rng.random_range(0..6)) {
            (_, 0..2) => change * 60 - rng.random_range(-3_600..2 * 3_600),
            (Some(start), 2) if watched.contains(start) => start * 60,
            (Some(start), 3) if watched.contains(start) => start * 60 + duration,
            _ => now,
        };
        let until = (from + 8 * DAY) * 60;
        let expected = expected(&starts, duration, now);
        let told = told(&schedule, now, until);
        let cron = &plan.texts;
        assert_eq!(
            told,
            expected,
            "{cron:?} in {zone} for {duration} s at {}",
            second(now)
        );
        seen.all += told.len();
        seen.open += told.iter().filter(|(start, _)| *start <= now).count();
        seen.odd += told
            .iter()
            .filter(|(start, _)| watch.is_odd(start / 60))
            .count();
    }
}

const LIMIT: usize = 9;

/// What is open and what follows, by the list of all that opens.
fn expected(starts: &[i64], duration: i64, now: i64) -> Vec<(i64, i64)> {
    let spans = || {
        starts
            .iter()
            .map(|start| (start * 60, start * 60 + duration))
    };
    let open = spans().rfind(|(start, end)| *start <= now && now < *end);
    let later = spans().filter(|(start, _)| now < *start);
    open.into_iter().chain(later).take(LIMIT).collect()
}

/// What the schedule tells, without what lies behind the watch.
fn told(schedule: &RepeatedSchedule, now: i64, until: i64) -> Vec<(i64, i64)> {
    let windows = schedule.windows_from(&ahead(second(now), second(until), LIMIT));
    let spans = windows
        .iter()
        .map(|w| (w.start.timestamp(), w.end.timestamp()));
    spans.filter(|(start, _)| *start < until).collect()
}

fn second(second: i64) -> Time {
    DateTime::from_timestamp(second, 0).expect("in range")
}
