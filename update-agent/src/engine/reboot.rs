//! Reboots the node after a change: waits until the machine lets it go down, requests the reboot, and resumes in the next
//! boot.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::apply::{EMPTY_BASELINE, add_missing};
use super::{Engine, all_steps, last_event};
use crate::journal::{JournalEntry, JournalError, Phase, RebootDelay};
use crate::model::{EventKind, Failure, FailureKind, RebootRule};
use crate::modules::TryKind;
use crate::reboot::{RebootTiming, warning_message};

/// The agent requests a reboot of the node at most this often in one attempt.
const MAX_REBOOT_REQUESTS: u32 = 3;
/// Time between two reboot requests, and after the last one.
const REBOOT_RETRY_INTERVAL: TimeDelta = TimeDelta::minutes(5);
/// A reboot this long after its announced time is another reboot for users, who are warned again. The report to the server
/// before the request may take a part of this time.
const MAX_ANNOUNCEMENT_AGE: TimeDelta = TimeDelta::minutes(5);
/// Users are warned at most this often of one reboot: an agent that rarely runs is always late.
const MAX_WARNINGS: u32 = 3;
/// Interval between two checks of what delays a reboot.
const DELAY_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Whether the node may reboot now.
enum RebootReadiness {
    Ready,
    /// Something on the machine delays the reboot, for this reason.
    Delayed(String),
    /// The node does not reboot, for this reason.
    Refused(String),
}

impl Engine {
    /// Sets the time that passes before a reboot.
    #[must_use]
    pub fn with_reboot_timing(mut self, timing: RebootTiming) -> Self {
        self.reboot_timing = timing;
        self
    }

    /// Begins the reboot that the change needs. If the machine delays it, the attempt stays open. If the node must not
    /// reboot, the attempt ends without it.
    pub(super) async fn begin_reboot(
        &self,
        mut entry: JournalEntry,
    ) -> Result<JournalEntry, JournalError> {
        let delay = match self.check_reboot(&entry).await {
            RebootReadiness::Refused(why) => return self.skip_reboot(entry, &why).await,
            RebootReadiness::Delayed(why) => Some(why),
            RebootReadiness::Ready => None,
        };
        let reasons = entry.reboot_reasons.join(", ");
        tracing::warn!(attempt = %entry.attempt, reasons, "the change needs a reboot");
        entry.phase = Phase::Rebooting;
        entry.reboot_since = Some(self.now());
        entry.boot_id.clone_from(&self.parts.boot_id);
        match delay {
            Some(why) => self.delay_reboot(entry, why),
            None => self.advance_reboot(entry).await,
        }
    }

    /// Resumes an attempt that waits for a reboot. In another boot the reboot is done. In the same boot it is requested,
    /// again if an earlier request had no effect.
    pub(super) async fn continue_reboot(
        &self,
        mut entry: JournalEntry,
    ) -> Result<JournalEntry, JournalError> {
        if entry.boot_id != self.parts.boot_id {
            self.check_after_reboot(&mut entry).await;
            return self.verify(entry).await;
        }
        if !self.is_reboot_due(&entry) {
            return Ok(entry);
        }
        match self.check_reboot(&entry).await {
            RebootReadiness::Refused(why) if entry.reboot_requests == 0 => {
                self.skip_reboot(entry, &why).await
            }
            RebootReadiness::Refused(_) => self.end_without_reboot(entry).await,
            _ if entry.reboot_requests >= MAX_REBOOT_REQUESTS => {
                self.end_without_reboot(entry).await
            }
            RebootReadiness::Delayed(why) => self.delay_reboot(entry, why),
            RebootReadiness::Ready => self.advance_reboot(entry).await,
        }
    }

    /// Adds a remark if the node still needs a reboot in the next boot, for example because the new kernel does not run.
    async fn check_after_reboot(&self, entry: &mut JournalEntry) {
        if entry.reboot_is_the_change {
            // The verification finds out whether the image runs.
            return;
        }
        let steps = all_steps(entry);
        let mut reasons = Vec::new();
        for module in self.involved_modules(entry) {
            // Compared with no baseline: the reboot was to remove older reasons as well.
            match module.find_reboot_need(&steps, &EMPTY_BASELINE).await {
                Ok(need) => reasons.extend(need.reasons.unwrap_or_default()),
                Err(failure) => {
                    tracing::warn!(error = %failure, "cannot determine whether the node needs another reboot");
                }
            }
        }
        if reasons.is_empty() {
            return;
        }
        entry.reboot_required = true;
        let reasons = reasons.join(", ");
        tracing::warn!(attempt = %entry.attempt, reasons, "the node has rebooted and still needs a reboot");
        let remark = format!("the node has rebooted and still needs a reboot: {reasons}");
        add_missing(&mut entry.remarks, [remark]);
    }

    /// Lets the caller resume the attempt before its usual time, but not at once.
    pub(super) fn resume_soon(&self) {
        *self.lock_reboot_check_delay() = Some(DELAY_CHECK_INTERVAL);
    }

    /// When the caller should resume an attempt that waits for its reboot, or whose prepared change could not be
    /// cancelled; `None` if at its usual time. The answer is given once.
    pub fn take_reboot_check_delay(&self) -> Option<Duration> {
        self.lock_reboot_check_delay().take()
    }

    fn lock_reboot_check_delay(&self) -> MutexGuard<'_, Option<Duration>> {
        self.reboot_check_delay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the node may reboot now. Everything is checked at each call: a change takes long, and much may happen on
    /// the machine meanwhile.
    async fn check_reboot(&self, entry: &JournalEntry) -> RebootReadiness {
        if entry.plan.reboot == RebootRule::Never {
            let why = "the policy does not allow the agent to reboot the node";
            return RebootReadiness::Refused(why.to_owned());
        }
        let objection = self.parts.machine_gate.check_limits().err();
        if let Some(objection) = &objection
            // Nothing may delay a reboot that applies the change: any other reset would apply it, too.
            && (entry.reboot_is_the_change || !objection.is_temporary)
        {
            return RebootReadiness::Refused(objection.reason.clone());
        }
        if let Some(why) = self.parts.reboot.obstacle() {
            return RebootReadiness::Refused(why);
        }
        if self.is_past_deadline(entry) {
            return RebootReadiness::Refused(match &entry.reboot_delay {
                None => "the window has closed".to_owned(),
                Some(delay) => {
                    format!("the window has closed while the reboot was delayed: {}", delay.reason)
                }
            });
        }
        if entry.reboot_is_the_change {
            return RebootReadiness::Ready;
        }
        let delay = match objection {
            Some(objection) => Some(objection.reason),
            None => self.find_reboot_delay(entry).await,
        };
        match delay {
            None => RebootReadiness::Ready,
            Some(why) if self.is_delay_over(entry) => {
                let minutes = self.reboot_timing.max_delay.as_secs() / 60;
                RebootReadiness::Refused(format!(
                    "it was delayed for {minutes} min, which is the limit: {why}"
                ))
            }
            Some(why) => RebootReadiness::Delayed(why),
        }
    }

    /// What delays the reboot: another program that changes the same things, or the machine's gate.
    async fn find_reboot_delay(&self, entry: &JournalEntry) -> Option<String> {
        if let Some(who) = self.find_concurrent_change(entry, TryKind::First).await {
            return Some(who);
        }
        self.parts.machine_gate.check_machine(&entry.plan.space).await.err()
    }

    fn is_delay_over(&self, entry: &JournalEntry) -> bool {
        let max = TimeDelta::from_std(self.reboot_timing.max_delay).unwrap_or(TimeDelta::MAX);
        let delay = entry.reboot_delay.as_ref();
        delay.is_some_and(|delay| self.now().signed_duration_since(delay.since) >= max)
    }

    /// Keeps an attempt open whose reboot the machine delays.
    fn delay_reboot(
        &self,
        mut entry: JournalEntry,
        reason: String,
    ) -> Result<JournalEntry, JournalError> {
        let now = self.now();
        let earlier = entry.reboot_delay.as_ref().map(|delay| delay.since);
        // A delay that began in the future means that the clock was turned back.
        let since = earlier.filter(|since| *since <= now).unwrap_or(now);
        let why = format!("the reboot is delayed: {reason}");
        let delay = Some(RebootDelay { since, reason });
        // Users are warned again before the reboot.
        let is_announced = entry.announced_reboot.take().is_some();
        entry.reboot_warnings = None;
        if entry.reboot_delay != delay || is_announced {
            entry.reboot_delay = delay;
            self.write_journal("reboot-begun", &entry)?;
        }
        self.resume_soon();
        Ok(self.keep_open(entry, why))
    }

    /// Takes the next step of a reboot that nothing delays: warns logged-in users and waits until the reboot is due,
    /// records that the node goes down, or requests the reboot.
    async fn advance_reboot(&self, mut entry: JournalEntry) -> Result<JournalEntry, JournalError> {
        // Any reset applies a change that needs one, so the supervised reset does not wait for users.
        if !entry.reboot_is_the_change
            && let Some((due, left)) = self.warn_users(&mut entry).await?
        {
            *self.lock_reboot_check_delay() = Some(left);
            let due = due.format("%Y-%m-%d %H:%M:%S");
            let why = format!("logged-in users were warned; the node reboots at {due} UTC");
            return Ok(self.keep_open(entry, why));
        }
        if last_event(&entry, &EventKind::RebootBegun).is_none() {
            return self.record_reboot(entry);
        }
        self.request_reboot(entry).await
    }

    /// Time of the reboot that logged-in users were warned of, and the time until then. Warns them if they were not
    /// warned yet, or of a time that has long passed. `None` if the reboot is due, or if there is no user to warn.
    async fn warn_users(
        &self,
        entry: &mut JournalEntry,
    ) -> Result<Option<(DateTime<Utc>, Duration)>, JournalError> {
        let warning_time = self.reboot_timing.warning_time;
        let now = self.now();
        let warnings = entry.reboot_warnings.unwrap_or_default();
        if let Some(due) = entry.announced_reboot
            && (warnings >= MAX_WARNINGS || now.signed_duration_since(due) < MAX_ANNOUNCEMENT_AGE)
        {
            let left = due.signed_duration_since(now).to_std().unwrap_or_default();
            // More time than that means that the clock was turned back.
            if left <= warning_time {
                return Ok((!left.is_zero()).then_some((due, left)));
            }
        }
        if warning_time.is_zero() || !self.parts.machine_gate.has_logged_in_users() {
            return Ok(None);
        }
        let due =
            TimeDelta::from_std(warning_time).ok().and_then(|time| now.checked_add_signed(time));
        let Some(due) = due else { return Ok(None) };
        // An agent that is killed after this write continues the delay. One that is killed before it warns the users and
        // waits again.
        entry.announced_reboot = Some(due);
        entry.reboot_warnings = Some(warnings.saturating_add(1));
        self.write_journal("reboot-begun", entry)?;
        let message = warning_message(warning_time, &entry.reboot_reasons.join(", "));
        self.parts.reboot.warn_users(&message).await;
        Ok(Some((due, warning_time)))
    }

    /// Records in the journal that the node goes down. The reboot is requested when the attempt is resumed: in between,
    /// the caller can report to the server.
    fn record_reboot(&self, mut entry: JournalEntry) -> Result<JournalEntry, JournalError> {
        self.record_event(&mut entry, EventKind::RebootBegun);
        self.write_journal("reboot-begun", &entry)?;
        *self.lock_reboot_check_delay() = Some(Duration::ZERO);
        Ok(entry)
    }

    /// Whether the last reboot request had enough time. A request in the future means that the clock was turned back.
    fn is_reboot_due(&self, entry: &JournalEntry) -> bool {
        let now = self.now();
        entry.last_reboot_request.is_none_or(|at| at > now || now - at >= REBOOT_RETRY_INTERVAL)
    }

    async fn request_reboot(&self, mut entry: JournalEntry) -> Result<JournalEntry, JournalError> {
        entry.reboot_requests += 1;
        entry.last_reboot_request = Some(self.now());
        self.write_journal("reboot-begun", &entry)?;
        tracing::warn!(attempt = %entry.attempt, time = entry.reboot_requests, "rebooting");
        if let Err(failure) = self.parts.reboot.request_reboot().await {
            tracing::error!(attempt = %entry.attempt, error = %failure, "the node cannot be rebooted");
            add_missing(&mut entry.remarks, [failure.remark("reboot")]);
            self.write_journal("reboot-begun", &entry)?;
        }
        Ok(entry)
    }

    /// Handles a change that needs a reboot which the node must not make. A change that only the reboot applies is
    /// reverted: otherwise any later reboot would apply it, outside its window and unattended.
    async fn skip_reboot(
        &self,
        mut entry: JournalEntry,
        why: &str,
    ) -> Result<JournalEntry, JournalError> {
        if entry.reboot_is_the_change {
            let reason = format!("the change needs a reboot, but the node does not reboot: {why}");
            let failure = Failure::new(FailureKind::Reboot, reason);
            let verdict = self.verify_modules(&mut entry).await;
            return self.revert_or_fail(entry, failure, verdict).await;
        }
        record_skipped_reboot(&mut entry, why);
        self.finish_without_reboot(entry).await
    }

    async fn end_without_reboot(
        &self,
        mut entry: JournalEntry,
    ) -> Result<JournalEntry, JournalError> {
        let verdict = self.verify_modules(&mut entry).await;
        let times = match entry.reboot_requests {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        if entry.reboot_is_the_change {
            let reason = format!("the node did not reboot although the agent requested it {times}");
            let failure = Failure::new(FailureKind::Reboot, reason);
            return self.revert_or_fail(entry, failure, verdict).await;
        }
        entry.reboot_required = true;
        let mut reason = format!(
            "the change is applied, but the node did not reboot although the agent requested it {times}; reboot it by hand"
        );
        let log = verdict.problem.map_or_else(String::new, |problem| {
            reason = format!("{reason}; {}", problem.reason);
            problem.log
        });
        let failure = Failure::with_log(FailureKind::Reboot, reason, &log);
        self.end(entry, EventKind::Failed { failure })
    }
}

/// Records that the change needs a reboot that the node does not make.
fn record_skipped_reboot(entry: &mut JournalEntry, why: &str) {
    tracing::warn!(attempt = %entry.attempt, why, "the node does not reboot although the change needs it");
    entry.reboot_required = true;
    let remark = format!("the change needs a reboot, but the node does not reboot: {why}");
    add_missing(&mut entry.remarks, [remark]);
}
