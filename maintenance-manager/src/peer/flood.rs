//! Keeps one node from taking the server's time from all others: a token bucket a node, in memory.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tonic::Status;

use crate::peer::Peer;

/// How many buckets are kept at most. What does not fit is forgotten: a full bucket is like none at all.
const MOST: usize = 200_000;

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
    buckets: Mutex<HashMap<Peer, Bucket>>,
}

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
            buckets: Mutex::default(),
        }
    }

    /// Lets a call of a peer pass, or says when the next one will.
    pub fn admit(&self, peer: Peer, now: Instant) -> Result<(), Status> {
        if self.settings.calls_per_second == 0 {
            return Ok(());
        }
        let each = Duration::from_secs(1) / self.settings.calls_per_second;
        let room = each * self.settings.burst.max(1);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST && !buckets.contains_key(&peer) {
            buckets.retain(|_, bucket| now < bucket.full_at);
            if buckets.len() >= MOST {
                buckets.clear();
            }
        }
        let bucket = buckets.entry(peer).or_insert(Bucket { full_at: now });
        let full_at = bucket.full_at.max(now) + each;
        if now + room < full_at {
            let wait = full_at.saturating_duration_since(now + room);
            metrics::counter!("evenkeel_flooding_calls_total").increment(1);
            return Err(Status::resource_exhausted(format!(
                "this node calls too often; try again in {} ms",
                wait.as_millis().max(1)
            )));
        }
        bucket.full_at = full_at;
        Ok(())
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

    #[test]
    fn a_node_may_burst_and_then_goes_at_its_rate() {
        let flood = flood(10, 5);
        let start = Instant::now();
        let admitted = |millis: u64, calls: usize| {
            let now = start + Duration::from_millis(millis);
            let answers = (0..calls).map(|_| flood.admit(node(1), now).is_ok());
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
        assert!(flood.admit(node(1), now).is_ok());
        let refused = flood.admit(node(1), now).expect_err("too often");
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(
            refused.message().ends_with("try again in 1000 ms"),
            "{}",
            refused.message()
        );
        assert!(flood.admit(node(2), now).is_ok());
    }

    #[test]
    fn without_a_rate_there_is_no_limit() {
        let flood = flood(0, 0);
        let now = Instant::now();
        assert!((0..1_000).all(|_| flood.admit(node(1), now).is_ok()));
    }

    #[test]
    fn memory_is_bounded() {
        let flood = flood(1, 1);
        let now = Instant::now();
        for n in 0..MOST + 10 {
            let n = u32::try_from(n).expect("a small number");
            flood.admit(node(n), now).expect("its first call");
        }
        assert!(flood.buckets.lock().expect("not poisoned").len() <= MOST);
    }
}
