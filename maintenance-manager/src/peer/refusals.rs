//! Says in the log why a peer is refused: once an episode, not once a call. A node that is refused comes back every few
//! seconds, for years.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use chrono::TimeDelta;
use evenkeel_domain::Time;
use tonic::{Code, Status};

use crate::peer::Peer;

/// How many episodes are remembered at most. The oldest is forgotten for a new one, so its peer is told of again.
const MOST: usize = 10_000;

/// After this time without another refusal a call that is answered ends an episode. Whoever calls too often is answered
/// now and then.
const QUIET: TimeDelta = TimeDelta::minutes(1);

/// After this time without another refusal an episode is over, whatever happened.
const OVER: TimeDelta = TimeDelta::hours(1);

/// The refusals that go on: one episode for each peer and code, or two reasons in turn would be news with each call.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<HashMap<Peer, HashMap<Code, Episode>>>);

#[derive(Debug)]
struct Episode {
    since: Time,
    last: Time,
    count: u64,
}

/// What to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Nothing,
    Begun,
    Ended { count: u64 },
}

impl Refusals {
    /// Notes how a call ended, and says it if that is news.
    pub fn note<T>(&self, peer: &Peer, call: &'static str, answer: &Result<T, Status>, now: Time) {
        let refused = answer.as_ref().err();
        // What went wrong on our side is not refused, and is told of where it goes wrong.
        if refused.is_some_and(|s| matches!(s.code(), Code::Internal | Code::Unavailable)) {
            return;
        }
        match self.judge(peer, refused.map(Status::code), now) {
            News::Nothing => {}
            News::Begun => {
                let (code, reason) = refused.map_or((Code::Ok, ""), |s| (s.code(), s.message()));
                tracing::warn!(%peer, call, ?code, reason, "calls are refused from now on");
            }
            News::Ended { count } => {
                tracing::info!(%peer, call, count, "calls are answered again");
            }
        }
    }

    fn judge(&self, peer: &Peer, refused: Option<Code>, now: Time) -> News {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(code) = refused else {
            return answered(&mut all, peer, now);
        };
        if let Some(episode) = all.get_mut(peer).and_then(|codes| codes.get_mut(&code))
            && now < episode.last + OVER
        {
            episode.last = now;
            episode.count += 1;
            return News::Nothing;
        }
        if all.len() >= MOST && !all.contains_key(peer) {
            make_room(&mut all, now);
        }
        let begun = Episode {
            since: now,
            last: now,
            count: 1,
        };
        all.entry(peer.clone()).or_default().insert(code, begun);
        News::Begun
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

/// Forgets what is over, and if nothing is, the peer whose episodes are the oldest.
fn make_room(all: &mut HashMap<Peer, HashMap<Code, Episode>>, now: Time) {
    all.retain(|_, codes| codes.values().any(|one| now < one.last + OVER));
    if all.len() < MOST {
        return;
    }
    let since = |codes: &HashMap<Code, Episode>| codes.values().map(|one| one.since).min();
    let oldest = all.iter().min_by_key(|(_, codes)| since(codes));
    if let Some(oldest) = oldest.map(|(peer, _)| peer.clone()) {
        all.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    fn peer(n: u8) -> Peer {
        Peer::Unknown(Some(std::net::IpAddr::from([127, 0, 0, n])))
    }

    #[test]
    fn an_episode_is_told_of_once() {
        let refusals = Refusals::default();
        let at = |minutes| DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes);
        let denied = Some(Code::PermissionDenied);
        assert_eq!(refusals.judge(&peer(1), denied, at(0)), News::Begun);
        for minute in 1..10_000 {
            assert_eq!(refusals.judge(&peer(1), denied, at(minute)), News::Nothing);
        }
        let missing = Some(Code::NotFound);
        assert_eq!(
            refusals.judge(&peer(1), missing, at(10_000)),
            News::Begun,
            "another reason"
        );
        assert_eq!(
            refusals.judge(&peer(2), missing, at(10_000)),
            News::Begun,
            "another peer"
        );
        assert_eq!(
            refusals.judge(&peer(1), None, at(10_001)),
            News::Nothing,
            "not quiet yet"
        );
        assert_eq!(
            refusals.judge(&peer(1), None, at(10_002)),
            News::Ended { count: 10_001 },
            "both reasons"
        );
        assert_eq!(refusals.judge(&peer(1), None, at(10_003)), News::Nothing);
        assert_eq!(
            refusals.judge(&peer(2), missing, at(20_000)),
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
            refusals.judge(&peer(1), Some(code), now) == News::Begun
        });
        assert_eq!(told.count(), 2);
    }

    #[test]
    fn memory_is_bounded() {
        let refusals = Refusals::default();
        for n in 0..MOST + 10 {
            let now =
                DateTime::UNIX_EPOCH + TimeDelta::milliseconds(i64::try_from(n).expect("small"));
            let address = u32::try_from(n).expect("small").to_be_bytes();
            let peer = Peer::Unknown(Some(std::net::IpAddr::from(address)));
            assert_eq!(
                refusals.judge(&peer, Some(Code::NotFound), now),
                News::Begun
            );
        }
        assert_eq!(refusals.0.lock().expect("not poisoned").len(), MOST);
    }
}
