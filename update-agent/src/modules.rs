//! The interface between the agent and its modules. A module changes one kind of thing, such as
//! packages.
//!
//! A module is one folder with one implementation of [`Module`], and one line in [`MODULES`]. The
//! code that runs modules does not know the types of their specs, steps and reports: the engine, the
//! journal, the reports and the commands carry them as JSON ([`ModuleParts`]), and [`AnyModule`] and
//! [`ModuleKind`] hide the types. The facts, the owner's limits and the link know some of them.

mod any;
pub mod image;
mod kind;
pub mod packages;

use std::future::{Future, ready};
use std::io::Write;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use evenkeel_kit::Secret;
use evenkeel_proto::agent as pb;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::AgentCommand;
use crate::commands::doctor::DoctorFinding;
use crate::model::{Failure, FailureKind, ModuleParts, UpdatePlan};
use crate::module_registry::ModuleRegistry;

pub use self::any::{AnyModule, AnyStep};
pub use self::kind::ModuleKind;

/// Every module of the agent, in the order in which they plan and apply.
pub const MODULES: &[ModuleKind] =
    &[ModuleKind::of::<packages::PackagesModule>(), ModuleKind::of::<image::ImageModule>()];

/// Whether a step is taken for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryKind {
    /// The step was not begun before.
    First,
    /// The step was begun and its end was not recorded: it may be done, half done or not begun at all.
    Again,
}

/// Progress of a module's preparation for a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchProgress {
    /// All files are there and checked.
    Complete,
    /// A part is there; the download continues after the next contact with the server.
    Partial,
    /// Nothing can be fetched now, for this reason; the agent tries again by itself.
    Deferred(String),
}

/// Whether the change may begin, as far as the node is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It may begin.
    Ready,
    /// It may not begin now, for this reason; the reason will pass by itself.
    NotYet(String),
}

/// Result of undoing steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoOutcome {
    /// The node is verified to be as before.
    Complete,
    /// The module cannot undo the steps: the node stays as it is.
    Impossible,
}

/// When an attempt that failed before it changed anything may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryRule {
    /// After the usual time.
    Soon,
    /// After a longer time, because a try causes much work.
    Later,
    /// Not at all: it would fail again.
    Never,
}

impl RetryRule {
    /// The rule of a module without rules of its own.
    pub fn for_failure(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Unsupported | FailureKind::Limits => Self::Never,
            _ => Self::Soon,
        }
    }
}

/// What distinguishes two specs whose targets have the same digest. Two equal texts mean the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecIdentity {
    /// The change: an open attempt for another change is cancelled.
    pub change: String,
    /// The attempt: the retry interval applies to attempts with the same text.
    pub attempt: String,
}

/// Which downloads are kept when files are cleaned up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownloadRetention<S> {
    /// All that take long.
    LongRunning,
    /// Those that an update with this spec needs; none without a spec.
    NeededBy(Option<S>),
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Difference from the plan, if there is one.
    pub problem: Option<Failure>,
    /// Whether waiting cannot solve the problem.
    pub is_final: bool,
}

/// Whether a change needs a reboot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebootNeed {
    /// Why, for a person; `None` if it does not.
    pub reasons: Option<Vec<String>>,
    /// Whether only that reboot applies the change. If the node cannot reboot, the change is reverted.
    pub is_the_change: bool,
}

/// A plan: its totals, its report, its steps and its remarks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft<S, R> {
    /// Totals of the change.
    pub plan: UpdatePlan,
    /// What the module reports about the change.
    pub report: R,
    /// The steps; empty if there is nothing to do.
    pub steps: Vec<S>,
    /// Problems that did not stop the plan, for people. The run reports them.
    pub remarks: Vec<String>,
}

impl<S, R: Default> Default for Draft<S, R> {
    fn default() -> Self {
        Self {
            plan: UpdatePlan::default(),
            report: R::default(),
            steps: Vec::new(),
            remarks: Vec::new(),
        }
    }
}

/// The plan of all modules.
pub type AnyDraft = Draft<AnyStep, ModuleParts>;

/// A report as text for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportText {
    /// The change in a few words.
    pub change: String,
    /// The planned change in detail, one line each.
    pub planned: Vec<String>,
    /// The results, one line each.
    pub results: Vec<String>,
}

/// What a module can do. A simple module observes, plans, applies, verifies, and knows whether its
/// steps have changed the node; everything else has a default.
pub trait Module: Send + Sync + Sized + 'static {
    /// Stable name: it is written to the journal and sent to the server.
    const NAME: &'static str;
    /// Names of the step kinds, in the order in which they are taken.
    const STEP_NAMES: &'static [&'static str];
    /// Whether the steps only prepare a change that the next reset applies. Such a step is not taken after the start
    /// deadline, and an attempt does not end before the prepared change is either applied or cancelled.
    const APPLIES_ON_REBOOT: bool = false;
    /// Paths of the managed root that changes write to.
    const WRITTEN_PATHS: &'static [&'static str] = &[];

    /// The module's part of an update. Written to the journal.
    type Spec: Serialize + DeserializeOwned + Send + Sync;
    /// The observed state.
    type Observation: Send;
    /// One change. It is written to the journal before it is made.
    type Step: Serialize + DeserializeOwned + Send + Sync;
    /// State of the node before the change, to find out later what the change did. Written to the journal.
    type Baseline: Serialize + DeserializeOwned + Default + Send + Sync;
    /// What is reported about a change: first the plan, later also its results. Written to the
    /// journal.
    type Report: Serialize + DeserializeOwned + Default + Send + Sync;

    /// Creates the module of this node; `None` if the node has nothing that the module can change.
    fn build(_registry: &ModuleRegistry<'_>) -> Result<Option<Self>, Failure> {
        Ok(None)
    }

    /// Reads the module's part of a target; `None` if there is none, or if this agent does not
    /// understand all of it.
    fn parse_spec(_message: &pb::target::Spec) -> Option<Self::Spec> {
        None
    }

    /// What distinguishes specs whose targets have the same digest.
    fn identify(_spec: &Self::Spec) -> SpecIdentity {
        SpecIdentity::default()
    }

    /// Fails if the machine's owner does not allow the update. Checked before planning and before
    /// the start.
    fn check_allowed(&self, _spec: &Self::Spec) -> Result<(), Failure> {
        Ok(())
    }

    /// Refreshes what is known about the outside, at intervals. Changes only that knowledge on the
    /// node.
    fn refresh(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        ready(Ok(()))
    }

    /// Observes the state of the node and how the tools would reach the desired state. Changes only
    /// what is known about the outside.
    fn observe(
        &self,
        spec: &Self::Spec,
    ) -> impl Future<Output = Result<Self::Observation, Failure>> + Send;

    /// Plans. Has no `self`, so it cannot change anything: the same input gives the same draft.
    fn plan(
        spec: &Self::Spec,
        observed: &Self::Observation,
    ) -> Result<Draft<Self::Step, Self::Report>, Failure>;

    /// The name of a step, one of [`Module::STEP_NAMES`].
    fn step_name(_step: &Self::Step) -> &'static str {
        Self::STEP_NAMES.first().copied().unwrap_or_default()
    }

    /// A step for a newer spec of the same change, for example with other download rules; `None` if
    /// it stays as it is.
    fn update_step(_step: &Self::Step, _spec: &Self::Spec) -> Option<Self::Step> {
        None
    }

    /// Fetches and checks the files of a step, so that taking it needs no download. Existing files are checked and not
    /// fetched again. Long downloads are fetched in parts. Does not change what the node runs.
    fn prepare(
        &self,
        _step: &Self::Step,
    ) -> impl Future<Output = Result<FetchProgress, Failure>> + Send {
        ready(Ok(FetchProgress::Complete))
    }

    /// Checks right before the start whether the steps still fit the node and their files are complete.
    fn check(
        &self,
        _steps: &[Self::Step],
    ) -> impl Future<Output = Result<Readiness, Failure>> + Send {
        ready(Ok(Readiness::Ready))
    }

    /// Records the state of the node right before the first step. Changes nothing.
    fn take_baseline(
        &self,
        _steps: &[Self::Step],
    ) -> impl Future<Output = Result<Self::Baseline, Failure>> + Send {
        ready(Ok(Self::Baseline::default()))
    }

    /// Which other program the module is waiting for at this moment, as text for people; `None` if it waits for none. The
    /// agent reports a wait while it lasts.
    fn current_wait(&self) -> Option<String> {
        None
    }

    /// Which other program is changing the same things; `None` if there is none. Waits for that program before a step is
    /// taken again, but the pause stays short enough for the node to keep reporting to the server.
    fn find_concurrent_change(
        &self,
        _trying: TryKind,
    ) -> impl Future<Output = Result<Option<String>, Failure>> + Send {
        ready(Ok(None))
    }

    /// Takes a step. Safe to repeat: the machine may lose power in the middle. A step that has to
    /// wait for something does not begin its change after the start deadline.
    fn apply(
        &self,
        step: &Self::Step,
        trying: TryKind,
        start_deadline: Option<DateTime<Utc>>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Verifies the result of the steps and writes it into the report, which may hold the result of
    /// an earlier call. Problems that are in the baseline are not caused by the steps. Without steps,
    /// which happens if this version of the module cannot read them, only the report matters.
    fn verify(
        &self,
        steps: &[Self::Step],
        baseline: &Self::Baseline,
        report: &mut Self::Report,
    ) -> impl Future<Output = Result<Verdict, Failure>> + Send;

    /// Determines whether a verified change needs a reboot. Changes nothing.
    fn find_reboot_need(
        &self,
        _steps: &[Self::Step],
        _baseline: &Self::Baseline,
    ) -> impl Future<Output = Result<RebootNeed, Failure>> + Send {
        ready(Ok(RebootNeed::default()))
    }

    /// Does the work that follows a verified change if the node does not reboot; for a change that the reboot applies,
    /// after that reboot. Returns problems that do not change the outcome, for a person. Safe to repeat.
    fn post_apply(
        &self,
        _steps: &[Self::Step],
        _baseline: &Self::Baseline,
        _report: &mut Self::Report,
    ) -> impl Future<Output = Result<Vec<String>, Failure>> + Send {
        ready(Ok(Vec::new()))
    }

    /// Does the work that follows a failed change, once, when it is certain that the change is not undone. Returns problems
    /// that do not change the outcome, for a person. Safe to repeat.
    fn post_failure(
        &self,
        _steps: &[Self::Step],
        _baseline: &Self::Baseline,
        _report: &mut Self::Report,
    ) -> impl Future<Output = Result<Vec<String>, Failure>> + Send {
        ready(Ok(Vec::new()))
    }

    /// Whether the node certainly is as it was before the steps. A change that was permitted but not
    /// begun before the start deadline begins only if the answer is no.
    fn is_untouched(
        &self,
        steps: &[Self::Step],
    ) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Undoes the steps, if the module can. By default it cannot, but there may be nothing to undo.
    fn undo(
        &self,
        steps: &[Self::Step],
    ) -> impl Future<Output = Result<UndoOutcome, Failure>> + Send {
        async move {
            let is_untouched = Module::is_untouched(self, steps).await?;
            Ok(if is_untouched { UndoOutcome::Complete } else { UndoOutcome::Impossible })
        }
    }

    /// When an attempt may be repeated that failed in this way before it changed anything.
    fn retry_rule(kind: FailureKind) -> RetryRule {
        RetryRule::for_failure(kind)
    }

    /// Makes the node consistent after a change whose steps this version of the agent cannot read.
    fn repair_unknown_change(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        ready(Ok(()))
    }

    /// Cancels a prepared change that the next reset would apply. Called when no open attempt waits for it; cheap if there
    /// is none.
    fn cancel_pending_change(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        ready(Ok(()))
    }

    /// Removes what ended attempts have left behind. Called when no attempt is open.
    fn clean_up(
        &self,
        _keep: DownloadRetention<&Self::Spec>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        ready(Ok(()))
    }

    /// Receives the node's new credential, for downloads from the server.
    fn set_credential(&self, _credential: &Secret) {}

    /// Writes the report into an event for the server.
    fn write_event(_report: &Self::Report, _event: &mut pb::Event) {}

    /// Describes the report for people.
    fn describe(_report: &Self::Report) -> ReportText {
        ReportText::default()
    }

    /// Checks for `doctor` what the module needs on this node.
    fn diagnose(_registry: &ModuleRegistry<'_>) -> impl Future<Output = Vec<DoctorFinding>> {
        ready(Vec::new())
    }

    /// Runs a command of the module's own; `None` for all others.
    fn run_command(
        _command: &AgentCommand,
        _out: &mut dyn Write,
    ) -> Option<anyhow::Result<ExitCode>> {
        None
    }
}

/// Describes the reports of all modules for people.
pub fn describe(kinds: impl Iterator<Item = ModuleKind>, reports: &ModuleParts) -> ReportText {
    let mut all = ReportText::default();
    let mut changes = Vec::new();
    for kind in kinds {
        let Some(report) = reports.get(kind.name) else { continue };
        let text = (kind.describe)(report);
        changes.extend(Some(text.change).filter(|change| !change.is_empty()));
        all.planned.extend(text.planned);
        all.results.extend(text.results);
    }
    all.change = changes.join(", ");
    all
}
