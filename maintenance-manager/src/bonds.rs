//! To which hosts tokens from outside belong, as far as this process knows: almost every call asks.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use evenkeel_domain::id::HostId;
use evenkeel_store::node_tokens::Digest;

/// How many are remembered at most. What is forgotten is looked up again.
const MOST: usize = 100_000;

/// Tokens that are bound, by their digest.
#[derive(Debug, Default)]
pub struct Bonds(Mutex<HashMap<Digest, HostId>>);

impl Bonds {
    /// The host that a token belongs to, if that is known here.
    pub fn get(&self, digest: &Digest) -> Option<HostId> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(digest).copied()
    }

    /// Remembers to which host a token belongs.
    pub fn put(&self, digest: Digest, host: HostId) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST
            && let Some(any) = all.keys().next().copied()
        {
            all.remove(&any);
        }
        all.insert(digest, host);
    }

    /// Forgets a token, so that it is looked up again.
    pub fn forget(&self, digest: &Digest) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(digest);
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
        assert_eq!(bonds.0.lock().unwrap().len(), MOST);
        bonds.forget(&digest(MOST + 9));
        assert_eq!(bonds.get(&digest(MOST + 9)), None);
    }
}
