//! Cron expressions, which select local times at which windows open.

mod field;
#[cfg(test)]
mod tests;

use std::fmt;

use chrono::{Datelike, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Timelike};

use self::field::{CronField, Values};
use crate::invalid::Invalid;

const MINUTES: CronField = CronField::new("cronMinutes", 0, 59);
const HOURS: CronField = CronField::new("cronHours", 0, 23);
const DAY_MONTH: CronField = CronField::new("cronDayMonth", 1, 31).with_last();
const MONTH: CronField = CronField::new("cronMonth", 1, 12).with_names(&[
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
]);
const DAY_WEEK: CronField = CronField::new("cronDayWeek", 0, 6)
    .with_names(&["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]);

/// Maximum number of consecutive months without a matching day: 29 February 2096 is followed by 29 February 2104.
const MAX_MONTHS_WITHOUT_MATCH: u32 = 8 * 12;

/// A cron expression of five fields: EIM's subset and a little more.
///
/// A field is `*` or a list, separated by commas, of numbers, ranges (`1-5`) and steps (`*/15`, `8-18/2`); the day of
/// the month may also be `L`, the last of its month. Months and days of the week may be named (`JAN`, `MON-FRI`), in upper
/// or lower case; they are stored as numbers. There are no spaces and no leading zeros; day 0 of the week is Sunday. If
/// both the day of the month and the day of the week are restricted, a day needs to fit only one of them. `*` and `*/1` do
/// not restrict; `*/2` does, although some cron programs let a day fit both fields then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    texts: [String; 5],
    minutes: Values,
    hours: Values,
    day_month: Values,
    month: Values,
    day_week: Values,
}

impl Cron {
    /// Maximum length of a field, in bytes; a list of all minutes has 169.
    pub const MAX_FIELD_BYTES: usize = 200;

    /// Parses the five fields.
    ///
    /// # Errors
    /// Names the first invalid field as EIM's API names it.
    pub fn parse(
        minutes: &str,
        hours: &str,
        day_month: &str,
        month: &str,
        day_week: &str,
    ) -> Result<Self, Invalid> {
        let (month, day_week) = (MONTH.without_names(month), DAY_WEEK.without_names(day_week));
        Ok(Self {
            minutes: MINUTES.parse(minutes)?,
            hours: HOURS.parse(hours)?,
            day_month: DAY_MONTH.parse(day_month)?,
            month: MONTH.parse(&month)?,
            day_week: DAY_WEEK.parse(&day_week)?,
            texts: [minutes.to_owned(), hours.to_owned(), day_month.to_owned(), month, day_week],
        })
    }

    /// Refuses an expression that matches no day, such as 30 February.
    ///
    /// # Errors
    /// No selected month has a selected day.
    pub fn check_occurs(&self) -> Result<(), Invalid> {
        let leap_year = NaiveDate::from_ymd_opt(2000, 1, 1);
        match leap_year.and_then(|first| self.next_day(first)) {
            Some(_) => Ok(()),
            None => Err(Invalid::new(
                "cronDayMonth",
                "none of the months has such a day, so the schedule would never open",
            )),
        }
    }

    /// The minutes, as given.
    #[must_use]
    pub fn minutes(&self) -> &str {
        &self.texts[0]
    }

    /// The hours, as given.
    #[must_use]
    pub fn hours(&self) -> &str {
        &self.texts[1]
    }

    /// The days of the month, as given.
    #[must_use]
    pub fn day_month(&self) -> &str {
        &self.texts[2]
    }

    /// The months, with numbers in place of names.
    #[must_use]
    pub fn month(&self) -> &str {
        &self.texts[3]
    }

    /// The days of the week, with numbers in place of names.
    #[must_use]
    pub fn day_week(&self) -> &str {
        &self.texts[4]
    }

    /// The same expression in EIM's own subset, `*` or a list of numbers, in the order of the fields; `None` if the last
    /// day of the month cannot be written as a number.
    #[must_use]
    pub fn as_lists(&self) -> Option<[String; 5]> {
        let mut day_month = self.day_month;
        if day_month.last && !day_month.every && day_month.bits >> 28 != 0b1111 {
            day_month.bits |= 1 << self.common_month_length()?;
        }
        Some([
            MINUTES.format_list(self.minutes, self.minutes.bits == MINUTES.all()),
            HOURS.format_list(self.hours, self.opens_every_hour()),
            DAY_MONTH.format_list(day_month, day_month.every),
            MONTH.format_list(self.month, self.month.bits == MONTH.all()),
            DAY_WEEK.format_list(self.day_week, self.day_week.every),
        ])
    }

    /// Number of days of the selected months, if they all have the same number in every year.
    fn common_month_length(&self) -> Option<u32> {
        const MONTHS_OF_31_DAYS: u64 = 0b1_0101_1010_1010;
        const MONTHS_OF_30_DAYS: u64 = 0b0_1010_0101_0000;
        match self.month.bits {
            months if months & !MONTHS_OF_31_DAYS == 0 => Some(31),
            months if months & !MONTHS_OF_30_DAYS == 0 => Some(30),
            _ => None,
        }
    }

    /// Whether it opens in every hour of a day.
    #[must_use]
    pub fn opens_every_hour(&self) -> bool {
        self.hours.bits == HOURS.all()
    }

    /// The first matching minute of a local clock from an instant on; `None` if there is none, as for 30 February.
    pub(super) fn next_local_time(&self, from: NaiveDateTime) -> Option<NaiveDateTime> {
        let minute = NaiveTime::from_hms_opt(from.hour(), from.minute(), 0)?;
        let from = match from.date().and_time(minute) {
            exact if exact == from => exact,
            begun => begun.checked_add_signed(TimeDelta::minutes(1))?,
        };
        let mut day = self.next_day(from.date())?;
        if day == from.date() {
            if let Some(time) = self.next_time(from.hour(), from.minute()) {
                return Some(day.and_time(time));
            }
            day = self.next_day(day.succ_opt()?)?;
        }
        Some(day.and_time(self.next_time(0, 0)?))
    }

    fn next_time(&self, hour: u32, minute: u32) -> Option<NaiveTime> {
        if self.hours.contains(hour)
            && let Some(minute) = self.minutes.next(minute)
        {
            return NaiveTime::from_hms_opt(hour, minute, 0);
        }
        NaiveTime::from_hms_opt(self.hours.next(hour + 1)?, self.minutes.next(0)?, 0)
    }

    fn next_day(&self, from: NaiveDate) -> Option<NaiveDate> {
        let mut from = from;
        for _ in 0..=MAX_MONTHS_WITHOUT_MATCH {
            if self.month.contains(from.month())
                && let Some(day) = self.days_of_month(from).next(from.day())
            {
                return from.with_day(day);
            }
            let (year, month) = match from.month() {
                12 => (from.year().checked_add(1)?, 1),
                month => (from.year(), month + 1),
            };
            from = NaiveDate::from_ymd_opt(year, month, 1)?;
        }
        None
    }

    /// The matching days in the month of this day.
    fn days_of_month(&self, day: NaiveDate) -> Values {
        let length = u32::from(day.num_days_in_month());
        let all = ((1 << length) - 1) << 1;
        let mut by_date = self.day_month.bits;
        if self.day_month.last {
            by_date |= 1 << length;
        }
        // The weekday of the first day determines the others: repeats the days of the week, seven by seven.
        let weekday = day.weekday().num_days_from_sunday();
        let first = (weekday + 35 - (day.day() - 1)) % 7;
        let week = self.day_week.bits | self.day_week.bits << 7;
        let week = (week >> first) & 0b111_1111;
        let by_weekday = (0..5).fold(0, |days, n| days | week << (7 * n)) << 1;
        let bits = if self.day_month.every || self.day_week.every {
            by_date & by_weekday
        } else {
            by_date | by_weekday
        };
        Values { bits: bits & all, ..Values::default() }
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts.join(" "))
    }
}
