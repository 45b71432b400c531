//! Schedules that EIM's agent repeats itself. On the wire they are five fields of cron in UTC, each
//! `*` or a list of numbers.

use chrono::{DateTime, Datelike as _, TimeDelta, Timelike as _};
use evenkeel_proto::maintmgr::RepeatedSchedule;

use crate::clock::Time;
use crate::ground_truth::Span;

const SECONDS_PER_MINUTE: i64 = 60;

/// A cron field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CronField {
    /// `*`.
    Any,
    /// These numbers.
    Values(Vec<u32>),
}

impl CronField {
    /// Returns `None` if the text is neither `*` nor a list of numbers.
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        let numbers = text.split(',').map(|number| number.parse().ok());
        numbers.collect::<Option<_>>().map(Self::Values)
    }

    fn matches(&self, value: u32) -> bool {
        match self {
            Self::Any => true,
            Self::Values(values) => values.contains(&value),
        }
    }
}

/// A schedule that the agent repeats itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RepeatedWindows {
    /// Minutes, hours, days of the month, months and days of the week.
    fields: [CronField; 5],
    /// How long each window is open.
    length: TimeDelta,
}

impl RepeatedWindows {
    /// Parses five fields, minutes first. Returns `None` if a field is neither `*` nor a list of
    /// numbers.
    #[must_use]
    pub fn parse(fields: [&str; 5], seconds: u32) -> Option<Self> {
        let [minutes, hours, day_month, month, day_week] = fields.map(CronField::parse);
        Some(Self {
            fields: [minutes?, hours?, day_month?, month?, day_week?],
            length: TimeDelta::seconds(i64::from(seconds)),
        })
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
        let [minutes, hours, day_month, month, day_week] = &self.fields;
        let of_month = day_month.matches(start.day());
        let of_week = day_week.matches(start.weekday().num_days_from_sunday());
        // If both are restricted, one of them is enough.
        let is_restricted = [day_month, day_week].map(|field| *field != CronField::Any);
        let is_day = if is_restricted == [true, true] {
            of_month || of_week
        } else {
            of_month && of_week
        };
        let is_sharp = start.second() == 0 && start.nanosecond() == 0;
        let is_time = minutes.matches(start.minute()) && hours.matches(start.hour());
        is_sharp && is_time && is_day && month.matches(start.month())
    }
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
        assert_eq!(
            minutes.last_window_between(at(5), at(5) + second * 59),
            None
        );
    }

    #[test]
    fn cron_texts_that_the_eim_agent_cannot_parse_are_rejected() {
        for bad in ["", "1-5", "*/2", "L", "1,"] {
            assert_eq!(
                RepeatedWindows::parse([bad, "*", "*", "*", "*"], 10),
                None,
                "{bad}"
            );
        }
    }
}
