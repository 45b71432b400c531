//! What the agent does for each action that the server decides.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::warnings::to_short_line;
use super::{Agent, AgentError, PlanningLock, RoundOutcome, run_unless_stopped};
use crate::engine::WITHDRAWN;
use crate::journal::{JournalEntry, JournalError, Phase};
use crate::link::StartPermit;
use crate::model::{Action, Failure, UpdateTarget};
use crate::modules::{AnyDraft, FetchProgress, Readiness, RetryRule, TryKind};

/// Time limit for reporting that a change has begun. After it the change starts without an
/// acknowledgement.
pub(super) const BRIEF_REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether the node lets a prepared change begin.
pub(super) enum StartCheck {
    Ready,
    /// The reason is stored and reported.
    Delayed,
    Failed(Failure),
}

impl Agent {
    pub(super) async fn perform_action(
        &mut self,
        act: Action,
        entry: Option<JournalEntry>,
        once: bool,
    ) -> Result<RoundOutcome, AgentError> {
        let has_begun = entry.as_ref().is_some_and(JournalEntry::has_begun);
        let goes_on = continues_download(&act, entry.as_ref());
        let entry = match entry {
            Some(open) => Some(self.refresh_spec(&act, open)?),
            None => None,
        };
        if !has_begun && !goes_on && !matches!(act, Action::Apply { .. }) {
            // No change is due, so there is no reason to wait.
            self.set_waiting_reason(String::new());
        }
        match (act, entry) {
            (_, Some(entry)) if entry.has_begun() => {
                tracing::debug!(attempt = %entry.attempt, "resuming the attempt that has begun");
                Ok(RoundOutcome::Wait)
            }
            (Action::Idle, _) | (Action::Cancel { .. }, None) => Ok(RoundOutcome::Wait),
            (Action::Continue, None) => {
                tracing::warn!("the server refers to an attempt that this agent does not have");
                Ok(RoundOutcome::Wait)
            }
            (Action::Cancel { cause }, Some(entry)) => self.cancel_attempt(entry, &cause).await,
            (Action::Fetch(target) | Action::Apply { target, .. }, Some(entry))
                if self.is_other_change(&target, &entry.target) =>
            {
                self.cancel_attempt(entry, WITHDRAWN).await
            }
            (Action::Fetch(_) | Action::Continue, Some(entry)) => {
                self.continue_download(entry).await
            }
            (Action::Fetch(target), None) => self.prepare_target(target, once).await,
            (Action::Apply { .. }, Some(entry)) => self.apply_attempt(entry).await,
            (Action::Apply { target, .. }, None) => self.plan_and_apply(target, once).await,
        }
    }

    /// Stores a newer description of the change of an open attempt that has not begun.
    fn refresh_spec(&self, act: &Action, open: JournalEntry) -> Result<JournalEntry, JournalError> {
        match act {
            Action::Fetch(target) | Action::Apply { target, .. }
                if !open.has_begun()
                    && *target != open.target
                    && !self.is_other_change(target, &open.target) =>
            {
                self.engine.update_target(open, target.clone())
            }
            _ => Ok(open),
        }
    }

    async fn cancel_attempt(
        &mut self,
        entry: JournalEntry,
        cause: &str,
    ) -> Result<RoundOutcome, AgentError> {
        let ended = self.engine.cancel(entry, cause)?;
        self.report_and_close(ended).await?;
        Ok(RoundOutcome::PollAgain)
    }

    /// Downloads what is missing, or a part of it, and reports it.
    async fn continue_download(&mut self, entry: JournalEntry) -> Result<RoundOutcome, AgentError> {
        if entry.phase != Phase::Downloading {
            return Ok(RoundOutcome::Wait);
        }
        if self.loop_state.waiting_reason.is_empty() {
            // Clears a reason that an earlier agent process has left behind.
            self.set_waiting_reason(String::new());
        }
        let (entry, fetched) = self.unless_stopped(self.engine.fetch(entry)).await??;
        let outcome = self.record_fetch_progress(&fetched);
        self.report_and_close(entry).await?;
        Ok(outcome)
    }

    /// Records the progress of a download. If the download has to wait, the agent polls again at
    /// the regular time and not at once.
    fn record_fetch_progress(&mut self, fetched: &FetchProgress) -> RoundOutcome {
        match fetched {
            FetchProgress::Complete | FetchProgress::Partial => {
                self.set_waiting_reason(String::new());
                RoundOutcome::PollAgain
            }
            FetchProgress::Deferred(why) => {
                self.set_waiting_reason(to_short_line(why));
                self.loop_state.is_preparation_deferred = true;
                RoundOutcome::Wait
            }
        }
    }

    /// Prepares a target ahead of its window. If there is nothing to download, no attempt is
    /// opened, unless the change may start without the server: then it needs an attempt.
    async fn prepare_target(
        &mut self,
        target: UpdateTarget,
        once: bool,
    ) -> Result<RoundOutcome, AgentError> {
        let recent = self.loop_state.last_prepared.as_ref().is_some_and(|(key, at)| {
            *key == self.spec_key(&target)
                && !self.has_elapsed(Some(*at), self.intervals.fetch_retry_interval)
        });
        if recent || self.ended_recently(&target, once) {
            return Ok(RoundOutcome::Wait);
        }
        let Some(planning) = self.lock_planning()? else {
            return Ok(RoundOutcome::Wait);
        };
        match self.plan_target(&target).await? {
            Ok(draft)
                if self.engine.needs_preparation(&draft)
                    || self.has_offline_grant(&target, &draft) =>
            {
                let mut entry = self.engine.start(target, draft)?;
                drop(planning);
                self.report_events(&mut entry).await?;
                self.continue_download(entry).await
            }
            // A later try would fail too, so the server need not wait for the window to learn of
            // it.
            Err(failure)
                if self.engine.retry_rule(&target.spec, failure.kind) == RetryRule::Never =>
            {
                let ended = self.engine.start_and_fail(target, failure)?;
                self.report_and_close(ended).await?;
                Ok(RoundOutcome::PollAgain)
            }
            prepared => {
                match prepared {
                    Ok(_) => tracing::info!("there is nothing to download for the update"),
                    Err(failure) => {
                        tracing::warn!(error = %failure, "the update cannot be prepared yet");
                    }
                }
                self.loop_state.last_prepared = Some((self.spec_key(&target), self.clock.now()));
                Ok(RoundOutcome::Wait)
            }
        }
    }

    /// Acquires the planning lock; `None` while another program makes a plan or applies a document.
    pub(super) fn lock_planning(&self) -> Result<Option<PlanningLock>, AgentError> {
        let planning = PlanningLock::acquire(&self.paths).map_err(JournalError::from)?;
        if planning.is_none() {
            tracing::info!(
                "another program is planning an update or applies a document; the update waits"
            );
        }
        Ok(planning)
    }

    /// Plans the target within the limits of the machine's owner.
    async fn plan_target(
        &mut self,
        target: &UpdateTarget,
    ) -> Result<Result<AnyDraft, Failure>, AgentError> {
        if let Err(failure) = self.engine.check_allowed(&target.spec) {
            return Ok(Err(failure));
        }
        let (engine, stop) = (Arc::clone(&self.engine), self.stop.clone());
        let work = self.with_wait_reports(None, engine.plan(target));
        run_unless_stopped(&stop, work).await
    }

    fn has_offline_grant(&self, target: &UpdateTarget, draft: &AnyDraft) -> bool {
        let granted = self.grants.get();
        granted.is_some_and(|grant| grant.target_digest == target.digest) && !draft.steps.is_empty()
    }

    async fn plan_and_apply(
        &mut self,
        target: UpdateTarget,
        once: bool,
    ) -> Result<RoundOutcome, AgentError> {
        if self.ended_recently(&target, once) {
            tracing::debug!("an attempt for this update has just ended");
            return Ok(RoundOutcome::Wait);
        }
        let Some(planning) = self.lock_planning()? else {
            return Ok(RoundOutcome::Wait);
        };
        let ended = match self.plan_target(&target).await? {
            Ok(draft) if !draft.steps.is_empty() => {
                let mut entry = self.engine.start(target, draft)?;
                drop(planning);
                self.report_events(&mut entry).await?;
                return self.apply_attempt(entry).await;
            }
            Ok(draft) => self.engine.start_and_end(target, draft)?,
            Err(failure) if failure.is_temporary => {
                // The window may be open for longer, so this is not a failed attempt.
                self.set_waiting_reason(to_short_line(&failure.reason));
                self.loop_state.is_preparation_deferred = true;
                return Ok(RoundOutcome::Wait);
            }
            Err(failure) => self.engine.start_and_fail(target, failure)?,
        };
        self.report_and_close(ended).await?;
        Ok(RoundOutcome::PollAgain)
    }

    /// Whether an attempt for the target has just ended. Keeps the node from repeating an update
    /// endlessly if the server has lost the result.
    fn ended_recently(&self, target: &UpdateTarget, once: bool) -> bool {
        let ended = self.loop_state.ended.get(&self.spec_key(target));
        ended.is_some_and(|ended| once || !self.has_elapsed(Some(ended.at), ended.retry_after))
    }

    /// Requests a start permit and changes the node. Nothing interrupts a change that has begun.
    async fn apply_attempt(&mut self, mut entry: JournalEntry) -> Result<RoundOutcome, AgentError> {
        if entry.phase == Phase::Downloading {
            let fetched;
            (entry, fetched) = self.unless_stopped(self.engine.fetch(entry)).await??;
            if entry.phase == Phase::Ended {
                self.report_and_close(entry).await?;
                return Ok(RoundOutcome::PollAgain);
            }
            if entry.phase == Phase::Downloading {
                return Ok(self.record_fetch_progress(&fetched));
            }
            // The node itself may delay the change, so the completed download is reported first.
            self.report_events(&mut entry).await?;
        }
        // While a document is applied, no update begins.
        let Some(planning) = self.lock_planning()? else {
            return Ok(RoundOutcome::Wait);
        };
        match self.check_start(&entry).await? {
            StartCheck::Ready => {}
            StartCheck::Delayed => return Ok(RoundOutcome::Wait),
            StartCheck::Failed(failure) => {
                let ended = self.engine.fail(entry, failure)?;
                self.report_and_close(ended).await?;
                return Ok(RoundOutcome::PollAgain);
            }
        }
        self.report_events(&mut entry).await?;
        let before = match self.unless_stopped(self.link.request_start(&entry)).await?? {
            StartPermit::Granted { start_deadline: before } => {
                self.loop_state.refused_starts = 0;
                before.map(|before| self.to_local_clock(before))
            }
            StartPermit::Refused { reason } => {
                tracing::info!(reason, "the server does not let the update begin");
                self.record_refused_start();
                // The refusal supersedes an offline grant.
                self.grants.remove().map_err(AgentError::Grant)?;
                // After a restore the server may know fewer events than it once acknowledged. It
                // ignores duplicates.
                self.engine.acknowledge(&mut entry, 0)?;
                self.report_events(&mut entry).await?;
                return Ok(RoundOutcome::Wait);
            }
        };
        let mut entry = self.engine.begin(entry, before).await?;
        drop(planning);
        if entry.phase == Phase::Ended {
            self.report_and_close(entry).await?;
            return Ok(RoundOutcome::PollAgain);
        }
        self.report_briefly(&mut entry).await?;
        let ended = self.run_attempt(entry, TryKind::First).await?;
        self.report_and_close(ended).await?;
        Ok(RoundOutcome::PollAgain)
    }

    /// Converts an instant of the server's clock to the node's own clock, the only one that is
    /// available after a boot.
    fn to_local_clock(&self, server: DateTime<Utc>) -> DateTime<Utc> {
        let ahead = self.loop_state.clock_ahead.unwrap_or_default();
        server.checked_add_signed(ahead).unwrap_or(server)
    }

    /// Whether the node lets the prepared change begin: first the modules decide, then the owner's
    /// rules. The reason for a refusal is stored and reported.
    pub(super) async fn check_start(
        &mut self,
        entry: &JournalEntry,
    ) -> Result<StartCheck, AgentError> {
        // The owner may have changed the limits since the plan was made.
        if let Err(failure) = self.engine.check_allowed(&entry.target.spec) {
            return Ok(StartCheck::Failed(failure));
        }
        let (engine, stop) = (Arc::clone(&self.engine), self.stop.clone());
        let work = self.with_wait_reports(Some(entry), engine.check_ready(entry));
        let mut ready = run_unless_stopped(&stop, work).await?;
        if matches!(ready, Ok(Readiness::Ready)) {
            let work = self.gate.check_ready(&entry.plan, self.clock.now());
            ready = Ok(self.unless_stopped(work).await?);
        }
        let why = match ready {
            Ok(Readiness::Ready) => String::new(),
            Ok(Readiness::NotYet(why)) => to_short_line(&why),
            Err(failure) if failure.is_temporary => to_short_line(&failure.reason),
            Err(failure) => return Ok(StartCheck::Failed(failure)),
        };
        let check = if why.is_empty() { StartCheck::Ready } else { StartCheck::Delayed };
        self.set_waiting_reason(why);
        Ok(check)
    }

    /// Stores why the node delays a prepared change; empty if it does not.
    pub(super) fn set_waiting_reason(&mut self, why: String) {
        if why != self.status.get().waiting {
            // The status may also hold a reason of an earlier agent process.
            self.status.update(|status| status.waiting.clone_from(&why));
        }
        if why == self.loop_state.waiting_reason {
            return;
        }
        if why.is_empty() {
            tracing::info!(
                was = self.loop_state.waiting_reason,
                "the node no longer delays the update"
            );
        } else {
            tracing::warn!(why, "the node delays the update");
        }
        self.loop_state.waiting_reason = why;
    }

    /// Whether the desired target is another change than that of an open attempt. Two changes may
    /// have the same digest.
    fn is_other_change(&self, desired: &UpdateTarget, open: &UpdateTarget) -> bool {
        let change = |target: &UpdateTarget| self.engine.identify(&target.spec).change;
        desired.digest != open.digest || change(desired) != change(open)
    }

    /// Key under which the result of a target is remembered: its digest, and what else
    /// distinguishes attempts.
    pub(super) fn spec_key(&self, target: &UpdateTarget) -> String {
        format!("{} {}", target.digest, self.engine.identify(&target.spec).attempt)
    }
}

/// Whether an action continues the download of an open attempt.
fn continues_download(act: &Action, entry: Option<&JournalEntry>) -> bool {
    let is_open = entry.is_some_and(|entry| entry.phase == Phase::Downloading);
    is_open && matches!(act, Action::Fetch(_) | Action::Continue)
}
