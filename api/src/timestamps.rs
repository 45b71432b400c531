//! Times of creation and last change of a resource.

use chrono::{DateTime, SubsecRound, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Times of creation and last change of a resource, with millisecond precision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timestamps {
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Time of the last change.
    pub updated_at: DateTime<Utc>,
}

impl Timestamps {
    /// Truncates both times to milliseconds.
    #[must_use]
    pub fn new(created_at: DateTime<Utc>, updated_at: DateTime<Utc>) -> Self {
        Self { created_at: created_at.trunc_subsecs(3), updated_at: updated_at.trunc_subsecs(3) }
    }
}

/// Converts a time to the format of most fields of EIM's API: Unix seconds in 32 bits, 0 for none.
/// Times outside of the range are clamped.
#[must_use]
pub fn unix_seconds(time: Option<DateTime<Utc>>) -> u32 {
    let Some(time) = time else { return 0 };
    u32::try_from(time.timestamp().max(0)).unwrap_or(u32::MAX)
}

/// Converts Unix seconds to a time; 0 gives `None`.
#[must_use]
pub fn from_unix_seconds(seconds: u32) -> Option<DateTime<Utc>> {
    if seconds == 0 {
        return None;
    }
    DateTime::from_timestamp(i64::from(seconds), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_instant_is_zero() {
        assert_eq!(unix_seconds(None), 0);
        assert_eq!(from_unix_seconds(0), None);
        let time = from_unix_seconds(1_760_000_000);
        assert_eq!(unix_seconds(time), 1_760_000_000);
    }

    #[test]
    fn an_instant_beyond_32_bits_is_clamped() {
        assert_eq!(unix_seconds(Some(DateTime::<Utc>::MAX_UTC)), u32::MAX);
        assert_eq!(unix_seconds(Some(DateTime::<Utc>::MIN_UTC)), 0);
    }
}
