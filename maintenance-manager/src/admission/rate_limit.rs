//! Rate limit per peer: a token bucket for each, in memory.
//!
//! A caller cannot choose its bucket: it belongs to a credential, a host that was found, or an
//! address. Buckets of addresses are stored separately, because one caller may have many addresses;
//! they cannot evict the others.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::admission::concurrency::with_pushback;
use crate::admission::peer::Peer;

/// The maximum number of buckets of each kind. Evicting a bucket is harmless: a peer without one
/// starts with a full bucket.
const MAX_BUCKETS: usize = 200_000;

/// The number of shards. Calls wait for each other only within a shard.
const SHARDS: usize = 16;

/// Settings of the rate limit for each peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimitSettings {
    /// Calls per second that a node may sustain; 0 means no limit.
    pub calls_per_second: u32,
    /// Maximum number of calls in a burst.
    pub burst: u32,
}

impl Default for RateLimitSettings {
    fn default() -> Self {
        Self { calls_per_second: 20, burst: 200 }
    }
}

/// The buckets of all peers that called recently.
#[derive(Debug)]
pub struct RateLimiter {
    settings: RateLimitSettings,
    /// Maps peers to shards.
    hasher: RandomState,
    /// The buckets of authenticated peers.
    authenticated: [BucketShard; SHARDS],
    /// The buckets of unauthenticated peers.
    unauthenticated: [BucketShard; SHARDS],
}

type BucketShard = Mutex<HashMap<Peer, Bucket>>;

/// A token bucket, stored as the time at which it is full again.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    full_at: Instant,
}

impl RateLimiter {
    /// Without buckets.
    pub fn new(settings: RateLimitSettings) -> Self {
        Self {
            settings,
            hasher: RandomState::new(),
            authenticated: std::array::from_fn(|_| Mutex::default()),
            unauthenticated: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Admits a call of a peer, or refuses it with a retry delay.
    pub fn admit(&self, peer: &Peer, now: Instant) -> Result<(), Status> {
        let Some(cost) = self.call_cost() else {
            return Ok(());
        };
        let mut buckets = self.buckets(peer);
        evict(&mut buckets, peer, now);
        let bucket = buckets.entry(peer.clone());
        self.charge(bucket.or_insert(Bucket { full_at: now }), cost, now)
    }

    /// Like [`Self::admit`], for a peer that already has a bucket; `None` if it has none.
    pub fn admit_existing(&self, peer: &Peer, now: Instant) -> Option<Result<(), Status>> {
        let cost = self.call_cost()?;
        let mut buckets = self.buckets(peer);
        let bucket = buckets.get_mut(peer)?;
        Some(self.charge(bucket, cost, now))
    }

    /// Gives a node its own bucket once its host was found, and refunds the call to the bucket of
    /// the token. So nodes that share a token do not limit each other.
    pub fn grant_own_bucket(&self, holder: &Peer, node: &Peer, now: Instant) {
        let Some(cost) = self.call_cost() else {
            return;
        };
        if let Some(bucket) = self.buckets(holder).get_mut(holder) {
            bucket.full_at = bucket.full_at.checked_sub(cost).unwrap_or(now);
        }
        let mut buckets = self.buckets(node);
        evict(&mut buckets, node, now);
        let full_at = now + cost;
        buckets.entry(node.clone()).or_insert(Bucket { full_at });
    }

    /// Whether a call of a peer would be admitted. Charges nothing.
    pub fn check(&self, peer: &Peer, now: Instant) -> Result<(), Status> {
        let Some(cost) = self.call_cost() else {
            return Ok(());
        };
        let bucket = self.buckets(peer).get(peer).copied();
        bucket.map_or(Ok(()), |mut bucket| self.charge(&mut bucket, cost, now))
    }

    /// The time that one call costs; `None` without a limit.
    fn call_cost(&self) -> Option<Duration> {
        Duration::from_secs(1).checked_div(self.settings.calls_per_second)
    }

    /// The shard with the bucket of a peer.
    fn buckets(&self, peer: &Peer) -> MutexGuard<'_, HashMap<Peer, Bucket>> {
        let shards = match peer {
            Peer::Unknown(_) => &self.unauthenticated,
            Peer::Host(..) | Peer::Guid(..) | Peer::Holder(..) => &self.authenticated,
        };
        let number = self.hasher.hash_one(peer) % SHARDS as u64;
        let shard = &shards[usize::try_from(number).unwrap_or_default()];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn charge(&self, bucket: &mut Bucket, cost: Duration, now: Instant) -> Result<(), Status> {
        let room = cost * self.settings.burst.max(1);
        let full_at = bucket.full_at.max(now) + cost;
        if now + room < full_at {
            let wait = full_at.saturating_duration_since(now + room);
            metrics::counter!("evenkeel_rate_limited_calls_total").increment(1);
            let refused = Status::resource_exhausted(format!(
                "this node calls too often; try again in {} ms",
                wait.as_millis().max(1)
            ));
            return Err(with_pushback(refused, wait));
        }
        bucket.full_at = full_at;
        Ok(())
    }
}

fn evict(buckets: &mut HashMap<Peer, Bucket>, peer: &Peer, now: Instant) {
    if buckets.len() >= MAX_BUCKETS / SHARDS && !buckets.contains_key(peer) {
        buckets.retain(|_, bucket| now < bucket.full_at);
        if buckets.len() >= MAX_BUCKETS / SHARDS {
            buckets.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::id::HostId;
    use evenkeel_domain::tenant::TenantId;
    use uuid::Uuid;

    use super::*;

    fn node(n: u32) -> Peer {
        Peer::Host(TenantId::new(Uuid::nil()), HostId::nth(n))
    }

    fn rate_limiter(calls_per_second: u32, burst: u32) -> RateLimiter {
        RateLimiter::new(RateLimitSettings { calls_per_second, burst })
    }

    fn bucket_count(shards: &[BucketShard]) -> usize {
        let of_one = |shard: &BucketShard| shard.lock().expect("not poisoned").len();
        shards.iter().map(of_one).sum()
    }

    #[test]
    fn a_node_may_burst_and_is_then_limited_to_its_rate() {
        let rate_limiter = rate_limiter(10, 5);
        let start = Instant::now();
        let admitted = |millis: u64, calls: usize| {
            let now = start + Duration::from_millis(millis);
            let results = (0..calls).map(|_| rate_limiter.admit(&node(1), now).is_ok());
            results.filter(|is_admitted| *is_admitted).count()
        };
        assert_eq!(admitted(0, 100), 5, "the burst");
        assert_eq!(admitted(99, 100), 0);
        assert_eq!(admitted(100, 100), 1, "one tenth of a second, one call");
        assert_eq!(admitted(60_000, 100), 5, "rest fills the bucket again");
    }

    #[test]
    fn one_node_does_not_limit_another() {
        let rate_limiter = rate_limiter(1, 1);
        let now = Instant::now();
        assert!(rate_limiter.admit(&node(1), now).is_ok());
        let refused = rate_limiter.admit(&node(1), now).expect_err("too often");
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().ends_with("try again in 1000 ms"), "{}", refused.message());
        let hint = refused.metadata().get("grpc-retry-pushback-ms");
        assert_eq!(hint.expect("a hint"), "1000");
        assert!(rate_limiter.admit(&node(2), now).is_ok());
    }

    #[test]
    fn without_a_rate_there_is_no_limit() {
        let rate_limiter = rate_limiter(0, 0);
        let now = Instant::now();
        assert!((0..1_000).all(|_| rate_limiter.admit(&node(1), now).is_ok()));
    }

    #[test]
    fn memory_is_bounded() {
        let rate_limiter = rate_limiter(1, 1);
        let now = Instant::now();
        for n in 0..MAX_BUCKETS + 10 {
            let n = u32::try_from(n).expect("a small number");
            rate_limiter.admit(&node(n), now).expect("its first call");
        }
        assert!(bucket_count(&rate_limiter.authenticated) <= MAX_BUCKETS);
    }

    #[test]
    fn unauthenticated_peers_do_not_evict_buckets_of_nodes() {
        let rate_limiter = rate_limiter(1, 1);
        let now = Instant::now();
        rate_limiter.admit(&node(1), now).expect("its first call");
        for n in 0..MAX_BUCKETS + 10 {
            let n = u32::try_from(n).expect("a small number");
            let address = std::net::IpAddr::from(n.to_be_bytes());
            let unauthenticated = Peer::Unknown(Some(address));
            rate_limiter.admit(&unauthenticated, now).expect("its first call");
        }
        assert!(rate_limiter.admit(&node(1), now).is_err(), "it is remembered");
        assert!(bucket_count(&rate_limiter.unauthenticated) <= MAX_BUCKETS);
    }

    #[test]
    fn nodes_that_share_a_token_get_their_own_buckets() {
        let rate_limiter = rate_limiter(1, 2);
        let now = Instant::now();
        let holder = Peer::holder(TenantId::new(Uuid::nil()), "agents");
        let guid = |n| holder.with_uuid(Uuid::from_u128(n));
        for n in 0..100 {
            assert!(rate_limiter.admit_existing(&guid(n), now).is_none());
            rate_limiter.admit(&holder, now).expect("the bucket is full");
            rate_limiter.grant_own_bucket(&holder, &guid(n), now);
        }
        let admit = |n| rate_limiter.admit_existing(&guid(n), now).expect("it was found");
        assert!(admit(1).is_ok());
        assert!(admit(1).is_err(), "too often");
        assert!(admit(2).is_ok());
        // Calls with unknown UUIDs are charged to the owner of the token.
        assert!(rate_limiter.admit(&holder, now).is_ok());
        assert!(rate_limiter.admit(&holder, now).is_ok());
        assert!(rate_limiter.admit(&holder, now).is_err());
    }
}
