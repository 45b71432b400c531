//! Decides what a node should do now, and why. One pure function serves the poll, the start of an update and the
//! explanation, so the three always agree.

mod evaluation;
mod quarantine;
mod reason;
mod steady;
mod target;
#[cfg(test)]
mod tests;

pub use reason::Reason;
pub(crate) use steady::first_after;
pub use steady::steady_until;
pub use target::{Target, TargetKind, resolve_target};

use evaluation::Evaluation;

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use crate::Time;
use crate::assignment::AssignedPolicy;
use crate::id::RunId;
use crate::order::{Order, OrderKind};
use crate::os::{Image, OsKind, Sha256};
use crate::pause::{Pause, PauseScope};
use crate::run::{CancelCause, OpenRun};
use crate::schedule::RepeatedSchedule;
use crate::window::{Opener, Window, Windows};

/// Known state of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// Whether the server accepts what the node reports.
    pub trusted: bool,
    /// Whether the node has reported since its instance was created.
    pub provisioned: bool,
    /// Whether its operating system is updated by packages or by images.
    pub os_kind: OsKind,
    /// The running image, as the catalogue describes it.
    pub running: Image,
    /// The protocol and modules of its agent.
    pub protocol: AgentProtocol,
    /// Its last finished run.
    pub last_run: Option<LastRun>,
    /// Images that failed on this node.
    pub bad_images: Vec<QuarantinedImage>,
}

/// An image that failed on a node. It is not retried automatically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantinedImage {
    /// Digest of the image file.
    pub sha256: Sha256,
    /// When the server learnt of the failure, or of the latest repetition. An order counts only if it is newer: an
    /// older one was given without knowing of the failure, or has been used up by the attempt.
    pub since: Time,
}

/// Protocol of the agent on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentProtocol {
    /// The node has not reported yet.
    Unknown,
    /// EIM agent: it starts an update by itself when its window opens.
    Eim,
    /// Evenkeel agent: it requests a start permit before it begins.
    Own {
        /// Names of the agent's modules.
        modules: Vec<String>,
    },
}

/// A finished run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRun {
    pub run: RunId,
    /// Digest of its target.
    pub target: Option<String>,
    /// When it ended.
    pub at: Time,
    /// Its meaning for the rest of the window.
    pub verdict: Verdict,
}

named! {
    /// What a finished run means for the next run.
    Verdict {
        /// The node is in the desired state.
        Good = "good",
        /// The node is not in the desired state, and an immediate retry would not help.
        Bad = "bad",
        /// The run says nothing about the state of the node.
        Inconclusive = "inconclusive",
    }
}

/// Everything that users configured for a node, and the images to choose from.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateIntent {
    /// Assigned policies, nearest first.
    pub policies: Vec<AssignedPolicy>,
    /// Windows of the schedules that apply, without ordered windows.
    pub windows: Windows,
    /// Repeated schedules that open windows, by id. Their windows are included in `windows`.
    pub repeated_schedules: Vec<RepeatedSchedule>,
    /// How long before its window a node may fetch.
    pub fetch_ahead: TimeDelta,
    /// Images of the profile that the instance runs; empty if the instance is updated by packages.
    pub images: Vec<Image>,
    /// Pauses of the project, of its site and of policies.
    pub pauses: Vec<Pause>,
    /// The latest order of a user for this instance.
    pub order: Option<Order>,
    /// The first of the objects that apply to the node and cannot be read. While there is one, nothing starts: what it
    /// demands is unknown.
    pub unreadable: Option<UnreadableObject>,
}

/// A stored object that this release cannot read, because a newer one wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableObject {
    /// Its kind in words, such as `policy`.
    pub kind: &'static str,
    /// Its id; for an object without an id, the id of what it belongs to.
    pub id: String,
}

/// What a node should do, why, and when this may change by time alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub act: Act,
    pub reason: Reason,
    /// When the decision may change by time alone; `None` if only an event can change it.
    pub next_change: Option<Time>,
    /// Permit to start without a connection to the server, for a later window.
    pub offline_grant: Option<OfflineGrant>,
    /// Whether a user ordered a retry of an image that failed on this node before.
    pub is_retry: bool,
}

/// Permit to start offline in one of the listed windows, by the node's own clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfflineGrant {
    pub target: Target,
    /// Windows as `[start, end)`.
    pub windows: Vec<(Time, Time)>,
    /// When the grant expires; always a full hour.
    pub expires_at: Time,
}

/// What a node should do.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    Idle,
    /// Download and prepare, without changing the node.
    Fetch(Target),
    /// Prepare if necessary, then request a start permit and apply.
    Apply {
        target: Target,
        /// End of the window.
        deadline: Time,
    },
    /// Continue the open run.
    Continue(RunId),
    /// Cancel the open run, which has changed nothing yet.
    Cancel {
        run: RunId,
        cause: CancelCause,
    },
}

impl Act {
    /// The stable name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Fetch(_) => "fetch",
            Self::Apply { .. } => "apply",
            Self::Continue(_) => "continue",
            Self::Cancel { .. } => "cancel",
        }
    }
}

impl Decision {
    /// Until when a run for this target may start now; `None` if it may not start.
    #[must_use]
    pub fn start_deadline(&self, digest: &str) -> Option<Time> {
        match &self.act {
            Act::Apply { target, deadline } if target.digest() == digest => Some(*deadline),
            _ => None,
        }
    }

    /// A decision without an offline grant.
    const fn new(act: Act, reason: Reason, next: Option<Time>) -> Self {
        Self { act, reason, next_change: next, offline_grant: None, is_retry: false }
    }

    /// Continues an open run, whatever the desired update is now.
    fn continue_run(run: &OpenRun) -> Self {
        let reason = Reason::RunOpen { run: run.id, state: run.state.name() };
        Self::new(Act::Continue(run.id), reason, None)
    }

    const fn idle(reason: Reason, next: Option<Time>) -> Self {
        Self::new(Act::Idle, reason, next)
    }
}

/// Decides what a node should do now. Never fails: an update that is impossible gives a reason, not an error.
#[must_use]
pub fn decide(
    facts: &NodeFacts,
    intent: &UpdateIntent,
    open: Option<&OpenRun>,
    now: Time,
) -> Decision {
    let evaluation = Evaluation::new(facts, intent, now);
    let decision = evaluation.decide(open);
    let grant = evaluation.offline_grant(&decision, open);
    let again = evaluation.is_retry(&decision);
    Decision { offline_grant: grant, is_retry: again, ..decision }
}

impl UpdateIntent {
    /// The policy that applies to a node: the nearest one that fits.
    #[must_use]
    pub fn effective_policy(&self, facts: &NodeFacts) -> Option<&AssignedPolicy> {
        let fits = |assigned: &&AssignedPolicy| assigned.mismatch(facts).is_none();
        self.policies.iter().find(fits)
    }

    /// Policies that do not fit and are nearer than the effective policy, nearest first, each with the reason.
    #[must_use]
    pub fn skipped_policies(&self, facts: &NodeFacts) -> Vec<(&AssignedPolicy, &'static str)> {
        let mut skipped = Vec::new();
        for assigned in &self.policies {
            match assigned.mismatch(facts) {
                Some(why) => skipped.push((assigned, why)),
                None => break,
            }
        }
        skipped
    }

    /// The windows of this instance: with the ordered window added, or without the windows that a cancel order
    /// closed.
    #[must_use]
    pub fn effective_windows(&self, now: Time) -> Windows {
        let all = self.windows.as_slice().iter().copied();
        match &self.order {
            None => self.windows.clone(),
            Some(order) if order.kind == OrderKind::Now => {
                let ordered = Window { start: order.at, end: order.until, opener: Opener::Order };
                Windows::from_now_on(all.chain([ordered]), now)
            }
            Some(order) => Windows::from_now_on(all.filter(|window| order.at < window.start), now),
        }
    }

    /// Why the node waits, if an object that applies to it cannot be read.
    fn unreadable_reason(&self) -> Option<Reason> {
        self.unreadable.clone().map(|object| Reason::Unreadable { object })
    }

    /// Why a policy may start nothing now, apart from time.
    #[must_use]
    pub fn hold_reason(&self, assigned: &AssignedPolicy) -> Option<Reason> {
        if let Some(reason) = self.unreadable_reason() {
            return Some(reason);
        }
        let concerns = |pause: &&Pause| match pause.scope {
            PauseScope::Project | PauseScope::Site(_) => true,
            PauseScope::Policy(policy) => policy == assigned.policy.id,
        };
        if let Some(pause) = self.pauses.iter().find(concerns) {
            return Some(Reason::Paused {
                scope: pause.scope,
                by: pause.by.clone(),
                reason: pause.reason.clone(),
            });
        }
        let (limits, usage) = (assigned.limits, assigned.usage);
        if limits.stop_after_failures.is_some_and(|limit| limit <= usage.failures) {
            return Some(Reason::Stopped { scope: assigned.scope, failures: usage.failures });
        }
        let (scope, limit) = (assigned.scope, limits.max_concurrent?);
        if !usage.holds_slot && limit <= usage.held_by_others {
            return Some(Reason::NoFreeSlot { scope, limit });
        }
        let until = usage.yields_until?;
        Some(Reason::YieldsSlot { scope, until })
    }
}

impl AssignedPolicy {
    /// Why the policy does not fit a node; `None` if it fits.
    #[must_use]
    pub fn mismatch(&self, facts: &NodeFacts) -> Option<&'static str> {
        if let Some(why) = self.policy.spec.desired.mismatch(facts.os_kind) {
            return Some(why);
        }
        let (image, running) = (self.image.as_ref()?, &facts.running);
        if image.profile_name != running.profile_name {
            return Some(
                "its image belongs to another profile than the one that the instance runs",
            );
        }
        let fits = image.fits(&running.architecture);
        (!fits).then_some("its image is made for another architecture than the instance runs")
    }
}
