//! Cache of verified tokens, by their digest.
//!
//! Verifying a signature costs as much as a whole poll, so each token is verified once. The cache
//! is bounded: when it is full, a new token replaces one that was not used recently. It finds that
//! token without a scan.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Utc};
use quick_cache::sync::Cache;

use crate::roles::Caller;

pub(crate) type TokenDigest = [u8; 32];

#[derive(Debug)]
pub(crate) struct VerifiedTokenCache {
    tokens: Cache<TokenDigest, VerifiedToken>,
    /// Counts how often the cache was cleared.
    generation: AtomicU64,
}

#[derive(Clone, Debug)]
struct VerifiedToken {
    caller: Arc<Caller>,
    /// Generation of the cache in which the token was verified.
    generation: u64,
}

impl VerifiedTokenCache {
    /// A cache for about `capacity` tokens.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { tokens: Cache::new(capacity), generation: AtomicU64::new(0) }
    }

    pub(crate) fn get(&self, digest: &TokenDigest) -> Option<Arc<Caller>> {
        let token = self.tokens.get(digest)?;
        (token.generation == self.generation()).then_some(token.caller)
    }

    pub(crate) fn remove(&self, digest: &TokenDigest) {
        self.tokens.remove(digest);
    }

    pub(crate) fn remove_expired(&self, now: DateTime<Utc>) {
        let lasts = |_: &TokenDigest, token: &VerifiedToken| now < token.caller.expires_at;
        self.tokens.retain(lasts);
    }

    /// Changes when the cache is cleared. Read it before the keys with which a token is verified.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Removes all tokens. Tokens that are being verified at this moment will not be inserted.
    pub(crate) fn clear(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.tokens.clear();
    }

    /// Inserts a token that was verified in a generation, unless the cache was cleared since.
    pub(crate) fn insert(&self, digest: TokenDigest, caller: Arc<Caller>, generation: u64) {
        if self.generation() == generation {
            self.tokens.insert(digest, VerifiedToken { caller, generation });
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    const NOON: DateTime<Utc> = DateTime::UNIX_EPOCH;

    fn caller(hours: i64) -> Arc<Caller> {
        Arc::new(Caller::new(&hours.to_string(), &[], NOON + TimeDelta::hours(hours)))
    }

    fn digest(n: u32) -> TokenDigest {
        let mut digest = [0; 32];
        digest[0..4].copy_from_slice(&n.to_le_bytes());
        digest
    }

    #[test]
    fn the_cache_does_not_exceed_its_capacity() {
        let cache = VerifiedTokenCache::new(1_000);
        for n in 0..20_000 {
            cache.insert(digest(n), caller(1), 0);
            assert_eq!(cache.get(&digest(n)), Some(caller(1)), "the newest token is always cached");
        }
        // The cache consists of equal shards whose number depends on the processors.
        let cached = cache.len();
        assert!((500..=1_100).contains(&cached), "{cached} are remembered");
    }

    #[test]
    fn expired_tokens_are_removed() {
        let cache = VerifiedTokenCache::new(1_000);
        for n in 0..100 {
            cache.insert(digest(n), caller(i64::from(n % 10)), 0);
        }
        cache.remove_expired(NOON + TimeDelta::hours(5));
        assert_eq!(cache.len(), 40);
        assert!(cache.get(&digest(6)).is_some());
        assert_eq!(cache.get(&digest(5)), None);
    }

    #[test]
    fn a_token_in_constant_use_survives_many_one_time_tokens() {
        let cache = VerifiedTokenCache::new(1_000);
        for n in 0..100 {
            cache.insert(digest(n), caller(1), 0);
        }
        for n in 100..20_000 {
            cache.insert(digest(n), caller(1), 0);
            let often = digest(n % 100);
            assert!(cache.get(&often).is_some(), "{} is not cached", n % 100);
        }
    }

    #[test]
    fn a_cache_without_capacity_stores_nothing() {
        let cache = VerifiedTokenCache::new(0);
        cache.insert(digest(1), caller(1), 0);
        assert_eq!(cache.get(&digest(1)), None);
    }

    #[test]
    fn a_token_verified_before_the_cache_was_cleared_is_not_stored() {
        let cache = VerifiedTokenCache::new(160);
        let generation = cache.generation();
        cache.insert(digest(1), caller(1), generation);
        cache.clear();
        assert_eq!(cache.get(&digest(1)), None);
        cache.insert(digest(1), caller(1), generation);
        assert_eq!(cache.get(&digest(1)), None);
        cache.insert(digest(1), caller(1), cache.generation());
        assert!(cache.get(&digest(1)).is_some());
    }
}
