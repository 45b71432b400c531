//! To which hosts tokens from outside belong, as far as this process knows: almost every call asks.

use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use evenkeel_store::node_tokens::Digest;
use quick_cache::sync::Cache;

/// About how many are remembered at most, of some 80 bytes each. Beyond that a new one takes the place of one that was not
/// asked for lately. What is forgotten is looked up again.
const MOST: usize = 1_500_000;

/// Tokens that are bound, by their digest.
#[derive(Debug)]
pub struct Bonds(Cache<Digest, Bond>);

#[derive(Clone, Debug)]
struct Bond {
    host: HostId,
    /// Until when its token counts.
    expires_at: Time,
}

impl Bonds {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self(Cache::new(MOST))
    }

    /// The host that a token belongs to, if that is known here.
    pub fn get(&self, digest: &Digest) -> Option<HostId> {
        self.0.get(digest).map(|bond| bond.host)
    }

    /// Remembers to which host a token belongs, and until when that counts.
    pub fn put(&self, digest: Digest, host: HostId, expires_at: Time) {
        self.0.insert(digest, Bond { host, expires_at });
    }

    /// Forgets a token, so that it is looked up again.
    pub fn forget(&self, digest: &Digest) {
        self.0.remove(digest);
    }

    /// Forgets the tokens whose time is over.
    pub fn forget_expired(&self, now: Time) {
        self.0.retain(|_, bond| now < bond.expires_at);
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;

    #[test]
    fn what_is_forgotten_or_has_expired_is_not_known_any_more() {
        let bonds = Bonds::new();
        let (one, other, late) = ([1; 32], [2; 32], [3; 32]);
        let (now, later) = (
            DateTime::UNIX_EPOCH,
            DateTime::UNIX_EPOCH + TimeDelta::hours(1),
        );
        bonds.put(one, HostId::nth(1), later);
        bonds.put(other, HostId::nth(2), later);
        bonds.put(late, HostId::nth(3), now);
        bonds.forget(&one);
        bonds.forget_expired(now);
        assert_eq!(bonds.get(&one), None);
        assert_eq!(bonds.get(&other), Some(HostId::nth(2)));
        assert_eq!(bonds.get(&late), None);
    }
}
