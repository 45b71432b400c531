//! Examples of windows of repeated schedules.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::schedule::{RepeatedSpec, ScheduleFilter, ScheduleStatus, WindowQuery};
use evenkeel_domain::window::{Opener, Windows};

use crate::{ahead, schedule};

const HOUR: TimeDelta = TimeDelta::hours(1);

fn at(text: &str) -> Time {
    text.parse().expect("an instant")
}

/// When the first `n` windows after `now` open, in UTC.
fn starts(cron: &str, zone: &str, now: &str, n: usize) -> Vec<String> {
    let fields: Vec<_> = cron.split(' ').collect();
    let schedule = schedule(fields.try_into().expect("five fields"), zone, HOUR);
    let after = schedule.spec.spans_after(at(now)).take(n);
    after.map(|(start, _)| start.format("%F %R").to_string()).collect()
}

#[test]
fn a_window_at_a_time_that_is_skipped_opens_at_the_change() {
    // Berlin, from 2:00 to 3:00 on 29 March 2026, at 1:00 UTC.
    let night = ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"];
    assert_eq!(starts("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3), night);
    // Several skipped times open one window.
    let once = ["2026-03-28 01:45", "2026-03-29 01:00", "2026-03-30 00:15"];
    assert_eq!(starts("15,45 2 * * *", "Europe/Berlin", "2026-03-28T01:15:00Z", 3), once);
    // São Paulo, at midnight.
    let midnight = ["2018-11-03 03:00", "2018-11-04 03:00", "2018-11-05 02:00"];
    assert_eq!(starts("0 0 * * *", "America/Sao_Paulo", "2018-11-03T00:00:00Z", 3), midnight);
    // Lord Howe, by half an hour: from 2:00 to 2:30.
    let half = ["2025-10-03 15:45", "2025-10-04 15:30", "2025-10-05 15:15"];
    assert_eq!(starts("15 2 * * *", "Australia/Lord_Howe", "2025-10-03T15:00:00Z", 3), half);
}

#[test]
fn a_window_on_a_day_that_is_skipped_opens_when_the_next_one_begins() {
    // Apia had no 30 December 2011.
    let friday = ["2011-12-30 10:00", "2012-01-05 12:00"];
    assert_eq!(starts("0 2 * * 5", "Pacific/Apia", "2011-12-29T12:00:00Z", 2), friday);
    let every_day = ["2011-12-29 12:00", "2011-12-30 10:00", "2011-12-30 12:00"];
    assert_eq!(starts("0 2 * * *", "Pacific/Apia", "2011-12-29T11:00:00Z", 3), every_day);
}

#[test]
fn a_window_at_a_time_that_comes_twice_opens_the_first_time() {
    // Berlin, from 3:00 back to 2:00 on 25 October 2026, at 1:00 UTC.
    let night = ["2026-10-25 00:30", "2026-10-26 01:30"];
    assert_eq!(starts("30 2 * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", 2), night);
    assert_eq!(starts("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", 1), night[1..]);
    assert_eq!(starts("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", 1), night[1..]);
    // The date is repeated as well: São Paulo, from midnight back to 23:00.
    let late = ["2019-02-17 01:30", "2019-02-24 02:30"];
    assert_eq!(starts("30 23 * * 6", "America/Sao_Paulo", "2019-02-16T12:00:00Z", 2), late);
}

#[test]
fn a_cron_for_every_hour_opens_in_every_hour() {
    let hourly = ["2026-10-24 23:30", "2026-10-25 00:30", "2026-10-25 01:30", "2026-10-25 02:30"];
    assert_eq!(starts("30 * * * *", "Europe/Berlin", "2026-10-24T23:00:00Z", 4), hourly);
    assert_eq!(starts("30 0-23 * * *", "Europe/Berlin", "2026-10-24T23:00:00Z", 4), hourly);
    let hourly = ["2026-03-29 00:30", "2026-03-29 01:00", "2026-03-29 01:30", "2026-03-29 02:30"];
    assert_eq!(starts("30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 4), hourly);
    // A repeated reading before the change is complete: Lord Howe, from 2:00 back to 1:30.
    let quarters = ["2026-04-04 14:45", "2026-04-04 15:15", "2026-04-04 16:15"];
    assert_eq!(starts("45 * * * *", "Australia/Lord_Howe", "2026-04-04T14:00:00Z", 3), quarters);
}

#[test]
fn a_window_is_as_long_on_a_day_of_23_hours() {
    let nightly = schedule(["0", "22", "*", "*", "*"], "Europe/Berlin", TimeDelta::hours(8));
    let (start, end) = nightly.spec.open_span(at("2026-03-29T04:59:59Z")).expect("open");
    assert_eq!((start, end), (at("2026-03-28T21:00:00Z"), at("2026-03-29T05:00:00Z")));
    assert_eq!(nightly.spec.open_span(end), None);
}

#[test]
fn of_overlapping_windows_the_one_that_ends_last_is_open() {
    let always = schedule(["*"; 5], "Europe/Berlin", TimeDelta::days(1));
    let now = at("2026-07-01T12:30:30Z");
    let windows = always.windows_from(&ahead(now, now, 10));
    let starts: Vec<_> = windows.iter().map(|window| window.start).collect();
    assert_eq!(starts, [at("2026-07-01T12:30:00Z"), at("2026-07-01T12:31:00Z")]);
    assert!(windows.iter().all(|window| window.opener == Opener::Repeated(always.id)));
    let windows = Windows::from_now_on(windows, now);
    assert_eq!(windows.open(now).map(|window| window.start), Some(starts[0]));
    assert_eq!(windows.next_change(now), Some(starts[1]));
}

#[test]
fn the_next_window_is_found_at_any_distance_within_the_limit() {
    let yearly = schedule(["0", "3", "L", "2", "*"], "UTC", HOUR);
    let now = at("2026-03-01T00:00:00Z");
    assert_eq!(yearly.windows_from(&ahead(now, now, 10)).len(), 1);
    let years = now + TimeDelta::days(366 * 20);
    assert_eq!(yearly.windows_from(&ahead(now, years, 10)).len(), 10);
    assert_eq!(yearly.windows_from(&ahead(now, years, 100)).len(), 20);
    assert_eq!(yearly.windows_from(&ahead(now, years, 0)).len(), 0);
}

#[test]
fn a_day_that_never_comes_opens_nothing() {
    for zone in ["UTC", "Europe/Berlin"] {
        let never = schedule(["*", "*", "30", "2", "*"], zone, HOUR);
        let now = at("2026-03-01T00:00:00Z");
        assert_eq!(never.windows_from(&ahead(now, now + TimeDelta::days(9), 10)), []);
    }
}

#[test]
fn no_window_opens_at_the_limits_of_time() {
    let always = schedule(["*"; 5], "Pacific/Kiritimati", HOUR);
    for now in [Time::MIN_UTC, Time::MAX_UTC, at("9999-12-31T23:59:59Z")] {
        assert_eq!(always.windows_from(&ahead(now, now, 10)), []);
    }
}

#[test]
fn only_a_schedule_for_updates_of_something_opens_windows() {
    let now = at("2026-03-01T00:00:00Z");
    let strict = ahead(now, now, 1);
    let any = WindowQuery { filter: ScheduleFilter::AnyStatus, ..strict };
    let mut nightly = schedule(["0", "3", "*", "*", "*"], "UTC", HOUR);
    assert_eq!(nightly.windows_from(&strict).len(), 1);
    nightly.spec.status = ScheduleStatus::Shipping;
    assert_eq!(nightly.windows_from(&strict), []);
    assert_eq!(nightly.windows_from(&any).len(), 1);
    nightly.spec.target = None;
    assert_eq!(nightly.windows_from(&any), []);
}

#[test]
fn a_duration_is_a_second_to_a_day() {
    let field = |seconds| RepeatedSpec::duration(seconds).expect_err("bad").field;
    assert_eq!(field(0), "durationSeconds");
    assert_eq!(field(86_401), "durationSeconds");
    assert_eq!(RepeatedSpec::duration(86_400), Ok(TimeDelta::days(1)));
    assert_eq!(RepeatedSpec::duration(1), Ok(TimeDelta::seconds(1)));
}

#[test]
fn an_eim_agent_gets_only_schedules_it_understands() {
    let lists =
        |cron: [&str; 5], zone| schedule(cron, zone, HOUR).spec.as_lists().map(|l| l.join(" "));
    let weekly = ["*/30", "2-3", "*", "*", "0"];
    assert_eq!(lists(weekly, "Etc/UTC").as_deref(), Some("0,30 2,3 * * 0"));
    assert_eq!(lists(weekly, "Europe/London"), None);
    assert_eq!(lists(["0", "0", "L", "*", "*"], "UTC"), None);
}
