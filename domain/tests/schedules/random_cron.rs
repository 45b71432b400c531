//! Random crons, each with the numbers of its fields.

use rand::Rng;
use rand::rngs::StdRng;

/// A cron text and its expected meaning.
pub struct RandomCron {
    pub texts: [String; 5],
    pub minutes: Numbers,
    pub hours: Numbers,
    pub day_month: Numbers,
    pub month: Numbers,
    pub day_week: Numbers,
}

/// The numbers of a field.
pub struct Numbers {
    pub holds: [bool; 60],
    pub star: bool,
    pub last: bool,
}

impl RandomCron {
    pub fn random(rng: &mut StdRng) -> Self {
        let (t0, minutes) = field(rng, 0, 59, false);
        let (t1, hours) = field(rng, 0, 23, false);
        let (t2, day_month) = field(rng, 1, 31, true);
        let (t3, month) = field(rng, 1, 12, false);
        let (t4, day_week) = field(rng, 0, 6, false);
        Self { texts: [t0, t1, t2, t3, t4], minutes, hours, day_month, month, day_week }
    }

    pub fn fields(&self) -> [&str; 5] {
        [0, 1, 2, 3, 4].map(|n| self.texts[n].as_str())
    }

    pub fn every_hour(&self) -> bool {
        self.hours.holds[..24].iter().all(|holds| *holds)
    }

    /// Whether a day matches; Sunday is 0.
    pub fn fits_day(&self, month: i8, day: i8, of: i8, weekday: i8) -> bool {
        let index = |n: i8| usize::try_from(n).expect("not negative");
        if !self.month.holds[index(month)] {
            return false;
        }
        let by_date = self.day_month.holds[index(day)] || (self.day_month.last && day == of);
        let by_weekday = self.day_week.holds[index(weekday)];
        match (self.day_month.star, self.day_week.star) {
            (true, true) => true,
            (true, false) => by_weekday,
            (false, true) => by_date,
            (false, false) => by_date || by_weekday,
        }
    }
}

fn field(rng: &mut StdRng, min: usize, max: usize, may_be_last: bool) -> (String, Numbers) {
    let mut numbers = Numbers { holds: [false; 60], star: false, last: false };
    if rng.random_ratio(2, 5) {
        numbers.star = true;
        numbers.holds[min..=max].fill(true);
        return ("*".to_owned(), numbers);
    }
    let parts =
        (0..rng.random_range(1..=3)).map(|_| part(rng, (min, max), may_be_last, &mut numbers));
    (parts.collect::<Vec<_>>().join(","), numbers)
}

fn part(
    rng: &mut StdRng,
    (min, max): (usize, usize),
    may_be_last: bool,
    numbers: &mut Numbers,
) -> String {
    let from = rng.random_range(min..=max);
    let to = rng.random_range(from..=max);
    let step = rng.random_range(2..=max);
    let (text, from, to, step) = match rng.random_range(0..8) {
        0 => (format!("{from}-{to}"), from, to, 1),
        1 => (format!("{from}-{to}/{step}"), from, to, step),
        2 => (format!("*/{step}"), min, max, step),
        3 if may_be_last => {
            numbers.last = true;
            return "L".to_owned();
        }
        _ => (from.to_string(), from, from, 1),
    };
    let mut number = from;
    while number <= to {
        numbers.holds[number] = true;
        number += step;
    }
    text
}
