//! Versions that are compared by their numbers.

use std::fmt::{self, Display, Formatter};

/// The numbers of a version, such as 0, 10 and 2 of `0.10.2`. They are compared one after the other;
/// of two versions with the same first numbers, the longer one is greater.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VersionNumbers(Vec<u32>);

impl VersionNumbers {
    /// Maximum number of digits of a number.
    pub const MAX_DIGITS: usize = 9;

    /// Maximum number of numbers.
    pub const MAX_NUMBERS: usize = 8;

    /// Parses a version that consists of numbers and dots; `None` if it does not.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = |part: &str| {
            // `parse` accepts a sign.
            let is_number = part.bytes().all(|byte| byte.is_ascii_digit());
            let number: Option<u32> = part.parse().ok();
            number.filter(|_| is_number && part.len() <= Self::MAX_DIGITS)
        };
        let numbers: Option<Vec<u32>> = text.split('.').map(number).collect();
        numbers.filter(|numbers| numbers.len() <= Self::MAX_NUMBERS).map(Self)
    }
}

impl Display for VersionNumbers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, number) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            write!(f, "{number}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> VersionNumbers {
        VersionNumbers::parse(text).expect(text)
    }

    #[test]
    fn versions_are_compared_number_by_number() {
        let ascending = ["0", "0.9", "0.9.0", "0.9.12", "0.10", "1", "999999999.1"];
        for pair in ascending.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
        }
        assert_eq!(version("0.09"), version("0.9"));
        assert_eq!(version("0.10.2").to_string(), "0.10.2");
    }

    #[test]
    fn a_version_consists_of_a_few_short_numbers() {
        for text in ["", ".", "1.", ".1", "1..2", "1.2~rc1", "v1", "+1", "-1", "1234567890", "١"] {
            assert_eq!(VersionNumbers::parse(text), None, "{text}");
        }
        assert!(VersionNumbers::parse("1.2.3.4.5.6.7.8").is_some());
        assert!(VersionNumbers::parse("1.2.3.4.5.6.7.8.9").is_none());
    }
}
