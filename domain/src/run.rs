//! Runs: one attempt to bring one instance to one wanted state, as one state machine (engine section 4).

mod account;
mod event;
mod image;
mod patience;
mod state;

#[cfg(test)]
mod tests;

pub use account::{Account, PhaseSpan};
pub use event::{CancelCause, Failure, FailureKind, RunEvent};
pub use image::ImageChange;
pub use patience::Patience;
pub use state::{AbandonCause, Refused, RunState};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Time;
use crate::decide::Target;
use crate::id::{InstanceId, PolicyId, RunId};
use crate::order::Order;
use crate::package::PackageChange;
use crate::policy::UpdatePolicy;

/// One attempt on one instance, with its target frozen when it was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateRun {
    /// Its id.
    pub id: RunId,
    /// On which instance.
    pub instance: InstanceId,
    /// For people: the host and when the attempt was opened.
    pub name: String,
    /// For people: which operating system.
    pub description: String,
    /// The agent's own name of the attempt; none if the agent makes none.
    pub attempt: Option<AttemptId>,
    /// What the attempt is for, frozen.
    pub origin: Origin,
    /// Where it stands.
    pub state: RunState,
    /// The packages of the plan, with what was found afterwards.
    pub packages: Vec<PackageChange>,
    /// The image of the plan, with the one that was booted at the end; none if it was for none, or the node said none.
    pub image: Option<ImageChange>,
    /// What the node said at the end, as text: the tool's last lines, or the ancestor's detail.
    pub log: String,
    /// How it went, as the node said with its last word.
    pub account: Account,
    /// The last sequence number that was stored; 0 if the agent makes none.
    pub sequence: u32,
    /// How often it changed.
    pub generation: i64,
    /// When it was last given leave to begin. From then on only the node knows whether it has begun.
    pub granted_at: Option<Time>,
    /// When it was opened.
    pub started_at: Time,
}

impl UpdateRun {
    /// When it ended: exactly when its state is terminal.
    #[must_use]
    pub fn ended_at(&self) -> Option<Time> {
        self.state.ended_at()
    }

    /// The part that decisions need.
    #[must_use]
    pub fn as_open(&self) -> Option<OpenRun> {
        (!self.state.is_final()).then(|| OpenRun {
            id: self.id,
            attempt: self.attempt,
            target: self.origin.target.clone(),
            state: self.state.clone(),
            started_at: self.started_at,
            may_begin_until: None,
        })
    }
}

/// What an attempt is for. Frozen: what people change later does not change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The wish; none if it is not known what made the node begin.
    pub target: Option<Target>,
    /// The policy as it was.
    pub policy: Option<UpdatePolicy>,
    /// Who ordered it and why, if it was made outside the plan.
    #[serde(default)]
    pub order: Option<Order>,
}

impl Origin {
    /// The policy's id.
    #[must_use]
    pub fn policy_id(&self) -> Option<PolicyId> {
        self.policy.as_ref().map(|policy| policy.id)
    }
}

/// The agent's own name of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId(pub Uuid);

/// A run that is not over, as decisions see it.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenRun {
    /// Which.
    pub id: RunId,
    /// The agent's own name of it.
    pub attempt: Option<AttemptId>,
    /// Its frozen wish.
    pub target: Option<Target>,
    /// Where it stands.
    pub state: RunState,
    /// When it was opened.
    pub started_at: Time,
    /// Until when an agent that ours has replaced may still begin it; none if it may not.
    pub may_begin_until: Option<Time>,
}

/// Something that happened in an attempt, and who says so.
#[derive(Clone, Debug, PartialEq)]
pub struct Happening {
    /// What.
    pub event: RunEvent,
    /// How the agent numbered it; none if the agent makes no numbers.
    pub sequence: Option<u32>,
    /// The boot in which it happened; empty if it is not known.
    pub boot_id: String,
    /// The node's own time.
    pub node_time: Option<Time>,
    /// What came with it.
    pub evidence: Evidence,
}

impl Happening {
    /// An event that nobody numbered.
    #[must_use]
    pub fn of(event: RunEvent) -> Self {
        Self {
            event,
            sequence: None,
            boot_id: String::new(),
            node_time: None,
            evidence: Evidence::default(),
        }
    }
}

/// What came with an event: it belongs to the run, not to its state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// The whole change, known before anything changes.
    pub plan: Option<Vec<PackageChange>>,
    /// The image of the plan.
    pub image: Option<ImageChange>,
    /// The version of the image that was booted at the end; none if the node did not say.
    pub booted: Option<String>,
    /// What was found afterwards.
    pub results: Vec<crate::package::PackageResult>,
    /// The last words of the tool that failed.
    pub log: String,
    /// How the attempt went; none if the node has not said so.
    pub account: Option<Account>,
}

/// One entry of a run's history.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedEvent {
    /// 1 for the first.
    pub position: u32,
    /// The name of the event.
    pub event: String,
    /// The name of the state that it led to.
    pub state: String,
    /// How the agent numbered it.
    pub sequence: Option<u32>,
    /// The boot in which it happened.
    pub boot_id: String,
    /// The node's own time.
    pub node_time: Option<Time>,
    /// When the server stored it.
    pub at: Time,
    /// The cause or reason that it carries; empty if none.
    pub detail: String,
}
