//! The bindings of external tokens to hosts that this process has cached. Almost every call needs
//! one.

use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use evenkeel_store::node_tokens::TokenDigest;
use quick_cache::sync::Cache;

/// The approximate maximum of cached bindings, of some 80 bytes each. Beyond it a new one evicts
/// one that was not used lately; an evicted binding is loaded again.
const MAX_BINDINGS: usize = 1_500_000;

#[derive(Debug)]
pub struct TokenBindings(Cache<TokenDigest, TokenBinding>);

#[derive(Clone, Debug)]
struct TokenBinding {
    host: HostId,
    /// When the token expires.
    expires_at: Time,
}

impl TokenBindings {
    /// An empty cache.
    pub fn new() -> Self {
        Self(Cache::new(MAX_BINDINGS))
    }

    /// The host of a token, if it is cached.
    pub fn get(&self, digest: &TokenDigest) -> Option<HostId> {
        self.0.get(digest).map(|binding| binding.host)
    }

    /// Caches the binding of a token until it expires.
    pub fn insert(&self, digest: TokenDigest, host: HostId, expires_at: Time) {
        self.0.insert(digest, TokenBinding { host, expires_at });
    }

    /// Removes a token, so that its binding is loaded again.
    pub fn remove(&self, digest: &TokenDigest) {
        self.0.remove(digest);
    }

    pub fn remove_expired(&self, now: Time) {
        self.0.retain(|_, binding| now < binding.expires_at);
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;

    #[test]
    fn a_removed_or_expired_binding_is_not_found() {
        let bindings = TokenBindings::new();
        let (one, other, late) = ([1; 32], [2; 32], [3; 32]);
        let (now, later) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + TimeDelta::hours(1));
        bindings.insert(one, HostId::nth(1), later);
        bindings.insert(other, HostId::nth(2), later);
        bindings.insert(late, HostId::nth(3), now);
        bindings.remove(&one);
        bindings.remove_expired(now);
        assert_eq!(bindings.get(&one), None);
        assert_eq!(bindings.get(&other), Some(HostId::nth(2)));
        assert_eq!(bindings.get(&late), None);
    }
}
