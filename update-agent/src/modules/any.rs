//! A module with its types hidden, so that the engine can hold a list of modules.

use chrono::{DateTime, Utc};
use evenkeel_kit::Secret;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    DownloadRetention, Draft, FetchProgress, Module, ModuleKind, Readiness, RebootNeed, TryKind,
    UndoOutcome, Verdict,
};
use crate::model::{Failure, FailureKind, encode_part};

/// A step as the engine and the journal see it: module, name and uninterpreted payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnyStep {
    /// Name of the module.
    pub module: String,
    pub name: String,
    /// The step itself, as JSON.
    pub payload: Value,
}

/// A [`Module`] with its types hidden. The methods are those of the module; steps of other modules
/// are ignored, and specs, baselines and reports are JSON. A missing or unreadable baseline or
/// report counts as the default, which is the strictest.
#[async_trait::async_trait]
pub trait AnyModule: Send + Sync {
    /// What does not depend on the node.
    fn kind(&self) -> ModuleKind;
    /// [`Module::check_allowed`].
    fn check_allowed(&self, spec: &Value) -> Result<(), Failure>;
    /// Fails if this module cannot read its steps: another version of the agent has written them.
    fn check_readable(&self, steps: &[AnyStep]) -> Result<(), Failure>;
    /// [`Module::refresh`].
    async fn refresh(&self) -> Result<(), Failure>;
    /// Observes and plans.
    async fn plan(&self, spec: &Value) -> Result<Draft<AnyStep, Value>, Failure>;
    /// [`Module::prepare`].
    async fn prepare(&self, step: &AnyStep) -> Result<FetchProgress, Failure>;
    /// [`Module::check`].
    async fn check(&self, steps: &[AnyStep]) -> Result<Readiness, Failure>;
    /// [`Module::take_baseline`].
    async fn take_baseline(&self, steps: &[AnyStep]) -> Result<Value, Failure>;
    /// [`Module::current_wait`].
    fn current_wait(&self) -> Option<String>;
    /// [`Module::find_concurrent_change`].
    async fn find_concurrent_change(&self, trying: TryKind) -> Result<Option<String>, Failure>;
    /// [`Module::apply`].
    async fn apply(
        &self,
        step: &AnyStep,
        trying: TryKind,
        start_deadline: Option<DateTime<Utc>>,
    ) -> Result<(), Failure>;
    /// [`Module::verify`]. Fails if the steps are unreadable; the module then verifies no step.
    async fn verify(
        &self,
        steps: &[AnyStep],
        baseline: &Value,
        report: &mut Value,
    ) -> Result<Verdict, Failure>;
    /// [`Module::find_reboot_need`].
    async fn find_reboot_need(
        &self,
        steps: &[AnyStep],
        baseline: &Value,
    ) -> Result<RebootNeed, Failure>;
    /// [`Module::post_apply`].
    async fn post_apply(
        &self,
        steps: &[AnyStep],
        baseline: &Value,
        report: &mut Value,
    ) -> Result<Vec<String>, Failure>;
    /// [`Module::post_failure`]; unreadable steps need nothing.
    async fn post_failure(
        &self,
        steps: &[AnyStep],
        baseline: &Value,
        report: &mut Value,
    ) -> Result<Vec<String>, Failure>;
    /// [`Module::is_untouched`].
    async fn is_untouched(&self, steps: &[AnyStep]) -> Result<bool, Failure>;
    /// [`Module::undo`]. Of unreadable steps, only a prepared change is cancelled: their module does
    /// not know what they have changed.
    async fn undo(&self, steps: &[AnyStep]) -> Result<UndoOutcome, Failure>;
    /// [`Module::repair_unknown_change`].
    async fn repair_unknown_change(&self) -> Result<(), Failure>;
    /// [`Module::cancel_pending_change`].
    async fn cancel_pending_change(&self) -> Result<(), Failure>;
    /// [`Module::clean_up`]; an unreadable spec needs nothing.
    async fn clean_up(&self, keep: DownloadRetention<&Value>) -> Result<(), Failure>;
    /// [`Module::set_credential`].
    fn set_credential(&self, credential: &Secret);
}

#[async_trait::async_trait]
impl<M: Module> AnyModule for M {
    fn kind(&self) -> ModuleKind {
        ModuleKind::of::<M>()
    }

    fn check_allowed(&self, spec: &Value) -> Result<(), Failure> {
        Module::check_allowed(self, &decode_spec::<M>(spec)?)
    }

    fn check_readable(&self, steps: &[AnyStep]) -> Result<(), Failure> {
        decode_own_steps::<M>(steps).map(drop)
    }

    async fn refresh(&self) -> Result<(), Failure> {
        Module::refresh(self).await
    }

    async fn plan(&self, spec: &Value) -> Result<Draft<AnyStep, Value>, Failure> {
        let spec = decode_spec::<M>(spec)?;
        let observed = self.observe(&spec).await?;
        let Draft { plan, report, steps, remarks } = M::plan(&spec, &observed)?;
        let steps: Result<Vec<_>, _> = steps.iter().map(encode_step::<M>).collect();
        Ok(Draft { plan, report: encode_part(M::NAME, &report)?, steps: steps?, remarks })
    }

    async fn prepare(&self, step: &AnyStep) -> Result<FetchProgress, Failure> {
        Module::prepare(self, &decode_step::<M>(step)?).await
    }

    async fn check(&self, steps: &[AnyStep]) -> Result<Readiness, Failure> {
        Module::check(self, &decode_own_steps::<M>(steps)?).await
    }

    async fn take_baseline(&self, steps: &[AnyStep]) -> Result<Value, Failure> {
        let baseline = Module::take_baseline(self, &decode_own_steps::<M>(steps)?).await?;
        encode_part(M::NAME, &baseline)
    }

    fn current_wait(&self) -> Option<String> {
        Module::current_wait(self)
    }

    async fn find_concurrent_change(&self, trying: TryKind) -> Result<Option<String>, Failure> {
        Module::find_concurrent_change(self, trying).await
    }

    async fn apply(
        &self,
        step: &AnyStep,
        trying: TryKind,
        start_deadline: Option<DateTime<Utc>>,
    ) -> Result<(), Failure> {
        let step = decode_step::<M>(step)?;
        Module::apply(self, &step, trying, start_deadline).await
    }

    async fn verify(
        &self,
        steps: &[AnyStep],
        baseline: &Value,
        report: &mut Value,
    ) -> Result<Verdict, Failure> {
        let (steps, baseline) = (decode_own_steps::<M>(steps), decode_or_default::<M, _>(baseline));
        let mut typed = decode_or_default::<M, M::Report>(report);
        let readable = steps.as_deref().unwrap_or_default();
        let verdict = Module::verify(self, readable, &baseline, &mut typed).await;
        *report = encode_part(M::NAME, &typed)?;
        steps.and(verdict)
    }

    async fn find_reboot_need(
        &self,
        steps: &[AnyStep],
        baseline: &Value,
    ) -> Result<RebootNeed, Failure> {
        let baseline = decode_or_default::<M, M::Baseline>(baseline);
        Module::find_reboot_need(self, &decode_own_steps::<M>(steps)?, &baseline).await
    }

    async fn post_apply(
        &self,
        steps: &[AnyStep],
        baseline: &Value,
        report: &mut Value,
    ) -> Result<Vec<String>, Failure> {
        let (steps, baseline) =
            (decode_own_steps::<M>(steps)?, decode_or_default::<M, _>(baseline));
        let mut typed = decode_or_default::<M, M::Report>(report);
        let result = Module::post_apply(self, &steps, &baseline, &mut typed).await;
        *report = encode_part(M::NAME, &typed)?;
        result
    }

    async fn post_failure(
        &self,
        steps: &[AnyStep],
        baseline: &Value,
        report: &mut Value,
    ) -> Result<Vec<String>, Failure> {
        let Ok(steps) = decode_own_steps::<M>(steps) else { return Ok(Vec::new()) };
        let baseline = decode_or_default::<M, M::Baseline>(baseline);
        let mut typed = decode_or_default::<M, M::Report>(report);
        let result = Module::post_failure(self, &steps, &baseline, &mut typed).await;
        *report = encode_part(M::NAME, &typed)?;
        result
    }

    async fn is_untouched(&self, steps: &[AnyStep]) -> Result<bool, Failure> {
        Module::is_untouched(self, &decode_own_steps::<M>(steps)?).await
    }

    async fn undo(&self, steps: &[AnyStep]) -> Result<UndoOutcome, Failure> {
        let Ok(steps) = decode_own_steps::<M>(steps) else {
            Module::cancel_pending_change(self).await?;
            return Ok(UndoOutcome::Impossible);
        };
        Module::undo(self, &steps).await
    }

    async fn repair_unknown_change(&self) -> Result<(), Failure> {
        Module::repair_unknown_change(self).await
    }

    async fn cancel_pending_change(&self) -> Result<(), Failure> {
        Module::cancel_pending_change(self).await
    }

    async fn clean_up(&self, keep: DownloadRetention<&Value>) -> Result<(), Failure> {
        let spec = match keep {
            DownloadRetention::LongRunning => {
                return Module::clean_up(self, DownloadRetention::LongRunning).await;
            }
            DownloadRetention::NeededBy(spec) => spec.and_then(|spec| decode_spec::<M>(spec).ok()),
        };
        Module::clean_up(self, DownloadRetention::NeededBy(spec.as_ref())).await
    }

    fn set_credential(&self, credential: &Secret) {
        Module::set_credential(self, credential);
    }
}

pub(super) fn encode_step<M: Module>(step: &M::Step) -> Result<AnyStep, Failure> {
    let payload = encode_part(M::NAME, step)?;
    Ok(AnyStep { module: M::NAME.to_owned(), name: M::step_name(step).to_owned(), payload })
}

pub(super) fn decode_step<M: Module>(step: &AnyStep) -> Result<M::Step, Failure> {
    M::Step::deserialize(&step.payload).map_err(|error| {
        let reason = format!("cannot read the step {} of {}: {error}", step.name, M::NAME);
        Failure::new(FailureKind::Unsupported, reason)
    })
}

fn decode_own_steps<M: Module>(steps: &[AnyStep]) -> Result<Vec<M::Step>, Failure> {
    steps.iter().filter(|step| step.module == M::NAME).map(decode_step::<M>).collect()
}

/// Reads a spec completely or not at all: half of an instruction means something else.
pub(super) fn decode_spec<M: Module>(spec: &Value) -> Result<M::Spec, Failure> {
    M::Spec::deserialize(spec).map_err(|error| {
        let reason = format!("cannot read the update of {}: {error}", M::NAME);
        Failure::new(FailureKind::Unsupported, reason)
    })
}

/// Reads a value that another version of the agent may have written.
pub(super) fn decode_or_default<M: Module, T: DeserializeOwned + Default>(stored: &Value) -> T {
    if stored.is_null() {
        return T::default();
    }
    T::deserialize(stored).unwrap_or_else(|error| {
        tracing::warn!(module = M::NAME, %error, "cannot read what the module has stored");
        T::default()
    })
}
