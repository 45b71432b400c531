//! Long polls: the server delays its answer until there is a change, while the agent has nothing
//! else to do.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder};
use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::{Agent, AgentError, BACKOFF};
use crate::link::{LinkError, PollAnswer, PollQuery, facts_digest};
use crate::model::Action;

/// A shorter long poll is not requested.
const MIN_HOLD: Duration = Duration::from_secs(2);

/// A server may answer a long poll this much earlier than requested, so that several polls end
/// together.
const EARLY_RELEASE: Duration = Duration::from_secs(2);

/// An answer that took longer than this was delayed by a long poll; no network is that slow.
const LONG_POLL_THRESHOLD: Duration = Duration::from_secs(2);

/// How often the agent reads the facts during a long poll. Changed facts end the poll and start a
/// new one.
const FACTS_CHECK_INTERVAL: Duration = Duration::from_mins(5);

/// Maximum random delay before a long poll. It is short because the server does the waiting.
const LONG_POLL_JITTER: Duration = Duration::from_millis(200);

/// Delay of the poll after a refused start request. It doubles with each further refusal.
const MIN_REFUSAL_DELAY: Duration = Duration::from_millis(250);

/// The server's latest instructions for polling.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LongPollTerms {
    /// Tag of the last decision.
    pub(super) decision_tag: u64,
    /// Maximum duration of the next long poll.
    max_hold: Duration,
    /// After a lost connection the agent reconnects after a random time up to this.
    reconnect_spread: Duration,
}

/// The agent has nothing to do until the server reports a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdlePeriod {
    /// When the agent has work that does not depend on an answer; `None` if never.
    until: Option<DateTime<Utc>>,
}

/// When the server answered a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerTiming {
    /// At once: no long poll was requested, or there was a change.
    Immediate,
    /// At the end of a long poll.
    Held,
    /// Too early, although the decision is unchanged: the server does not offer long polls, or
    /// shuts down.
    Declined,
}

#[derive(Debug)]
pub(super) enum PollResult {
    /// The server answered.
    Answer(Box<PollAnswer>, AnswerTiming),
    /// The agent ended a long poll because it has other work or new facts.
    Interrupted,
    /// The connection was lost during a long poll. This does not mean that the server is
    /// unreachable.
    Disconnected,
}

impl Agent {
    /// Maximum duration of a long poll that starts now. If the agent has work of its own before
    /// that, the agent ends the poll itself: the requested duration is longer, because the server
    /// may answer somewhat early.
    pub(super) fn hold_time(&self, rest: IdlePeriod) -> Duration {
        let offered = self.loop_state.terms.max_hold.min(self.intervals.max_poll_interval);
        let own = self.time_until_own_work(rest).unwrap_or(Duration::MAX);
        if own.min(offered) < MIN_HOLD {
            return Duration::ZERO;
        }
        own.saturating_add(EARLY_RELEASE).min(offered)
    }

    /// Time until the agent has work that does not depend on an answer.
    fn time_until_own_work(&self, rest: IdlePeriod) -> Option<Duration> {
        let until = rest.until?;
        Some((until - self.clock.now()).to_std().unwrap_or_default())
    }

    /// Makes a long poll. Ending it early loses nothing, because a poll can be repeated.
    pub(super) async fn long_poll(
        &mut self,
        query: PollQuery<'_>,
        rest: IdlePeriod,
        digest: [u8; 32],
    ) -> Result<PollResult, AgentError> {
        let begun = Instant::now();
        let own = self.time_until_own_work(rest);
        let mut own = pin!(async move {
            match own {
                Some(own) => tokio::time::sleep(own).await,
                None => std::future::pending().await,
            }
        });
        let (link, stop) = (Arc::clone(&self.link), self.stop.clone());
        let mut answer = link.poll(query);
        let answer = loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(AgentError::Stopped),
                answer = &mut answer => break answer,
                () = &mut own => return Ok(PollResult::Interrupted),
                () = tokio::time::sleep(FACTS_CHECK_INTERVAL) => {
                    if facts_digest(&self.read_facts().await?) != digest {
                        return Ok(PollResult::Interrupted);
                    }
                }
            }
        };
        let answer = match answer {
            Err(LinkError::Unavailable(why)) => {
                tracing::debug!(why, "the connection was lost during a long poll");
                return Ok(PollResult::Disconnected);
            }
            answer => answer?,
        };
        let is_same = answer.decision_tag == query.decision_tag;
        let least = if is_same { query.max_hold.mul_f32(0.75) } else { LONG_POLL_THRESHOLD };
        let way = match (begun.elapsed() >= least, is_same) {
            (true, _) => AnswerTiming::Held,
            (false, true) => AnswerTiming::Declined,
            (false, false) => AnswerTiming::Immediate,
        };
        if way == AnswerTiming::Held {
            self.loop_state.polled_at_once = false;
            self.loop_state.refused_starts = 0;
        }
        self.store_answer(&answer)?;
        Ok(PollResult::Answer(Box::new(answer), way))
    }

    /// Stores the server's instructions for polling.
    pub(super) fn store_terms(&mut self, answer: &PollAnswer) {
        self.loop_state.terms = LongPollTerms {
            decision_tag: answer.decision_tag,
            max_hold: answer.max_hold,
            reconnect_spread: answer.reconnect_spread,
        };
    }

    /// The idle period after an action that changed nothing; `None` if the agent is not idle.
    pub(super) fn idle_period_after(&self, act: &Action, is_prepared: bool) -> Option<IdlePeriod> {
        let now = self.clock.now();
        let window = self.grants.next_window_start(now);
        let refresh = if is_prepared { None } else { self.next_refresh() };
        let again = match act {
            Action::Idle | Action::Continue => None,
            Action::Fetch(_) if is_prepared => None,
            Action::Fetch(target) => Some(self.retry_at(&self.spec_key(target))?),
            // The agent must check again whether the node is ready.
            Action::Apply { .. } | Action::Cancel { .. } => return None,
        };
        let until = [window, refresh, again].into_iter().flatten().min();
        Some(IdlePeriod { until })
    }

    /// When a target that was tried is tried again, by its key; `None` if it was not tried.
    fn retry_at(&self, name: &str) -> Option<DateTime<Utc>> {
        let fetched = self.loop_state.last_prepared.as_ref();
        let fetched = fetched
            .filter(|(failed_key, _)| failed_key == name)
            .map(|(_, at)| (*at, self.intervals.fetch_retry_interval));
        let ended = self.loop_state.ended.get(name);
        let ended = ended.map(|ended| (ended.at, ended.retry_after));
        let tried = [fetched, ended].into_iter().flatten();
        tried.filter_map(|(at, after)| at.checked_add_signed(after)).max()
    }

    /// Records that the server refused a start request, for example because another node took the
    /// last slot. The agent polls again soon to learn what it waits for, and then waits in a long
    /// poll. If servers disagree, the refusals become rare.
    pub(super) fn record_refused_start(&mut self) {
        let doublings = self.loop_state.refused_starts.min(16);
        let delay = MIN_REFUSAL_DELAY.saturating_mul(1 << doublings);
        self.loop_state.refused_starts = doublings + 1;
        self.loop_state.refusal_delay = Some(delay + random_part(delay));
        self.loop_state.polled_at_once = false;
    }

    /// Time until the next poll of an idle agent: as the server requested, or almost at once for a
    /// long poll or after a refused start request.
    pub(super) fn time_until_next_poll(
        &mut self,
        way: AnswerTiming,
        requested: Duration,
    ) -> Duration {
        if let Some(delay) = self.loop_state.refusal_delay.take() {
            return delay.min(requested);
        }
        let rest = self.loop_state.idle;
        let may_be_held = rest.is_some_and(|rest| !self.hold_time(rest).is_zero());
        let soon = may_be_held
            && match way {
                AnswerTiming::Held => true,
                // Only once in a row: otherwise two servers with different decisions would cause a
                // loop.
                AnswerTiming::Immediate => !self.loop_state.polled_at_once,
                AnswerTiming::Declined => false,
            };
        if !soon {
            return requested;
        }
        self.loop_state.polled_at_once = way != AnswerTiming::Held;
        random_part(LONG_POLL_JITTER)
    }

    /// Delay before the poll that follows an interrupted long poll.
    pub(super) fn reconnect_delay(&mut self) -> Duration {
        let wait = BACKOFF.0 + random_part(BACKOFF.0);
        let wait = wait.saturating_add(self.take_reconnect_spread());
        self.time_until_next_window().map_or(wait, |open| wait.min(open))
    }

    /// Returns a random part of the time over which the server spreads reconnects, and resets that
    /// time.
    pub(super) fn take_reconnect_spread(&mut self) -> Duration {
        let spread = std::mem::take(&mut self.loop_state.terms.reconnect_spread);
        random_part(spread.min(self.intervals.max_poll_interval))
    }
}

pub(super) fn random_part(length: Duration) -> Duration {
    let jittered = ConstantBuilder::new().with_delay(length).with_jitter();
    let more = jittered.build().next().unwrap_or(length);
    more.saturating_sub(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_part_never_exceeds_the_length() {
        assert_eq!(random_part(Duration::ZERO), Duration::ZERO);
        let parts: Vec<_> = (0..100).map(|_| random_part(LONG_POLL_JITTER)).collect();
        assert!(parts.iter().all(|part| *part <= LONG_POLL_JITTER), "{parts:?}");
        assert!(parts.iter().any(|part| *part != parts[0]), "{parts:?}");
    }
}
