//! One field of a cron expression.

use super::Cron;
use crate::invalid::Invalid;

/// Name of a field and the range of its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct CronField {
    name: &'static str,
    min: u32,
    max: u32,
    allows_last: bool,
    /// Names of the numbers from `min` on; empty if they have none.
    names: &'static [&'static str],
}

/// Numbers that a field selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Values {
    /// One bit for each number.
    pub bits: u64,
    /// Whether it was written as every number, which does not restrict; a list of all numbers does.
    pub every: bool,
    /// Whether the last day of the month is selected.
    pub last: bool,
}

impl Values {
    pub fn contains(self, value: u32) -> bool {
        self.bits >> value & 1 == 1
    }

    /// The least selected number that is not below `from`, which is below 64.
    pub fn next(self, from: u32) -> Option<u32> {
        let rest = self.bits >> from << from;
        (rest != 0).then(|| rest.trailing_zeros())
    }
}

impl CronField {
    pub const fn new(name: &'static str, min: u32, max: u32) -> Self {
        Self { name, min, max, allows_last: false, names: &[] }
    }

    /// Allows names in place of the numbers.
    pub const fn with_names(self, names: &'static [&'static str]) -> Self {
        Self { names, ..self }
    }

    /// The text of a field with numbers in place of names. Clients of EIM know no names.
    pub fn without_names(self, text: &str) -> String {
        let (mut numbers, mut is_step) = (String::new(), false);
        for word in text.split_inclusive([',', '-', '/']) {
            let letters = word.trim_end_matches([',', '-', '/']);
            let number = self.number_of(letters).filter(|_| !is_step);
            let number = number.map(|number| number.to_string());
            numbers.push_str(number.as_deref().unwrap_or(letters));
            numbers.push_str(&word[letters.len()..]);
            is_step = word.ends_with('/');
        }
        numbers
    }

    /// The number of a name, in upper or lower case.
    fn number_of(self, name: &str) -> Option<u32> {
        let numbers = (self.min..=self.max).zip(self.names);
        numbers
            .into_iter()
            .find_map(|(number, own)| own.eq_ignore_ascii_case(name).then_some(number))
    }

    /// Allows `L` in the field.
    pub const fn with_last(self) -> Self {
        Self { allows_last: true, ..self }
    }

    /// The bits of all numbers of the field.
    pub const fn all(self) -> u64 {
        span(self.min, self.max)
    }

    pub fn parse(self, text: &str) -> Result<Values, Invalid> {
        if text.len() > Cron::MAX_FIELD_BYTES {
            return Err(self.invalid(format!("longer than {} bytes", Cron::MAX_FIELD_BYTES)));
        }
        if text == "*" {
            return Ok(self.every());
        }
        text.split(',').try_fold(Values::default(), |values, part| {
            let part = self.parse_part(part)?;
            Ok(Values {
                bits: values.bits | part.bits,
                every: values.every || part.every,
                last: values.last || part.last,
            })
        })
    }

    const fn every(self) -> Values {
        Values { bits: self.all(), every: true, last: false }
    }

    /// Parses the text between two commas.
    fn parse_part(self, part: &str) -> Result<Values, Invalid> {
        if part == "L" && self.allows_last {
            return Ok(Values { last: true, ..Values::default() });
        }
        let (span, step) = match part.split_once('/') {
            None => (part, None),
            Some((span, step)) => (span, Some(self.parse_step(part, step)?)),
        };
        if span == "*" && step == Some(1) {
            return Ok(self.every());
        }
        let (first, last) = match (span.split_once('-'), step) {
            (Some((first, last)), _) => (self.parse_number(first)?, self.parse_number(last)?),
            (None, Some(_)) if span == "*" => (self.min, self.max),
            (None, None) => (self.parse_number(span)?, self.parse_number(span)?),
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
        Ok(Values { bits: bits.fold(0, |bits, value| bits | 1 << value), ..Values::default() })
    }

    fn parse_number(self, digits: &str) -> Result<u32, Invalid> {
        let value =
            parse_plain_number(digits).filter(|value| (self.min..=self.max).contains(value));
        value.ok_or_else(|| {
            let allowed = match (self.allows_last, self.names) {
                (true, _) => "lists, ranges (1-5), steps (*/5) and L for the last day".to_owned(),
                (false, []) => "lists, ranges (1-5) and steps (*/5)".to_owned(),
                (false, [first, ..]) => {
                    format!("names such as {first}, lists, ranges (1-5) and steps (*/5)")
                }
            };
            self.invalid(format!(
                "{digits:?} is not a number from {} to {} without leading zeros; `*`, {allowed} can be given",
                self.min, self.max
            ))
        })
    }

    fn parse_step(self, part: &str, digits: &str) -> Result<usize, Invalid> {
        let value = parse_plain_number(digits).filter(|value| (1..=self.max).contains(value));
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

    /// Formats numbers as a list, or as `*`.
    pub fn format_list(self, values: Values, as_star: bool) -> String {
        if as_star {
            return "*".to_owned();
        }
        let numbers = (self.min..=self.max).filter(|value| values.contains(*value));
        numbers.map(|value| value.to_string()).collect::<Vec<_>>().join(",")
    }
}

const fn span(first: u32, last: u32) -> u64 {
    (u64::MAX >> (63 - last)) >> first << first
}

/// Parses a number of one or two digits without a sign and without leading zeros.
fn parse_plain_number(digits: &str) -> Option<u32> {
    let is_plain = matches!(digits.as_bytes(), [b'0'..=b'9'] | [b'1'..=b'9', b'0'..=b'9']);
    is_plain.then(|| digits.parse().ok()).flatten()
}
