//! Rate limit per peer: a token bucket for each, in memory.
//!
//! A caller cannot choose its bucket: it belongs to a credential, a host that was found, or an
//! address. Buckets of addresses are stored separately, because one caller may have many addresses;
//! they cannot evict the others.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::Quota;
use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::admission::concurrency::with_pushback;
use crate::admission::peer::Peer;

/// The maximum number of buckets of each kind, a power of two because the cache splits it. Beyond it
/// a new one evicts one that was not used lately, which is harmless: a peer without a bucket starts
/// with a full one.
const MAX_BUCKETS: usize = 1 << 18;

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

/// The rate limit for each peer, if there is one.
#[derive(Debug)]
pub struct RateLimiter<C: Clock = MonotonicClock>(Option<PeerLimiter<C>>);

/// A token bucket for each peer.
#[derive(Debug)]
pub struct PeerLimiter<C: Clock> {
    governor: governor::RateLimiter<Peer, Buckets, C, NoOpMiddleware<C::Instant>>,
    buckets: Buckets,
    clock: C,
    /// The content of a full bucket.
    burst: NonZeroU32,
    unit_cost: Nanos,
}

/// The buckets of the peers that called lately: of authenticated ones, and of the others. The
/// stores of the crate have no limit, cannot tell whether a peer has a bucket, and take no refund.
#[derive(Clone, Debug)]
struct Buckets(Arc<[Cache<Peer, Arc<InMemoryState>>; 2]>);

impl Buckets {
    fn of_kind(&self, peer: &Peer) -> &Cache<Peer, Arc<InMemoryState>> {
        let [authenticated, unauthenticated] = &*self.0;
        match peer {
            Peer::Unknown(_) => unauthenticated,
            Peer::Host(..) | Peer::Guid(..) | Peer::Holder(..) => authenticated,
        }
    }
}

impl StateStore for Buckets {
    type Key = Peer;

    fn measure_and_replace<T, F, E>(&self, peer: &Peer, charge: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let new = || Ok::<_, Infallible>(Arc::default());
        let Ok(bucket) = self.of_kind(peer).get_or_insert_with(peer, new);
        bucket.measure_and_replace(&NotKeyed::NonKey, charge)
    }
}

impl RateLimiter {
    /// Without buckets.
    pub fn new(settings: &RateLimitSettings) -> Self {
        Self::with_clock(settings, &MonotonicClock)
    }
}

impl<C: Clock + Clone> RateLimiter<C> {
    fn with_clock(settings: &RateLimitSettings, clock: &C) -> Self {
        let burst = NonZeroU32::new(settings.burst).unwrap_or(NonZeroU32::MIN);
        Self(NonZeroU32::new(settings.calls_per_second).map(|rate| {
            PeerLimiter::new(Quota::per_second(rate).allow_burst(burst), MAX_BUCKETS, clock)
        }))
    }

    /// Admits a call of a peer, or refuses it with a retry delay.
    pub fn admit(&self, peer: &Peer) -> Result<(), Status> {
        self.0.as_ref().map_or(Ok(()), |limiter| limiter.admit(peer))
    }

    /// Like [`Self::admit`], for a peer that already has a bucket; `None` if it has none.
    pub fn admit_existing(&self, peer: &Peer) -> Option<Result<(), Status>> {
        let limiter = self.0.as_ref()?;
        limiter.buckets.of_kind(peer).contains_key(peer).then(|| limiter.admit(peer))
    }

    /// Gives a node its own bucket once its host was found, and refunds the call to the bucket of
    /// the token. So nodes that share a token do not limit each other.
    pub fn grant_own_bucket(&self, holder: &Peer, node: &Peer) {
        let Some(limiter) = &self.0 else {
            return;
        };
        limiter.refund(holder);
        if !limiter.buckets.of_kind(node).contains_key(node) {
            // A new bucket is full.
            let _ = limiter.admit(node);
        }
    }

    /// Whether a call of a peer would be admitted. Charges nothing.
    pub fn check(&self, peer: &Peer) -> Result<(), Status> {
        let Some((limiter, admitted)) = self.0.as_ref().zip(self.admit_existing(peer)) else {
            return Ok(());
        };
        admitted.map(|()| limiter.refund(peer))
    }
}

impl<C: Clock + Clone> PeerLimiter<C> {
    /// Without buckets, and with at most this number of each kind.
    pub fn new(quota: Quota, max_buckets: usize, clock: &C) -> Self {
        let buckets = Buckets(Arc::new([Cache::new(max_buckets), Cache::new(max_buckets)]));
        Self {
            governor: governor::RateLimiter::new(quota, buckets.clone(), clock.clone()),
            buckets,
            clock: clock.clone(),
            burst: quota.burst_size(),
            unit_cost: quota.replenish_interval().into(),
        }
    }
}

impl<C: Clock> PeerLimiter<C> {
    /// Takes units from the bucket of a peer: all, or none. More than fit into a bucket cost a full
    /// one. The error is the time until the bucket has as many.
    pub fn charge(&self, peer: &Peer, units: NonZeroU32) -> Result<(), Duration> {
        let charged = self.governor.check_key_n(peer, units.min(self.burst));
        // The units fit into a bucket.
        let charged = charged.unwrap_or(Ok(()));
        charged.map_err(|refused| refused.wait_time_from(self.clock.now()))
    }

    fn admit(&self, peer: &Peer) -> Result<(), Status> {
        self.charge(peer, NonZeroU32::MIN).map_err(|wait| {
            metrics::counter!("evenkeel_rate_limited_calls_total").increment(1);
            let millis = wait.as_millis().max(1);
            let text = format!("this node calls too often; try again in {millis} ms");
            with_pushback(Status::resource_exhausted(text), wait)
        })
    }

    /// Returns the cost of a call to the bucket of a peer.
    fn refund(&self, peer: &Peer) {
        let refund = |full_at: Option<Nanos>| {
            let full_at = full_at.unwrap_or_default().saturating_sub(self.unit_cost);
            Ok::<_, Infallible>(((), full_at))
        };
        if let Some(bucket) = self.buckets.of_kind(peer).get(peer) {
            let Ok(()) = bucket.measure_and_replace(&NotKeyed::NonKey, refund);
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::id::HostId;
    use evenkeel_domain::tenant::TenantId;
    use governor::clock::FakeRelativeClock;
    use uuid::Uuid;

    use super::*;

    fn node(n: u32) -> Peer {
        Peer::Host(TenantId::new(Uuid::nil()), HostId::nth(n))
    }

    fn rate_limiter_on(
        clock: &FakeRelativeClock,
        calls_per_second: u32,
        burst: u32,
    ) -> RateLimiter<FakeRelativeClock> {
        RateLimiter::with_clock(&RateLimitSettings { calls_per_second, burst }, clock)
    }

    fn rate_limiter(calls_per_second: u32, burst: u32) -> RateLimiter<FakeRelativeClock> {
        rate_limiter_on(&FakeRelativeClock::default(), calls_per_second, burst)
    }

    /// The number of buckets of authenticated peers, and of the others.
    fn bucket_counts(rate_limiter: &RateLimiter<FakeRelativeClock>) -> [usize; 2] {
        rate_limiter.0.as_ref().expect("a limit").buckets.0.each_ref().map(Cache::len)
    }

    #[test]
    fn a_node_may_burst_and_is_then_limited_to_its_rate() {
        let clock = FakeRelativeClock::default();
        let rate_limiter = rate_limiter_on(&clock, 10, 5);
        let admitted_after = |millis: u64| {
            clock.advance(Duration::from_millis(millis));
            (0..100).filter(|_| rate_limiter.admit(&node(1)).is_ok()).count()
        };
        assert_eq!(admitted_after(0), 5, "the burst");
        assert_eq!(admitted_after(99), 0);
        assert_eq!(admitted_after(1), 1, "one tenth of a second, one call");
        assert_eq!(admitted_after(60_000), 5, "rest fills the bucket again");
    }

    #[test]
    fn one_node_does_not_limit_another() {
        let rate_limiter = rate_limiter(1, 1);
        assert!(rate_limiter.admit(&node(1)).is_ok());
        let refused = rate_limiter.admit(&node(1)).expect_err("too often");
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().ends_with("try again in 1000 ms"), "{}", refused.message());
        let hint = refused.metadata().get("grpc-retry-pushback-ms");
        assert_eq!(hint.expect("a hint"), "1000");
        assert!(rate_limiter.admit(&node(2)).is_ok());
    }

    #[test]
    fn without_a_rate_there_is_no_limit() {
        let rate_limiter = rate_limiter(0, 0);
        assert!((0..1_000).all(|_| rate_limiter.admit(&node(1)).is_ok()));
    }

    #[test]
    fn memory_is_bounded() {
        let rate_limiter = rate_limiter(1, 1);
        for n in 0..MAX_BUCKETS + 10 {
            let n = u32::try_from(n).expect("a small number");
            rate_limiter.admit(&node(n)).expect("its first call");
        }
        assert!(bucket_counts(&rate_limiter)[0] <= MAX_BUCKETS);
    }

    #[test]
    fn unauthenticated_peers_do_not_evict_buckets_of_nodes() {
        let rate_limiter = rate_limiter(1, 1);
        rate_limiter.admit(&node(1)).expect("its first call");
        for n in 0..MAX_BUCKETS + 10 {
            let n = u32::try_from(n).expect("a small number");
            let address = std::net::IpAddr::from(n.to_be_bytes());
            let unauthenticated = Peer::Unknown(Some(address));
            rate_limiter.admit(&unauthenticated).expect("its first call");
        }
        assert!(rate_limiter.admit(&node(1)).is_err(), "it is remembered");
        assert!(bucket_counts(&rate_limiter)[1] <= MAX_BUCKETS);
    }

    #[test]
    fn nodes_that_share_a_token_get_their_own_buckets() {
        let rate_limiter = rate_limiter(1, 2);
        let holder = Peer::holder(TenantId::new(Uuid::nil()), "agents");
        let guid = |n| holder.with_uuid(Uuid::from_u128(n));
        for n in 0..100 {
            assert!(rate_limiter.admit_existing(&guid(n)).is_none());
            rate_limiter.admit(&holder).expect("the bucket is full");
            rate_limiter.grant_own_bucket(&holder, &guid(n));
        }
        let admit = |n| rate_limiter.admit_existing(&guid(n)).expect("it was found");
        assert!(admit(1).is_ok());
        assert!(admit(1).is_err(), "too often");
        assert!(admit(2).is_ok());
        // Calls with unknown UUIDs are charged to the owner of the token.
        assert!(rate_limiter.admit(&holder).is_ok());
        assert!(rate_limiter.admit(&holder).is_ok());
        assert!(rate_limiter.admit(&holder).is_err());
    }

    #[test]
    fn a_peer_that_calls_often_keeps_its_bucket() {
        let rate_limiter = rate_limiter(1, 1);
        let busy = node(300_000);
        rate_limiter.admit(&busy).expect("its first call");
        for n in 0..300_000 {
            rate_limiter.admit(&node(n)).expect("its first call");
            assert!(n % 1_000 > 0 || rate_limiter.admit(&busy).is_err(), "it is remembered");
        }
    }

    #[test]
    fn a_check_charges_nothing() {
        let rate_limiter = rate_limiter(1, 2);
        for _ in 0..10 {
            assert!(rate_limiter.check(&node(1)).is_ok());
        }
        assert_eq!(bucket_counts(&rate_limiter), [0, 0]);
        rate_limiter.admit(&node(1)).expect("the bucket is full");
        for _ in 0..10 {
            assert!(rate_limiter.check(&node(1)).is_ok());
        }
        rate_limiter.admit(&node(1)).expect("one call is left");
        assert!(rate_limiter.check(&node(1)).is_err());
    }
}
