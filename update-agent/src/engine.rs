//! Runs one attempt, from the plan to the outcome.
//!
//! Every action is written to the journal before it happens. After a kill at any moment, the next engine on the same
//! folder resumes the attempt. The exit status of a tool decides nothing: the state of the node afterwards does. `apply`
//! takes the steps and verifies their result, `post_apply` does what follows them and ends the attempt, and `reboot`
//! reboots the node if needed.

mod apply;
mod health;
mod interruption;
mod maintenance;
mod post_apply;
mod reboot;
mod specs;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_kit::Clock;
use uuid::Uuid;

use crate::gate::MachineGate;
use crate::health::HealthChecks;
use crate::identity;
use crate::journal::{
    Journal, JournalEntry, JournalError, JournalPoint, JournalStep, PLAN_PHASE, Phase,
};
use crate::model::{
    AttemptEvent, EventKind, Failure, FailureKind, ModuleParts, PhaseSpan, UpdateTarget,
};
use crate::modules::{
    AnyDraft, AnyModule, AnyStep, DownloadRetention, FetchProgress, ModuleKind, Readiness,
};
use crate::reboot::{RebootControl, RebootTiming};

/// Default time that services get to start after a boot before they are reported as missing.
const DEFAULT_SETTLING_TIME: Duration = Duration::from_mins(2);

/// Cause of an attempt that is cancelled because it is no longer desired. Its downloads are discarded.
pub const WITHDRAWN: &str = "withdrawn";

pub struct EngineParts {
    /// The modules that change the node.
    pub modules: Vec<Box<dyn AnyModule>>,
    /// Journal of the open attempt.
    pub journal: Box<dyn Journal>,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// ID of the current boot.
    pub boot_id: String,
    /// Release of the running kernel; empty if the kernel does not belong to the managed root.
    pub kernel_release: String,
    /// Reboots the node.
    pub reboot: Box<dyn RebootControl>,
    /// Whether the machine lets the agent reboot it, and what follows a change.
    pub machine_gate: Arc<dyn MachineGate>,
    /// The health checks of the machine.
    pub health: HealthChecks,
}

impl std::fmt::Debug for EngineParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineParts").field("boot_id", &self.boot_id).finish_non_exhaustive()
    }
}

/// Runs attempts.
pub struct Engine {
    parts: EngineParts,
    settling_time: Duration,
    /// Time that passes before a reboot.
    reboot_timing: RebootTiming,
    /// Duration of the last planning, in milliseconds.
    planning_millis: AtomicU64,
    /// Why the last call kept the attempt open; empty if it did not.
    open_reason: Mutex<String>,
    /// When an attempt that waits for its reboot should be resumed.
    reboot_check_delay: Mutex<Option<Duration>>,
    /// The attempt that this process has begun or resumed.
    own_attempt: Mutex<Option<Uuid>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("modules", &self.module_names()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Creates an engine.
    pub fn new(parts: EngineParts) -> Self {
        Self {
            parts,
            settling_time: DEFAULT_SETTLING_TIME,
            reboot_timing: RebootTiming::default(),
            planning_millis: AtomicU64::new(0),
            open_reason: Mutex::default(),
            reboot_check_delay: Mutex::default(),
            own_attempt: Mutex::default(),
        }
    }

    /// Sets how long services may take to start after a boot before they are reported as missing.
    #[must_use]
    pub fn with_settling_time(mut self, settling: Duration) -> Self {
        self.settling_time = settling;
        self
    }

    /// The names of the modules, sorted.
    pub fn module_names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.kinds().map(|kind| kind.name.to_owned()).collect();
        names.sort_unstable();
        names
    }

    pub fn kinds(&self) -> impl Iterator<Item = ModuleKind> {
        self.parts.modules.iter().map(|module| module.kind())
    }

    /// The points at which the journal is written, in the order of an attempt.
    pub fn journal_points(&self) -> Vec<JournalPoint> {
        let (before, after) = JournalPoint::FIXED.split_at(3);
        let steps = self.kinds().flat_map(|kind| {
            let names = kind.step_names.iter();
            names.map(move |step| JournalPoint::step_done(kind.name, step))
        });
        let fixed =
            |names: &'static [&'static str]| names.iter().map(|name| JournalPoint::fixed(name));
        fixed(before).chain(steps).chain(fixed(after)).collect()
    }

    /// Loads the open attempt, if there is one.
    pub fn open_attempt(&self) -> Result<Option<JournalEntry>, JournalError> {
        self.parts.journal.read()
    }

    /// Why [`Engine::run_attempt`] last kept an attempt open that had changed the node, for a person. Empty if it did not,
    /// or if only a reboot is pending that nothing delays.
    pub fn open_reason(&self) -> String {
        self.lock_open_reason().clone()
    }

    fn lock_open_reason(&self) -> MutexGuard<'_, String> {
        self.open_reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans the whole change. Opens no attempt and changes nothing on the node except the modules' caches.
    pub async fn plan(&self, target: &UpdateTarget) -> Result<AnyDraft, Failure> {
        let begun = self.now();
        let planned = self.plan_modules(&target.spec).await;
        let elapsed = self.now().signed_duration_since(begun);
        let millis = u64::try_from(elapsed.num_milliseconds()).unwrap_or(0);
        self.planning_millis.store(millis, Ordering::Relaxed);
        planned
    }

    async fn plan_modules(&self, spec: &ModuleParts) -> Result<AnyDraft, Failure> {
        if spec.is_empty() || self.addressed_modules(spec).count() < spec.len() {
            let reason = "this agent does not support this kind of update";
            return Err(Failure::new(FailureKind::Unsupported, reason));
        }
        let mut combined = AnyDraft::default();
        for (module, part) in self.addressed_modules(spec) {
            let draft = module.plan(part).await?;
            combined.plan.add(draft.plan);
            combined.report.insert(module.kind().name, draft.report);
            combined.steps.extend(draft.steps);
            combined.remarks.extend(draft.remarks);
        }
        Ok(combined)
    }

    /// Opens an attempt with its plan.
    pub fn start(
        &self,
        target: UpdateTarget,
        draft: AnyDraft,
    ) -> Result<JournalEntry, JournalError> {
        let step = |step| JournalStep { step, done: false };
        let mut entry = self.new_entry(target);
        (entry.plan, entry.reports, entry.remarks) = (draft.plan, draft.report, draft.remarks);
        entry.steps = draft.steps.into_iter().map(step).collect();
        self.record_event(&mut entry, EventKind::Downloading);
        self.write_journal("opened", &entry)?;
        Ok(entry)
    }

    /// Records an attempt that ends before it has a plan.
    pub fn start_and_fail(
        &self,
        target: UpdateTarget,
        failure: Failure,
    ) -> Result<JournalEntry, JournalError> {
        self.end(self.new_entry(target), EventKind::Failed { failure })
    }

    /// Records an attempt whose plan has no steps. Its report contains what the plan leaves out.
    pub fn start_and_end(
        &self,
        target: UpdateTarget,
        draft: AnyDraft,
    ) -> Result<JournalEntry, JournalError> {
        let mut entry = self.new_entry(target);
        (entry.plan, entry.reports, entry.remarks) = (draft.plan, draft.report, draft.remarks);
        self.end(entry, EventKind::NothingToDo)
    }

    /// Fetches what the plan needs, or a part of it. After a part the attempt stays open, so that the agent can contact the
    /// server in between. A failure ends the attempt, unless its cause passes by itself.
    pub async fn fetch(
        &self,
        mut entry: JournalEntry,
    ) -> Result<(JournalEntry, FetchProgress), JournalError> {
        match self.fetch_steps(&entry).await {
            Err(failure) if failure.is_temporary => {
                Ok((entry, FetchProgress::Deferred(failure.reason)))
            }
            Err(failure) => Ok((self.fail(entry, failure)?, FetchProgress::Complete)),
            Ok(FetchProgress::Complete) => {
                entry.phase = Phase::Staged;
                self.record_event(&mut entry, EventKind::Downloaded);
                self.write_journal("downloaded", &entry)?;
                Ok((entry, FetchProgress::Complete))
            }
            Ok(unfinished) => Ok((entry, unfinished)),
        }
    }

    /// Replaces the target of an open attempt by a newer description of the same change, if a
    /// module updates its steps for it. The caller ensures that it is the same change. Call it only
    /// before anything was changed.
    pub fn update_target(
        &self,
        mut entry: JournalEntry,
        target: UpdateTarget,
    ) -> Result<JournalEntry, JournalError> {
        let mut is_updated = false;
        for step in &mut entry.steps {
            let Some(spec) = target.spec.get(&step.step.module) else { continue };
            let module = self.module(&step.step);
            match module.and_then(|module| (module.kind().update_step)(&step.step, spec)) {
                Ok(None) => {}
                Ok(Some(renewed)) => (step.step, is_updated) = (renewed, true),
                // Taking the step reports the same error.
                Err(failure) => {
                    tracing::warn!(error = %failure, "cannot update a step; it stays as it is");
                }
            }
        }
        if !is_updated {
            return Ok(entry);
        }
        tracing::info!(attempt = %entry.attempt, "the server sent a newer description of the same change");
        entry.target = target;
        let point = match entry.phase {
            Phase::Downloading => "opened",
            _ => "downloaded",
        };
        self.write_journal(point, &entry)?;
        Ok(entry)
    }

    /// Whether the change may begin, as far as the node is concerned. Downloads are checked again, and fetched again if needed.
    pub async fn check_ready(&self, entry: &JournalEntry) -> Result<Readiness, Failure> {
        // If the node cannot reboot, do not prepare a change that only a reboot applies, only to
        // cancel it again.
        let mut involved = self.involved_modules(entry).into_iter();
        if involved.any(|module| module.kind().applies_on_reboot)
            && let Some(why) = self.parts.reboot.obstacle()
        {
            let why = format!("the node cannot be rebooted to apply the change: {why}");
            return Ok(Readiness::NotYet(why));
        }
        match self.fetch_steps(entry).await? {
            FetchProgress::Complete => {}
            FetchProgress::Partial => {
                let why = "files of the change were lost and are being fetched again";
                return Ok(Readiness::NotYet(why.to_owned()));
            }
            FetchProgress::Deferred(why) => return Ok(Readiness::NotYet(why)),
        }
        let steps = all_steps(entry);
        for module in self.involved_modules(entry) {
            if let Readiness::NotYet(why) = module.check(&steps).await? {
                return Ok(Readiness::NotYet(why));
            }
        }
        Ok(Readiness::Ready)
    }

    /// Fetches what the steps need. Stops at the first step whose files are not complete.
    async fn fetch_steps(&self, entry: &JournalEntry) -> Result<FetchProgress, Failure> {
        for step in &entry.steps {
            match self.module(&step.step)?.prepare(&step.step).await? {
                FetchProgress::Complete => {}
                unfinished => return Ok(unfinished),
            }
        }
        Ok(FetchProgress::Complete)
    }

    /// The modules that have steps in the attempt. Other modules are not called.
    fn involved_modules(&self, entry: &JournalEntry) -> Vec<&dyn AnyModule> {
        let has_steps = |name: &str| entry.steps.iter().any(|step| step.step.module == name);
        let modules = self.parts.modules.iter().map(AsRef::as_ref);
        modules.filter(|module| has_steps(module.kind().name)).collect()
    }

    /// Records the baseline and marks the node as being changed. The server permits the start until `before`. If the
    /// baseline cannot be recorded, the attempt ends: its effects could not be told apart from older problems.
    pub async fn begin(
        &self,
        mut entry: JournalEntry,
        before: Option<DateTime<Utc>>,
    ) -> Result<JournalEntry, JournalError> {
        let steps = all_steps(&entry);
        let mut baselines = ModuleParts::default();
        for module in self.involved_modules(&entry) {
            match module.take_baseline(&steps).await {
                Ok(baseline) => baselines.insert(module.kind().name, baseline),
                Err(failure) => return self.fail(entry, failure),
            }
        }
        self.adopt_attempt(entry.attempt);
        entry.baselines = baselines;
        entry.unhealthy_before = self.find_unhealthy(&entry).await;
        entry.kernel_before.clone_from(&self.parts.kernel_release);
        entry.phase = Phase::Applying;
        entry.start_deadline = before;
        self.record_event(&mut entry, EventKind::Began);
        self.write_journal("began", &entry)?;
        Ok(entry)
    }

    /// Cancels an attempt that has changed nothing yet.
    pub fn cancel(&self, entry: JournalEntry, cause: &str) -> Result<JournalEntry, JournalError> {
        let cause = cause.to_owned();
        self.end(entry, EventKind::Cancelled { cause })
    }

    /// Fails an attempt that has changed nothing yet.
    pub fn fail(
        &self,
        entry: JournalEntry,
        failure: Failure,
    ) -> Result<JournalEntry, JournalError> {
        self.end(entry, EventKind::Failed { failure })
    }

    /// Records up to which sequence number the server has stored the events.
    pub fn acknowledge(&self, entry: &mut JournalEntry, upto: u32) -> Result<(), JournalError> {
        if entry.acknowledged == upto {
            return Ok(());
        }
        entry.acknowledged = upto;
        self.write_journal("acknowledged", entry)
    }

    /// Removes an attempt whose events are all stored by the server. Keeps the downloads that a retry can use.
    pub async fn close(&self, entry: &JournalEntry) -> Result<(), JournalError> {
        let spec_to_retry = may_be_retried(entry).then_some(&entry.target.spec);
        self.clean_up(DownloadRetention::NeededBy(spec_to_retry)).await;
        self.parts.journal.clear()
    }

    fn module(&self, step: &AnyStep) -> Result<&dyn AnyModule, Failure> {
        let mut modules = self.parts.modules.iter();
        let own = modules.find(|own| own.kind().name == step.module);
        own.map(AsRef::as_ref).ok_or_else(|| {
            let reason = format!(
                "the module {}, which made this change, is not loaded: a program that it needs was not found when the agent \
                 started, or its configuration is wrong; run `evenkeel-agent doctor`, fix the problem and restart the agent",
                step.module
            );
            Failure::new(FailureKind::Unsupported, reason)
        })
    }

    /// The failure if the module of a step is not loaded; without it the state of the change is unknown.
    fn missing_module(&self, entry: &JournalEntry) -> Option<Failure> {
        let mut steps = entry.steps.iter();
        steps.find_map(|step| self.module(&step.step).err())
    }

    /// The failure if a module cannot read its steps.
    fn unreadable_step(&self, entry: &JournalEntry) -> Option<Failure> {
        let steps = all_steps(entry);
        let mut involved = self.involved_modules(entry).into_iter();
        involved.find_map(|module| module.check_readable(&steps).err())
    }

    /// Whether the start permit had a deadline that has passed.
    fn is_past_deadline(&self, entry: &JournalEntry) -> bool {
        entry.start_deadline.is_some_and(|before| before <= self.now())
    }

    fn end(&self, mut entry: JournalEntry, kind: EventKind) -> Result<JournalEntry, JournalError> {
        match kind.failure() {
            Some(failure) => {
                tracing::error!(attempt = %entry.attempt, outcome = kind.name(), error = %failure, "the attempt has ended");
            }
            None => {
                tracing::info!(attempt = %entry.attempt, outcome = kind.name(), "the attempt has ended");
            }
        }
        if last_event(&entry, &EventKind::Began).is_some() {
            entry.kernel_after.clone_from(&self.parts.kernel_release);
        }
        entry.phase = Phase::Ended;
        self.record_event(&mut entry, kind);
        self.write_journal("ended", &entry)?;
        Ok(entry)
    }

    /// Appends an event with the next sequence number. It is sent only after the journal is written.
    fn record_event(&self, entry: &mut JournalEntry, kind: EventKind) {
        let is_terminal = kind.is_terminal();
        entry.events.push(AttemptEvent {
            sequence: entry.last_sequence() + 1,
            at: self.now(),
            boot_id: self.parts.boot_id.clone(),
            kind,
            report: None,
            interruptions: Vec::new(),
        });
        if is_terminal {
            let report = entry.run_report();
            if let Some(last) = entry.events.last_mut() {
                last.report = report;
            }
        }
    }

    fn write_journal(&self, point: &'static str, entry: &JournalEntry) -> Result<(), JournalError> {
        self.parts.journal.write(&JournalPoint::fixed(point), entry)
    }

    fn now(&self) -> DateTime<Utc> {
        self.parts.clock.now()
    }

    /// A new attempt, including the time that its planning took.
    fn new_entry(&self, target: UpdateTarget) -> JournalEntry {
        let mut entry = JournalEntry::new(identity::new_attempt_id(), target);
        let millis = self.planning_millis.swap(0, Ordering::Relaxed);
        entry.spans.push(PhaseSpan { phase: PLAN_PHASE.to_owned(), millis, bytes: 0 });
        entry
    }
}

/// Whether an ended attempt may be followed by another one for the same target.
fn may_be_retried(entry: &JournalEntry) -> bool {
    match entry.events.last().map(|event| &event.kind) {
        Some(EventKind::Failed { .. } | EventKind::Reverted { .. }) => true,
        Some(EventKind::Cancelled { cause }) => cause != WITHDRAWN,
        _ => false,
    }
}

fn all_steps(entry: &JournalEntry) -> Vec<AnyStep> {
    entry.steps.iter().map(|step| step.step.clone()).collect()
}

fn last_event<'a>(entry: &'a JournalEntry, kind: &EventKind) -> Option<&'a AttemptEvent> {
    entry.events.iter().rev().find(|event| event.kind == *kind)
}
