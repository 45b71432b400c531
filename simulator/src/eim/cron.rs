//! Schedules that the agent repeats itself, as they stand on the wire: five fields of cron in UTC, each `*` or a list of
//! numbers.

use chrono::{DateTime, Datelike as _, TimeDelta, Timelike as _};
use evenkeel_proto::maintmgr::RepeatedSchedule;

use crate::clock::Time;
use crate::truth::Span;

/// The seconds of a minute.
const MINUTE: i64 = 60;

/// One field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Field {
    /// `*`.
    Every,
    /// These numbers.
    Some(Vec<u32>),
}

impl Field {
    /// None if the text is neither `*` nor a list of numbers.
    fn read(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Every);
        }
        let numbers = text.split(',').map(|number| number.parse().ok());
        numbers.collect::<Option<_>>().map(Self::Some)
    }

    fn fits(&self, value: u32) -> bool {
        match self {
            Self::Every => true,
            Self::Some(values) => values.contains(&value),
        }
    }
}

/// A schedule that the agent repeats itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repeats {
    /// Minutes, hours, days of the month, months and days of the week.
    fields: [Field; 5],
    /// How long each window is open.
    length: TimeDelta,
}

impl Repeats {
    /// Reads five fields, minutes first. None if one of them is neither `*` nor a list of numbers.
    #[must_use]
    pub fn read(fields: [&str; 5], seconds: u32) -> Option<Self> {
        let [minutes, hours, day_month, month, day_week] = fields.map(Field::read);
        Some(Self {
            fields: [minutes?, hours?, day_month?, month?, day_week?],
            length: TimeDelta::seconds(i64::from(seconds)),
        })
    }

    pub(super) fn of(told: &RepeatedSchedule) -> Option<Self> {
        let fields = [
            &told.cron_minutes,
            &told.cron_hours,
            &told.cron_day_month,
            &told.cron_month,
            &told.cron_day_week,
        ];
        Self::read(fields.map(String::as_str), told.duration_seconds)
    }

    /// How long each window is open.
    #[must_use]
    pub const fn length(&self) -> TimeDelta {
        self.length
    }

    /// Whether a window of it is open exactly so.
    #[must_use]
    pub fn opens(&self, (start, end): Span) -> bool {
        end - start == self.length && self.begins_at(start)
    }

    /// The window that began last after one instant and not after another.
    #[must_use]
    pub fn begun(&self, after: Time, until: Time) -> Option<Span> {
        let mut start = DateTime::from_timestamp(until.timestamp().div_euclid(MINUTE) * MINUTE, 0)?;
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
        let of_month = day_month.fits(start.day());
        let of_week = day_week.fits(start.weekday().num_days_from_sunday());
        // If both are restricted, one of them is enough.
        let is_restricted = [day_month, day_week].map(|field| *field != Field::Every);
        let is_day = if is_restricted == [true, true] {
            of_month || of_week
        } else {
            of_month && of_week
        };
        let is_sharp = start.second() == 0 && start.nanosecond() == 0;
        let is_time = minutes.fits(start.minute()) && hours.fits(start.hour());
        is_sharp && is_time && is_day && month.fits(start.month())
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
        let read = |fields| Repeats::read(fields, 30).expect("a cron");
        let opens = |repeats: &Repeats, minutes| {
            repeats.opens((at(minutes), at(minutes) + TimeDelta::seconds(30)))
        };
        let night = read(["0,30", "2", "*", "*", "*"]);
        assert!(opens(&night, 120) && opens(&night, 150));
        assert!(!opens(&night, 121) && !opens(&night, 180));
        assert!(!night.opens((at(120), at(121))), "another length");
        let friday = read(["0", "0", "*", "*", "5"]);
        assert!(opens(&friday, 24 * 60) && !opens(&friday, 0));
        let either = read(["0", "0", "3", "*", "5"]);
        assert!(opens(&either, 24 * 60) && opens(&either, 48 * 60) && !opens(&either, 0));
    }

    #[test]
    fn the_window_that_began_last_counts() {
        let minutes = Repeats::read(["*", "*", "*", "*", "*"], 10).expect("a cron");
        let second = TimeDelta::seconds(1);
        let begun = minutes.begun(at(3) + second, at(5) + second);
        assert_eq!(begun, Some((at(5), at(5) + second * 10)));
        assert_eq!(minutes.begun(at(5), at(5) + second * 59), None);
    }

    #[test]
    fn what_the_ancestors_agent_cannot_read_is_none() {
        for bad in ["", "1-5", "*/2", "L", "1,"] {
            assert_eq!(Repeats::read([bad, "*", "*", "*", "*"], 10), None, "{bad}");
        }
    }
}
