//! Tokens that were verified already, by their digest.
//!
//! A signature costs as much as a whole poll, so each token is verified once. What is remembered is bounded: beyond that
//! goes what was not asked for lately. To make room costs the same however many there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::Cache;

use crate::roles::Caller;

pub(crate) type Digest = [u8; 32];

#[derive(Debug)]
pub(crate) struct Remembered {
    verified: Cache<Digest, Verified>,
    /// How often all were forgotten.
    era: AtomicU64,
}

#[derive(Clone, Debug)]
struct Verified {
    caller: Arc<Caller>,
    /// When it was verified: before, or after all were forgotten.
    era: u64,
}

impl Remembered {
    /// Remembers about so many.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            verified: Cache::new(capacity),
            era: AtomicU64::new(0),
        }
    }

    pub(crate) fn get(&self, digest: &Digest) -> Option<Arc<Caller>> {
        let verified = self.verified.get(digest)?;
        (verified.era == self.era()).then_some(verified.caller)
    }

    pub(crate) fn forget(&self, digest: &Digest) {
        self.verified.remove(digest);
    }

    /// Changes when all are forgotten. Whoever verifies a token asks before it looks at the keys.
    pub(crate) fn era(&self) -> u64 {
        self.era.load(Ordering::SeqCst)
    }

    /// Forgets all of them, and those that are being verified now.
    pub(crate) fn clear(&self) {
        self.era.fetch_add(1, Ordering::SeqCst);
        self.verified.clear();
    }

    /// Remembers what was verified in an era, unless that is over.
    pub(crate) fn put(&self, digest: Digest, caller: Arc<Caller>, era: u64) {
        if self.era() == era {
            self.verified.insert(digest, Verified { caller, era });
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.verified.len()
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta, Utc};

    use super::*;

    const NOON: DateTime<Utc> = DateTime::UNIX_EPOCH;

    fn caller(hours: i64) -> Arc<Caller> {
        Arc::new(Caller {
            subject: hours.to_string(),
            roles: Vec::new(),
            not_before: None,
            expires_at: NOON + TimeDelta::hours(hours),
            ours: true,
        })
    }

    fn digest(n: u32) -> Digest {
        let mut digest = [0; 32];
        digest[0..4].copy_from_slice(&n.to_le_bytes());
        digest
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let remembered = Remembered::new(1_000);
        for n in 0..20_000 {
            remembered.put(digest(n), caller(1), 0);
            assert_eq!(
                remembered.get(&digest(n)),
                Some(caller(1)),
                "the newest is always kept"
            );
        }
        let kept = remembered.len();
        assert!((500..=1_000).contains(&kept), "{kept} are remembered");
    }

    #[test]
    fn who_comes_all_the_time_is_remembered_however_many_come_once() {
        let remembered = Remembered::new(1_000);
        for n in 0..100 {
            remembered.put(digest(n), caller(1), 0);
        }
        for n in 100..20_000 {
            remembered.put(digest(n), caller(1), 0);
            let often = digest(n % 100);
            assert!(remembered.get(&often).is_some(), "{} is forgotten", n % 100);
        }
    }

    #[test]
    fn with_no_room_nothing_is_remembered() {
        let remembered = Remembered::new(0);
        remembered.put(digest(1), caller(1), 0);
        assert_eq!(remembered.get(&digest(1)), None);
    }

    #[test]
    fn what_was_verified_before_all_was_forgotten_is_not_remembered() {
        let remembered = Remembered::new(160);
        let era = remembered.era();
        remembered.put(digest(1), caller(1), era);
        remembered.clear();
        assert_eq!(remembered.get(&digest(1)), None);
        remembered.put(digest(1), caller(1), era);
        assert_eq!(remembered.get(&digest(1)), None);
        remembered.put(digest(1), caller(1), remembered.era());
        assert!(remembered.get(&digest(1)).is_some());
    }
}
