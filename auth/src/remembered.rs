//! Tokens that were verified already, by their digest.
//!
//! A signature costs as much as a whole poll, so each token is verified once. What is remembered is bounded: beyond that a
//! new one takes the place of one that was not asked for lately, which is found without looking through all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Utc};
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

    /// Forgets those whose time is over.
    pub(crate) fn forget_expired(&self, now: DateTime<Utc>) {
        let lasts = |_: &Digest, verified: &Verified| now < verified.caller.expires_at;
        self.verified.retain(lasts);
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
    use chrono::TimeDelta;

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
        // In equal parts, whose number depends on the processors.
        let kept = remembered.len();
        assert!((500..=1_100).contains(&kept), "{kept} are remembered");
    }

    #[test]
    fn what_has_expired_takes_no_room() {
        let remembered = Remembered::new(1_000);
        for n in 0..100 {
            remembered.put(digest(n), caller(i64::from(n % 10)), 0);
        }
        remembered.forget_expired(NOON + TimeDelta::hours(5));
        assert_eq!(remembered.len(), 40);
        assert!(remembered.get(&digest(6)).is_some());
        assert_eq!(remembered.get(&digest(5)), None);
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
