//! Letting the server keep a poll open until it has something to say, while the agent has nothing else to do.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder};
use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::acts::wish_name;
use super::{Agent, AgentError, BACKOFF};
use crate::link::{Answer, LinkError, Question, facts_digest};
use crate::model::Act;

/// A hold that is shorter is not worth asking for.
const LEAST_HOLD: Duration = Duration::from_secs(2);

/// A server ends a hold as much sooner than it may, so that many end together.
const EARLY: Duration = Duration::from_secs(2);

/// News that took so long came to a poll that was held: no network is that slow.
const HELD: Duration = Duration::from_secs(2);

/// How often the node is looked at while the server keeps a poll open: what is new about it makes another poll.
const LOOK_AGAIN: Duration = Duration::from_mins(5);

/// A poll that may be held is made after a random time up to this: the server does the waiting.
const SOON: Duration = Duration::from_millis(200);

/// How the server wants to be asked, as it said last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terms {
    /// The tag of the decision that it gave.
    pub(super) tag: u64,
    /// The next poll may let itself be held so long.
    hold: Duration,
    /// After losing the connection, come back after a random time up to this.
    spread: Duration,
}

/// Nothing is left to do but to hear of news.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    /// Until the agent has something to do that no answer tells it; none if it never has.
    until: Option<DateTime<Utc>>,
}

/// How an answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The server was not asked to wait with it, or had news.
    AtOnce,
    /// The server had kept the poll open.
    Held,
    /// The server did not wait, or not as long as it might have, though it had nothing new to say: it does not want to
    /// hold, or stops.
    Declined,
}

/// What became of a poll.
#[derive(Debug)]
pub(super) enum Heard {
    /// An answer.
    Answer(Box<Answer>, Way),
    /// The agent has something to do of its own, or something new to tell, and gave up a poll that was held.
    Woken,
    /// The connection was lost while the poll was held. That shows only that this connection is gone.
    CutOff,
}

impl Agent {
    /// How long the poll may be held that is made now: until the agent has something to do it wakes by itself, and not
    /// because the server let go somewhat sooner.
    pub(super) fn hold(&self, rest: Rest) -> Duration {
        let offered = self.memory.terms.hold.min(self.pace.poll_at_least_every);
        let own = self.until_own(rest).unwrap_or(Duration::MAX);
        if own.min(offered) < LEAST_HOLD {
            return Duration::ZERO;
        }
        own.saturating_add(EARLY).min(offered)
    }

    /// How long it takes until the agent has something to do that no answer tells it.
    fn until_own(&self, rest: Rest) -> Option<Duration> {
        let until = rest.until?;
        Some((until - self.clock.now()).to_std().unwrap_or_default())
    }

    /// Makes a poll that the server may hold. Nothing is lost with one that is given up: it can be made again.
    pub(super) async fn ask_held(
        &mut self,
        question: Question<'_>,
        rest: Rest,
        digest: [u8; 32],
    ) -> Result<Heard, AgentError> {
        let begun = Instant::now();
        let own = self.until_own(rest);
        let mut own = pin!(async move {
            match own {
                Some(own) => tokio::time::sleep(own).await,
                None => std::future::pending().await,
            }
        });
        let (link, stop) = (Arc::clone(&self.link), self.stop.clone());
        let mut answer = link.poll(question);
        let answer = loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(AgentError::Stopped),
                answer = &mut answer => break answer,
                () = &mut own => return Ok(Heard::Woken),
                () = tokio::time::sleep(LOOK_AGAIN) => {
                    if facts_digest(&self.look().await?) != digest {
                        return Ok(Heard::Woken);
                    }
                }
            }
        };
        let answer = match answer {
            Err(LinkError::Unavailable(why)) => {
                tracing::debug!(why, "the server let go of the poll that it held");
                return Ok(Heard::CutOff);
            }
            answer => answer?,
        };
        let is_same = answer.tag == question.tag;
        let least = if is_same {
            question.hold.mul_f32(0.75)
        } else {
            HELD
        };
        let way = match (begun.elapsed() >= least, is_same) {
            (true, _) => Way::Held,
            (false, true) => Way::Declined,
            (false, false) => Way::AtOnce,
        };
        self.memory.hurried &= way != Way::Held;
        self.note(&answer)?;
        Ok(Heard::Answer(Box::new(answer), way))
    }

    /// Keeps how the server wants to be asked.
    pub(super) fn keep_terms(&mut self, answer: &Answer) {
        self.memory.terms = Terms {
            tag: answer.tag,
            hold: answer.hold,
            spread: answer.spread,
        };
    }

    /// Whether nothing is left to do after an act that moved nothing, and until when.
    pub(super) fn rest_after(&self, act: &Act, is_prepared: bool) -> Option<Rest> {
        let now = self.clock.now();
        let window = self.grants.next_window(now);
        let refresh = if is_prepared {
            None
        } else {
            let last = self.memory.refreshed.or(self.status.get().refreshed);
            last.and_then(|last| last.checked_add_signed(self.pace.refresh_every))
        };
        let again = match act {
            Act::Idle | Act::Continue => None,
            Act::Fetch(_) if is_prepared => None,
            Act::Fetch(target) => Some(self.again_at(&wish_name(target))?),
            // The node is asked again whether it is ready.
            Act::Apply { .. } | Act::Cancel { .. } => return None,
        };
        let until = [window, refresh, again].into_iter().flatten().min();
        Some(Rest { until })
    }

    /// When a wish that was tried is tried again, by the name under which that is remembered; none if it was not.
    fn again_at(&self, name: &str) -> Option<DateTime<Utc>> {
        let fetched = self.memory.fetched.as_ref();
        let fetched = fetched
            .filter(|(known, _)| known == name)
            .map(|(_, at)| (*at, self.pace.fetch_again_after));
        let ended = self.memory.ended.get(name);
        let ended = ended.map(|ended| (ended.at, ended.again_after));
        let tried = [fetched, ended].into_iter().flatten();
        tried
            .filter_map(|(at, after)| at.checked_add_signed(after))
            .max()
    }

    /// How long to wait for the next poll when nothing is left to do: as the server said, unless it does the waiting.
    pub(super) fn until_next_poll(&mut self, way: Way, said: Duration) -> Duration {
        let rest = self.memory.rest;
        let may_be_held = rest.is_some_and(|rest| !self.hold(rest).is_zero());
        let soon = may_be_held
            && match way {
                Way::Held => true,
                // Not again and again: two servers may never agree.
                Way::AtOnce => !self.memory.hurried,
                Way::Declined => false,
            };
        if !soon {
            return said;
        }
        self.memory.hurried = way != Way::Held;
        part_of(SOON)
    }

    /// How long to wait after a poll broke off that was held.
    pub(super) fn until_back(&mut self) -> Duration {
        let wait = BACKOFF.0 + part_of(BACKOFF.0);
        let wait = wait.saturating_add(self.spread());
        self.until_next_window().map_or(wait, |open| wait.min(open))
    }

    /// After losing the connection: a random part of the time over which the server wants its nodes back, once.
    pub(super) fn spread(&mut self) -> Duration {
        let spread = std::mem::take(&mut self.memory.terms.spread);
        part_of(spread.min(self.pace.poll_at_least_every))
    }
}

/// A random part of a length of time.
pub(super) fn part_of(length: Duration) -> Duration {
    let jittered = ConstantBuilder::new().with_delay(length).with_jitter();
    let more = jittered.build().next().unwrap_or(length);
    more.saturating_sub(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_part_is_never_more_than_the_whole() {
        assert_eq!(part_of(Duration::ZERO), Duration::ZERO);
        let parts: Vec<_> = (0..100).map(|_| part_of(SOON)).collect();
        assert!(parts.iter().all(|part| *part <= SOON), "{parts:?}");
        assert!(parts.iter().any(|part| *part != parts[0]), "{parts:?}");
    }
}
