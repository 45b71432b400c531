//! The interface between the engine and its modules. A module changes one kind of thing, such as packages.
//!
//! A module observes, plans and applies. `plan` has no `self`, so it cannot change anything. A module is fully typed;
//! [`ModuleAdapter`] hides the types from the engine and selects the module's part of an update spec. A new module needs
//! one folder and one line in the list of modules.

use std::future::{Future, ready};

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::{
    Failure, FailureKind, HeldBackPackage, ImageChange, PackageChange, PackageResult, UpdatePlan,
    UpdateSpec,
};

pub mod image;
pub mod packages;

/// Whether a step is taken for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryKind {
    /// The step was not begun before.
    First,
    /// The step was begun and its end was not recorded: it may be done, half done or not begun at all.
    Again,
}

/// Progress of a module's downloads for a step.
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
    Entirely,
    /// The module cannot undo the steps: the node stays as it is.
    Impossible,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// State of each package of the plan.
    pub results: Vec<PackageResult>,
    /// Difference from the plan, if there is one.
    pub problem: Option<Failure>,
    /// Configuration files with local changes that were not replaced; the package's version lies next to each.
    pub retained_conffiles: Vec<String>,
    /// Whether waiting cannot solve the problem.
    pub is_final: bool,
    /// The booted image version, if an image was to be booted and the version is known.
    pub booted: Option<String>,
}

/// Result of the post-apply work, after the verification succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PostApplyResult {
    /// Units that were restarted because they used replaced files.
    pub restarted: Vec<String>,
    /// Why the change needs a reboot; `None` if it does not.
    pub reboot: Option<Vec<String>>,
    /// Whether only that reboot applies the change. If the node cannot reboot, the change is reverted.
    pub reboot_is_the_change: bool,
    /// Problems that do not change the outcome, for a person.
    pub remarks: Vec<String>,
}

/// The plan of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft<S> {
    /// The whole change.
    pub changes: Vec<PackageChange>,
    /// Bytes to download.
    pub download_bytes: u64,
    /// Growth of the installed size in bytes; negative if it shrinks.
    pub disk_bytes: i64,
    /// Whether the change probably needs a reboot.
    pub reboot_expected: bool,
    /// Packages whose newer version is not installed.
    pub held_back: Vec<HeldBackPackage>,
    /// The image before and after, if one is to be booted.
    pub image: Option<ImageChange>,
    /// The steps; empty if there is nothing to do.
    pub steps: Vec<S>,
}

impl<S> Default for Draft<S> {
    fn default() -> Self {
        Self {
            changes: Vec::new(),
            download_bytes: 0,
            disk_bytes: 0,
            reboot_expected: false,
            held_back: Vec::new(),
            image: None,
            steps: Vec::new(),
        }
    }
}

impl<S> Draft<S> {
    /// The plan as it is reported, without the steps.
    pub fn to_plan(&self) -> UpdatePlan {
        UpdatePlan {
            changes: self.changes.clone(),
            download_bytes: self.download_bytes,
            disk_bytes: self.disk_bytes,
            reboot_expected: self.reboot_expected,
            held_back: self.held_back.clone(),
            image: self.image.clone(),
        }
    }
}

/// The interface between the engine and a module.
pub trait Module: Send + Sync + 'static {
    /// Stable name: it is written to the journal.
    const NAME: &'static str;
    /// Names of the step kinds, in the order in which they are taken.
    const STEP_NAMES: &'static [&'static str];
    /// Whether the steps only prepare a change that the next reset applies. Such a step is not taken after the start
    /// deadline, and an attempt does not end before the prepared change is either applied or cancelled.
    const APPLIES_ON_REBOOT: bool = false;
    /// The module's part of an update spec.
    type Spec: Sync + 'static;
    /// The observed state.
    type Observation: Send;
    /// One change. It is written to the journal before it is made.
    type Step: Serialize + DeserializeOwned + Send + Sync;
    /// State of the node before the change, to find out later what the change did. Written to the journal.
    type Baseline: Serialize + DeserializeOwned + Default + Send + Sync;

    /// Refreshes what is known about the outside. Changes only that knowledge on the node.
    fn refresh(
        &self,
        spec: Option<&Self::Spec>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Observes the state of the node and how the tools would reach the desired state. Changes nothing.
    fn observe(
        &self,
        spec: &Self::Spec,
    ) -> impl Future<Output = Result<Self::Observation, Failure>> + Send;

    /// Plans. Has no `self`, so it cannot change anything: the same input gives the same draft.
    fn plan(spec: &Self::Spec, observed: &Self::Observation) -> Result<Draft<Self::Step>, Failure>;

    /// The name of a step, one of [`Module::STEP_NAMES`].
    fn step_name(step: &Self::Step) -> &'static str;

    /// Updates a step for a newer spec of the same change, for example with other download rules.
    fn update_step(step: Self::Step, _spec: &Self::Spec) -> Self::Step {
        step
    }

    /// Fetches and checks the files of a step, so that taking it needs no download. Existing files are checked and not
    /// fetched again. Long downloads are fetched in parts. Does not change what the node runs.
    fn fetch(
        &self,
        step: &Self::Step,
    ) -> impl Future<Output = Result<FetchProgress, Failure>> + Send;

    /// Checks right before the start whether the steps still fit the node and their files are complete.
    fn check(
        &self,
        steps: &[Self::Step],
    ) -> impl Future<Output = Result<Readiness, Failure>> + Send;

    /// Records the state of the node right before the first step. Changes nothing.
    fn take_baseline(
        &self,
        steps: &[Self::Step],
    ) -> impl Future<Output = Result<Self::Baseline, Failure>> + Send;

    /// Which other program is changing the same things; `None` if there is none. Waits for that program before a step is
    /// taken again, but the pause stays short enough for the node to keep reporting to the server.
    fn find_concurrent_change(
        &self,
        trying: TryKind,
    ) -> impl Future<Output = Result<Option<String>, Failure>> + Send;

    /// Takes a step. Safe to repeat: the machine may lose power in the middle.
    fn apply(
        &self,
        step: &Self::Step,
        trying: TryKind,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Takes a step like [`Module::apply`]. The start is permitted until `before`: a step that has to wait for something
    /// does not begin its change after that time.
    fn apply_until(
        &self,
        step: &Self::Step,
        trying: TryKind,
        _before: Option<DateTime<Utc>>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        self.apply(step, trying)
    }

    /// Verifies the result of the steps. Problems that are in the baseline are not caused by the steps.
    fn verify(
        &self,
        steps: &[Self::Step],
        baseline: &Self::Baseline,
    ) -> impl Future<Output = Result<Verdict, Failure>> + Send;

    /// Does the work that follows a verified change, and returns whether it needs a reboot. Safe to repeat.
    fn post_apply(
        &self,
        steps: &[Self::Step],
        baseline: &Self::Baseline,
    ) -> impl Future<Output = Result<PostApplyResult, Failure>> + Send;

    /// Whether the node certainly is as it was before the steps.
    fn is_untouched(
        &self,
        steps: &[Self::Step],
    ) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Undoes the steps, if the module can.
    fn undo(
        &self,
        steps: &[Self::Step],
    ) -> impl Future<Output = Result<UndoOutcome, Failure>> + Send;

    /// Cancels a prepared change that the next reset would apply. Called when no open attempt waits for it; cheap if there
    /// is none.
    fn cancel_pending_change(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        ready(Ok(()))
    }

    /// Removes downloads that are quickly fetched again. The next attempt may need them; long downloads are removed by
    /// [`Module::discard_downloads_except`].
    fn clean_up(&self) -> Result<(), Failure>;

    /// Removes long downloads, except those that this spec needs.
    fn discard_downloads_except(
        &self,
        _spec: Option<&Self::Spec>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        ready(Ok(()))
    }
}

/// A step as the engine and the journal see it: module, name and uninterpreted payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnyStep {
    /// Name of the module.
    pub module: String,
    /// Name of the step.
    pub name: String,
    /// The step itself, as JSON.
    pub payload: Value,
}

/// A module with its types hidden, so that the engine can hold a list of modules. The methods are those of [`Module`];
/// steps of other modules are ignored.
#[async_trait::async_trait]
pub trait AnyModule: Send + Sync {
    /// [`Module::NAME`].
    fn name(&self) -> &'static str;
    /// [`Module::STEP_NAMES`].
    fn step_names(&self) -> &'static [&'static str];
    /// [`Module::APPLIES_ON_REBOOT`].
    fn applies_on_reboot(&self) -> bool;
    /// [`Module::refresh`]; `None` refreshes without a spec.
    async fn refresh(&self, spec: Option<&UpdateSpec>) -> Result<(), Failure>;
    /// Observes and plans; `None` if the spec does not concern this module.
    async fn plan(&self, spec: &UpdateSpec) -> Result<Option<Draft<AnyStep>>, Failure>;
    /// [`Module::update_step`]; a spec that does not concern this module changes nothing.
    fn update_step(&self, step: &AnyStep, spec: &UpdateSpec) -> Result<AnyStep, Failure>;
    /// [`Module::fetch`].
    async fn fetch(&self, step: &AnyStep) -> Result<FetchProgress, Failure>;
    /// [`Module::check`].
    async fn check(&self, steps: &[AnyStep]) -> Result<Readiness, Failure>;
    /// [`Module::take_baseline`], as JSON.
    async fn take_baseline(&self, steps: &[AnyStep]) -> Result<Value, Failure>;
    /// [`Module::find_concurrent_change`].
    async fn find_concurrent_change(&self, trying: TryKind) -> Result<Option<String>, Failure>;
    /// [`Module::apply_until`].
    async fn apply(
        &self,
        step: &AnyStep,
        trying: TryKind,
        before: Option<DateTime<Utc>>,
    ) -> Result<(), Failure>;
    /// [`Module::verify`]; a missing or unreadable baseline counts as an empty one.
    async fn verify(&self, steps: &[AnyStep], baseline: &Value) -> Result<Verdict, Failure>;
    /// [`Module::post_apply`], with the same baseline.
    async fn post_apply(
        &self,
        steps: &[AnyStep],
        baseline: &Value,
    ) -> Result<PostApplyResult, Failure>;
    /// [`Module::is_untouched`].
    async fn is_untouched(&self, steps: &[AnyStep]) -> Result<bool, Failure>;
    /// [`Module::undo`].
    async fn undo(&self, steps: &[AnyStep]) -> Result<UndoOutcome, Failure>;
    /// [`Module::cancel_pending_change`].
    async fn cancel_pending_change(&self) -> Result<(), Failure>;
    /// [`Module::clean_up`].
    fn clean_up(&self) -> Result<(), Failure>;
    /// [`Module::discard_downloads_except`]; a spec that does not concern this module needs none of its downloads.
    async fn discard_downloads_except(&self, spec: Option<&UpdateSpec>) -> Result<(), Failure>;
}

/// Connects a module to the engine.
#[derive(Debug)]
pub struct ModuleAdapter<M: Module> {
    /// The module.
    pub module: M,
    /// Selects the module's part of a spec.
    pub select_spec: fn(&UpdateSpec) -> Option<&M::Spec>,
}

#[async_trait::async_trait]
impl<M: Module> AnyModule for ModuleAdapter<M> {
    fn name(&self) -> &'static str {
        M::NAME
    }

    fn step_names(&self) -> &'static [&'static str] {
        M::STEP_NAMES
    }

    fn applies_on_reboot(&self) -> bool {
        M::APPLIES_ON_REBOOT
    }

    async fn refresh(&self, spec: Option<&UpdateSpec>) -> Result<(), Failure> {
        match spec {
            None => self.module.refresh(None).await,
            Some(spec) => match (self.select_spec)(spec) {
                Some(own_spec) => self.module.refresh(Some(own_spec)).await,
                None => Ok(()),
            },
        }
    }

    async fn plan(&self, spec: &UpdateSpec) -> Result<Option<Draft<AnyStep>>, Failure> {
        let Some(own_spec) = (self.select_spec)(spec) else {
            return Ok(None);
        };
        let observed = self.module.observe(own_spec).await?;
        let draft = M::plan(own_spec, &observed)?;
        let steps: Result<Vec<_>, _> = draft.steps.iter().map(encode_step::<M>).collect();
        Ok(Some(Draft {
            changes: draft.changes,
            download_bytes: draft.download_bytes,
            disk_bytes: draft.disk_bytes,
            reboot_expected: draft.reboot_expected,
            held_back: draft.held_back,
            image: draft.image,
            steps: steps?,
        }))
    }

    fn update_step(&self, step: &AnyStep, spec: &UpdateSpec) -> Result<AnyStep, Failure> {
        match (self.select_spec)(spec) {
            Some(own_spec) => encode_step::<M>(&M::update_step(decode_step::<M>(step)?, own_spec)),
            None => Ok(step.clone()),
        }
    }

    async fn fetch(&self, step: &AnyStep) -> Result<FetchProgress, Failure> {
        self.module.fetch(&decode_step::<M>(step)?).await
    }

    async fn check(&self, steps: &[AnyStep]) -> Result<Readiness, Failure> {
        self.module.check(&decode_own_steps::<M>(steps)?).await
    }

    async fn take_baseline(&self, steps: &[AnyStep]) -> Result<Value, Failure> {
        let baseline = self.module.take_baseline(&decode_own_steps::<M>(steps)?).await?;
        serde_json::to_value(baseline).map_err(|error| {
            let reason = format!("cannot serialize the baseline of {}: {error}", M::NAME);
            Failure::new(FailureKind::Plan, reason)
        })
    }

    async fn find_concurrent_change(&self, trying: TryKind) -> Result<Option<String>, Failure> {
        self.module.find_concurrent_change(trying).await
    }

    async fn apply(
        &self,
        step: &AnyStep,
        trying: TryKind,
        before: Option<DateTime<Utc>>,
    ) -> Result<(), Failure> {
        let step = decode_step::<M>(step)?;
        self.module.apply_until(&step, trying, before).await
    }

    async fn verify(&self, steps: &[AnyStep], baseline: &Value) -> Result<Verdict, Failure> {
        let steps = decode_own_steps::<M>(steps)?;
        let baseline = decode_baseline::<M>(baseline);
        self.module.verify(&steps, &baseline).await
    }

    async fn post_apply(
        &self,
        steps: &[AnyStep],
        baseline: &Value,
    ) -> Result<PostApplyResult, Failure> {
        let steps = decode_own_steps::<M>(steps)?;
        let baseline = decode_baseline::<M>(baseline);
        self.module.post_apply(&steps, &baseline).await
    }

    async fn is_untouched(&self, steps: &[AnyStep]) -> Result<bool, Failure> {
        self.module.is_untouched(&decode_own_steps::<M>(steps)?).await
    }

    async fn undo(&self, steps: &[AnyStep]) -> Result<UndoOutcome, Failure> {
        self.module.undo(&decode_own_steps::<M>(steps)?).await
    }

    async fn cancel_pending_change(&self) -> Result<(), Failure> {
        self.module.cancel_pending_change().await
    }

    fn clean_up(&self) -> Result<(), Failure> {
        self.module.clean_up()
    }

    async fn discard_downloads_except(&self, spec: Option<&UpdateSpec>) -> Result<(), Failure> {
        let own_spec = spec.and_then(self.select_spec);
        self.module.discard_downloads_except(own_spec).await
    }
}

fn encode_step<M: Module>(step: &M::Step) -> Result<AnyStep, Failure> {
    let what = serde_json::to_value(step).map_err(|error| {
        let reason = format!("cannot serialize a step of {}: {error}", M::NAME);
        Failure::new(FailureKind::Plan, reason)
    })?;
    Ok(AnyStep { module: M::NAME.to_owned(), name: M::step_name(step).to_owned(), payload: what })
}

fn decode_step<M: Module>(step: &AnyStep) -> Result<M::Step, Failure> {
    M::Step::deserialize(&step.payload).map_err(|error| {
        let reason = format!("cannot read the step {} of {}: {error}", step.name, M::NAME);
        Failure::new(FailureKind::Unsupported, reason)
    })
}

fn decode_own_steps<M: Module>(steps: &[AnyStep]) -> Result<Vec<M::Step>, Failure> {
    steps.iter().filter(|step| step.module == M::NAME).map(decode_step::<M>).collect()
}

/// A missing or unreadable baseline, for example of another agent version, is an empty one, which is the strictest.
fn decode_baseline<M: Module>(stored: &Value) -> M::Baseline {
    if stored.is_null() {
        return M::Baseline::default();
    }
    M::Baseline::deserialize(stored).unwrap_or_else(|error| {
        tracing::warn!(module = M::NAME, %error, "cannot read the baseline");
        M::Baseline::default()
    })
}
