//! When tokens for automation were used, until somebody stores it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// The last use of each token since the uses were taken. There are at most as many as valid tokens,
/// because only verified tokens are recorded.
#[derive(Debug, Default)]
pub(crate) struct TokenUsage(Mutex<HashMap<Uuid, DateTime<Utc>>>);

impl TokenUsage {
    pub(crate) fn record(&self, token: Uuid, now: DateTime<Utc>) {
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = uses.entry(token).or_insert(now);
        *last = now.max(*last);
    }

    /// Removes and returns the recorded uses.
    pub(crate) fn take(&self) -> Vec<(Uuid, DateTime<Utc>)> {
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        uses.drain().collect()
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn the_latest_use_of_each_token_is_taken_once() {
        let usage = TokenUsage::default();
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let noon = DateTime::UNIX_EPOCH;
        let second = TimeDelta::seconds(1);
        for (token, at) in [(one, noon + second), (one, noon), (two, noon)] {
            usage.record(token, at);
        }
        let mut taken = usage.take();
        taken.sort_unstable();
        assert_eq!(taken, [(one, noon + second), (two, noon)]);
        assert!(usage.take().is_empty());
    }
}
