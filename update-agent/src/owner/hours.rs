//! Hours of the week, by the clock on the wall.

use std::fmt;
use std::str::FromStr;

use chrono::{Datelike as _, NaiveDateTime, Timelike as _, Weekday};
use serde::Deserialize;

/// All seven days.
const EVERY_DAY: u8 = 0b111_1111;

const MINUTES_OF_A_DAY: u32 = 24 * 60;

/// Hours of the week, such as `22:00-04:00` or `Mon-Fri,Sun 00:00-24:00`. Those that end before they begin go over
/// midnight: the days are those on which they begin.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Hours {
    text: String,
    /// A bit a day, Monday's is the lowest.
    days: u8,
    /// In minutes since midnight.
    from: u32,
    /// In minutes since midnight; not part of the hours any more.
    to: u32,
}

/// The text names no hours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} are no hours: {why}; they are written as `22:00-04:00` or `Mon-Fri,Sun 00:00-24:00`"
)]
pub struct BadHours {
    /// What was written.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl Hours {
    /// Whether they contain a time of the node's own zone. What the clock jumps over in spring is never reached, and what
    /// it shows twice in autumn counts twice.
    pub fn contain(&self, at: NaiveDateTime) -> bool {
        let minute = at.hour() * 60 + at.minute();
        let today = self.on(at.weekday());
        if self.from < self.to {
            return today && (self.from..self.to).contains(&minute);
        }
        let yesterday = self.on(at.weekday().pred());
        (today && minute >= self.from) || (yesterday && minute < self.to)
    }

    fn on(&self, day: Weekday) -> bool {
        self.days & bit(day) != 0
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
        let bad = |why| BadHours {
            text: text.to_owned(),
            why,
        };
        let words: Vec<_> = text.split_whitespace().collect();
        let (days, span) = match words.as_slice() {
            [span] => (EVERY_DAY, span),
            [days, span] => (days_of(days).map_err(bad)?, span),
            _ => return Err(bad("there must be one time, after days if need be")),
        };
        let (from, to) = span
            .split_once('-')
            .ok_or_else(|| bad("they have no end"))?;
        let from = minutes(from).map_err(bad)?;
        let to = minutes(to).map_err(bad)?;
        if from == MINUTES_OF_A_DAY {
            return Err(bad("no day begins at 24:00"));
        }
        if from == to {
            return Err(bad("they end when they begin"));
        }
        Ok(Self {
            text: words.join(" "),
            days,
            from,
            to,
        })
    }
}

impl TryFrom<String> for Hours {
    type Error = BadHours;

    fn try_from(text: String) -> Result<Self, BadHours> {
        text.parse()
    }
}

fn bit(day: Weekday) -> u8 {
    1 << day.num_days_from_monday()
}

/// `Sat,Sun` or `Mon-Fri`; a span may go over the end of the week.
fn days_of(text: &str) -> Result<u8, &'static str> {
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (day(first)?, day(last)?);
        days |= bit(day);
        while day != last {
            day = day.succ();
            days |= bit(day);
        }
    }
    Ok(days)
}

fn day(text: &str) -> Result<Weekday, &'static str> {
    text.parse().map_err(|_| "a day is not known")
}

/// Minutes since midnight of `HH:MM`, up to 24:00.
fn minutes(text: &str) -> Result<u32, &'static str> {
    const BAD: &str = "a time must be HH:MM";
    let number = |text: &str| match text.len() {
        2 if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<u32>().map_err(|_| BAD),
        _ => Err(BAD),
    };
    let (hour, minute) = text.split_once(':').ok_or(BAD)?;
    let (hour, minute) = (number(hour)?, number(minute)?);
    let all = hour * 60 + minute;
    if minute > 59 || all > MINUTES_OF_A_DAY {
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

    fn hours(text: &str) -> Hours {
        text.parse().unwrap()
    }

    #[test]
    fn hours_begin_with_their_first_minute_and_end_before_their_last() {
        let hours = hours("09:30-17:00");
        assert!(!hours.contain(june(1, 9, 29)));
        assert!(hours.contain(june(1, 9, 30)));
        assert!(hours.contain(june(7, 16, 59)));
        assert!(!hours.contain(june(1, 17, 0)));
    }

    #[test]
    fn hours_over_midnight_belong_to_the_day_on_which_they_begin() {
        let nightly = hours("22:00-04:00");
        for (day, hour, minute, inside) in [
            (1, 21, 59, false),
            (1, 22, 0, true),
            (2, 0, 0, true),
            (2, 3, 59, true),
            (2, 4, 0, false),
        ] {
            assert_eq!(nightly.contain(june(day, hour, minute)), inside);
        }
        let sunday = hours("Sun 22:00-04:00");
        assert!(!sunday.contain(june(7, 3, 0)), "that is Saturday's night");
        assert!(sunday.contain(june(7, 23, 0)));
        assert!(sunday.contain(june(8, 3, 0)), "Monday, before the end");
        assert!(!sunday.contain(june(8, 23, 0)));
    }

    #[test]
    fn days_are_a_list_or_a_span_also_over_the_end_of_the_week() {
        let on = |text: &str| {
            let hours = hours(text);
            let days = (1..=7).filter(|day| hours.contain(june(*day, 12, 0)));
            days.collect::<Vec<_>>()
        };
        assert_eq!(on("Sat,Sun 00:00-24:00"), [6, 7]);
        assert_eq!(on("mon-wed,friday 00:00-24:00"), [1, 2, 3, 5]);
        assert_eq!(on("Fri-Mon 00:00-24:00"), [1, 5, 6, 7]);
        assert_eq!(on("00:00-24:00").len(), 7);
    }

    #[test]
    fn a_day_of_24_hours_has_no_gap() {
        let whole = hours("00:00-24:00");
        assert!(whole.contain(june(1, 0, 0)) && whole.contain(june(1, 23, 59)));
    }

    #[test]
    fn what_names_no_hours_is_refused_with_a_reason() {
        for (text, why) in [
            ("", "one time"),
            ("22:00", "no end"),
            ("9:00-17:00", "HH:MM"),
            ("22-04", "HH:MM"),
            ("22:00-04:00:00", "HH:MM"),
            ("+2:00-04:00", "HH:MM"),
            ("22:60-23:00", "60 minutes"),
            ("22:00-24:01", "24 hours"),
            ("24:00-04:00", "begins at 24:00"),
            ("04:00-04:00", "end when they begin"),
            ("Sa 00:00-24:00", "a day"),
            ("Mon- 00:00-24:00", "a day"),
            ("Sat, Sun 00:00-24:00", "one time"),
        ] {
            let error = text.parse::<Hours>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
