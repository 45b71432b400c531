//! What knows how to change one kind of thing: the contract between the engine and its modules.
//!
//! A module looks, thinks and acts. `plan` has no `self`, so it cannot act. A module is fully typed; [`Plugged`] hides
//! the types from the engine and ties the module to its part of the wish. Adding a module is one folder and one line
//! where the modules are listed.

use std::future::{Future, ready};

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::{
    Change, Failure, FailureKind, ImageChange, PackageResult, Plan, Wish, Withheld,
};

pub mod image;
pub mod packages;

/// Whether a step is taken for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Try {
    /// Nobody has begun it.
    First,
    /// It was begun and its end was not written down: it may be done, half done or not begun at all.
    Again,
}

/// How far a module has fetched what a step needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// All is there and checked.
    All,
    /// Some of it: it is gone on with after the server was heard.
    Part,
    /// Not now, because of this; it is tried again by itself.
    Later(String),
}

/// Whether the change may begin, as far as the node itself is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It may.
    Yes,
    /// Not now, because of this; it will pass by itself.
    NotYet(String),
}

/// What came of an attempt to go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undone {
    /// The node is verified to be as before.
    Entirely,
    /// The module does not know how: the node stays as it is.
    Impossible,
}

/// What was found when the work was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Each package of the plan as it is now.
    pub results: Vec<PackageResult>,
    /// What is not as it was planned.
    pub problem: Option<Failure>,
    /// Configuration files that a person had changed and that stayed; the package's own lies beside each.
    pub kept_conffiles: Vec<String>,
    /// Whether the problem does not pass with time: there is nothing to wait for.
    pub is_final: bool,
    /// The version of the image that runs, if one was to be booted and that is known.
    pub booted: Option<String>,
}

/// What was done, and what is left to do, after all was found as planned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct After {
    /// Units that were restarted because they ran what was replaced.
    pub restarted: Vec<String>,
    /// Why the change asks for a reboot, in words; `None` if it does not.
    pub reboot: Option<Vec<String>>,
    /// Whether nothing is changed before that reboot. What cannot reboot then goes back: it is not as wanted.
    pub reboot_is_the_change: bool,
    /// What went wrong and changes nothing of the end, in words for a person.
    pub remarks: Vec<String>,
}

/// A plan of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft<S> {
    /// The whole change.
    pub changes: Vec<Change>,
    /// Bytes to fetch.
    pub download_bytes: u64,
    /// By how many bytes what is installed grows; negative if it shrinks.
    pub disk_bytes: i64,
    /// Whether it will probably ask for a reboot.
    pub reboot_expected: bool,
    /// What has a newer version and does not get it.
    pub withheld: Vec<Withheld>,
    /// The image before and after, if one is to be booted.
    pub image: Option<ImageChange>,
    /// The way there; none if there is nothing to do.
    pub steps: Vec<S>,
}

impl<S> Default for Draft<S> {
    fn default() -> Self {
        Self {
            changes: Vec::new(),
            download_bytes: 0,
            disk_bytes: 0,
            reboot_expected: false,
            withheld: Vec::new(),
            image: None,
            steps: Vec::new(),
        }
    }
}

impl<S> Draft<S> {
    /// The plan as it is told, without the way there.
    pub fn plan(&self) -> Plan {
        Plan {
            changes: self.changes.clone(),
            download_bytes: self.download_bytes,
            disk_bytes: self.disk_bytes,
            reboot_expected: self.reboot_expected,
            withheld: self.withheld.clone(),
            image: self.image.clone(),
        }
    }
}

/// The contract between the engine and a module.
pub trait Module: Send + Sync + 'static {
    /// Stable: it is written into the journal.
    const NAME: &'static str;
    /// The names of its kinds of steps, in the order in which they are taken.
    const STEPS: &'static [&'static str];
    /// Whether its steps only get the node ready for a change that any reset makes then. Such a step is not taken once the
    /// leave has ended, and an attempt is not over before it is certain that what it got ready was made or taken back.
    const ARMS: bool = false;
    /// Its part of a wish.
    type Wanted: Sync + 'static;
    /// What it sees.
    type Observed: Send;
    /// One change. Written to the journal before it is made.
    type Step: Serialize + DeserializeOwned + Send + Sync;
    /// What it notes of the node before the change, to tell later what came of the change. Written to the journal.
    type Baseline: Serialize + DeserializeOwned + Default + Send + Sync;

    /// Brings what is known about the outside up to date. Changes nothing of the node but that knowledge.
    fn refresh(
        &self,
        wanted: Option<&Self::Wanted>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Looks: what is, and what the tools say would be the way to what is wanted. Changes nothing.
    fn observe(
        &self,
        wanted: &Self::Wanted,
    ) -> impl Future<Output = Result<Self::Observed, Failure>> + Send;

    /// Thinks. No `self`, so there is nothing to act with: the same input gives the same draft.
    fn plan(wanted: &Self::Wanted, observed: &Self::Observed)
    -> Result<Draft<Self::Step>, Failure>;

    /// Which of [`Module::STEPS`] a step is.
    fn step_name(step: &Self::Step) -> &'static str;

    /// The same step, for a wish for the same change of which something was told anew, such as how it may be fetched.
    fn renew(step: Self::Step, _wanted: &Self::Wanted) -> Self::Step {
        step
    }

    /// Fetches and checks what a step needs, so that nothing has to be fetched when it is taken. What is there already
    /// is checked again and not fetched again. What takes long is fetched in parts. Changes nothing of what the node runs.
    fn fetch(&self, step: &Self::Step) -> impl Future<Output = Result<Fetched, Failure>> + Send;

    /// Looks whether the steps still fit the node and whether it has what they need, as near to the beginning as can be.
    fn check(&self, steps: &[Self::Step]) -> impl Future<Output = Result<Ready, Failure>> + Send;

    /// Notes how the node is right before the first step. Changes nothing.
    fn note(
        &self,
        steps: &[Self::Step],
    ) -> impl Future<Output = Result<Self::Baseline, Failure>> + Send;

    /// Who else is changing what the module changes; `None` if nobody is. Before something is tried again that is waited
    /// for, but not so long that the server hears nothing of the node.
    fn at_work(&self, trying: Try) -> impl Future<Output = Result<Option<String>, Failure>> + Send;

    /// Acts. Safe to repeat: the machine may lose power in the middle.
    fn apply(
        &self,
        step: &Self::Step,
        trying: Try,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Acts, as [`Module::apply`]. Leave was given until `before`: who has to wait for something on the way does not act if
    /// it has ended meanwhile.
    fn apply_before(
        &self,
        step: &Self::Step,
        trying: Try,
        _before: Option<DateTime<Utc>>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        self.apply(step, trying)
    }

    /// Looks at what the steps made. What was wrong when it was noted is not the steps' doing.
    fn verify(
        &self,
        steps: &[Self::Step],
        baseline: &Self::Baseline,
    ) -> impl Future<Output = Result<Verdict, Failure>> + Send;

    /// Once all is as planned: does what the wish says should follow, and tells whether a reboot should. Safe to repeat.
    fn after(
        &self,
        steps: &[Self::Step],
        baseline: &Self::Baseline,
    ) -> impl Future<Output = Result<After, Failure>> + Send;

    /// Whether the node certainly is as it was before the steps.
    fn is_untouched(
        &self,
        steps: &[Self::Step],
    ) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Goes back to what was before the steps, if the module knows how.
    fn undo(&self, steps: &[Self::Step]) -> impl Future<Output = Result<Undone, Failure>> + Send;

    /// Takes back what would change the node at its next reset. Asked when no attempt is open that waits for that; cheap
    /// if there is nothing.
    fn stand_down(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        ready(Ok(()))
    }

    /// Removes what was fetched and is quickly fetched again. It may be wanted by the next attempt: what takes long is for
    /// [`Module::discard_but`].
    fn clean(&self) -> Result<(), Failure>;

    /// Removes what took long to fetch, but for what this wish needs.
    fn discard_but(
        &self,
        _wanted: Option<&Self::Wanted>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        ready(Ok(()))
    }
}

/// A step as the engine and the journal see it: whose, which, and what, unread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnyStep {
    /// Whose.
    pub module: String,
    /// Which of the module's steps.
    pub name: String,
    /// What.
    pub what: Value,
}

/// A module with its types hidden, so that the engine can hold a list of them. The methods are those of [`Module`];
/// steps of other modules are left alone.
#[async_trait::async_trait]
pub trait AnyModule: Send + Sync {
    /// [`Module::NAME`].
    fn name(&self) -> &'static str;
    /// [`Module::STEPS`].
    fn step_names(&self) -> &'static [&'static str];
    /// [`Module::ARMS`].
    fn arms(&self) -> bool;
    /// [`Module::refresh`]; `None` refreshes without a wish.
    async fn refresh(&self, wish: Option<&Wish>) -> Result<(), Failure>;
    /// Looks and thinks; `None` if the wish does not speak of this module.
    async fn plan(&self, wish: &Wish) -> Result<Option<Draft<AnyStep>>, Failure>;
    /// [`Module::renew`]; a wish that does not speak of this module changes nothing.
    fn renew(&self, step: &AnyStep, wish: &Wish) -> Result<AnyStep, Failure>;
    /// [`Module::fetch`].
    async fn fetch(&self, step: &AnyStep) -> Result<Fetched, Failure>;
    /// [`Module::check`].
    async fn check(&self, steps: &[AnyStep]) -> Result<Ready, Failure>;
    /// [`Module::note`], put into words.
    async fn note(&self, steps: &[AnyStep]) -> Result<Value, Failure>;
    /// [`Module::at_work`].
    async fn at_work(&self, trying: Try) -> Result<Option<String>, Failure>;
    /// [`Module::apply_before`].
    async fn apply(
        &self,
        step: &AnyStep,
        trying: Try,
        before: Option<DateTime<Utc>>,
    ) -> Result<(), Failure>;
    /// [`Module::verify`]; a baseline that is not there or cannot be read is an empty one.
    async fn verify(&self, steps: &[AnyStep], baseline: &Value) -> Result<Verdict, Failure>;
    /// [`Module::after`], with the same baseline.
    async fn after(&self, steps: &[AnyStep], baseline: &Value) -> Result<After, Failure>;
    /// [`Module::is_untouched`].
    async fn is_untouched(&self, steps: &[AnyStep]) -> Result<bool, Failure>;
    /// [`Module::undo`].
    async fn undo(&self, steps: &[AnyStep]) -> Result<Undone, Failure>;
    /// [`Module::stand_down`].
    async fn stand_down(&self) -> Result<(), Failure>;
    /// [`Module::clean`].
    fn clean(&self) -> Result<(), Failure>;
    /// [`Module::discard_but`]; a wish that does not speak of this module needs nothing of it.
    async fn discard_but(&self, wish: Option<&Wish>) -> Result<(), Failure>;
}

/// Ties a module to its part of the wish.
#[derive(Debug)]
pub struct Plugged<M: Module> {
    /// The module.
    pub module: M,
    /// Its part.
    pub wanted: fn(&Wish) -> Option<&M::Wanted>,
}

#[async_trait::async_trait]
impl<M: Module> AnyModule for Plugged<M> {
    fn name(&self) -> &'static str {
        M::NAME
    }

    fn step_names(&self) -> &'static [&'static str] {
        M::STEPS
    }

    fn arms(&self) -> bool {
        M::ARMS
    }

    async fn refresh(&self, wish: Option<&Wish>) -> Result<(), Failure> {
        match wish {
            None => self.module.refresh(None).await,
            Some(wish) => match (self.wanted)(wish) {
                Some(wanted) => self.module.refresh(Some(wanted)).await,
                None => Ok(()),
            },
        }
    }

    async fn plan(&self, wish: &Wish) -> Result<Option<Draft<AnyStep>>, Failure> {
        let Some(wanted) = (self.wanted)(wish) else {
            return Ok(None);
        };
        let observed = self.module.observe(wanted).await?;
        let draft = M::plan(wanted, &observed)?;
        let steps: Result<Vec<_>, _> = draft.steps.iter().map(pack::<M>).collect();
        Ok(Some(Draft {
            changes: draft.changes,
            download_bytes: draft.download_bytes,
            disk_bytes: draft.disk_bytes,
            reboot_expected: draft.reboot_expected,
            withheld: draft.withheld,
            image: draft.image,
            steps: steps?,
        }))
    }

    fn renew(&self, step: &AnyStep, wish: &Wish) -> Result<AnyStep, Failure> {
        match (self.wanted)(wish) {
            Some(wanted) => pack::<M>(&M::renew(unpack::<M>(step)?, wanted)),
            None => Ok(step.clone()),
        }
    }

    async fn fetch(&self, step: &AnyStep) -> Result<Fetched, Failure> {
        self.module.fetch(&unpack::<M>(step)?).await
    }

    async fn check(&self, steps: &[AnyStep]) -> Result<Ready, Failure> {
        self.module.check(&unpack_own::<M>(steps)?).await
    }

    async fn note(&self, steps: &[AnyStep]) -> Result<Value, Failure> {
        let baseline = self.module.note(&unpack_own::<M>(steps)?).await?;
        serde_json::to_value(baseline).map_err(|error| {
            let reason = format!("what {} noted cannot be written down: {error}", M::NAME);
            Failure::new(FailureKind::Plan, reason)
        })
    }

    async fn at_work(&self, trying: Try) -> Result<Option<String>, Failure> {
        self.module.at_work(trying).await
    }

    async fn apply(
        &self,
        step: &AnyStep,
        trying: Try,
        before: Option<DateTime<Utc>>,
    ) -> Result<(), Failure> {
        let step = unpack::<M>(step)?;
        self.module.apply_before(&step, trying, before).await
    }

    async fn verify(&self, steps: &[AnyStep], baseline: &Value) -> Result<Verdict, Failure> {
        let steps = unpack_own::<M>(steps)?;
        let baseline = unpack_baseline::<M>(baseline);
        self.module.verify(&steps, &baseline).await
    }

    async fn after(&self, steps: &[AnyStep], baseline: &Value) -> Result<After, Failure> {
        let steps = unpack_own::<M>(steps)?;
        let baseline = unpack_baseline::<M>(baseline);
        self.module.after(&steps, &baseline).await
    }

    async fn is_untouched(&self, steps: &[AnyStep]) -> Result<bool, Failure> {
        self.module.is_untouched(&unpack_own::<M>(steps)?).await
    }

    async fn undo(&self, steps: &[AnyStep]) -> Result<Undone, Failure> {
        self.module.undo(&unpack_own::<M>(steps)?).await
    }

    async fn stand_down(&self) -> Result<(), Failure> {
        self.module.stand_down().await
    }

    fn clean(&self) -> Result<(), Failure> {
        self.module.clean()
    }

    async fn discard_but(&self, wish: Option<&Wish>) -> Result<(), Failure> {
        let wanted = wish.and_then(self.wanted);
        self.module.discard_but(wanted).await
    }
}

fn pack<M: Module>(step: &M::Step) -> Result<AnyStep, Failure> {
    let what = serde_json::to_value(step).map_err(|error| {
        let reason = format!("a step of {} cannot be written down: {error}", M::NAME);
        Failure::new(FailureKind::Plan, reason)
    })?;
    Ok(AnyStep {
        module: M::NAME.to_owned(),
        name: M::step_name(step).to_owned(),
        what,
    })
}

fn unpack<M: Module>(step: &AnyStep) -> Result<M::Step, Failure> {
    M::Step::deserialize(&step.what).map_err(|error| {
        let reason = format!(
            "the step {} of {} is not known: {error}",
            step.name,
            M::NAME
        );
        Failure::new(FailureKind::Unsupported, reason)
    })
}

fn unpack_own<M: Module>(steps: &[AnyStep]) -> Result<Vec<M::Step>, Failure> {
    steps
        .iter()
        .filter(|step| step.module == M::NAME)
        .map(unpack::<M>)
        .collect()
}

/// An agent of another version may have noted other things. Nothing noted is the strictest baseline there is.
fn unpack_baseline<M: Module>(noted: &Value) -> M::Baseline {
    if noted.is_null() {
        return M::Baseline::default();
    }
    M::Baseline::deserialize(noted).unwrap_or_else(|error| {
        tracing::warn!(module = M::NAME, %error, "what was noted before the change cannot be read");
        M::Baseline::default()
    })
}
