//! To which hosts tokens from outside belong, as far as this process knows: almost every call asks.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_domain::id::HostId;
use evenkeel_store::node_tokens::Digest;

/// How many are remembered at most. What is forgotten is looked up again.
const MOST: usize = 400_000;

/// Calls do not wait for each other unless their tokens are in the same part.
const PARTS: usize = 16;

/// Tokens that are bound, by their digest.
#[derive(Debug, Default)]
pub struct Bonds([Mutex<HashMap<Digest, HostId>>; PARTS]);

impl Bonds {
    /// The host that a token belongs to, if that is known here.
    pub fn get(&self, digest: &Digest) -> Option<HostId> {
        self.part(digest).get(digest).copied()
    }

    /// Remembers to which host a token belongs.
    pub fn put(&self, digest: Digest, host: HostId) {
        let mut part = self.part(&digest);
        if part.len() >= MOST / PARTS
            && let Some(any) = part.keys().next().copied()
        {
            part.remove(&any);
        }
        part.insert(digest, host);
    }

    /// Forgets a token, so that it is looked up again.
    pub fn forget(&self, digest: &Digest) {
        self.part(digest).remove(digest);
    }

    fn part(&self, digest: &Digest) -> MutexGuard<'_, HashMap<Digest, HostId>> {
        let part = &self.0[usize::from(digest[0]) % PARTS];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let bonds = Bonds::default();
        let digest = |n: usize| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&n.to_le_bytes());
            digest
        };
        for n in 0..MOST + 10 {
            bonds.put(digest(n), HostId::nth(1));
            assert!(bonds.get(&digest(n)).is_some(), "the newest is kept");
        }
        let kept = bonds.0.iter().map(|part| part.lock().unwrap().len());
        assert_eq!(kept.sum::<usize>(), MOST);
        bonds.forget(&digest(MOST + 9));
        assert_eq!(bonds.get(&digest(MOST + 9)), None);
    }
}
