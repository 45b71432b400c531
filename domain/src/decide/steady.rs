//! Until when a decision stays as it is by time alone, and the one list of the instants that may end it.

use chrono::TimeDelta;

use super::case::Case;
use super::{NodeFacts, Wanted};
use crate::Time;
use crate::order::OrderKind;
use crate::run::OpenRun;

/// Leave ahead expires at a full one.
const HOUR: TimeDelta = TimeDelta::hours(1);

/// Before which instant the decision about a node stays as it is by time alone, with the leave that it gives ahead; none if
/// it always does. It may stay longer, and never changes sooner.
#[must_use]
pub fn steady_until(
    known: &NodeFacts,
    wanted: &Wanted,
    open: Option<&OpenRun>,
    now: Time,
) -> Option<Time> {
    first_after(now, instants(known, wanted, open, now))
}

/// The instants at which a decision may change by time alone; there are no others.
fn instants(known: &NodeFacts, wanted: &Wanted, open: Option<&OpenRun>, now: Time) -> Vec<Time> {
    let mut instants = Vec::new();
    for (start, end) in wanted.spans() {
        instants.extend([
            // What is to begin in it may be fetched from here on.
            start - wanted.fetch_ahead,
            // It opens: what waited for it may begin, and what was tried before it may be tried again.
            start,
            // It closes: nothing begins in it any more, and what was fetched for it may have missed its last window.
            end,
        ]);
    }
    // The agent that ours has replaced may not begin its attempt any more, which is given up.
    instants.extend(open.and_then(|run| run.may_begin_until));
    // Those that were to go first have had their turn.
    let assigned = wanted.nearest(known);
    instants.extend(assigned.and_then(|assigned| assigned.brake.behind));
    // Leave ahead expires an hour later than before, and may reach another window.
    let case = Case::of(known, wanted, now);
    if case.leave_ahead(&case.decide(open), open).is_some() {
        instants.push(full_hour(now) + HOUR);
    }
    instants
}

/// The first of some instants that is still to come.
pub(crate) fn first_after(now: Time, instants: impl IntoIterator<Item = Time>) -> Option<Time> {
    instants.into_iter().filter(|at| now < *at).min()
}

/// The full hour that an instant is in.
pub(super) fn full_hour(at: Time) -> Time {
    let seconds = at.timestamp();
    let hour = seconds - seconds.rem_euclid(HOUR.num_seconds());
    Time::from_timestamp(hour, 0).unwrap_or(at)
}

impl Wanted {
    /// All windows as `[start, end)`: those that a person cancelled too, and the one that a person ordered.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (Time, Time)> {
        let windows = self.windows.as_slice().iter();
        let windows = windows.map(|window| (window.start, window.end));
        let ordered = self.order.as_ref();
        let ordered = ordered.filter(|order| order.kind == OrderKind::Now);
        windows.chain(ordered.map(|order| (order.at, order.until)))
    }
}
