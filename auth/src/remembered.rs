//! Tokens that were verified already, by their digest.
//!
//! A signature costs as much as a whole poll, so each token is verified once. What is remembered is bounded: when a
//! part is full, what has expired goes first, then any one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, Utc};

use crate::roles::Caller;

pub(crate) type Digest = [u8; 32];

/// Callers do not wait for each other unless their tokens are in the same part.
const PARTS: usize = 16;

#[derive(Debug)]
pub(crate) struct Remembered {
    parts: [Mutex<HashMap<Digest, Arc<Caller>>>; PARTS],
    room: usize,
    /// How often all were forgotten.
    era: AtomicU64,
}

impl Remembered {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            parts: std::array::from_fn(|_| Mutex::default()),
            room: capacity.div_ceil(PARTS),
            era: AtomicU64::new(0),
        }
    }

    fn part(&self, digest: &Digest) -> &Mutex<HashMap<Digest, Arc<Caller>>> {
        &self.parts[usize::from(digest[0]) % PARTS]
    }

    pub(crate) fn get(&self, digest: &Digest) -> Option<Arc<Caller>> {
        let part = self
            .part(digest)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        part.get(digest).cloned()
    }

    pub(crate) fn forget(&self, digest: &Digest) {
        let mut part = self
            .part(digest)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        part.remove(digest);
    }

    /// Changes when all are forgotten. Whoever verifies a token asks before it looks at the keys.
    pub(crate) fn era(&self) -> u64 {
        self.era.load(Ordering::SeqCst)
    }

    /// Forgets all of them, and those that are being verified now.
    pub(crate) fn clear(&self) {
        self.era.fetch_add(1, Ordering::SeqCst);
        for part in &self.parts {
            part.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Remembers what was verified in an era, unless that is over.
    pub(crate) fn put(&self, digest: Digest, caller: Arc<Caller>, era: u64, now: DateTime<Utc>) {
        if self.room == 0 {
            return;
        }
        let mut part = self
            .part(&digest)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.era() != era {
            return;
        }
        if part.len() >= self.room {
            part.retain(|_, caller| caller.expires_at > now);
        }
        if part.len() >= self.room
            && let Some(any) = part.keys().next().copied()
        {
            part.remove(&any);
        }
        part.insert(digest, caller);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let part_len = |part: &Mutex<HashMap<_, _>>| part.lock().map_or(0, |part| part.len());
        self.parts.iter().map(part_len).sum()
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

    fn digest(n: u16) -> Digest {
        let mut digest = [0; 32];
        digest[0..2].copy_from_slice(&n.to_le_bytes());
        digest
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let remembered = Remembered::new(160);
        for n in 0..2000 {
            remembered.put(digest(n), caller(1), 0, NOON);
            assert_eq!(
                remembered.get(&digest(n)),
                Some(caller(1)),
                "the newest is always kept"
            );
        }
        assert_eq!(remembered.len(), 160);
    }

    #[test]
    fn what_has_expired_makes_room_first() {
        let remembered = Remembered::new(2 * PARTS);
        let same_part = |n: u16| digest(n * u16::try_from(PARTS).unwrap());
        remembered.put(same_part(1), caller(1), 0, NOON);
        remembered.put(same_part(2), caller(9), 0, NOON);
        remembered.put(same_part(3), caller(9), 0, NOON + TimeDelta::hours(2));
        assert_eq!(remembered.get(&same_part(1)), None);
        assert!(remembered.get(&same_part(2)).is_some());
        assert!(remembered.get(&same_part(3)).is_some());
    }

    #[test]
    fn with_no_room_nothing_is_remembered() {
        let remembered = Remembered::new(0);
        remembered.put(digest(1), caller(1), 0, NOON);
        assert_eq!(remembered.get(&digest(1)), None);
    }

    #[test]
    fn what_was_verified_before_all_was_forgotten_is_not_remembered() {
        let remembered = Remembered::new(160);
        let era = remembered.era();
        remembered.put(digest(1), caller(1), era, NOON);
        remembered.clear();
        assert_eq!(remembered.get(&digest(1)), None);
        remembered.put(digest(1), caller(1), era, NOON);
        assert_eq!(remembered.get(&digest(1)), None);
        remembered.put(digest(1), caller(1), remembered.era(), NOON);
        assert!(remembered.get(&digest(1)).is_some());
    }
}
