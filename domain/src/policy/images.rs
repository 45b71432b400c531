//! Rules for fetching images.

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// How an image may be fetched. The defaults limit nothing and leave the number of attempts to the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageRules {
    /// Maximum download rate of a node, in bytes per second; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// Maximum size of the file, in bytes; 0 for no limit.
    pub max_bytes: u64,
    /// Maximum number of attempts to fetch the file; 0 for the agent's default.
    pub attempts: u32,
}

impl ImageRules {
    /// Bounds of the rate limit.
    const MIN_BYTES_PER_SECOND: u64 = 1_024;
    const MAX_BYTES_PER_SECOND: u64 = 1 << 40;
    /// Bounds of the size limit.
    const MIN_FILE_BYTES: u64 = 1 << 20;
    const MAX_FILE_BYTES: u64 = 1 << 50;
    const MAX_ATTEMPTS: u32 = 100;

    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the bounds of the rules.
    ///
    /// # Errors
    /// Names the first rule that is out of bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        check_range(
            "imageRules.downloadBytesPerSecond",
            self.download_bytes_per_second,
            (Self::MIN_BYTES_PER_SECOND, Self::MAX_BYTES_PER_SECOND),
        )?;
        let sizes = (Self::MIN_FILE_BYTES, Self::MAX_FILE_BYTES);
        check_range("imageRules.maxBytes", self.max_bytes, sizes)?;
        if self.attempts > Self::MAX_ATTEMPTS {
            let why = format!("more than {}", Self::MAX_ATTEMPTS);
            return Err(Invalid::new("imageRules.attempts", why));
        }
        Ok(())
    }
}

fn check_range(field: &'static str, limit: u64, (least, most): (u64, u64)) -> Result<(), Invalid> {
    if limit == 0 || (least..=most).contains(&limit) {
        return Ok(());
    }
    let why = format!("must be 0, or between {least} and {most}");
    Err(Invalid::new(field, why))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn rules(download_bytes_per_second: u64, max_bytes: u64, attempts: u32) -> ImageRules {
        ImageRules { download_bytes_per_second, max_bytes, attempts }
    }

    #[test]
    fn rules_have_bounds() {
        let field = |rules: ImageRules| rules.check().expect_err("out of bounds").field;
        for bad in [1, 1_023, (1 << 40) + 1, u64::MAX] {
            let field = field(rules(bad, 0, 0));
            assert_eq!(field, "imageRules.downloadBytesPerSecond", "{bad}");
        }
        for bad in [1, (1 << 20) - 1, (1 << 50) + 1, u64::MAX] {
            assert_eq!(field(rules(0, bad, 0)), "imageRules.maxBytes", "{bad}");
        }
        for bad in [101, u32::MAX] {
            assert_eq!(field(rules(0, 0, bad)), "imageRules.attempts", "{bad}");
        }
        for good in [rules(0, 0, 0), rules(1_024, 1 << 20, 1), rules(1 << 40, 1 << 50, 100)] {
            assert_eq!(good.check(), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn rules_of_an_older_release_are_the_default_ones() {
        let read: ImageRules = serde_json::from_value(json!({})).expect("rules");
        assert!(read.is_default());
        let stored = serde_json::to_value(rules(4_096, 0, 3)).expect("JSON");
        assert_eq!(
            stored,
            json!({"download_bytes_per_second": 4_096, "max_bytes": 0, "attempts": 3})
        );
        let read: ImageRules = serde_json::from_value(stored).expect("rules");
        assert!(!read.is_default());
        assert_eq!(read, rules(4_096, 0, 3));
    }

    proptest! {
        /// Valid rules are within the numbers that the database, JSON and the wire format represent exactly.
        #[test]
        fn valid_rules_fit_into_the_database_json_and_the_wire(rate: u64, size: u64, attempts: u32, shift in 0u32..64) {
            let rules = rules(rate >> shift, size >> shift, attempts >> (shift / 2));
            if rules.check().is_ok() {
                prop_assert!(rules.download_bytes_per_second < 1 << 53 && rules.max_bytes < 1 << 53);
                prop_assert!(i32::try_from(rules.attempts).is_ok());
                let stored = serde_json::to_value(rules).expect("JSON");
                prop_assert_eq!(serde_json::from_value::<ImageRules>(stored).expect("rules"), rules);
            }
        }
    }
}
