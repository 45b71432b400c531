//! Checks the validity periods of tokens.

use chrono::{DateTime, TimeDelta, Utc};

use super::AuthError;
use crate::roles::Caller;

/// Tolerated difference between the clocks of the issuer and of this server.
const CLOCK_LEEWAY: TimeDelta = TimeDelta::seconds(30);

/// Maximum difference between the clocks of two servers that are ready.
const MAX_SERVER_CLOCK_DIFFERENCE: TimeDelta = TimeDelta::minutes(2);

pub(super) fn check_validity_period(caller: &Caller, now: DateTime<Utc>) -> Result<(), AuthError> {
    check_not_expired(caller.expires_at, now)?;
    // A server whose clock was ahead has issued it: it would live for too long and escape the
    // revocation of its subject. A node could not get another credential.
    let is_own = caller.issued_by_us && caller.node_project().is_none();
    if let Some(from) = caller.issued_at.filter(|_| is_own)
        && now + MAX_SERVER_CLOCK_DIFFERENCE < from
    {
        return Err(AuthError::NotYetValid { from });
    }
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

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::roles::Role;

    const NOON: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();

    #[test]
    fn a_token_that_one_of_our_servers_dates_in_the_future_is_not_valid_yet() {
        let caller = |role: Role, issued_by_us: bool, issued_at: DateTime<Utc>| Caller {
            issued_by_us,
            issued_at: Some(issued_at),
            ..Caller::new("alice", &[role], issued_at + TimeDelta::minutes(15))
        };
        let (near, far) = (NOON + TimeDelta::minutes(2), NOON + TimeDelta::days(365));
        let check = |caller: Caller| check_validity_period(&caller, NOON);
        assert_eq!(check(caller(Role::Administrator, true, near)), Ok(()));
        let refused = Err(AuthError::NotYetValid { from: far });
        assert_eq!(check(caller(Role::Administrator, true, far)), refused);
        assert_eq!(check(caller(Role::Node(Uuid::nil()), true, far)), Ok(()));
        assert_eq!(check(caller(Role::Administrator, false, far)), Ok(()));
    }
}
