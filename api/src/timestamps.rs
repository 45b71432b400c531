//! When a resource was made and last changed.

use chrono::{DateTime, SubsecRound, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// When a resource was made and last changed, to the millisecond.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timestamps {
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it was last changed.
    pub updated_at: DateTime<Utc>,
}

impl Timestamps {
    /// From the two instants.
    #[must_use]
    pub fn new(created_at: DateTime<Utc>, updated_at: DateTime<Utc>) -> Self {
        Self {
            created_at: created_at.trunc_subsecs(3),
            updated_at: updated_at.trunc_subsecs(3),
        }
    }
}

/// An instant as most fields of the ancestor's API have it: whole Unix seconds in 32 bits, 0 for none.
#[must_use]
pub fn unix_seconds(time: Option<DateTime<Utc>>) -> u32 {
    let Some(time) = time else { return 0 };
    u32::try_from(time.timestamp().max(0)).unwrap_or(u32::MAX)
}

/// The instant of a field with Unix seconds, none for 0.
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
    fn no_instant_is_zero_and_back() {
        assert_eq!(unix_seconds(None), 0);
        assert_eq!(from_unix_seconds(0), None);
        let time = from_unix_seconds(1_760_000_000);
        assert_eq!(unix_seconds(time), 1_760_000_000);
    }

    #[test]
    fn an_instant_beyond_32_bits_is_the_last_one() {
        assert_eq!(unix_seconds(Some(DateTime::<Utc>::MAX_UTC)), u32::MAX);
        assert_eq!(unix_seconds(Some(DateTime::<Utc>::MIN_UTC)), 0);
    }
}
