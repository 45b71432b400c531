//! The agent's reports to the server, and the facts for them.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::chain;

use super::actions::BRIEF_REPORT_TIMEOUT;
use super::long_poll::{AnswerTiming, IdlePeriod, PollResult};
use super::warnings::to_short_line;
use super::{Agent, AgentError, EndedAttempt, Intervals, run_unless_stopped};
use crate::facts::Facts;
use crate::history::AttemptRecord;
use crate::journal::{JournalEntry, Phase};
use crate::link::{PollAnswer, PollQuery, facts_digest};
use crate::model::{EventKind, FailureKind};
use crate::modules::{RetryRule, TryKind};
use crate::node::save_credential;
use crate::status::AttemptEnd;

/// After this many answers in a row that acknowledge fewer events than before, reporting stops until
/// the next round.
const MAX_REWINDS: u32 = 3;
/// A server may request the facts, then the package list. Further requests in the same round are
/// ignored.
const MAX_REPEATED_POLLS: u32 = 2;

impl Agent {
    /// Resumes an open attempt from the journal, as far as possible without the server.
    pub(super) async fn resume_attempt(
        &mut self,
        open: JournalEntry,
    ) -> Result<Option<JournalEntry>, AgentError> {
        let entry = if open.has_begun() || open.unreadable.is_some() {
            tracing::warn!(attempt = %open.attempt, phase = open.phase.name(), "resuming an attempt that has begun");
            let entry = self.run_attempt(open, TryKind::Again).await?;
            // Shows on the server and in the status why the attempt does not end.
            self.set_waiting_reason(to_short_line(&self.engine.open_reason()));
            entry
        } else {
            open
        };
        self.report_and_close(entry).await
    }

    /// Reports pending events. Closes an attempt that has ended and is completely reported.
    pub(super) async fn report_and_close(
        &mut self,
        mut entry: JournalEntry,
    ) -> Result<Option<JournalEntry>, AgentError> {
        if entry.phase == Phase::Ended {
            self.set_waiting_reason(String::new());
            self.record_end(&entry);
            if entry.events.iter().any(|event| event.kind == EventKind::Began) {
                self.facts.accept_package_changes().await;
            }
        }
        if entry.phase == Phase::Rebooting && entry.reboot_is_the_change {
            // Any reset applies the prepared change, so a slow server must not delay the supervised
            // reboot.
            self.report_briefly(&mut entry).await?;
            return Ok(Some(entry));
        }
        self.report_events(&mut entry).await?;
        if entry.phase != Phase::Ended {
            return Ok(Some(entry));
        }
        self.engine.close(&entry).await?;
        Ok(None)
    }

    pub(super) fn record_end(&mut self, entry: &JournalEntry) {
        let Some(end) = AttemptEnd::from_entry(entry) else {
            return;
        };
        let failed = entry.events.last().and_then(|event| event.kind.failure());
        let ended = EndedAttempt {
            at: end.at,
            problem: failed.map(|failure| failure.reason.clone()),
            retry_after: min_retry_delay(&self.intervals, entry, |kind| {
                self.engine.retry_rule(&entry.target.spec, kind)
            }),
        };
        self.loop_state.ended.insert(self.spec_key(&entry.target), ended);
        self.status.update(|status| status.last_end = Some(end));
        let record = AttemptRecord::from_entry(entry, self.engine.describe(entry));
        if let Err(error) = record.map_or(Ok(()), |record| self.history.add(record)) {
            tracing::warn!(error = %chain(&error), "cannot add the attempt to the history");
        }
    }

    /// Reports what can be reported in a few seconds. The rest is reported later.
    pub(super) async fn report_briefly(&self, entry: &mut JournalEntry) -> Result<(), AgentError> {
        match tokio::time::timeout(BRIEF_REPORT_TIMEOUT, self.report_events(entry)).await {
            Ok(Err(AgentError::Journal(error))) => Err(error.into()),
            Ok(Err(error)) => {
                tracing::warn!(error = %chain(&error), "cannot report that the change has begun; reporting it later");
                Ok(())
            }
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }

    pub(super) async fn report_events(&self, entry: &mut JournalEntry) -> Result<(), AgentError> {
        let mut rewinds = 0;
        while !entry.unsent().is_empty() {
            let before = entry.acknowledged;
            let sent = self.owner.report_filter().filter_entry(entry);
            let stored = self.unless_stopped(self.link.report(&sent)).await??;
            drop(sent);
            // The server cannot have stored more events than there are.
            let upto = stored.min(entry.last_sequence());
            self.engine.acknowledge(entry, upto)?;
            if upto <= before {
                rewinds += 1;
            }
            if rewinds > MAX_REWINDS {
                return Err(AgentError::NoProgress);
            }
        }
        Ok(())
    }

    /// Refreshes what the modules know about the outside at regular intervals, so that the facts
    /// contain the available updates.
    pub(super) async fn refresh_if_due(&mut self, once: bool) -> Result<(), AgentError> {
        if !self.is_refresh_due(once) {
            return Ok(());
        }
        let now = self.clock.now();
        self.loop_state.refreshed = Some(now);
        self.loop_state.refresh_retry = None;
        let (engine, stop) = (Arc::clone(&self.engine), self.stop.clone());
        let work = self.with_wait_reports(None, engine.refresh());
        match run_unless_stopped(&stop, work).await? {
            Ok(()) => self.status.update(|status| {
                status.refreshed = Some(now);
                status.refresh_error.clear();
            }),
            Err(failure) => {
                tracing::warn!(error = %failure, "cannot refresh what is known about the available updates");
                if failure.is_temporary {
                    let interval = self.intervals.fetch_retry_interval;
                    self.loop_state.refresh_retry = now.checked_add_signed(interval);
                }
                self.status.update(|status| status.refresh_error = failure.reason);
            }
        }
        Ok(())
    }

    /// Whether to refresh now. `once` refreshes at the start of the agent.
    fn is_refresh_due(&self, once: bool) -> bool {
        let (now, stored) = (self.clock.now(), self.status.get().refreshed);
        match self.loop_state.refreshed.or(stored) {
            None => true,
            Some(_) if once && self.loop_state.refreshed.is_none() => true,
            // A time in the future comes from a wrong clock.
            Some(last) if last > now => true,
            Some(_) => self.next_refresh().is_some_and(|next| next <= now),
        }
    }

    /// When the next refresh is due; `None` if there was no refresh yet.
    pub(super) fn next_refresh(&self) -> Option<DateTime<Utc>> {
        let schedule = self.refresh_schedule;
        let regular = match (self.loop_state.refreshed, self.status.get().refreshed) {
            (Some(last), _) => schedule.next_after(last),
            (None, Some(last)) => {
                let earliest = self.started.checked_add_signed(schedule.start_delay())?;
                schedule.next_after(last).map(|next| next.max(earliest))
            }
            (None, None) => None,
        };
        [regular, self.loop_state.refresh_retry].into_iter().flatten().min()
    }

    /// Whether at least the time `by` has passed since an instant. An instant in the future comes
    /// from a wrong clock.
    pub(super) fn has_elapsed(&self, instant: Option<DateTime<Utc>>, by: TimeDelta) -> bool {
        let now = self.clock.now();
        instant.is_none_or(|instant| instant > now || now - instant >= by)
    }

    /// Reads the facts of the node and adds the agent's own.
    pub(super) async fn read_facts(&mut self) -> Result<Facts, AgentError> {
        let stop = self.stop.clone();
        let mut facts = match run_unless_stopped(&stop, self.facts.read()).await? {
            Ok(facts) => facts,
            Err(failure) => {
                tracing::warn!(error = %failure, "cannot read the facts of the node");
                self.facts.fallback_facts(&failure)
            }
        };
        self.add_agent_facts(&mut facts);
        self.owner.report_filter().filter_facts(&mut facts);
        let stored = self.status.get();
        if stored.warnings != facts.warnings || stored.limits != facts.limits {
            self.status.update(|status| {
                status.warnings.clone_from(&facts.warnings);
                status.limits.clone_from(&facts.limits);
            });
        }
        Ok(facts)
    }

    /// Sends the facts and gets the decision. An idle agent makes a long poll.
    pub(super) async fn poll(
        &mut self,
        entry: Option<&JournalEntry>,
        rest: Option<IdlePeriod>,
    ) -> Result<PollResult, AgentError> {
        let stop = self.stop.clone();
        let facts = self.read_facts().await?;
        let waiting = self.loop_state.waiting_reason.clone();
        let sent_reason = self.owner.report_filter().filter_text(&waiting);
        let digest = facts_digest(&facts);
        let send_facts = self.loop_state.sent_facts_digest.is_some_and(|sent| sent != digest);
        // Changed facts are sent with a regular poll.
        let rest = rest.filter(|_| !send_facts);
        let hold = rest.map_or(Duration::ZERO, |rest| self.hold_time(rest));
        let query = PollQuery {
            facts: &facts,
            send_facts,
            packages: None,
            attempt: entry.map(|entry| (entry.attempt, entry.last_sequence())),
            waiting_reason: &sent_reason,
            decision_tag: self.loop_state.terms.decision_tag,
            max_hold: hold,
        };
        let (mut answer, mut way) = match rest.filter(|_| !hold.is_zero()) {
            None => (self.send_poll(query).await?, AnswerTiming::Immediate),
            Some(rest) => match self.long_poll(query, rest, digest).await? {
                PollResult::Answer(answer, way) => (answer, way),
                nothing => return Ok(nothing),
            },
        };
        for _ in 0..MAX_REPEATED_POLLS {
            let packages = if answer.want_packages {
                run_unless_stopped(&stop, self.facts.read_manifest(&facts)).await?
            } else {
                None
            };
            if !answer.want_facts && packages.is_none() {
                break;
            }
            let query = PollQuery {
                send_facts: answer.want_facts,
                packages: packages.as_deref(),
                max_hold: Duration::ZERO,
                ..query
            };
            (answer, way) = (self.send_poll(query).await?, AnswerTiming::Immediate);
        }
        self.loop_state.sent_facts_digest = Some(digest);
        self.loop_state.sent_waiting_reason = waiting;
        Ok(PollResult::Answer(answer, way))
    }

    async fn send_poll(&mut self, query: PollQuery<'_>) -> Result<Box<PollAnswer>, AgentError> {
        let answer = self.unless_stopped(self.link.poll(query)).await??;
        self.store_answer(&answer)?;
        Ok(Box::new(answer))
    }

    /// Stores what every answer contains.
    pub(super) fn store_answer(&mut self, answer: &PollAnswer) -> Result<(), AgentError> {
        self.loop_state.busy_since = None;
        self.store_terms(answer);
        self.loop_state.clock_ahead = answer.server_time.map(|server| self.clock.now() - server);
        self.grants
            .store(answer.decision.offline_grant.as_ref(), answer.server_time)
            .map_err(AgentError::Grant)?;
        if let Some(credential) = &answer.credential {
            // The stored one can still be renewed, so a full disk does not stop the agent.
            if let Err(error) = save_credential(&self.paths, Some(credential)) {
                tracing::warn!(error = %chain(&error), "cannot store the new bearer token");
            }
            self.link.set_credential(credential)?;
            self.engine.set_credential(credential);
            tracing::info!("the server issued a new bearer token");
        }
        Ok(())
    }
}

/// Minimum time between an ended attempt and the next one for the same target. It is longer if a
/// preparation failed that causes much work, such as some GB of traffic at each try.
fn min_retry_delay(
    pace: &Intervals,
    entry: &JournalEntry,
    rule: impl Fn(FailureKind) -> RetryRule,
) -> TimeDelta {
    let mut events = entry.events.iter();
    let had_begun = events.any(|event| event.kind == EventKind::Began);
    let failed = entry.events.last().and_then(|event| event.kind.failure());
    match failed.map(|failure| rule(failure.kind)) {
        Some(RetryRule::Later) if !had_begun => pace.retry_interval.max(pace.fetch_retry_interval),
        _ => pace.retry_interval,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::model::{AttemptEvent, Failure, ModuleParts, UpdateTarget};

    const INTERVALS: Intervals = Intervals {
        refresh_interval: TimeDelta::hours(4),
        fetch_retry_interval: TimeDelta::hours(1),
        retry_interval: TimeDelta::minutes(1),
        max_poll_interval: Duration::from_hours(1),
    };

    /// The retry delay after an attempt with these events.
    fn retry_delay_after(rule: RetryRule, kinds: &[EventKind]) -> TimeDelta {
        let target = UpdateTarget { digest: "os".into(), spec: ModuleParts::default() };
        let mut entry = JournalEntry::new(Uuid::from_u128(1), target);
        entry.events = (1..)
            .zip(kinds)
            .map(|(sequence, kind)| AttemptEvent {
                sequence,
                at: DateTime::UNIX_EPOCH,
                boot_id: "boot-1".into(),
                kind: kind.clone(),
                report: None,
                interruptions: Vec::new(),
            })
            .collect();
        min_retry_delay(&INTERVALS, &entry, |kind| {
            assert_eq!(kind, FailureKind::Download);
            rule
        })
    }

    #[test]
    fn only_a_costly_preparation_is_not_retried_at_once() {
        let failed = EventKind::Failed { failure: Failure::new(FailureKind::Download, "no") };
        let preparation = [failed.clone()];
        let costly = retry_delay_after(RetryRule::Later, &preparation);
        assert_eq!(costly, INTERVALS.fetch_retry_interval);
        for (rule, events) in [
            (RetryRule::Later, &[EventKind::Began, failed][..]),
            (RetryRule::Soon, &preparation[..]),
            (RetryRule::Never, &preparation[..]),
            (RetryRule::Later, &[EventKind::NothingToDo][..]),
        ] {
            assert_eq!(retry_delay_after(rule, events), INTERVALS.retry_interval);
        }
    }
}
