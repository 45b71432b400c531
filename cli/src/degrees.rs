//! Degrees as people give and read them: decimal, without a rounding error.

use std::fmt;

/// Digits behind the point that are kept: a hundredth of a metre.
const DIGITS: usize = 7;

/// Degrees times 10,000,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Degrees(i32);

impl Degrees {
    /// Reads degrees north.
    pub fn latitude(text: &str) -> Result<Self, String> {
        Self::parse(text, 90)
    }

    /// Reads degrees east.
    pub fn longitude(text: &str) -> Result<Self, String> {
        Self::parse(text, 180)
    }

    fn parse(text: &str, most: i32) -> Result<Self, String> {
        let wrong = || format!("give degrees between -{most} and {most}, such as `13.405`");
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !all_digits(whole) || !all_digits(part) {
            return Err(wrong());
        }
        let kept = &part[..part.len().min(DIGITS)];
        let number: i32 = format!("{whole}{kept:0<DIGITS$}")
            .parse()
            .map_err(|_| wrong())?;
        if number > most * 10_i32.pow(7) {
            return Err(wrong());
        }
        Ok(Self(if text.starts_with('-') {
            -number
        } else {
            number
        }))
    }

    /// As the server has it.
    pub const fn from_the_wire(value: i32) -> Self {
        Self(value)
    }

    /// As the server wants it.
    pub const fn on_the_wire(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Degrees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = 10_u32.pow(7);
        let (whole, part) = (self.0.unsigned_abs() / one, self.0.unsigned_abs() % one);
        let sign = if self.0 < 0 { "-" } else { "" };
        let text = format!("{sign}{whole}.{part:0DIGITS$}");
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_read_as_they_print() {
        for (text, wire) in [
            ("52.52", 525_200_000),
            ("-33.8688", -338_688_000),
            ("0", 0),
            ("-0.0000001", -1),
            ("180", 1_800_000_000),
        ] {
            let read = Degrees::longitude(text).map(Degrees::on_the_wire);
            assert_eq!(read, Ok(wire), "{text}");
            assert_eq!(Degrees::from_the_wire(wire).to_string(), text);
        }
    }

    #[test]
    fn digits_that_nobody_can_measure_are_left_out() {
        let read = Degrees::latitude("52.520008199").map(Degrees::on_the_wire);
        assert_eq!(read, Ok(525_200_081));
    }

    #[test]
    fn what_is_no_place_on_earth_is_refused() {
        for bad in [
            "",
            "-",
            ".5",
            "90.0000001",
            "-91",
            "north",
            "1e1",
            "1.2.3",
            "99999999999",
            "--1",
            "5½",
        ] {
            assert!(Degrees::latitude(bad).is_err(), "{bad}");
        }
    }
}
