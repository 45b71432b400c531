//! A judge that watches a clock minute by minute, with the zone data of another library.

use jiff::civil::{Date, Weekday, date};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::random::Plan;

/// How long before its first instant a watch begins: no clock goes back further.
const WARM_UP: i64 = 3 * 60;

/// What a clock showed, minute by minute.
pub struct Watch {
    minutes: Vec<Shown>,
    days: Vec<Day>,
    first_day: i64,
}

/// What the clock showed at an instant. Instants and readings are counted in minutes, both from 1970.
struct Shown {
    at: i64,
    reading: i64,
    /// The reading after the one before, if nobody had touched the clock.
    due: i64,
    /// Whether the clock had shown this before.
    again: bool,
}

struct Day {
    date: Date,
    weekday: i8,
}

impl Watch {
    /// Watches a clock from one minute to another.
    pub fn of(zone: &TimeZone, from: i64, until: i64) -> Self {
        let read = |at: i64| {
            let at_second = Timestamp::from_second(at * 60).expect("in range");
            let offset = i64::from(zone.to_offset(at_second).seconds());
            assert_eq!(
                offset % 60,
                0,
                "the clocks of this zone differ by whole minutes"
            );
            at + offset / 60
        };
        let begin = from - WARM_UP;
        let (mut due, mut highest) = (read(begin), i64::MIN);
        let mut minutes = Vec::new();
        for at in begin..until {
            let reading = read(at);
            let again = reading <= highest;
            highest = highest.max(reading);
            minutes.push(Shown {
                at,
                reading,
                due,
                again,
            });
            due = reading + 1;
        }
        minutes.drain(..usize::try_from(WARM_UP).expect("positive"));
        let first_day = minutes[0].due.min(minutes[0].reading).div_euclid(1440);
        let last_day = highest.div_euclid(1440);
        let days = (first_day..=last_day).map(Day::nth).collect();
        Self {
            minutes,
            days,
            first_day,
        }
    }

    /// The minutes at which a plan opens.
    pub fn starts(&self, plan: &Plan) -> Vec<i64> {
        let fits_day: Vec<bool> = self.days.iter().map(|day| day.fits(plan)).collect();
        let fits = |reading: i64| {
            let day = usize::try_from(reading.div_euclid(1440) - self.first_day).expect("watched");
            let minute = usize::try_from(reading.rem_euclid(1440)).expect("positive");
            fits_day[day] && plan.hours.holds[minute / 60] && plan.minutes.holds[minute % 60]
        };
        let opens = |shown: &&Shown| {
            let skipped = shown.due..shown.reading;
            let again = shown.again && !plan.every_hour();
            skipped.into_iter().any(fits) || (!again && fits(shown.reading))
        };
        self.minutes
            .iter()
            .filter(opens)
            .map(|shown| shown.at)
            .collect()
    }

    /// Whether the clock is changed at this minute, or it shows again what it has shown.
    pub fn is_odd(&self, at: i64) -> bool {
        let index = usize::try_from(at - self.minutes[0].at).expect("watched");
        let shown = &self.minutes[index];
        shown.again || shown.due != shown.reading
    }
}

impl Day {
    fn nth(day: i64) -> Self {
        let date = date(1970, 1, 1).checked_add(day.days()).expect("in range");
        Self {
            date,
            weekday: date.weekday().since(Weekday::Sunday),
        }
    }

    fn fits(&self, plan: &Plan) -> bool {
        let date = self.date;
        plan.fits_day(date.month(), date.day(), date.days_in_month(), self.weekday)
    }
}
