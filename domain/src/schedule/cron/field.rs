//! One field of a cron.

use super::Cron;
use crate::invalid::Invalid;

/// What a field is called and which numbers it may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    may_be_last: bool,
}

/// The numbers that a field holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Values {
    /// One bit a number.
    pub bits: u64,
    /// Whether it was written as every number, which does not restrict; a list of all of them does.
    pub every: bool,
    /// Whether the last day of the month is among them.
    pub last: bool,
}

impl Values {
    pub fn contains(self, value: u32) -> bool {
        self.bits >> value & 1 == 1
    }

    /// The least number that is not below `from`, which is below 64.
    pub fn next(self, from: u32) -> Option<u32> {
        let rest = self.bits >> from << from;
        (rest != 0).then(|| rest.trailing_zeros())
    }
}

impl Field {
    pub const fn new(name: &'static str, min: u32, max: u32) -> Self {
        Self {
            name,
            min,
            max,
            may_be_last: false,
        }
    }

    /// Allows `L` in it.
    pub const fn with_last(self) -> Self {
        Self {
            may_be_last: true,
            ..self
        }
    }

    /// The bits of all its numbers.
    pub const fn all(self) -> u64 {
        span(self.min, self.max)
    }

    /// Reads a field.
    pub fn parse(self, text: &str) -> Result<Values, Invalid> {
        if text.len() > Cron::MAX {
            return Err(self.invalid(format!("longer than {} bytes", Cron::MAX)));
        }
        if text == "*" {
            return Ok(self.every());
        }
        text.split(',').try_fold(Values::default(), |values, part| {
            let part = self.part(part)?;
            Ok(Values {
                bits: values.bits | part.bits,
                every: values.every || part.every,
                last: values.last || part.last,
            })
        })
    }

    const fn every(self) -> Values {
        Values {
            bits: self.all(),
            every: true,
            last: false,
        }
    }

    /// Reads what stands between two commas.
    fn part(self, part: &str) -> Result<Values, Invalid> {
        if part == "L" && self.may_be_last {
            return Ok(Values {
                last: true,
                ..Values::default()
            });
        }
        let (span, step) = match part.split_once('/') {
            None => (part, None),
            Some((span, step)) => (span, Some(self.step(part, step)?)),
        };
        if span == "*" && step == Some(1) {
            return Ok(self.every());
        }
        let (first, last) = match (span.split_once('-'), step) {
            (Some((first, last)), _) => (self.number(first)?, self.number(last)?),
            (None, Some(_)) if span == "*" => (self.min, self.max),
            (None, None) => (self.number(span)?, self.number(span)?),
            (None, Some(_)) => {
                return Err(
                    self.invalid(format!("{part:?}: a step needs `*` or a range before it"))
                );
            }
        };
        if last < first {
            return Err(self.invalid(format!("{part:?}: a range cannot end before it begins")));
        }
        let bits = (first..=last).step_by(step.unwrap_or(1));
        Ok(Values {
            bits: bits.fold(0, |bits, value| bits | 1 << value),
            ..Values::default()
        })
    }

    fn number(self, digits: &str) -> Result<u32, Invalid> {
        let value = plain(digits).filter(|value| (self.min..=self.max).contains(value));
        value.ok_or_else(|| {
            let allowed = if self.may_be_last {
                "lists, ranges (1-5), steps (*/5) and L for the last day"
            } else {
                "lists, ranges (1-5) and steps (*/5)"
            };
            self.invalid(format!(
                "{digits:?} is not a number from {} to {} without leading zeros; `*`, {allowed} can be given",
                self.min, self.max
            ))
        })
    }

    fn step(self, part: &str, digits: &str) -> Result<usize, Invalid> {
        let value = plain(digits).filter(|value| (1..=self.max).contains(value));
        value.map(|value| value as usize).ok_or_else(|| {
            self.invalid(format!(
                "{part:?}: a step is a number from 1 to {}, without leading zeros",
                self.max
            ))
        })
    }

    fn invalid(self, why: impl Into<String>) -> Invalid {
        Invalid::new(self.name, why)
    }

    /// Writes numbers as a list, or as `*`.
    pub fn list(self, values: Values, as_star: bool) -> String {
        if as_star {
            return "*".to_owned();
        }
        let numbers = (self.min..=self.max).filter(|value| values.contains(*value));
        numbers
            .map(|value| value.to_string())
            .collect::<Vec<_>>()
            .join(",")
    }
}

const fn span(first: u32, last: u32) -> u64 {
    (u64::MAX >> (63 - last)) >> first << first
}

/// A number of one or two digits without a sign and without leading zeros.
fn plain(digits: &str) -> Option<u32> {
    let is_plain = matches!(
        digits.as_bytes(),
        [b'0'..=b'9'] | [b'1'..=b'9', b'0'..=b'9']
    );
    is_plain.then(|| digits.parse().ok()).flatten()
}
