//! Until when an answer to an EIM agent stays valid by time alone, with the only list of the instants that may end it,
//! and whether a sample changes anything.

use chrono::TimeDelta;

use crate::Time;
use crate::condition::{self, Condition};
use crate::decide::{self, Reason, UpdateIntent, first_after};
use crate::eim::delivery::{
    AnswerInput, DeliveryState, LATE_REPORT_PERIOD, MAX_CLOCK_SKEW, MIN_REMAINING_WINDOW,
    REPLACEMENT_GAP,
};
use crate::eim::evidence::{LastSample, PriorState, Proof, Sample, evaluate_sample};
use crate::status::Status;

/// Maximum time between two polls of an agent, even if some calls fail: it polls every 20 seconds and tries four times.
/// A window that opens later than that can still be withdrawn.
const MAX_POLL_GAP: TimeDelta = TimeDelta::minutes(5);

/// Smallest step of a clock.
const CLOCK_STEP: TimeDelta = TimeDelta::nanoseconds(1);

/// Before which instant an answer, and the state stored with it, stays the same by time alone; `None` if it always does.
/// The answer may stay the same for longer, but never changes earlier.
///
/// This holds for an answer whose state is stored. An answer that withdraws a window records the time of withdrawal, so
/// it differs at each instant.
#[must_use]
pub fn steady_until(input: &AnswerInput<'_>, now: Time) -> Option<Time> {
    let desired = input.desired;
    let decided = decide::steady_until(input.facts, desired, input.open_run, now);
    // The agent no longer begins in a window with so little time left, so another open window may be delivered.
    let too_late = desired.window_spans().map(|(_, end)| end - MIN_REMAINING_WINDOW + CLOCK_STEP);
    let delivered = input.delivered.steady_until(now);
    first_after(now, too_late.chain(decided).chain(delivered))
}

/// From when on an agent may begin an update before its next poll: a window that applies, or that was delivered, is open
/// by the node's clock or opens soon. Never before `now`; `None` if all windows have ended. A delivered window has ended
/// an hour after its end, whatever the node's clock says.
///
/// It comes to pass by time alone, and nothing else changes before an answer may ([`steady_until`]).
#[must_use]
pub fn may_begin_from(
    desired: &UpdateIntent,
    delivered: &DeliveryState,
    now: Time,
) -> Option<Time> {
    let delivered = [delivered.single, delivered.occurrence].into_iter().flatten();
    let delivered = delivered.map(|(start, end)| (start, end + LATE_REPORT_PERIOD));
    let left = desired.window_spans().chain(delivered).filter(|(_, end)| now < *end);
    left.map(|(start, _)| (start - MAX_CLOCK_SKEW - MAX_POLL_GAP).max(now)).min()
}

impl DeliveryState {
    /// Before which instant the consequences of the last answer stay the same by time alone: what the node may have
    /// begun, may still begin, and did not use. `None` if they always do.
    #[must_use]
    pub fn steady_until(&self, now: Time) -> Option<Time> {
        first_after(now, self.change_instants())
    }

    /// All instants at which the consequences of the last answer may change by time alone. An unconfirmed failure is not
    /// among them, because each sample counts it again and so is never unchanged.
    fn change_instants(&self) -> Vec<Time> {
        let mut instants = Vec::new();
        let spans = [self.single, self.occurrence, self.past];
        for (start, end) in spans.into_iter().flatten() {
            instants.extend([
                // The window may open by the node's clock, which may be ahead: it may have been used from here on.
                start - MAX_CLOCK_SKEW,
                // The window opens by the server's clock.
                start,
                // The window ends: the node used it or not.
                end,
                // Late reports end, and the target of the window is forgotten.
                end + LATE_REPORT_PERIOD,
            ]);
        }
        // The agent has seen an answer without a window, so it may get another one.
        instants.extend(self.cleared_at.map(|at| at + REPLACEMENT_GAP));
        instants
    }
}

/// The state of a node that is displayed.
#[derive(Clone, Copy, Debug)]
pub struct VisibleState<'a> {
    /// Update status.
    pub status: &'a Status,
    /// Current conditions.
    pub conditions: &'a [Condition],
}

impl VisibleState<'_> {
    /// Whether the result of a sample is displayed already.
    fn covers(&self, mut proof: Proof, now: Time) -> bool {
        let status = self.status;
        let is_shown = proof.status.is_none_or(|(text, indication)| {
            status.text == text && status.indication == indication
        });
        let mut conditions = self.conditions.to_vec();
        let holds = std::mem::take(&mut proof.conditions);
        condition::replace(&mut conditions, |kind| proof.checks_condition(kind), holds, now);
        is_shown && conditions == self.conditions
    }
}

/// Whether a sample changes nothing: it proves no event, and all that it would store or display is already there. Time
/// alone does not change that before [`DeliveryState::steady_until`].
#[must_use]
pub fn is_unchanged_sample(
    before: &PriorState<'_>,
    sample: &Sample,
    shows: &VisibleState<'_>,
    now: Time,
) -> bool {
    let proof = evaluate_sample(before, sample, now);
    proof.events.is_empty()
        && proof.image.is_none()
        && proof.last_sample.as_ref() == before.last_sample
        && shows.covers(proof, now)
}

/// Why an EIM agent does not start an update that the decision permits, for users; `None` if it starts.
#[must_use]
pub fn start_obstacle(
    last_sample: Option<&LastSample>,
    reason: &Reason,
    now: Time,
) -> Option<&'static str> {
    let is_waiting = matches!(reason, Reason::WindowOpen { .. } | Reason::WindowClosed { .. });
    if is_waiting && last_sample.is_some_and(|last| last.skips_updates) {
        return Some(
            "its agent reports that it skips the update: its operating system is of another kind than the instance's",
        );
    }
    match reason {
        Reason::WindowOpen { until, .. } if *until < now + MIN_REMAINING_WINDOW => {
            Some("EIM's agent does not start: less than 10 minutes of the window are left")
        }
        _ => None,
    }
}
