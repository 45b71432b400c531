//! What such an agent is answered, and what must be remembered of it (southbound section 9.4).

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::decide::{Decision, Reason, TargetKind, Wanted};
use crate::window::Window;

/// What was answered last. Its echo is judged against this.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// The single schedule, as `[start, end)`.
    pub single: Option<(Time, Time)>,
}

impl Delivered {
    /// Whether the delivered window was open, or was over for less than an hour: an update may end after its window.
    #[must_use]
    pub fn was_open(&self, now: Time) -> bool {
        self.single
            .is_some_and(|(start, end)| start <= now && now < end + chrono::TimeDelta::hours(1))
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
/// A delivered window that is open stays as it is until it ends. A window that changes is delivered after one answer
/// without any, because the agent ignores a replaced one. Without a policy, or without trust, there is no window.
#[must_use]
pub fn answer(
    decision: &Decision,
    target: Option<&TargetKind>,
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
    let Some(TargetKind::Packages {
        exactly,
        sources,
        kernel_command,
    }) = target
    else {
        return answer;
    };
    answer.kernel_command.clone_from(kernel_command);
    answer.custom_repos.clone_from(sources);
    let names = exactly
        .iter()
        .flatten()
        .map(|package| package.name.to_string());
    answer.installed_packages = names.collect::<Vec<_>>().join("\n");

    let chosen = choose(wanted.windows.as_slice(), before, now);
    let replaced = before.single.is_some() && before.single != chosen;
    answer.single = if replaced { None } else { chosen };
    answer.delivered = Delivered {
        single: answer.single,
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
