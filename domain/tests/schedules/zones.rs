//! Windows in many time zones, compared with a test oracle that uses the zone data of another library.

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::schedule::RepeatedSchedule;
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::oracle::ClockWatch;
use crate::random_cron::RandomCron;
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

/// From 2000 to 2025, where both libraries have the same data. The newer one knows more about later years.
const INSTANT_RANGE_SECONDS: (i64, i64) = (946_684_800, 1_767_225_600);

const MINUTES_PER_DAY: i64 = 1440;

/// Number of windows to compare: a sample, or as many as `EVENKEEL_SCHEDULE_WINDOWS` says.
#[expect(clippy::disallowed_methods, reason = "a test has no configuration")]
fn min_windows() -> usize {
    match std::env::var("EVENKEEL_SCHEDULE_WINDOWS") {
        Ok(windows) => windows.parse().expect("EVENKEEL_SCHEDULE_WINDOWS is a number"),
        Err(_) => 20_000,
    }
}

/// Number of compared windows.
#[derive(Default)]
struct WindowCounts {
    all: usize,
    /// Windows that begin at a change of the clock or at a repeated reading.
    at_change: usize,
    open: usize,
}

#[test]
fn windows_match_those_of_a_watched_clock() {
    let rng = &mut StdRng::seed_from_u64(seed());
    let (mut counts, minimum) = (WindowCounts::default(), min_windows());
    while counts.all < minimum {
        let name = ZONES.choose(rng).expect("there are some");
        let zone = TimeZoneDatabase::bundled().get(name).expect("a known zone");
        let change = random_minute(rng, &zone);
        let from = change - rng.random_range(2 * MINUTES_PER_DAY..5 * MINUTES_PER_DAY);
        let watch = ClockWatch::new(&zone, from, from + 8 * MINUTES_PER_DAY);
        for _ in 0..60 {
            let plan = RandomCron::random(rng);
            compare(rng, &watch, (name, from, change), &plan, &mut counts);
        }
    }
    println!("{} windows, {} open, {} at changes", counts.all, counts.open, counts.at_change);
    assert!(minimum / 240 < counts.at_change, "{} of {} at changes", counts.at_change, counts.all);
    assert!(minimum / 120 < counts.open, "{} of {} open", counts.open, counts.all);
}

/// A random minute, mostly that of a clock change.
fn random_minute(rng: &mut StdRng, zone: &TimeZone) -> i64 {
    let any = rng.random_range(INSTANT_RANGE_SECONDS.0..INSTANT_RANGE_SECONDS.1);
    let changes = zone.following(Timestamp::from_second(any).expect("in range"));
    let change = changes.take(1).map(|change| change.timestamp().as_second());
    let soon = change.filter(|change| *change < INSTANT_RANGE_SECONDS.1 && rng.random_ratio(9, 10));
    soon.last().unwrap_or(any).div_euclid(60)
}

fn compare(
    rng: &mut StdRng,
    watch: &ClockWatch,
    (zone, from, change): (&str, i64, i64),
    plan: &RandomCron,
    counts: &mut WindowCounts,
) {
    let starts = watch.starts(plan);
    let watched = from + MINUTES_PER_DAY..from + 5 * MINUTES_PER_DAY;
    for _ in 0..3 {
        let duration = match rng.random_range(0..3) {
            0 => rng.random_range(1..=600),
            1 => rng.random_range(1..=7_200),
            _ => rng.random_range(1..=86_400),
        };
        let schedule = schedule(plan.fields(), zone, TimeDelta::seconds(duration));
        let now = (from + MINUTES_PER_DAY) * 60 + rng.random_range(0..4 * MINUTES_PER_DAY * 60);
        // Often around the change, and exactly when a window opens or ends.
        let now = match (starts.choose(rng), rng.random_range(0..6)) {
            (_, 0..2) => change * 60 - rng.random_range(-3_600..2 * 3_600),
            (Some(start), 2) if watched.contains(start) => start * 60,
            (Some(start), 3) if watched.contains(start) => start * 60 + duration,
            _ => now,
        };
        let until = (from + 8 * MINUTES_PER_DAY) * 60;
        let expected = expected(&starts, duration, now);
        let actual = actual_windows(&schedule, now, until);
        let cron = &plan.texts;
        assert_eq!(actual, expected, "{cron:?} in {zone} for {duration} s at {}", second(now));
        counts.all += actual.len();
        counts.open += actual.iter().filter(|(start, _)| *start <= now).count();
        counts.at_change +=
            actual.iter().filter(|(start, _)| watch.is_at_clock_change(start / 60)).count();
    }
}

const MAX_WINDOWS: usize = 9;

/// The open window and the following ones, from the list of all starts.
fn expected(starts: &[i64], duration: i64, now: i64) -> Vec<(i64, i64)> {
    let spans = || starts.iter().map(|start| (start * 60, start * 60 + duration));
    let open = spans().rfind(|(start, end)| *start <= now && now < *end);
    let later = spans().filter(|(start, _)| now < *start);
    open.into_iter().chain(later).take(MAX_WINDOWS).collect()
}

/// The windows of the schedule, without those after the end of the watch.
fn actual_windows(schedule: &RepeatedSchedule, now: i64, until: i64) -> Vec<(i64, i64)> {
    let windows = schedule.windows_from(&ahead(second(now), second(until), MAX_WINDOWS));
    let spans = windows.iter().map(|w| (w.start.timestamp(), w.end.timestamp()));
    spans.filter(|(start, _)| *start < until).collect()
}

fn second(second: i64) -> Time {
    DateTime::from_timestamp(second, 0).expect("in range")
}
