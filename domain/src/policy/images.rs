//! How an image may be brought to what a policy wishes for.

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// How an image may be fetched. The usual rules limit nothing and leave the attempts to the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageRules {
    /// The most bytes that a node fetches in a second; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// The most bytes that the file may have; 0 for no limit.
    pub max_bytes: u64,
    /// How often it is tried to fetch the file before that is a failure; 0 for as often as usual.
    pub attempts: u32,
}

impl ImageRules {
    /// The least and the greatest limit of bytes in a second.
    const SLOWEST: u64 = 1_024;
    const FASTEST: u64 = 1 << 40;
    /// The least and the greatest limit of a file, in bytes.
    const SMALLEST: u64 = 1 << 20;
    const LARGEST: u64 = 1 << 50;
    /// The greatest limit of attempts.
    const MOST: u32 = 100;

    /// Whether they say nothing of their own.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }

    /// Looks whether rules that were given can be.
    ///
    /// # Errors
    /// Names the first one that is out of bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        within(
            "imageRules.downloadBytesPerSecond",
            self.download_bytes_per_second,
            (Self::SLOWEST, Self::FASTEST),
        )?;
        let sizes = (Self::SMALLEST, Self::LARGEST);
        within("imageRules.maxBytes", self.max_bytes, sizes)?;
        if self.attempts > Self::MOST {
            let why = format!("more than {}", Self::MOST);
            return Err(Invalid::new("imageRules.attempts", why));
        }
        Ok(())
    }
}

fn within(field: &'static str, limit: u64, (least, most): (u64, u64)) -> Result<(), Invalid> {
    if limit == 0 || (least..=most).contains(&limit) {
        return Ok(());
    }
    let why = format!("neither 0 nor between {least} and {most}");
    Err(Invalid::new(field, why))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn rules(download_bytes_per_second: u64, max_bytes: u64, attempts: u32) -> ImageRules {
        ImageRules {
            download_bytes_per_second,
            max_bytes,
            attempts,
        }
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
        for good in [
            rules(0, 0, 0),
            rules(1_024, 1 << 20, 1),
            rules(1 << 40, 1 << 50, 100),
        ] {
            assert_eq!(good.check(), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn rules_of_an_older_release_are_the_usual_ones() {
        let read: ImageRules = serde_json::from_value(json!({})).expect("rules");
        assert!(read.is_usual());
        let kept = serde_json::to_value(rules(4_096, 0, 3)).expect("JSON");
        assert_eq!(
            kept,
            json!({"download_bytes_per_second": 4_096, "max_bytes": 0, "attempts": 3})
        );
        let read: ImageRules = serde_json::from_value(kept).expect("rules");
        assert!(!read.is_usual());
        assert_eq!(read, rules(4_096, 0, 3));
    }

    proptest! {
        /// Those that can be are within the numbers that the database, JSON and the wire take as they are.
        #[test]
        fn what_can_be_is_a_number_everywhere(rate: u64, size: u64, attempts: u32, shift in 0u32..64) {
            let rules = rules(rate >> shift, size >> shift, attempts >> (shift / 2));
            if rules.check().is_ok() {
                prop_assert!(rules.download_bytes_per_second < 1 << 53 && rules.max_bytes < 1 << 53);
                prop_assert!(i32::try_from(rules.attempts).is_ok());
                let kept = serde_json::to_value(rules).expect("JSON");
                prop_assert_eq!(serde_json::from_value::<ImageRules>(kept).expect("rules"), rules);
            }
        }
    }
}
