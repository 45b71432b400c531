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

/// The refusals that go on.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<HashMap<Peer, Episode>>);

#[derive(Debug)]
struct Episode {
    code: Code,
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
    pub fn note<T>(&self, peer: Peer, call: &'static str, answer: &Result<T, Status>, now: Time) {
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

    fn judge(&self, peer: Peer, refused: Option<Code>, now: Time) -> News {
        let mut episodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(code) = refused else {
            let quiet = |episode: &Episode| episode.last + QUIET < now;
            if !episodes.get(&peer).is_some_and(quiet) {
                return News::Nothing;
            }
            let ended = episodes.remove(&peer);
            return ended.map_or(News::Nothing, |episode| News::Ended {
                count: episode.count,
            });
        };
        if let Some(episode) = episodes.get_mut(&peer)
            && episode.code == code
            && now < episode.last + OVER
        {
            episode.last = now;
            episode.count += 1;
            return News::Nothing;
        }
        if episodes.len() >= MOST {
            episodes.retain(|_, episode| now < episode.last + OVER);
        }
        if episodes.len() >= MOST {
            let oldest = episodes.iter().min_by_key(|(_, episode)| episode.since);
            if let Some(oldest) = oldest.map(|(peer, _)| *peer) {
                episodes.remove(&oldest);
            }
        }
        let begun = Episode {
            code,
            since: now,
            last: now,
            count: 1,
        };
        episodes.insert(peer, begun);
        News::Begun
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
        assert_eq!(refusals.judge(peer(1), denied, at(0)), News::Begun);
        for minute in 1..10_000 {
            assert_eq!(refusals.judge(peer(1), denied, at(minute)), News::Nothing);
        }
        let missing = Some(Code::NotFound);
        assert_eq!(
            refusals.judge(peer(1), missing, at(10_000)),
            News::Begun,
            "another reason"
        );
        assert_eq!(
            refusals.judge(peer(2), missing, at(10_000)),
            News::Begun,
            "another peer"
        );
        assert_eq!(
            refusals.judge(peer(1), None, at(10_001)),
            News::Nothing,
            "not quiet yet"
        );
        assert_eq!(
            refusals.judge(peer(1), None, at(10_002)),
            News::Ended { count: 1 }
        );
        assert_eq!(refusals.judge(peer(1), None, at(10_003)), News::Nothing);
        assert_eq!(
            refusals.judge(peer(2), missing, at(20_000)),
            News::Begun,
            "long ago"
        );
    }

    #[test]
    fn memory_is_bounded() {
        let refusals = Refusals::default();
        for n in 0..MOST + 10 {
            let now =
                DateTime::UNIX_EPOCH + TimeDelta::milliseconds(i64::try_from(n).expect("small"));
            let address = u32::try_from(n).expect("small").to_be_bytes();
            let peer = Peer::Unknown(Some(std::net::IpAddr::from(address)));
            assert_eq!(refusals.judge(peer, Some(Code::NotFound), now), News::Begun);
        }
        assert_eq!(refusals.0.lock().expect("not poisoned").len(), MOST);
    }
}
