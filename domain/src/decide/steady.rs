//! How long a decision stays the same by time alone, and the complete list of the instants that may change it.

use chrono::TimeDelta;

use super::evaluation::Evaluation;
use super::{NodeFacts, UpdateIntent};
use crate::Time;
use crate::order::OrderKind;
use crate::run::OpenRun;

/// Offline grants expire at full hours.
const HOUR: TimeDelta = TimeDelta::hours(1);

/// Until when the decision about a node, its offline grant included, stays the same by time alone; `None` if only an
/// event can change it. The decision never changes earlier, but may stay the same for longer.
#[must_use]
pub fn steady_until(
    facts: &NodeFacts,
    intent: &UpdateIntent,
    open: Option<&OpenRun>,
    now: Time,
) -> Option<Time> {
    first_after(now, change_instants(facts, intent, open, now))
}

/// All instants at which a decision may change by time alone.
fn change_instants(
    facts: &NodeFacts,
    intent: &UpdateIntent,
    open: Option<&OpenRun>,
    now: Time,
) -> Vec<Time> {
    let mut instants = Vec::new();
    for (start, end) in intent.window_spans() {
        instants.extend([
            // From here on the node may download for the window.
            start - intent.fetch_ahead,
            // The window opens: waiting runs may start, and targets that failed earlier may be tried again.
            start,
            // The window closes: nothing starts in it any more, and a staged run may have missed its last window.
            end,
        ]);
    }
    // A replaced agent may no longer begin its run, which is then cancelled.
    instants.extend(open.and_then(|run| run.may_begin_until));
    // The nodes that go first have had their turn.
    let assigned = intent.effective_policy(facts);
    instants.extend(assigned.and_then(|assigned| assigned.usage.yields_until));
    // At the next full hour an offline grant expires one hour later, and may include another window.
    let evaluation = Evaluation::new(facts, intent, now);
    if evaluation.offline_grant_terms(&evaluation.decide(open), open).is_some() {
        instants.push(full_hour(now) + HOUR);
    }
    instants
}

/// The earliest of some instants that is after `now`.
pub(crate) fn first_after(now: Time, instants: impl IntoIterator<Item = Time>) -> Option<Time> {
    instants.into_iter().filter(|at| now < *at).min()
}

/// Rounds an instant down to the full hour.
pub(super) fn full_hour(at: Time) -> Time {
    let seconds = at.timestamp();
    let hour = seconds - seconds.rem_euclid(HOUR.num_seconds());
    Time::from_timestamp(hour, 0).unwrap_or(at)
}

impl UpdateIntent {
    /// All windows as `[start, end)`, including those that a cancel order closed and the one that was ordered.
    pub(crate) fn window_spans(&self) -> impl Iterator<Item = (Time, Time)> {
        let windows = self.windows.as_slice().iter();
        let windows = windows.map(|window| (window.start, window.end));
        let ordered = self.order.as_ref();
        let ordered = ordered.filter(|order| order.kind == OrderKind::Now);
        windows.chain(ordered.map(|order| (order.at, order.until)))
    }
}
