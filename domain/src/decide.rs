//! What a node should do now, and why: one pure function for the poll, for the begin and for the explanation
//! (engine section 3).

mod case;
mod quarantine;
mod reason;
mod steady;
mod target;
#[cfg(test)]
mod tests;

pub use reason::Reason;
pub(crate) use steady::first_after;
pub use steady::steady_until;
pub use target::{Target, TargetKind, target};

use case::Case;

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use crate::Time;
use crate::assignment::Assigned;
use crate::id::RunId;
use crate::order::{Order, OrderKind};
use crate::os::{Image, OsKind, Sha256};
use crate::pause::{Pause, PauseScope};
use crate::run::{CancelCause, OpenRun};
use crate::schedule::RepeatedSchedule;
use crate::window::{Opener, Window, Windows};

/// What is known about a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// Whether it is believed.
    pub trusted: bool,
    /// Whether it has spoken since its instance was made.
    pub provisioned: bool,
    /// How its operating system is updated.
    pub os_kind: OsKind,
    /// What it runs, as the catalogue has it.
    pub running: Image,
    /// How it speaks, and what it can do.
    pub speaks: Protocol,
    /// How its last attempt ended.
    pub last_end: Option<LastEnd>,
    /// The images that failed on it.
    pub bad_images: Vec<KnownBad>,
}

/// An image that failed on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownBad {
    /// Of its file.
    pub sha256: Sha256,
    /// When we first heard of it, or when it failed once more since then. What was ordered before was ordered without
    /// knowing, or had its try.
    pub since: Time,
}

/// How a node speaks to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// It has not said anything yet.
    Unknown,
    /// As the ancestor's agents do: it starts by itself when its window opens.
    Eim,
    /// As our agent does: it asks before it begins.
    Own {
        /// The names of its modules.
        modules: Vec<String>,
    },
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastEnd {
    /// Which.
    pub run: RunId,
    /// Its wish.
    pub target: Option<String>,
    /// When.
    pub at: Time,
    /// What to conclude for the rest of the window.
    pub verdict: Verdict,
}

named! {
    /// What an ended attempt means for the next one.
    Verdict {
        /// The node is as wanted.
        Good = "good",
        /// It is not; trying again at once would not help.
        Bad = "bad",
        /// Nothing follows from it.
        Open = "open",
    }
}

/// What applies to a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The policies that are assigned along the chain, nearest first.
    pub policies: Vec<Assigned>,
    /// The windows along the chain, without what was ordered.
    pub windows: Windows,
    /// The repeated schedules along the chain that open windows, by id. Their windows stand among `windows`.
    pub repeated: Vec<RepeatedSchedule>,
    /// How long before its window a node may fetch.
    pub fetch_ahead: TimeDelta,
    /// The images of the profile that the instance runs; empty for one that is updated by packages.
    pub images: Vec<Image>,
    /// The pauses of the project, of its site, and of policies.
    pub pauses: Vec<Pause>,
    /// What a person ordered for it.
    pub order: Option<Order>,
}

/// What a node should do, why, and when the answer may change by time alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What to do.
    pub act: Act,
    /// Why.
    pub because: Reason,
    /// When the answer may change by time alone; none if only news can change it.
    pub next: Option<Time>,
    /// Leave that is given ahead, for a node that cannot ask when its window opens.
    pub grant: Option<Grant>,
    /// Whether what to do is tried although it failed on this node before: a person ordered it since.
    pub again: bool,
}

/// Leave to begin without asking, by the node's own clock (engine section 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What for.
    pub target: Target,
    /// When, as `[start, end)`.
    pub windows: Vec<(Time, Time)>,
    /// When it is worth nothing any more: a full hour.
    pub expires: Time,
}

/// What a node should do.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Nothing.
    Idle,
    /// Prepare, and change nothing.
    Fetch(Target),
    /// Prepare what is missing, then ask to begin.
    Apply {
        /// What for.
        target: Target,
        /// When the window closes.
        before: Time,
    },
    /// Go on with the attempt that is open.
    Continue(RunId),
    /// Give up the attempt that is open; nothing was changed yet.
    Cancel {
        /// Which.
        run: RunId,
        /// Why.
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
    /// Until when an attempt at this target may begin now; none if it may not.
    #[must_use]
    pub fn leave(&self, digest: &str) -> Option<Time> {
        match &self.act {
            Act::Apply { target, before } if target.digest() == digest => Some(*before),
            _ => None,
        }
    }

    /// What is told, before it is known what leave goes with it.
    const fn of(act: Act, because: Reason, next: Option<Time>) -> Self {
        Self {
            act,
            because,
            next,
            grant: None,
            again: false,
        }
    }

    /// An attempt is under way, whatever is wanted.
    fn goes_on(run: &OpenRun) -> Self {
        let because = Reason::RunOpen {
            run: run.id,
            state: run.state.name(),
        };
        Self::of(Act::Continue(run.id), because, None)
    }

    const fn idle(because: Reason, next: Option<Time>) -> Self {
        Self::of(Act::Idle, because, next)
    }
}

/// Decides what a node should do now. Total: a broken wish gives a reason, never an error.
#[must_use]
pub fn decide(known: &NodeFacts, wanted: &Wanted, open: Option<&OpenRun>, now: Time) -> Decision {
    let case = Case::of(known, wanted, now);
    let decision = case.decide(open);
    let grant = case.grant(&decision, open);
    let again = case.again(&decision);
    Decision {
        grant,
        again,
        ..decision
    }
}

impl Wanted {
    /// The policy that applies to a node: nearest that fits wins.
    #[must_use]
    pub fn nearest(&self, known: &NodeFacts) -> Option<&Assigned> {
        let fits = |assigned: &&Assigned| assigned.misfit(known).is_none();
        self.policies.iter().find(fits)
    }

    /// What was skipped because it does not fit, nearest first, and why.
    #[must_use]
    pub fn skipped(&self, known: &NodeFacts) -> Vec<(&Assigned, &'static str)> {
        let mut skipped = Vec::new();
        for assigned in &self.policies {
            match assigned.misfit(known) {
                Some(why) => skipped.push((assigned, why)),
                None => break,
            }
        }
        skipped
    }

    /// The windows that count for this very instance: with the one that was ordered, or without those that were
    /// cancelled.
    #[must_use]
    pub fn windows_now(&self, now: Time) -> Windows {
        let all = self.windows.as_slice().iter().copied();
        match &self.order {
            None => self.windows.clone(),
            Some(order) if order.kind == OrderKind::Now => {
                let ordered = Window {
                    start: order.at,
                    end: order.until,
                    opener: Opener::Order,
                };
                Windows::from_now_on(all.chain([ordered]), now)
            }
            Some(order) => Windows::from_now_on(all.filter(|window| order.at < window.start), now),
        }
    }

    /// What keeps a policy from starting anything, apart from time.
    #[must_use]
    pub fn held(&self, assigned: &Assigned) -> Option<Reason> {
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
        let (limits, brake) = (assigned.limits, assigned.brake);
        if limits
            .stop_after_failures
            .is_some_and(|limit| limit <= brake.failures)
        {
            return Some(Reason::Stopped {
                scope: assigned.scope,
                failures: brake.failures,
            });
        }
        let (scope, limit) = (assigned.scope, limits.max_concurrent?);
        if !brake.mine && limit <= brake.held {
            return Some(Reason::NoFreeSlot { scope, limit });
        }
        let until = brake.behind?;
        Some(Reason::GivesWay { scope, until })
    }
}

impl Assigned {
    /// Whether it cannot be meant for a node, and why not.
    #[must_use]
    pub fn misfit(&self, known: &NodeFacts) -> Option<&'static str> {
        if let Some(why) = self.policy.spec.wish.misfit(known.os_kind) {
            return Some(why);
        }
        let (image, running) = (self.image.as_ref()?, &known.running);
        if image.profile_name != running.profile_name {
            return Some("its image is one of another profile than the instance runs");
        }
        let fits = image.fits(&running.architecture);
        (!fits).then_some("its image is made for another architecture than the instance runs")
    }
}
