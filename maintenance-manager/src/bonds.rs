//! To which hosts tokens from outside belong, as far as this process knows: almost every call asks.

use evenkeel_domain::id::HostId;
use evenkeel_store::node_tokens::Digest;
use quick_cache::sync::Cache;

/// About how many are remembered at most. What is forgotten is looked up again: that which was not asked for lately.
const MOST: usize = 1_500_000;

/// Tokens that are bound, by their digest.
#[derive(Debug)]
pub struct Bonds(Cache<Digest, HostId>);

impl Bonds {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self(Cache::new(MOST))
    }

    /// The host that a token belongs to, if that is known here.
    pub fn get(&self, digest: &Digest) -> Option<HostId> {
        self.0.get(digest)
    }

    /// Remembers to which host a token belongs.
    pub fn put(&self, digest: Digest, host: HostId) {
        self.0.insert(digest, host);
    }

    /// Forgets a token, so that it is looked up again.
    pub fn forget(&self, digest: &Digest) {
        self.0.remove(digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_is_not_known_any_more() {
        let bonds = Bonds::new();
        let (one, other) = ([1; 32], [2; 32]);
        bonds.put(one, HostId::nth(1));
        bonds.put(other, HostId::nth(2));
        bonds.forget(&one);
        assert_eq!(bonds.get(&one), None);
        assert_eq!(bonds.get(&other), Some(HostId::nth(2)));
    }
}
