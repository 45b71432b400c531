//! Keeps one node from taking the server's time from all others: a token bucket a node, in memory.
//!
//! Nobody chooses a bucket: it is that of a credential, or of a host that was found, or of an address. Those of addresses,
//! which anybody may have many of, are kept apart from the others and cannot push them out.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tonic::Status;

use crate::load::pushback;
use crate::peer::Peer;

/// How many buckets of a kind are kept at most. What does not fit is forgotten: a full bucket is like none at all.
const MOST: usize = 200_000;

/// Nodes do not wait for each other unless their buckets are in the same part.
const PARTS: usize = 16;

/// How often one node may call.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FloodSettings {
    /// How many calls a second one node may make in the long run; 0 is without limit.
    pub calls_per_second: u32,
    /// How many calls it may make at once.
    pub burst: u32,
}

impl Default for FloodSettings {
    fn default() -> Self {
        Self {
            calls_per_second: 20,
            burst: 200,
        }
    }
}

/// The buckets of all nodes that called lately.
#[derive(Debug)]
pub struct Flood {
    settings: FloodSettings,
    /// Says in which part a bucket is.
    hasher: RandomState,
    /// Of those who proved something.
    proved: [Part; PARTS],
    /// Of those who did not.
    unproved: [Part; PARTS],
}

type Part = Mutex<HashMap<Peer, Bucket>>;

/// When the bucket would be empty if it had been filled since ever: one instant says how full it is.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    full_at: Instant,
}

impl Flood {
    /// Without any bucket yet.
    pub fn new(settings: FloodSettings) -> Self {
        Self {
            settings,
            hasher: RandomState::new(),
            proved: std::array::from_fn(|_| Mutex::default()),
            unproved: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Lets a call of a peer pass, or says when the next one will.
    pub fn admit(&self, peer: &Peer, now: Instant) -> Result<(), Status> {
        let Some(each) = self.each() else {
            return Ok(());
        };
        let mut buckets = self.buckets(peer);
        make_room(&mut buckets, peer, now);
        let bucket = buckets.entry(peer.clone());
        self.take(bucket.or_insert(Bucket { full_at: now }), each, now)
    }

    /// The same for a node that has a bucket of its own already; none if it has not.
    pub fn admit_known(&self, peer: &Peer, now: Instant) -> Option<Result<(), Status>> {
        let each = self.each()?;
        let mut buckets = self.buckets(peer);
        let bucket = buckets.get_mut(peer)?;
        Some(self.take(bucket, each, now))
    }

    /// A call of a holder was that of a node that there is: from now on the node has a bucket of its own, and the holder
    /// gets back what the call took. So nodes that share a token do not get in each other's way.
    pub fn found(&self, holder: &Peer, node: &Peer, now: Instant) {
        let Some(each) = self.each() else {
            return;
        };
        if let Some(bucket) = self.buckets(holder).get_mut(holder) {
            bucket.full_at = bucket.full_at.checked_sub(each).unwrap_or(now);
        }
        let mut buckets = self.buckets(node);
        make_room(&mut buckets, node, now);
        let full_at = now + each;
        buckets.entry(node.clone()).or_insert(Bucket { full_at });
    }

    /// Whether a call of a peer would pass. It takes nothing.
    pub fn may_pass(&self, peer: &Peer, now: Instant) -> Result<(), Status> {
        let Some(each) = self.each() else {
            return Ok(());
        };
        let bucket = self.buckets(peer).get(peer).copied();
        bucket.map_or(Ok(()), |mut bucket| self.take(&mut bucket, each, now))
    }

    /// How long one call takes up; none if there is no limit.
    fn each(&self) -> Option<Duration> {
        Duration::from_secs(1).checked_div(self.settings.calls_per_second)
    }

    /// The part where the bucket of a peer is.
    fn buckets(&self, peer: &Peer) -> MutexGuard<'_, HashMap<Peer, Bucket>> {
        let parts = match peer {
            Peer::Unknown(_) => &self.unproved,
            Peer::Host(..) | Peer::Guid(..) | Peer::Holder(..) => &self.proved,
        };
        let number = self.hasher.hash_one(peer) % PARTS as u64;
        let part = &parts[usize::try_from(number).unwrap_or_default()];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bucket: &mut Bucket, each: Duration, now: Instant) -> Result<(), Status> {
        let room = each * self.settings.burst.max(1);
        let full_at = bucket.full_at.max(now) + each;
        if now + room < full_at {
            let wait = full_at.saturating_duration_since(now + room);
            metrics::counter!("evenkeel_flooding_calls_total").increment(1);
            let refused = Status::resource_exhausted(format!(
                "this node calls too often; try again in {} ms",
                wait.as_millis().max(1)
            ));
            return Err(pushback(refused, wait));
        }
        bucket.full_at = full_at;
        Ok(())
    }
}

fn make_room(buckets: &mut HashMap<Peer, Bucket>, peer: &Peer, now: Instant) {
    if buckets.len() >= MOST / PARTS && !buckets.contains_key(peer) {
        buckets.retain(|_, bucket| now < bucket.full_at);
        if buckets.len() >= MOST / PARTS {
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

    fn flood(calls_per_second: u32, burst: u32) -> Flood {
        Flood::new(FloodSettings {
            calls_per_second,
            burst,
        })
    }

    fn len(parts: &[Part]) -> usize {
        let of_one = |part: &Part| part.lock().expect("not poisoned").len();
        parts.iter().map(of_one).sum()
    }

    #[test]
    fn a_node_may_burst_and_then_goes_at_its_rate() {
        let flood = flood(10, 5);
        let start = Instant::now();
        let admitted = |millis: u64, calls: usize| {
            let now = start + Duration::from_millis(millis);
            let answers = (0..calls).map(|_| flood.admit(&node(1), now).is_ok());
            answers.filter(|passed| *passed).count()
        };
        assert_eq!(admitted(0, 100), 5, "the burst");
        assert_eq!(admitted(99, 100), 0);
        assert_eq!(admitted(100, 100), 1, "one tenth of a second, one call");
        assert_eq!(admitted(60_000, 100), 5, "rest fills the bucket again");
    }

    #[test]
    fn the_others_are_undisturbed() {
        let flood = flood(1, 1);
        let now = Instant::now();
        assert!(flood.admit(&node(1), now).is_ok());
        let refused = flood.admit(&node(1), now).expect_err("too often");
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(
            refused.message().ends_with("try again in 1000 ms"),
            "{}",
            refused.message()
        );
        let hint = refused.metadata().get("grpc-retry-pushback-ms");
        assert_eq!(hint.expect("a hint"), "1000");
        assert!(flood.admit(&node(2), now).is_ok());
    }

    #[test]
    fn without_a_rate_there_is_no_limit() {
        let flood = flood(0, 0);
        let now = Instant::now();
        assert!((0..1_000).all(|_| flood.admit(&node(1), now).is_ok()));
    }

    #[test]
    fn memory_is_bounded() {
        let flood = flood(1, 1);
        let now = Instant::now();
        for n in 0..MOST + 10 {
            let n = u32::try_from(n).expect("a small number");
            flood.admit(&node(n), now).expect("its first call");
        }
        assert!(len(&flood.proved) <= MOST);
    }

    #[test]
    fn nobody_without_a_proof_pushes_out_the_buckets_of_nodes() {
        let flood = flood(1, 1);
        let now = Instant::now();
        flood.admit(&node(1), now).expect("its first call");
        for n in 0..MOST + 10 {
            let n = u32::try_from(n).expect("a small number");
            let address = std::net::IpAddr::from(n.to_be_bytes());
            let stranger = Peer::Unknown(Some(address));
            flood.admit(&stranger, now).expect("its first call");
        }
        assert!(flood.admit(&node(1), now).is_err(), "it is remembered");
        assert!(len(&flood.unproved) <= MOST);
    }

    #[test]
    fn nodes_that_share_a_token_have_buckets_of_their_own_once_they_are_found() {
        let flood = flood(1, 2);
        let now = Instant::now();
        let holder = Peer::holder(TenantId::new(Uuid::nil()), "agents");
        let guid = |n| holder.named(Uuid::from_u128(n));
        for n in 0..100 {
            assert!(flood.admit_known(&guid(n), now).is_none());
            flood.admit(&holder, now).expect("nothing was taken so far");
            flood.found(&holder, &guid(n), now);
        }
        let known = |n| flood.admit_known(&guid(n), now).expect("it was found");
        assert!(known(1).is_ok());
        assert!(known(1).is_err(), "too often");
        assert!(known(2).is_ok());
        // Names that nobody has are the holder's, whatever it makes up.
        assert!(flood.admit(&holder, now).is_ok());
        assert!(flood.admit(&holder, now).is_ok());
        assert!(flood.admit(&holder, now).is_err());
    }
}
