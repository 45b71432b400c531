//! Hours of the week, in local time.

use std::fmt;
use std::str::FromStr;

use chrono::{Datelike as _, NaiveDateTime, Timelike as _, Weekday};
use serde::{Deserialize, Serialize};

/// Bit mask of all seven days.
const EVERY_DAY: u8 = 0b111_1111;

const MINUTES_PER_DAY: u32 = 24 * 60;

/// Hours of the week, such as `22:00-04:00` or `Mon-Fri,Sun 00:00-24:00`. Hours whose end is before
/// their start extend over midnight; the days are those of the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hours {
    text: String,
    /// One bit per day; Monday is the lowest bit.
    days: u8,
    /// Start, in minutes since midnight.
    from: u32,
    /// End (exclusive), in minutes since midnight.
    to: u32,
}

/// The text is not a valid specification of hours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not valid: {reason}; write hours as `22:00-04:00` or `Mon-Fri,Sun 00:00-24:00`"
)]
pub struct BadHours {
    /// The invalid text.
    pub text: String,
    /// Why the text is invalid.
    pub reason: &'static str,
}

impl Hours {
    /// Whether the hours contain a local time. Times that are skipped in spring never occur; times
    /// that occur twice in autumn count twice.
    pub fn contains(&self, at: NaiveDateTime) -> bool {
        let minute = at.hour() * 60 + at.minute();
        let today = self.includes_day(at.weekday());
        if self.from < self.to {
            return today && (self.from..self.to).contains(&minute);
        }
        let yesterday = self.includes_day(at.weekday().pred());
        (today && minute >= self.from) || (yesterday && minute < self.to)
    }

    fn includes_day(&self, day: Weekday) -> bool {
        self.days & day_bit(day) != 0
    }
}

impl From<Hours> for String {
    fn from(hours: Hours) -> Self {
        hours.text
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Hours {
    type Err = BadHours;

    fn from_str(text: &str) -> Result<Self, BadHours> {
        let bad = |reason| BadHours { text: text.to_owned(), reason };
        let parts: Vec<_> = text.split_whitespace().collect();
        let (days, span) = match parts.as_slice() {
            [span] => (EVERY_DAY, span),
            [days, span] => (parse_days(days).map_err(bad)?, span),
            _ => return Err(bad("there must be one time span, optionally after days")),
        };
        let (from, to) = span.split_once('-').ok_or_else(|| bad("the time span has no end"))?;
        let from = parse_minutes(from).map_err(bad)?;
        let to = parse_minutes(to).map_err(bad)?;
        if from == MINUTES_PER_DAY {
            return Err(bad("no day begins at 24:00"));
        }
        if from == to {
            return Err(bad("start and end are equal"));
        }
        Ok(Self { text: parts.join(" "), days, from, to })
    }
}

impl TryFrom<String> for Hours {
    type Error = BadHours;

    fn try_from(text: String) -> Result<Self, BadHours> {
        text.parse()
    }
}

fn day_bit(day: Weekday) -> u8 {
    1 << day.num_days_from_monday()
}

/// Parses `Sat,Sun` or `Mon-Fri`; a span may extend over the end of the week.
fn parse_days(text: &str) -> Result<u8, &'static str> {
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (parse_day(first)?, parse_day(last)?);
        days |= day_bit(day);
        while day != last {
            day = day.succ();
            days |= day_bit(day);
        }
    }
    Ok(days)
}

fn parse_day(text: &str) -> Result<Weekday, &'static str> {
    text.parse().map_err(|_| "unknown day")
}

/// Parses `HH:MM`, up to 24:00, as minutes since midnight.
fn parse_minutes(text: &str) -> Result<u32, &'static str> {
    const BAD: &str = "a time must be HH:MM";
    let number = |text: &str| match text.len() {
        2 if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<u32>().map_err(|_| BAD),
        _ => Err(BAD),
    };
    let (hour, minute) = text.split_once(':').ok_or(BAD)?;
    let (hour, minute) = (number(hour)?, number(minute)?);
    let all = hour * 60 + minute;
    if minute > 59 || all > MINUTES_PER_DAY {
        return Err("a day has 24 hours and an hour 60 minutes");
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use chrono::NaiveDate;

    use super::*;

    /// 2026-06-01 is a Monday.
    fn june(day: u32, hour: u32, minute: u32) -> NaiveDateTime {
        let date = NaiveDate::from_ymd_opt(2026, 6, day).unwrap();
        date.and_hms_opt(hour, minute, 59).unwrap()
    }

    fn parse_hours(text: &str) -> Hours {
        text.parse().unwrap()
    }

    #[test]
    fn hours_begin_with_their_first_minute_and_end_before_their_last() {
        let hours = parse_hours("09:30-17:00");
        assert!(!hours.contains(june(1, 9, 29)));
        assert!(hours.contains(june(1, 9, 30)));
        assert!(hours.contains(june(7, 16, 59)));
        assert!(!hours.contains(june(1, 17, 0)));
    }

    #[test]
    fn hours_over_midnight_belong_to_the_day_on_which_they_begin() {
        let nightly = parse_hours("22:00-04:00");
        for (day, hour, minute, inside) in [
            (1, 21, 59, false),
            (1, 22, 0, true),
            (2, 0, 0, true),
            (2, 3, 59, true),
            (2, 4, 0, false),
        ] {
            assert_eq!(nightly.contains(june(day, hour, minute)), inside);
        }
        let sunday = parse_hours("Sun 22:00-04:00");
        assert!(!sunday.contains(june(7, 3, 0)), "Saturday's night");
        assert!(sunday.contains(june(7, 23, 0)));
        assert!(sunday.contains(june(8, 3, 0)), "Monday, before the end");
        assert!(!sunday.contains(june(8, 23, 0)));
    }

    #[test]
    fn days_are_a_list_or_a_span_also_over_the_end_of_the_week() {
        let days_of_text = |text: &str| {
            let hours = parse_hours(text);
            let days = (1..=7).filter(|day| hours.contains(june(*day, 12, 0)));
            days.collect::<Vec<_>>()
        };
        assert_eq!(days_of_text("Sat,Sun 00:00-24:00"), [6, 7]);
        assert_eq!(days_of_text("mon-wed,friday 00:00-24:00"), [1, 2, 3, 5]);
        assert_eq!(days_of_text("Fri-Mon 00:00-24:00"), [1, 5, 6, 7]);
        assert_eq!(days_of_text("00:00-24:00").len(), 7);
    }

    #[test]
    fn a_day_of_24_hours_has_no_gap() {
        let all_day = parse_hours("00:00-24:00");
        assert!(all_day.contains(june(1, 0, 0)) && all_day.contains(june(1, 23, 59)));
    }

    #[test]
    fn invalid_hours_are_refused_with_a_reason() {
        for (text, why) in [
            ("", "one time span"),
            ("22:00", "no end"),
            ("9:00-17:00", "HH:MM"),
            ("22-04", "HH:MM"),
            ("22:00-04:00:00", "HH:MM"),
            ("+2:00-04:00", "HH:MM"),
            ("22:60-23:00", "60 minutes"),
            ("22:00-24:01", "24 hours"),
            ("24:00-04:00", "begins at 24:00"),
            ("04:00-04:00", "are equal"),
            ("Sa 00:00-24:00", "unknown day"),
            ("Mon- 00:00-24:00", "unknown day"),
            ("Sat, Sun 00:00-24:00", "one time span"),
        ] {
            let error = text.parse::<Hours>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
