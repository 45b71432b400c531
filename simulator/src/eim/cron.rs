//! Schedules that EIM's agent repeats itself. On the wire they are five fields of cron in UTC, each
//! `*` or a list of numbers.
//!
//! `croner` evaluates them, so that the server's own parser is checked against an independent one.
//! This module adds what croner cannot express: the restriction to EIM's subset, the length of the
//! windows, and the search for the last window in a short span.

use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Timelike as _};
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use evenkeel_proto::maintmgr::RepeatedSchedule;

use crate::clock::Time;
use crate::ground_truth::Span;

const SECONDS_PER_MINUTE: i64 = 60;

/// A schedule that the agent repeats itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RepeatedWindows {
    /// When windows begin. Shared, because croner's tables take some kilobytes.
    cron: Arc<Cron>,
    /// How long each window is open.
    length: TimeDelta,
}

/// Without croner's tables.
impl fmt::Debug for RepeatedWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RepeatedWindows({}, {})", self.cron, self.length)
    }
}

impl RepeatedWindows {
    /// Parses five fields, minutes first. Returns `None` if a field is neither `*` nor a list of
    /// numbers.
    #[must_use]
    pub fn parse(fields: [&str; 5], seconds: u32) -> Option<Self> {
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .dom_and_dow(false)
            .build();
        let cron =
            fields.into_iter().all(is_in_eim_subset).then(|| parser.parse(&fields.join(" ")))?;
        Some(Self { cron: Arc::new(cron.ok()?), length: TimeDelta::seconds(i64::from(seconds)) })
    }

    pub(super) fn from_wire(schedule: &RepeatedSchedule) -> Option<Self> {
        let fields = [
            &schedule.cron_minutes,
            &schedule.cron_hours,
            &schedule.cron_day_month,
            &schedule.cron_month,
            &schedule.cron_day_week,
        ];
        Self::parse(fields.map(String::as_str), schedule.duration_seconds)
    }

    /// How long each window is open.
    #[must_use]
    pub const fn length(&self) -> TimeDelta {
        self.length
    }

    /// Whether the schedule has exactly this window.
    #[must_use]
    pub fn contains_window(&self, (start, end): Span) -> bool {
        end - start == self.length && self.begins_at(start)
    }

    /// The last window that begins after `after` and not later than `until`.
    #[must_use]
    pub fn last_window_between(&self, after: Time, until: Time) -> Option<Span> {
        let mut start = DateTime::from_timestamp(
            until.timestamp().div_euclid(SECONDS_PER_MINUTE) * SECONDS_PER_MINUTE,
            0,
        )?;
        while after < start {
            if self.begins_at(start) {
                return Some((start, start + self.length));
            }
            start -= TimeDelta::minutes(1);
        }
        None
    }

    fn begins_at(&self, start: Time) -> bool {
        // croner ignores fractions of a second.
        start.nanosecond() == 0 && self.cron.is_time_matching(&start).unwrap_or(false)
    }
}

/// Whether the text of a field is `*` or a list of numbers.
fn is_in_eim_subset(field: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    field == "*" || field.split(',').all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Time {
        DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
    }

    #[test]
    fn a_window_begins_when_all_fields_fit() {
        // 1 January 1970 was a Thursday.
        let read = |fields| RepeatedWindows::parse(fields, 30).expect("a cron");
        let opens = |repeats: &RepeatedWindows, minutes| {
            repeats.contains_window((at(minutes), at(minutes) + TimeDelta::seconds(30)))
        };
        let night = read(["0,30", "2", "*", "*", "*"]);
        assert!(opens(&night, 120) && opens(&night, 150));
        assert!(!opens(&night, 121) && !opens(&night, 180));
        assert!(!night.contains_window((at(120), at(121))), "another length");
        let friday = read(["0", "0", "*", "*", "5"]);
        assert!(opens(&friday, 24 * 60) && !opens(&friday, 0));
        let either = read(["0", "0", "3", "*", "5"]);
        assert!(opens(&either, 24 * 60) && opens(&either, 48 * 60) && !opens(&either, 0));
    }

    #[test]
    fn the_latest_window_is_chosen() {
        let minutes = RepeatedWindows::parse(["*", "*", "*", "*", "*"], 10).expect("a cron");
        let second = TimeDelta::seconds(1);
        let begun = minutes.last_window_between(at(3) + second, at(5) + second);
        assert_eq!(begun, Some((at(5), at(5) + second * 10)));
        assert_eq!(minutes.last_window_between(at(5), at(5) + second * 59), None);
    }

    #[test]
    fn cron_texts_that_the_eim_agent_cannot_parse_are_rejected() {
        for bad in ["", "1-5", "*/2", "L", "1,", "1 2", "+1", "60"] {
            assert_eq!(RepeatedWindows::parse([bad, "*", "*", "*", "*"], 10), None, "{bad}");
        }
    }
}
