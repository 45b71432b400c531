//! Says in the log why a peer is refused: once an episode, not once a call. A node that is refused comes back every few
//! seconds, for years.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use chrono::TimeDelta;
use evenkeel_domain::Time;
use tonic::{Code, Status};
use uuid::Uuid;

use crate::peer::Peer;

/// Of how many peers episodes are remembered at most. The older half is forgotten for a new one, so those are told of again.
const MOST: usize = 10_000;

/// How many episodes are told of in a minute. Whole projects may be gone, and all their nodes go on asking.
const TOLD: u32 = 1_000;

/// After this time without another refusal a call that is answered ends an episode. Whoever calls too often is answered
/// now and then.
const QUIET: TimeDelta = TimeDelta::minutes(1);

/// After this time without another refusal an episode is over, whatever happened.
const OVER: TimeDelta = TimeDelta::hours(1);

/// So many of the nodes that the holder of a token says to be are told of in one episode.
const FEW: usize = 5;

/// The refusals that go on: one episode for each peer and code, or two reasons in turn would be news with each call.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    peers: HashMap<Peer, HashMap<Code, Episode>>,
    minute: Minute,
}

/// How many were told of in this minute.
#[derive(Debug, Default)]
struct Minute {
    number: i64,
    told: u32,
}

#[derive(Debug)]
struct Episode {
    since: Time,
    last: Time,
    count: u64,
    /// What it said to be, the first few of them.
    said: Vec<Uuid>,
}

/// What to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Nothing,
    Begun,
    /// It says to be another one than before.
    Another,
    /// So many began in this minute that the others are not told of.
    TooMany,
    Ended {
        count: u64,
    },
}

impl Refusals {
    /// Notes how a call ended of a peer that says that it has a UUID or says nothing, and tells if that is news.
    pub fn note<T>(
        &self,
        (peer, said): (&Peer, Option<Uuid>),
        call: &'static str,
        answer: &Result<T, Status>,
        now: Time,
    ) {
        let refused = answer.as_ref().err();
        // What went wrong on our side is not refused, and is told of where it goes wrong.
        if refused.is_some_and(|s| matches!(s.code(), Code::Internal | Code::Unavailable)) {
            return;
        }
        let (code, reason) = refused.map_or((Code::Ok, ""), |s| (s.code(), s.message()));
        let guid = said.map(tracing::field::display);
        match self.judge((peer, said), refused.map(Status::code), now) {
            News::Nothing => {}
            News::Begun => {
                tracing::warn!(%peer, guid, call, ?code, reason, "calls are refused from now on");
            }
            News::Another => {
                tracing::warn!(%peer, guid, call, ?code, reason, "calls are refused as well");
            }
            News::TooMany => {
                tracing::warn!(
                    %peer, guid, call, ?code, reason, told = TOLD,
                    "calls of very many are refused: no more of them are named in this minute"
                );
            }
            News::Ended { count } => {
                tracing::info!(%peer, call, count, "calls are answered again");
            }
        }
    }

    fn judge(&self, (peer, said): (&Peer, Option<Uuid>), refused: Option<Code>, now: Time) -> News {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(code) = refused else {
            // Many may share a token: that one of them is answered ends nothing for the others. Only time does.
            return match peer {
                Peer::Holder(..) => News::Nothing,
                Peer::Host(..) | Peer::Guid(..) | Peer::Unknown(_) => {
                    answered(&mut all.peers, peer, now)
                }
            };
        };
        let Noted { peers, minute } = &mut *all;
        if let Some(episode) = peers.get_mut(peer).and_then(|codes| codes.get_mut(&code))
            && now < episode.last + OVER
        {
            episode.last = now;
            episode.count += 1;
            let another = said.filter(|said| !episode.said.contains(said));
            let Some(another) = another.filter(|_| episode.said.len() < FEW) else {
                return News::Nothing;
            };
            episode.said.push(another);
            return News::Another;
        }
        let news = minute.begins(now);
        if news == News::Nothing {
            return news;
        }
        if peers.len() >= MOST && !peers.contains_key(peer) {
            make_room(peers, now);
        }
        let begun = Episode {
            since: now,
            last: now,
            count: 1,
            said: said.into_iter().collect(),
        };
        peers.entry(peer.clone()).or_default().insert(code, begun);
        news
    }
}

/// A call was answered: that ends all episodes of its peer once they are quiet.
fn answered(all: &mut HashMap<Peer, HashMap<Code, Episode>>, peer: &Peer, now: Time) -> News {
    let quiet = |codes: &HashMap<_, Episode>| codes.values().all(|one| one.last + QUIET < now);
    if !all.get(peer).is_some_and(quiet) {
        return News::Nothing;
    }
    let ended = all.remove(peer).unwrap_or_default();
    let count = ended.values().map(|episode| episode.count).sum();
    News::Ended { count }
}

/// Forgets what is over, and if that is too little, the older half: whoever is refused in the meantime costs no search.
fn make_room(peers: &mut HashMap<Peer, HashMap<Code, Episode>>, now: Time) {
    peers.retain(|_, codes| codes.values().any(|one| now < one.last + OVER));
    if peers.len() <= MOST / 2 {
        return;
    }
    let since = |codes: &HashMap<Code, Episode>| codes.values().map(|one| one.since).min();
    let mut all: Vec<_> = peers.values().map(since).collect();
    let (_, &mut middle, _) = all.select_nth_unstable(MOST / 2);
    peers.retain(|_, codes| middle < since(codes));
}

impl Minute {
    /// An episode begins that nothing is known of. One that is not told of now is with a later refusal.
    fn begins(&mut self, now: Time) -> News {
        let number = now.timestamp().div_euclid(60);
        if number != self.number {
            (self.number, self.told) = (number, 0);
        }
        self.told = self.told.saturating_add(1);
        match self.told.cmp(&TOLD) {
            Ordering::Less => News::Begun,
            Ordering::Equal => News::TooMany,
            Ordering::Greater => News::Nothing,
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
    fn an_episode_is_told_of_once() {
        let refusals = Refusals::default();
        let at = |minutes| DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes);
        let denied = Some(Code::PermissionDenied);
        assert_eq!(refusals.judge((&peer(1), None), denied, at(0)), News::Begun);
        for minute in 1..10_000 {
            assert_eq!(
                refusals.judge((&peer(1), None), denied, at(minute)),
                News::Nothing
            );
        }
        let missing = Some(Code::NotFound);
        assert_eq!(
            refusals.judge((&peer(1), None), missing, at(10_000)),
            News::Begun,
            "another reason"
        );
        assert_eq!(
            refusals.judge((&peer(2), None), missing, at(10_000)),
            News::Begun,
            "another peer"
        );
        assert_eq!(
            refusals.judge((&peer(1), None), None, at(10_001)),
            News::Nothing,
            "not quiet yet"
        );
        assert_eq!(
            refusals.judge((&peer(1), None), None, at(10_002)),
            News::Ended { count: 10_001 },
            "both reasons"
        );
        assert_eq!(
            refusals.judge((&peer(1), None), None, at(10_003)),
            News::Nothing
        );
        assert_eq!(
            refusals.judge((&peer(2), None), missing, at(20_000)),
            News::Begun,
            "long ago"
        );
    }

    #[test]
    fn two_reasons_in_turn_are_told_of_once_each() {
        let refusals = Refusals::default();
        let told = (0..1_000_i64).filter(|n| {
            let code = [Code::NotFound, Code::InvalidArgument][usize::from(n % 2 == 0)];
            let now = DateTime::UNIX_EPOCH + TimeDelta::seconds(*n);
            refusals.judge((&peer(1), None), Some(code), now) == News::Begun
        });
        assert_eq!(told.count(), 2);
    }

    /// Nodes that share a token: one is answered, the others are refused for as long as they ask.
    #[test]
    fn the_episode_of_a_token_that_many_share_ends_by_time_only() {
        let refusals = Refusals::default();
        let holder = Peer::holder(TenantId::new(Uuid::nil()), "agents");
        let at = |minutes| DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes);
        let missing = Some(Code::NotFound);
        let said = |n, minutes| {
            let who = (&holder, Some(Uuid::from_u128(n)));
            refusals.judge(who, missing, at(minutes))
        };
        assert_eq!(said(1, 0), News::Begun);
        assert_eq!(
            refusals.judge((&holder, None), None, at(10)),
            News::Nothing,
            "another one was answered"
        );
        assert_eq!(said(1, 20), News::Nothing, "it goes on");
        let told = (1..1_000).filter(|n| said(*n, 21) == News::Another);
        assert_eq!(told.count(), FEW - 1, "the first few are told of");
        assert_eq!(said(1, 90), News::Begun, "long ago");
    }

    /// The nodes of a project that is gone: none of them is worth a search through all.
    #[test]
    fn more_than_can_be_remembered_are_told_of_some_at_a_time() {
        let refusals = Refusals::default();
        let missing = Some(Code::NotFound);
        let refused = |n: u32, minute: i64| {
            let now = DateTime::UNIX_EPOCH + TimeDelta::minutes(minute);
            let peer = Peer::Unknown(Some(std::net::IpAddr::from(n.to_be_bytes())));
            refusals.judge((&peer, None), missing, now)
        };
        let (mut begun, mut most) = (0, 0);
        for minute in 0..15 {
            let told: Vec<_> = (0..15_000).map(|n| refused(n, minute)).collect();
            let count = |news| told.iter().filter(|one| **one == news).count();
            assert_eq!(count(News::Begun), 999, "minute {minute}");
            assert_eq!(count(News::TooMany), 1);
            begun += 1_000;
            most = most.max(refusals.0.lock().expect("not poisoned").peers.len());
            assert!(most <= MOST.min(begun));
        }
        assert_eq!(most, MOST);
        assert_eq!(refused(50_000, 15), News::Begun, "another minute");
        assert_eq!(refused(50_000, 15), News::Nothing, "it is remembered");
    }
}
