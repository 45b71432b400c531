//! Decimal degrees without rounding errors.

use std::fmt;

/// Stored digits after the decimal point; 7 digits are about a centimetre.
const DIGITS: usize = 7;

/// Degrees times 10,000,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Degrees(i32);

impl Degrees {
    /// Parses a latitude.
    pub fn latitude(text: &str) -> Result<Self, String> {
        Self::parse(text, 90)
    }

    /// Parses a longitude.
    pub fn longitude(text: &str) -> Result<Self, String> {
        Self::parse(text, 180)
    }

    fn parse(text: &str, most: i32) -> Result<Self, String> {
        let wrong = || format!("give degrees between -{most} and {most}, such as `13.405`");
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (integer, part) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if integer.is_empty() || !all_digits(integer) || !all_digits(part) {
            return Err(wrong());
        }
        let fraction = &part[..part.len().min(DIGITS)];
        let number: i32 = format!("{integer}{fraction:0<DIGITS$}").parse().map_err(|_| wrong())?;
        if number > most * 10_i32.pow(7) {
            return Err(wrong());
        }
        Ok(Self(if text.starts_with('-') { -number } else { number }))
    }

    /// Converts from the integer of the REST API.
    pub const fn from_api(value: i32) -> Self {
        Self(value)
    }

    /// Converts to the integer of the REST API.
    pub const fn to_api(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Degrees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = 10_u32.pow(7);
        let (integer, part) = (self.0.unsigned_abs() / one, self.0.unsigned_abs() % one);
        let sign = if self.0 < 0 { "-" } else { "" };
        let text = format!("{sign}{integer}.{part:0DIGITS$}");
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
            let read = Degrees::longitude(text).map(Degrees::to_api);
            assert_eq!(read, Ok(wire), "{text}");
            assert_eq!(Degrees::from_api(wire).to_string(), text);
        }
    }

    #[test]
    fn excess_digits_are_dropped() {
        let read = Degrees::latitude("52.520008199").map(Degrees::to_api);
        assert_eq!(read, Ok(525_200_081));
    }

    #[test]
    fn invalid_coordinates_are_rejected() {
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
