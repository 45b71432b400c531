//! Runs: attempts to update one instance, as one state machine.

mod event;
mod evidence;
mod image;
mod report;
mod state;
mod stored_state;
mod timeouts;

#[cfg(test)]
mod tests;

pub use event::{CancelCause, Failure, FailureKind, RunEvent};
pub use evidence::Evidence;
pub use image::ImageChange;
pub use report::{HeldBackCount, HeldBackPackage, Interruption, PhaseSpan, RunReport};
pub use state::{AbandonCause, InvalidTransition, RunState};
pub use stored_state::StoredState;
pub use timeouts::RunTimeouts;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Time;
use crate::decide::Target;
use crate::id::{InstanceId, PolicyId, RunId};
use crate::order::Order;
use crate::package::PackageChange;
use crate::policy::UpdatePolicy;

/// One attempt to update one instance. Its target is frozen when the run opens. Users may also see a run whose state
/// this release does not know: an `UpdateRun<StoredState>`.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateRun<S = RunState> {
    pub id: RunId,
    pub instance: InstanceId,
    /// For users: the host and when the run was opened.
    pub name: String,
    /// For users: the operating system.
    pub description: String,
    /// The agent's own id of the attempt; `None` if the agent assigns none.
    pub attempt: Option<AttemptId>,
    /// The frozen target, policy and order.
    pub origin: Origin,
    pub state: S,
    /// Planned packages, with their states after the run.
    pub packages: Vec<PackageChange>,
    /// Planned image, with the image that was booted at the end; `None` if the run is not for an image or the node did
    /// not report it.
    pub image: Option<ImageChange>,
    /// Final output of the node: the last lines of the tool, or the detail of an EIM agent.
    pub log: String,
    /// Final report of the node.
    pub report: RunReport,
    /// Last stored sequence number; 0 if the agent assigns none.
    pub sequence: u32,
    /// Number of changes.
    pub generation: i64,
    /// When the last start permit was granted. From then on only the node knows whether it has begun.
    pub granted_at: Option<Time>,
    pub started_at: Time,
}

impl UpdateRun {
    /// When the run ended; set exactly when its state is final.
    #[must_use]
    pub fn ended_at(&self) -> Option<Time> {
        self.state.ended_at()
    }

    /// The part that decisions need; `None` if the run has ended.
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

/// What a run is for. Frozen: later changes by users do not change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The target; `None` if it is unknown why the node began.
    pub target: Option<Target>,
    /// The policy when the run opened.
    pub policy: Option<UpdatePolicy>,
    /// The order, if a user ordered the run.
    #[serde(default)]
    pub order: Option<Order>,
}

impl Origin {
    #[must_use]
    pub fn policy_id(&self) -> Option<PolicyId> {
        self.policy.as_ref().map(|policy| policy.id)
    }
}

/// The agent's own id of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId(pub Uuid);

/// An open run as decisions see it.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenRun {
    pub id: RunId,
    /// The agent's own id of the attempt.
    pub attempt: Option<AttemptId>,
    /// Its frozen target.
    pub target: Option<Target>,
    pub state: RunState,
    pub started_at: Time,
    /// Until when a replaced agent may still begin the run; `None` if it may not.
    pub may_begin_until: Option<Time>,
}

/// An event of a run, with its context.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEventRecord {
    pub event: RunEvent,
    /// Sequence number of the agent; `None` if the agent assigns none.
    pub sequence: Option<u32>,
    /// Id of the boot in which it happened; empty if unknown.
    pub boot_id: String,
    /// Time of the node's own clock.
    pub node_time: Option<Time>,
    /// Data that came with the event.
    pub evidence: Evidence,
}

impl RunEventRecord {
    /// An event without context.
    #[must_use]
    pub fn from_event(event: RunEvent) -> Self {
        Self {
            event,
            sequence: None,
            boot_id: String::new(),
            node_time: None,
            evidence: Evidence::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct RunHistoryEntry {
    /// Position, from 1.
    pub position: u32,
    /// Name of the event.
    pub event: String,
    /// Name of the resulting state.
    pub state: String,
    /// Sequence number of the agent.
    pub sequence: Option<u32>,
    /// Id of the boot in which it happened.
    pub boot_id: String,
    /// Time of the node's own clock.
    pub node_time: Option<Time>,
    /// When the server stored the entry.
    pub at: Time,
    /// Cause or reason; empty if there is none.
    pub detail: String,
}
