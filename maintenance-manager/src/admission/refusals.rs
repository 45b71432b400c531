//! Logs why a peer is refused, once per episode and not once per call. A refused node retries every
//! few seconds for a long time.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use chrono::TimeDelta;
use evenkeel_domain::Time;
use tonic::{Code, Status};
use uuid::Uuid;

use crate::admission::peer::Peer;

/// The maximum number of peers with episodes. The older half is removed for a new one; if those
/// peers are refused again, they are logged again.
const MAX_PEERS: usize = 10_000;

/// The maximum number of episodes that are logged in a minute. All nodes of a deleted project may
/// start one.
const MAX_EPISODES_PER_MINUTE: u32 = 1_000;

/// An episode ends with a successful call after this time without a refusal. A rate-limited peer
/// has successful calls in between.
const RECOVERY_PERIOD: TimeDelta = TimeDelta::minutes(1);

/// An episode ends after this time without a refusal, without a successful call.
const EPISODE_TIMEOUT: TimeDelta = TimeDelta::hours(1);

/// The maximum number of claimed UUIDs that are logged in one episode.
const MAX_UUIDS_PER_EPISODE: usize = 5;

/// The current refusals: one episode per peer and status code, so that alternating reasons do not
/// start a new episode with each call.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<RefusalState>);

#[derive(Debug, Default)]
struct RefusalState {
    peers: HashMap<Peer, HashMap<Code, RefusalEpisode>>,
    minute: MinuteBudget,
}

/// The number of episodes that were logged in the current minute.
#[derive(Debug, Default)]
struct MinuteBudget {
    minute: i64,
    started: u32,
}

#[derive(Debug)]
struct RefusalEpisode {
    since: Time,
    last: Time,
    count: u64,
    /// The first UUIDs that the peer claimed.
    claimed_uuids: Vec<Uuid>,
}

/// What to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalChange {
    Nothing,
    Started,
    /// The peer claims a UUID that is new in this episode.
    AnotherUuid,
    /// The limit of this minute is reached; further episodes are not logged.
    TooMany,
    Ended {
        count: u64,
    },
}

impl Refusals {
    /// Records the result of a call of a peer, with the UUID that it claims, and logs a change.
    pub fn record<T>(
        &self,
        (peer, claimed_uuid): (&Peer, Option<Uuid>),
        call: &'static str,
        answer: &Result<T, Status>,
        now: Time,
    ) {
        let refused = answer.as_ref().err();
        // Errors of the server are no refusals; they are logged where they occur.
        if refused.is_some_and(|s| matches!(s.code(), Code::Internal | Code::Unavailable)) {
            return;
        }
        let (code, reason) = refused.map_or((Code::Ok, ""), |s| (s.code(), s.message()));
        let guid = claimed_uuid.map(tracing::field::display);
        match self.update((peer, claimed_uuid), refused.map(Status::code), now) {
            RefusalChange::Nothing => {}
            RefusalChange::Started => {
                tracing::warn!(%peer, guid, call, ?code, reason, "refusing calls of this peer");
            }
            RefusalChange::AnotherUuid => {
                tracing::warn!(%peer, guid, call, ?code, reason, "refusing calls of another node with this token");
            }
            RefusalChange::TooMany => {
                tracing::warn!(
                    %peer, guid, call, ?code, reason, limit = MAX_EPISODES_PER_MINUTE,
                    "refusing calls of very many peers; no more are logged in this minute"
                );
            }
            RefusalChange::Ended { count } => {
                tracing::info!(%peer, call, count, "accepting calls of this peer again");
            }
        }
    }

    fn update(
        &self,
        (peer, claimed_uuid): (&Peer, Option<Uuid>),
        refused: Option<Code>,
        now: Time,
    ) -> RefusalChange {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(code) = refused else {
            // A token may be shared: a success of one node does not end the episode of the others.
            // It ends by timeout.
            return match peer {
                Peer::Holder(..) => RefusalChange::Nothing,
                Peer::Host(..) | Peer::Guid(..) | Peer::Unknown(_) => {
                    end_episodes(&mut all.peers, peer, now)
                }
            };
        };
        let RefusalState { peers, minute } = &mut *all;
        if let Some(episode) = peers.get_mut(peer).and_then(|codes| codes.get_mut(&code))
            && now < episode.last + EPISODE_TIMEOUT
        {
            episode.last = now;
            episode.count += 1;
            let another = claimed_uuid.filter(|uuid| !episode.claimed_uuids.contains(uuid));
            let Some(another) =
                another.filter(|_| episode.claimed_uuids.len() < MAX_UUIDS_PER_EPISODE)
            else {
                return RefusalChange::Nothing;
            };
            episode.claimed_uuids.push(another);
            return RefusalChange::AnotherUuid;
        }
        let change = minute.start_episode(now);
        if change == RefusalChange::Nothing {
            return change;
        }
        if peers.len() >= MAX_PEERS && !peers.contains_key(peer) {
            evict(peers, now);
        }
        let begun = RefusalEpisode {
            since: now,
            last: now,
            count: 1,
            claimed_uuids: claimed_uuid.into_iter().collect(),
        };
        peers.entry(peer.clone()).or_default().insert(code, begun);
        change
    }
}

/// Ends the episodes of a peer after a successful call, if none had a refusal recently.
fn end_episodes(
    all: &mut HashMap<Peer, HashMap<Code, RefusalEpisode>>,
    peer: &Peer,
    now: Time,
) -> RefusalChange {
    let is_recovered = |codes: &HashMap<_, RefusalEpisode>| {
        codes.values().all(|one| one.last + RECOVERY_PERIOD < now)
    };
    if !all.get(peer).is_some_and(is_recovered) {
        return RefusalChange::Nothing;
    }
    let ended = all.remove(peer).unwrap_or_default();
    let count = ended.values().map(|episode| episode.count).sum();
    RefusalChange::Ended { count }
}

/// Removes ended episodes, and if that is not enough, the older half, so that the cost is
/// amortised.
fn evict(peers: &mut HashMap<Peer, HashMap<Code, RefusalEpisode>>, now: Time) {
    peers.retain(|_, codes| codes.values().any(|one| now < one.last + EPISODE_TIMEOUT));
    if peers.len() <= MAX_PEERS / 2 {
        return;
    }
    let since = |codes: &HashMap<Code, RefusalEpisode>| codes.values().map(|one| one.since).min();
    let mut all: Vec<_> = peers.values().map(since).collect();
    let (_, &mut middle, _) = all.select_nth_unstable(MAX_PEERS / 2);
    peers.retain(|_, codes| middle < since(codes));
}

impl MinuteBudget {
    /// Counts a new episode. One that is not logged now is logged with a later refusal.
    fn start_episode(&mut self, now: Time) -> RefusalChange {
        let number = now.timestamp().div_euclid(60);
        if number != self.minute {
            (self.minute, self.started) = (number, 0);
        }
        self.started = self.started.saturating_add(1);
        match self.started.cmp(&MAX_EPISODES_PER_MINUTE) {
            Ordering::Less => RefusalChange::Started,
            Ordering::Equal => RefusalChange::TooMany,
            Ordering::Greater => RefusalChange::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use evenkeel_domain::tenant::TenantId;

    use super::*;

    fn peer(n: u8) -> Peer {
        Peer::Unknown(Some(std::net::IpAddr::from([127, 0, 0, n])))
    }

    #[test]
    fn an_episode_is_reported_once() {
        let refusals = Refusals::default();
        let at = |minutes| DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes);
        let denied = Some(Code::PermissionDenied);
        assert_eq!(refusals.update((&peer(1), None), denied, at(0)), RefusalChange::Started);
        for minute in 1..10_000 {
            assert_eq!(
                refusals.update((&peer(1), None), denied, at(minute)),
                RefusalChange::Nothing
            );
        }
        let missing = Some(Code::NotFound);
        assert_eq!(
            refusals.update((&peer(1), None), missing, at(10_000)),
            RefusalChange::Started,
            "another reason"
        );
        assert_eq!(
            refusals.update((&peer(2), None), missing, at(10_000)),
            RefusalChange::Started,
            "another peer"
        );
        assert_eq!(
            refusals.update((&peer(1), None), None, at(10_001)),
            RefusalChange::Nothing,
            "too early"
        );
        assert_eq!(
            refusals.update((&peer(1), None), None, at(10_002)),
            RefusalChange::Ended { count: 10_001 },
            "both reasons"
        );
        assert_eq!(refusals.update((&peer(1), None), None, at(10_003)), RefusalChange::Nothing);
        assert_eq!(
            refusals.update((&peer(2), None), missing, at(20_000)),
            RefusalChange::Started,
            "long ago"
        );
    }

    #[test]
    fn alternating_reasons_are_reported_once_each() {
        let refusals = Refusals::default();
        let reported = (0..1_000_i64).filter(|n| {
            let code = [Code::NotFound, Code::InvalidArgument][usize::from(n % 2 == 0)];
            let now = DateTime::UNIX_EPOCH + TimeDelta::seconds(*n);
            refusals.update((&peer(1), None), Some(code), now) == RefusalChange::Started
        });
        assert_eq!(reported.count(), 2);
    }

    /// Nodes that share a token: one succeeds, the others are refused as long as they call.
    #[test]
    fn the_episode_of_a_shared_token_ends_only_by_timeout() {
        let refusals = Refusals::default();
        let holder = Peer::holder(TenantId::new(Uuid::nil()), "agents");
        let at = |minutes| DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes);
        let missing = Some(Code::NotFound);
        let refuse = |n, minutes| {
            let who = (&holder, Some(Uuid::from_u128(n)));
            refusals.update(who, missing, at(minutes))
        };
        assert_eq!(refuse(1, 0), RefusalChange::Started);
        assert_eq!(
            refusals.update((&holder, None), None, at(10)),
            RefusalChange::Nothing,
            "another node succeeded"
        );
        assert_eq!(refuse(1, 20), RefusalChange::Nothing, "it goes on");
        let reported = (1..1_000).filter(|n| refuse(*n, 21) == RefusalChange::AnotherUuid);
        assert_eq!(reported.count(), MAX_UUIDS_PER_EPISODE - 1, "the first few are logged");
        assert_eq!(refuse(1, 90), RefusalChange::Started, "long ago");
    }

    /// The nodes of a deleted project: memory and log are bounded.
    #[test]
    fn reports_are_limited_per_minute_and_memory_is_bounded() {
        let refusals = Refusals::default();
        let missing = Some(Code::NotFound);
        let refused = |n: u32, minute: i64| {
            let now = DateTime::UNIX_EPOCH + TimeDelta::minutes(minute);
            let peer = Peer::Unknown(Some(std::net::IpAddr::from(n.to_be_bytes())));
            refusals.update((&peer, None), missing, now)
        };
        let (mut begun, mut most) = (0, 0);
        for minute in 0..15 {
            let changes: Vec<_> = (0..15_000).map(|n| refused(n, minute)).collect();
            let count = |change| changes.iter().filter(|one| **one == change).count();
            assert_eq!(count(RefusalChange::Started), 999, "minute {minute}");
            assert_eq!(count(RefusalChange::TooMany), 1);
            begun += 1_000;
            most = most.max(refusals.0.lock().expect("not poisoned").peers.len());
            assert!(most <= MAX_PEERS.min(begun));
        }
        assert_eq!(most, MAX_PEERS);
        assert_eq!(refused(50_000, 15), RefusalChange::Started, "another minute");
        assert_eq!(refused(50_000, 15), RefusalChange::Nothing, "it is remembered");
    }
}
