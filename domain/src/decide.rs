//! What a node should do now, and why: one pure function for the poll, for the begin and for the explanation
//! (engine section 3).

mod reason;
#[cfg(test)]
mod tests;

pub use reason::Reason;

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use crate::Time;
use crate::assignment::Level;
use crate::id::{PolicyId, RunId};
use crate::os::OsKind;
use crate::package::WantedPackage;
use crate::policy::{UpdatePolicy, Wish};
use crate::run::{CancelCause, OpenRun};
use crate::window::Windows;

/// What is known about a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// Whether it is believed.
    pub trusted: bool,
    /// Whether it has spoken since its instance was made.
    pub provisioned: bool,
    /// How its operating system is updated.
    pub os_kind: OsKind,
    /// How it speaks, and what it can do.
    pub speaks: Protocol,
    /// How its last attempt ended.
    pub last_end: Option<LastEnd>,
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
    pub policies: Vec<(Level, UpdatePolicy)>,
    /// The windows along the chain.
    pub windows: Windows,
    /// How long before its window a node may fetch.
    pub fetch_ahead: TimeDelta,
}

/// A wish as a node can obey it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The policy that it comes from. Policies never change, so the id stands for the wish.
    pub policy: PolicyId,
    /// What to bring to which state.
    pub wish: TargetKind,
}

/// What to bring to which state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// Packages.
    Packages {
        /// These; every installed one to its newest version if none is named.
        exactly: Option<Vec<WantedPackage>>,
        /// Further sources of packages, one DEB822 stanza each.
        sources: Vec<String>,
        /// The kernel's command line; empty if it is not wished for.
        kernel_command: String,
    },
}

impl Target {
    /// Identifies the wish: equal for equal wishes.
    #[must_use]
    pub fn digest(&self) -> String {
        self.policy.to_string()
    }

    /// The module of an agent that can do it.
    #[must_use]
    pub const fn module(&self) -> &'static str {
        match self.wish {
            TargetKind::Packages { .. } => "packages",
        }
    }

    /// What a policy means for an instance that is updated by packages.
    #[must_use]
    pub fn of_packages(policy: &UpdatePolicy) -> Self {
        let wish = match &policy.spec.wish {
            Wish::Latest => TargetKind::Packages {
                exactly: None,
                sources: Vec::new(),
                kernel_command: String::new(),
            },
            Wish::Target(target) => TargetKind::Packages {
                exactly: Some(target.packages.clone()),
                sources: target.sources.clone(),
                kernel_command: target.kernel_command.clone(),
            },
        };
        Self {
            policy: policy.id,
            wish,
        }
    }
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

    const fn idle(because: Reason, next: Option<Time>) -> Self {
        Self {
            act: Act::Idle,
            because,
            next,
        }
    }
}

/// Decides what a node should do now. Total: a broken wish gives a reason, never an error.
#[must_use]
pub fn decide(known: &NodeFacts, wanted: &Wanted, open: Option<&OpenRun>, now: Time) -> Decision {
    if !known.trusted {
        return Decision::idle(Reason::NotTrusted, None);
    }
    if !known.provisioned {
        return Decision::idle(Reason::NotProvisioned, None);
    }
    let target = target(known, wanted);
    match open {
        Some(run) if run.state.is_untouched() => untouched(run, target.ok().as_ref(), wanted, now),
        Some(run) => Decision {
            act: Act::Continue(run.id),
            because: Reason::RunOpen {
                run: run.id,
                state: run.state.name(),
            },
            next: None,
        },
        None => match target {
            Ok(target) => fresh(known, target, wanted, now),
            Err(reason) => Decision::idle(reason, None),
        },
    }
}

impl Wanted {
    /// The policy that applies to an instance of this kind: nearest that fits wins.
    #[must_use]
    pub fn nearest(&self, kind: OsKind) -> Option<&(Level, UpdatePolicy)> {
        let fits = |(_, policy): &&(Level, UpdatePolicy)| policy.spec.wish.misfit(kind).is_none();
        self.policies.iter().find(fits)
    }
}

/// The wish that applies.
///
/// # Errors
/// Says why there is none.
pub fn target(known: &NodeFacts, wanted: &Wanted) -> Result<Target, Reason> {
    if let Some((_, policy)) = wanted.nearest(known.os_kind) {
        return target_of(known, policy);
    }
    let Some((level, policy)) = wanted.policies.first() else {
        return Err(Reason::NoPolicy);
    };
    Err(Reason::PolicyDoesNotFit {
        policy: policy.id,
        level: *level,
        why: policy.spec.wish.misfit(known.os_kind).unwrap_or_default(),
    })
}

fn target_of(known: &NodeFacts, policy: &UpdatePolicy) -> Result<Target, Reason> {
    let target = match known.os_kind {
        OsKind::Mutable => Target::of_packages(policy),
        OsKind::Immutable => return Err(Reason::AgentLacks { module: "image" }),
    };
    let Protocol::Own { modules } = &known.speaks else {
        return Ok(target);
    };
    let TargetKind::Packages { kernel_command, .. } = &target.wish;
    if !kernel_command.is_empty() {
        return Err(Reason::AgentLacks { module: "kernel" });
    }
    let module = target.module();
    if modules.iter().any(|name| name == module) {
        Ok(target)
    } else {
        Err(Reason::AgentLacks { module })
    }
}

/// An attempt is open and has changed nothing yet.
fn untouched(run: &OpenRun, target: Option<&Target>, wanted: &Wanted, now: Time) -> Decision {
    let cancel = |cause, because| Decision {
        act: Act::Cancel { run: run.id, cause },
        because,
        next: None,
    };
    let Some(target) = target.filter(|target| run.target.as_ref() == Some(target)) else {
        return cancel(CancelCause::Withdrawn, Reason::Withdrawn { run: run.id });
    };
    if let Some(window) = wanted.windows.open(now) {
        return Decision {
            act: Act::Apply {
                target: target.clone(),
                before: window.end,
            },
            because: Reason::WindowOpen { until: window.end },
            next: wanted.windows.next_change(now),
        };
    }
    match wanted.windows.next(now) {
        Some(window) => Decision {
            act: Act::Continue(run.id),
            because: Reason::WindowClosed {
                opens: window.start,
            },
            next: Some(window.start),
        },
        None => cancel(CancelCause::WindowMissed, Reason::NoWindow),
    }
}

/// No attempt is open.
fn fresh(known: &NodeFacts, target: Target, wanted: &Wanted, now: Time) -> Decision {
    let next = wanted.windows.next(now);
    if let Some(window) = wanted.windows.open(now) {
        if let Some(reason) = settled(known, &target, window.start) {
            return Decision::idle(reason, wanted.windows.next_change(now));
        }
        return Decision {
            act: Act::Apply {
                target,
                before: window.end,
            },
            because: Reason::WindowOpen { until: window.end },
            next: wanted.windows.next_change(now),
        };
    }
    let Some(next) = next else {
        return Decision::idle(Reason::NoWindow, None);
    };
    let because = Reason::WindowClosed { opens: next.start };
    let fetch_from = next.start - wanted.fetch_ahead;
    if now < fetch_from {
        return Decision::idle(because, Some(fetch_from));
    }
    // One try ahead of the window is enough: a mirror that is down would otherwise be asked at every poll.
    if let Some(reason) = settled(known, &target, fetch_from) {
        return Decision::idle(reason, Some(next.start));
    }
    Decision {
        act: Act::Fetch(target),
        because,
        next: Some(next.start),
    }
}

/// Whether this wish was seen through already since an instant.
fn settled(known: &NodeFacts, target: &Target, since: Time) -> Option<Reason> {
    let end = known.last_end.as_ref()?;
    if end.at < since || end.target.as_deref() != Some(target.digest().as_str()) {
        return None;
    }
    match end.verdict {
        Verdict::Good => Some(Reason::UpToDate {
            run: end.run,
            at: end.at,
        }),
        Verdict::Bad => Some(Reason::FailedInWindow {
            run: end.run,
            at: end.at,
        }),
        Verdict::Open => None,
    }
}
