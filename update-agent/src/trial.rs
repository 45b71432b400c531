//! The trial: from the first boot of a new image to the decision to commit it or to fall back.
//!
//! Until the record says "good" and the loader's entry has no counter, any reset leads back to the
//! old image sooner or later, whoever triggers it: the agent, the [guard](fn@run_guard), the
//! initramfs, the kernel's `panic=`, the watchdog, or a person. So only the order of the writes
//! matters:
//!
//! - Commit: the record says that the image was *booted*, then that it *passed* the health checks;
//!   then the image is *blessed* (its entry loses the counter and boots from now on), and the
//!   record says that it is *committed*.
//! - Fallback: the record says why the image is *rejected*, its entry is *withdrawn*, and the
//!   machine is *reset*.
//!
//! Blessing is the only step between the old and the new image: a power cut before it loses
//! nothing, and after it nothing leads back.
//!
//! A failed write is tried again until the deadline. Then:
//!
//! | what fails | result |
//! | --- | --- |
//! | only the server cannot be reached | rejected as undecided; the old image treats the new one as written but not tried |
//! | the agent's link to the server cannot be used at all | rejected as unhealthy, even if the server is not required |
//! | the record of "booted" or "passed" | rejected as unhealthy |
//! | the record of the rejection, after "booted" | withdraw and reset: the old image finds a trial without an entry and marks the image as bad |
//! | the record of the rejection, without "booted" | reset only: the loader's counter is the only evidence of the trial, so the entry stays |
//! | blessing | withdraw and reset without a rejection: the image is not bad, and the old image treats it as written |
//! | blessing and withdrawing | the image keeps running, because a reset would only lead here again; the next start blesses it |
//! | the record of "committed" | the image is committed: the next start finds an entry without a counter and records it |
//! | withdrawing | reset: the loader counts the remaining tries, and each boot comes here again |
//! | withdrawing would remove the only entry | the entry stays: an unhealthy system is better than none |

mod changes;
mod failure_log;
mod guard;
mod health;
mod reconcile;
mod reset;
mod running;
pub mod startup;
#[cfg(test)]
mod tests;
pub(crate) mod watchdog;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use self::changes::{SlotChange, SlotChanger};
use self::health::HealthMonitor;
use self::reconcile::confirm_good_boot;
use self::running::{RunningState, determine_running, fall_back_from_bad};
use self::watchdog::WatchdogDevice as Device;
use crate::config::{HealthConfig, TRIAL_GRACE_PERIOD, WatchdogPolicy};
use crate::link::ServerLink;
use crate::model::{Failure, FailureKind};
use crate::modules::image::boot_control::BootControl;
use crate::modules::image::slots::{
    BootEntry, BootObservation, Slot, SlotEvent, SlotFile, SlotState,
};
use crate::paths::AgentPaths;
use crate::runner::Runner;

pub(crate) use self::changes::read_slots;
pub use self::failure_log::collect_kernel_records;
pub use self::guard::{GuardOutcome, is_watched, run_guard};
pub use self::reconcile::reconcile_slots;
pub use self::reset::{Reset, SysRq};

/// Interval of the health checks, and of repeated writes.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Minimum time that the disk gets to flush the record.
const MIN_FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an entry is not removed.
const ONLY_BOOTABLE_SLOT: &str = "no other image can be booted";

/// How a trial ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialOutcome {
    /// There was no trial.
    NotOnTrial,
    /// The image is committed.
    Committed {
        /// Time from boot to the commit.
        took: Duration,
    },
    /// The image was rejected and the reset requested. The caller must do and change nothing.
    FellBack {
        /// Why the image was rejected.
        reason: String,
    },
}

pub struct TrialParts {
    /// Reads the boot state, and blesses or withdraws the image.
    pub boot: Arc<dyn BootControl>,
    /// Record of the slots.
    pub slots: Arc<SlotFile>,
    /// The link to the server, or why it cannot be created. The old image had one, so that is the
    /// fault of this image, even if the server is not required.
    pub link: Result<Arc<dyn ServerLink>, String>,
    /// Starts programs of the image.
    pub runner: Arc<dyn Runner>,
    /// The managed root and the agent's files.
    pub paths: AgentPaths,
    /// Resets the machine.
    pub reset: Arc<dyn Reset>,
    /// Health rules and the deadline.
    pub health: HealthConfig,
    /// Whether the old image had reached the server shortly before: only then must the new one
    /// reach it.
    pub requires_server: bool,
    /// Use of the watchdog.
    pub watchdog: WatchdogPolicy,
}

impl fmt::Debug for TrialParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrialParts")
            .field("boot", &self.boot.name())
            .field("paths", &self.paths)
            .field("health", &self.health)
            .field("requires_server", &self.requires_server)
            .field("watchdog", &self.watchdog)
            .finish_non_exhaustive()
    }
}

/// Finishes the trial, if there is one. The slots must be reconciled before. Ends shortly after the
/// deadline at the latest.
///
/// An error means that the image is neither committed nor rejected for now, and that a reset would
/// not change that: the agent reports the error and continues, and its next start continues the
/// trial.
pub async fn run_trial(parts: &TrialParts) -> Result<TrialOutcome, Failure> {
    let timer = TrialTimer::start(&parts.paths, parts.health.deadline);
    let (slot, seen) = match determine_running(parts, &timer).await? {
        RunningState::Trial(slot, seen) => (slot, seen),
        RunningState::Stable(seen) => {
            // Again, because the boot state may not have been readable for the reconciliation.
            confirm_good_boot(parts.boot.as_ref(), &parts.slots, &seen).await;
            // An agent that was killed during the trial may have left the watchdog running.
            watchdog::stop_left_open(&parts.paths);
            guard::stop_guard(&parts.paths);
            return Ok(TrialOutcome::NotOnTrial);
        }
        RunningState::Bad(slot, seen) => return fall_back_from_bad(parts, slot, &seen).await,
        RunningState::Unknown(reason) => {
            tracing::error!(reason, "cannot determine the state of the trial; resetting");
            parts.reset.reset_machine().await;
            return Ok(TrialOutcome::FellBack { reason });
        }
    };
    tracing::info!(slot = slot.label(), deadline = ?timer.deadline, "on trial");
    let device = Device::new(&parts.paths, parts.watchdog);
    let is_armed = matches!(parts.slots.get().state(slot), SlotState::Armed { .. });
    let trial = TrialRun {
        parts,
        timer: &timer,
        device: &device,
        changes: SlotChanger::new(&parts.boot, slot),
        slot,
        seen,
        is_armed: AtomicBool::new(is_armed),
    };
    // After the deadline a change may still be running, then the boot state is read again and the
    // slot is withdrawn.
    let at_the_end = (TRIAL_GRACE_PERIOD / 2).max(parts.boot.call_timeout().saturating_mul(3));
    let fed = timer.remaining().saturating_add(at_the_end);
    guard::announce_end(&parts.paths, fed.saturating_add(TRIAL_GRACE_PERIOD));
    let outcome = device.feed_during(fed, trial.run()).await;
    // After a fallback the watchdog is neither fed nor stopped: if the reset fails, the watchdog
    // resets the machine.
    if !matches!(outcome, Ok(TrialOutcome::FellBack { .. })) {
        device.stop();
    }
    outcome
}

/// Measures the time since boot, without suspend.
#[derive(Debug)]
struct TrialTimer {
    /// Uptime when the timer was created.
    uptime_at_start: Duration,
    began: Instant,
    deadline: Duration,
    /// Whether the deadline counts from boot; otherwise it counts from the creation of the timer.
    is_from_boot: bool,
}

impl TrialTimer {
    /// Creates a timer. The deadline counts from boot if the guard runs, which counts from boot as
    /// well; otherwise from now, so that an agent that is restarted late in a boot has enough time.
    /// If the uptime is unknown, the machine counts as booted now.
    fn start(paths: &AgentPaths, deadline: Duration) -> Self {
        Self {
            uptime_at_start: guard::read_uptime(paths).unwrap_or_default(),
            began: Instant::now(),
            deadline,
            is_from_boot: guard::is_watched(paths),
        }
    }

    fn uptime(&self) -> Duration {
        self.uptime_at_start + self.began.elapsed()
    }

    /// Time until the deadline; zero after it.
    fn remaining(&self) -> Duration {
        let elapsed = if self.is_from_boot { self.uptime() } else { self.began.elapsed() };
        self.deadline.saturating_sub(elapsed)
    }

    fn describe_deadline(&self) -> String {
        let from = if self.is_from_boot { "boot" } else { "the agent's start" };
        format!("{} s after {from}", self.deadline.as_secs())
    }
}

/// Why an image is rejected.
#[derive(Debug)]
struct Rejection {
    reason: String,
    /// Whether everything but the server was healthy for the required time, up to the deadline. In
    /// that case it is unknown whether the image or the server is at fault.
    is_undecided: bool,
}

impl From<String> for Rejection {
    fn from(reason: String) -> Self {
        Self { reason, is_undecided: false }
    }
}

/// A running trial.
struct TrialRun<'a> {
    parts: &'a TrialParts,
    timer: &'a TrialTimer,
    device: &'a Device,
    changes: SlotChanger,
    slot: Slot,
    /// The boot state at the start of the trial.
    seen: BootObservation,
    /// Whether "booted" is not recorded yet. The record itself is not read, because its disk may
    /// hang.
    is_armed: AtomicBool,
}

impl TrialRun<'_> {
    async fn run(&self) -> Result<TrialOutcome, Failure> {
        let slots = self.parts.slots.get();
        let checked = match slots.state(self.slot) {
            // The image has passed in an earlier process or boot, but was not committed. It is not
            // checked again.
            SlotState::Trial { passed: true, .. } => Ok(()),
            // An earlier process of this boot ended the trial undecided, but did not reset.
            SlotState::Trial { boots, undecided_end: Some(end), .. }
                if boots.contains(&self.seen.boot_id) && self.timer.remaining().is_zero() =>
            {
                Err(Rejection { reason: end.reason.clone(), is_undecided: true })
            }
            _ => self.run_checks().await,
        };
        match checked {
            Ok(()) => self.commit().await,
            Err(rejection) => self.fall_back(rejection).await,
        }
    }

    /// Records "booted", waits for a healthy state, and records "passed".
    async fn run_checks(&self) -> Result<(), Rejection> {
        let unwritten = |failure: Failure| format!("the trial cannot be recorded: {failure}");
        // "Booted" comes first: if this boot never reports anything, the old image knows that it
        // happened.
        let booted = self.write_event(SlotEvent::Booted).await;
        booted.map_err(unwritten)?;
        self.is_armed.store(false, Ordering::Relaxed);
        self.wait_until_healthy().await?;
        // "Passed" comes before blessing: otherwise a power cut could leave an image that boots for
        // ever while the record says that it was never tried.
        let written = self.write_event(SlotEvent::Passed).await;
        written.map_err(unwritten)?;
        Ok(())
    }

    /// Records an event, with retries until the deadline.
    async fn write_event(&self, event: SlotEvent) -> Result<(), Failure> {
        loop {
            let written = self.record_event(event.clone(), self.seen.clone()).await;
            let Err(failure) = written else { return Ok(()) };
            if self.timer.remaining().is_zero() {
                return Err(failure);
            }
            tracing::warn!(%failure, ?event, "cannot write the record");
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Records an event in another thread, because the disk may be slow and this thread feeds the
    /// watchdog. After the deadline a hanging disk is not waited for. A late write is still a valid
    /// step, and a reset after any step leads to one of the images.
    async fn record_event(&self, event: SlotEvent, seen: BootObservation) -> Result<(), Failure> {
        let (slots, slot) = (Arc::clone(&self.parts.slots), self.slot);
        let step = spawn_blocking(move || slots.step(slot, &event, &seen).map(drop));
        let limit = self.timer.remaining().max(MIN_FLUSH_TIMEOUT);
        let unwritten = |reason: String| {
            let reason = format!("cannot write the record of the slots: {reason}");
            Failure::new(FailureKind::Storage, reason)
        };
        match timeout(limit, step).await {
            Ok(Ok(stepped)) => stepped,
            Ok(Err(error)) => Err(unwritten(error.to_string())),
            Err(_) => {
                let seconds = limit.as_secs();
                Err(unwritten(format!("the disk did not answer within {seconds} s")))
            }
        }
    }

    /// Checks the health until everything has been healthy for the required time without
    /// interruption; fails at the deadline.
    async fn wait_until_healthy(&self) -> Result<(), Rejection> {
        let HealthConfig { stable, .. } = self.parts.health;
        let mut health = HealthMonitor::new(self.parts);
        let mut since = None;
        // The same for all checks except the server.
        let mut own: Option<Instant> = None;
        let mut reason = String::new();
        let mut is_first = true;
        loop {
            let check = async {
                let itself = health.check_image().await;
                if let Err(fault) = itself.and_then(|()| self.device.fault().map_or(Ok(()), Err)) {
                    own = None;
                    return Err(fault);
                }
                own.get_or_insert_with(Instant::now);
                health.check_server().await.map_err(|missing| {
                    if missing.is_own_fault {
                        own = None;
                    }
                    missing.reason
                })
            };
            // The first round is never cut off: an agent that starts late must not judge an image
            // without any check. The checks have time limits of their own.
            let result = if std::mem::take(&mut is_first) {
                Ok(check.await)
            } else {
                timeout(self.timer.remaining(), check).await
            };
            match result {
                Ok(Ok(())) => {
                    let so_far = since.get_or_insert_with(Instant::now).elapsed();
                    if so_far >= stable {
                        return Ok(());
                    }
                    reason = format!("it had been healthy for only {} s", so_far.as_secs());
                }
                Ok(Err(fault)) => {
                    if since.take().is_some() || fault != reason {
                        tracing::warn!(fault, "not healthy yet");
                    }
                    reason = fault;
                }
                // The deadline came during the checks: the last known reason is reported.
                Err(_) => {}
            }
            if self.timer.remaining().is_zero() {
                return Err(Rejection {
                    reason: format!("not healthy {}: {reason}", self.timer.describe_deadline()),
                    is_undecided: health.requires_server()
                        && own.is_some_and(|own| own.elapsed() >= stable),
                });
            }
            sleep(CHECK_INTERVAL.min(self.timer.remaining())).await;
        }
    }

    /// Commits the image: blesses it and records "committed".
    async fn commit(&self) -> Result<TrialOutcome, Failure> {
        loop {
            let blessed = self.changes.apply(SlotChange::Bless).await;
            let Err(failure) = blessed else { break };
            if self.timer.remaining().is_zero() {
                return self.fall_back_from_failed_commit(&failure).await;
            }
            tracing::warn!(%failure, "cannot bless the image");
            sleep(CHECK_INTERVAL).await;
        }
        // After blessing, no reset leads back, so the guard is not needed any more.
        guard::stop_guard(&self.parts.paths);
        loop {
            // The record accepts the commit only if the entry has no counter.
            let written = match changes::read_slots(self.parts.boot.as_ref()).await {
                Ok(seen) => self.record_event(SlotEvent::Committed, seen).await,
                Err(failure) => Err(failure),
            };
            let Err(failure) = written else { break };
            if self.timer.remaining().is_zero() {
                return Err(failure);
            }
            tracing::warn!(%failure, "cannot record that the image is committed");
            sleep(CHECK_INTERVAL).await;
        }
        let took = self.timer.uptime();
        tracing::info!(slot = self.slot.label(), ?took, "the image is committed");
        Ok(TrialOutcome::Committed { took })
    }

    /// Handles a healthy image that cannot be blessed. It is not recorded as rejected, because it
    /// is not bad: the old image finds that it had passed and treats it as written.
    async fn fall_back_from_failed_commit(
        &self,
        failure: &Failure,
    ) -> Result<TrialOutcome, Failure> {
        let reason = format!("healthy, but it cannot be blessed: {failure}");
        let second = if self.is_only_bootable_slot().await {
            ONLY_BOOTABLE_SLOT.to_owned()
        } else {
            match self.changes.apply(SlotChange::Withdraw).await {
                Ok(()) => {
                    tracing::error!(reason, "falling back");
                    self.parts.reset.reset_machine().await;
                    return Ok(TrialOutcome::FellBack { reason });
                }
                Err(second) => second.reason,
            }
        };
        // Neither works. A reset would lead here again and again; a running system is better.
        guard::stop_guard(&self.parts.paths);
        let reason = format!("{reason}; nor can it be withdrawn: {second}");
        Err(Failure::new(FailureKind::Apply, reason))
    }

    /// Falls back: records the rejection, withdraws the image and resets the machine.
    async fn fall_back(&self, rejection: Rejection) -> Result<TrialOutcome, Failure> {
        tracing::error!(reason = rejection.reason, "falling back");
        let (parts, slot) = (self.parts, self.slot);
        let was_armed = self.is_armed.load(Ordering::Relaxed);
        // The rejection comes first: without it, nothing would explain the missing entry.
        let recorded = self.record_rejection(&rejection, was_armed).await;
        let reason = rejection.reason;
        if let Err(failure) = &recorded {
            tracing::error!(%failure, "cannot record why the image is rejected");
        }
        if self.is_only_bootable_slot().await {
            guard::stop_guard(&parts.paths);
            let reason = format!("{reason}; it keeps running, because {ONLY_BOOTABLE_SLOT}");
            return Err(Failure::new(FailureKind::Verify, reason));
        }
        // If the trial is not recorded, the loader's counter must stay as evidence: an armed slot
        // without an entry looks as if it had never been booted, and would be tried again.
        let is_counted = matches!(self.seen.entry(slot), BootEntry::Counted { .. });
        let is_evidence = recorded.is_err() && was_armed && is_counted;
        // The entry is withdrawn because the counting of some loader versions is unreliable.
        if !is_evidence && let Err(failure) = self.changes.apply(SlotChange::Withdraw).await {
            tracing::error!(%failure, "cannot withdraw the image");
        }
        parts.reset.reset_machine().await;
        Ok(TrialOutcome::FellBack { reason })
    }

    /// Records the rejection, without retries, because the deadline has passed.
    async fn record_rejection(
        &self,
        rejection: &Rejection,
        was_armed: bool,
    ) -> Result<(), Failure> {
        let TrialParts { paths, runner, .. } = self.parts;
        let log = failure_log::collect_boot_log(paths, runner.as_ref()).await;
        if was_armed {
            // "Booted" is not recorded yet, and only an image on trial can be rejected.
            self.record_event(SlotEvent::Booted, self.seen.clone()).await?;
        }
        let reason = rejection.reason.clone();
        let event = if rejection.is_undecided {
            SlotEvent::Undecided { reason, log }
        } else {
            SlotEvent::Failed { reason, log }
        };
        self.record_event(event, self.seen.clone()).await
    }

    /// Whether this is the only entry that can boot. If the boot state cannot be read, the state at
    /// the start of the trial is used.
    async fn is_only_bootable_slot(&self) -> bool {
        let looked = changes::read_slots(self.parts.boot.as_ref()).await;
        let seen = looked.as_ref().unwrap_or(&self.seen);
        matches!(seen.entry(self.slot.other()), BootEntry::Absent)
    }
}
