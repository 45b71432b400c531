//! A test oracle that reads a clock minute by minute, with the zone data of another library.

use jiff::civil::{Date, Weekday, date};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::random_cron::RandomCron;

/// How many minutes before its first instant a watch begins. No clock goes back further.
const WARM_UP_MINUTES: i64 = 3 * 60;

/// The readings of a clock, minute by minute.
pub struct ClockWatch {
    minutes: Vec<ClockReading>,
    days: Vec<Day>,
    first_day: i64,
}

/// The reading of a clock at an instant. Instants and readings are in minutes since 1970.
struct ClockReading {
    at: i64,
    reading: i64,
    /// The reading that would follow the previous one without a change of the clock.
    due: i64,
    /// Whether the clock had this reading before.
    again: bool,
}

struct Day {
    date: Date,
    weekday: i8,
}

impl ClockWatch {
    /// Watches a clock from one minute to another.
    pub fn new(zone: &TimeZone, from: i64, until: i64) -> Self {
        let read = |at: i64| {
            let at_second = Timestamp::from_second(at * 60).expect("in range");
            let offset = i64::from(zone.to_offset(at_second).seconds());
            assert_eq!(offset % 60, 0, "the clocks of this zone differ by whole minutes");
            at + offset / 60
        };
        let begin = from - WARM_UP_MINUTES;
        let (mut due, mut highest) = (read(begin), i64::MIN);
        let mut minutes = Vec::new();
        for at in begin..until {
            let reading = read(at);
            let again = reading <= highest;
            highest = highest.max(reading);
            minutes.push(ClockReading { at, reading, due, again });
            due = reading + 1;
        }
        minutes.drain(..usize::try_from(WARM_UP_MINUTES).expect("positive"));
        let first_day = minutes[0].due.min(minutes[0].reading).div_euclid(1440);
        let last_day = highest.div_euclid(1440);
        let days = (first_day..=last_day).map(Day::nth).collect();
        Self { minutes, days, first_day }
    }

    /// The minutes at which the windows of a cron open.
    pub fn starts(&self, plan: &RandomCron) -> Vec<i64> {
        let fits_day: Vec<bool> = self.days.iter().map(|day| day.fits(plan)).collect();
        let fits = |reading: i64| {
            let day = usize::try_from(reading.div_euclid(1440) - self.first_day).expect("watched");
            let minute = usize::try_from(reading.rem_euclid(1440)).expect("positive");
            fits_day[day] && plan.hours.holds[minute / 60] && plan.minutes.holds[minute % 60]
        };
        let opens = |minute: &&ClockReading| {
            let skipped = minute.due..minute.reading;
            let again = minute.again && !plan.every_hour();
            skipped.into_iter().any(fits) || (!again && fits(minute.reading))
        };
        self.minutes.iter().filter(opens).map(|minute| minute.at).collect()
    }

    /// Whether the clock changes at this minute, or repeats a reading.
    pub fn is_at_clock_change(&self, at: i64) -> bool {
        let index = usize::try_from(at - self.minutes[0].at).expect("watched");
        let minute = &self.minutes[index];
        minute.again || minute.due != minute.reading
    }
}

impl Day {
    fn nth(day: i64) -> Self {
        let date = date(1970, 1, 1).checked_add(day.days()).expect("in range");
        Self { date, weekday: date.weekday().since(Weekday::Sunday) }
    }

    fn fits(&self, plan: &RandomCron) -> bool {
        let date = self.date;
        plan.fits_day(date.month(), date.day(), date.days_in_month(), self.weekday)
    }
}
