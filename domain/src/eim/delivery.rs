//! What such an agent is answered, and what must be remembered of it (southbound section 9.4).

use serde::{Deserialize, Serialize};

use chrono::TimeDelta;

use crate::Time;
use crate::decide::{Decision, Reason, Target, TargetKind, Wanted};
use crate::id::PolicyId;
use crate::window::Window;

/// For how long the agent is answered without a window before another one: longer than it repeats a call whose answer
/// was lost, so that it has seen the empty answer (southbound section 3.3).
const REST: TimeDelta = TimeDelta::seconds(15);

/// What was answered last. Its echo is judged against this.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// The single schedule, as `[start, end)`.
    pub single: Option<(Time, Time)>,
    /// The policy whose wish went with it.
    pub policy: Option<PolicyId>,
    /// When a window was taken back so that another can follow.
    pub cleared_at: Option<Time>,
}

impl Delivered {
    /// Whether the delivered window was open, or was over for less than an hour: an update may end after its window.
    #[must_use]
    pub fn was_open(&self, now: Time) -> bool {
        self.single
            .is_some_and(|(start, end)| start <= now && now < end + TimeDelta::hours(1))
    }
}

/// An answer in the agent's own terms. Everything is present, possibly empty: an absent schedule would cancel nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The kernel's command line; empty if it is not to be changed.
    pub kernel_command: String,
    /// Sources, one DEB822 stanza each.
    pub custom_repos: Vec<String>,
    /// Names of packages to install, one a line, without versions.
    pub installed_packages: String,
    /// The window.
    pub single: Option<(Time, Time)>,
    /// What is to be remembered if it differs from what was remembered before.
    pub delivered: Delivered,
}

/// Renders a decision for an agent that starts by itself.
///
/// A delivered window that is open stays as it is until it ends. A window that changes is delivered after answers
/// without any, because the agent ignores a replaced one. Without a policy, or without trust, there is no window.
#[must_use]
pub fn answer(
    decision: &Decision,
    target: Option<&Target>,
    wanted: &Wanted,
    before: &Delivered,
    now: Time,
) -> Answer {
    let mut answer = Answer::default();
    if matches!(
        decision.because,
        Reason::NotTrusted | Reason::NotProvisioned
    ) {
        return answer;
    }
    let Some(target) = target else {
        return answer;
    };
    let TargetKind::Packages {
        exactly,
        sources,
        kernel_command,
    } = &target.wish;
    answer.kernel_command.clone_from(kernel_command);
    answer.custom_repos.clone_from(sources);
    let names = exactly
        .iter()
        .flatten()
        .map(|package| package.name.to_string());
    answer.installed_packages = names.collect::<Vec<_>>().join("\n");

    let chosen = choose(wanted.windows.as_slice(), before, now);
    let replaced = before.single.is_some() && before.single != chosen;
    let resting = before.cleared_at.filter(|at| now < *at + REST);
    let cleared_at = if replaced { Some(now) } else { resting };
    answer.single = if cleared_at.is_some() { None } else { chosen };
    answer.delivered = Delivered {
        single: answer.single,
        policy: Some(target.policy),
        cleared_at,
    };
    answer
}

/// The delivered window while it is open and still wanted; else the open one that ends first; else the next one.
fn choose(windows: &[Window], before: &Delivered, now: Time) -> Option<(Time, Time)> {
    let spans = || windows.iter().map(|window| (window.start, window.end));
    let open = |span: &(Time, Time)| span.0 <= now && now < span.1;
    let kept = before
        .single
        .filter(|kept| open(kept) && spans().any(|span| span == *kept));
    kept.or_else(|| spans().filter(open).min_by_key(|span| span.1))
        .or_else(|| spans().find(|span| now < span.0))
}
