//! Checks the validity periods of tokens.

use chrono::{DateTime, TimeDelta, Utc};

use super::AuthError;
use crate::roles::Caller;

/// Tolerated difference between the clocks of the issuer and of this server.
const CLOCK_LEEWAY: TimeDelta = TimeDelta::seconds(30);

pub(super) fn check_validity_period(caller: &Caller, now: DateTime<Utc>) -> Result<(), AuthError> {
    check_not_expired(caller.expires_at, now)?;
    match caller.not_before {
        Some(from) if now + CLOCK_LEEWAY < from => Err(AuthError::NotYetValid { from }),
        _ => Ok(()),
    }
}

/// Checks that a validity that ends at `at` has not expired.
pub(crate) fn check_not_expired(at: DateTime<Utc>, now: DateTime<Utc>) -> Result<(), AuthError> {
    if at + CLOCK_LEEWAY <= now {
        return Err(AuthError::Expired { at });
    }
    Ok(())
}

/// Parses a time in seconds since 1970, which may have a fraction. Times after the year 9999 are
/// rejected.
pub(crate) fn parse_time(seconds: f64) -> Result<DateTime<Utc>, AuthError> {
    const YEAR_9999: f64 = 253_402_300_799.0;
    if !(0.0..=YEAR_9999).contains(&seconds) {
        return Err(AuthError::Malformed("it contains an invalid time"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the range was checked, and a fraction of a second does not matter"
    )]
    let whole_seconds = seconds as i64;
    DateTime::from_timestamp(whole_seconds, 0)
        .ok_or(AuthError::Malformed("it contains an invalid time"))
}
