//! Evaluates a sample of one of EIM's agents without locks and writes: decides whether a write is
//! needed, and builds the answer.
//!
//! No write is needed if storing the sample would leave the node state unchanged and the answer
//! would be the same.

use evenkeel_domain::Time;
use evenkeel_domain::decide::{Act, AgentProtocol, Reason};
use evenkeel_domain::eim::{
    self, Answer, AnswerInput, DeliveryState, PriorState, Sample, SampleKind, VisibleState,
};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::RunId;
use evenkeel_domain::os::OsKind;
use evenkeel_domain::run::{CancelCause, UpdateRun};
use evenkeel_domain::status::{Indication, Status as NodeStatus};
use evenkeel_kit::offload_now;
use evenkeel_store::decisions::DecisionInput;
use evenkeel_store::nodes::{self, NodeBrief};

use crate::evaluate::{Answer as PollAnswer, AnswerPayload, Evaluation};
use crate::wire::eim as wire;
use crate::{derived_state, status};

/// Whether a sample of this kind may need no write. Progress and results of updates always need
/// one.
pub fn may_be_unchanged(kind: SampleKind) -> bool {
    !matches!(kind, SampleKind::Downloading | SampleKind::Started | SampleKind::Updated)
}

/// Evaluates a sample and the available updates that come with it.
pub fn sample(
    (host, node): (&Host, &NodeBrief),
    input: &DecisionInput,
    (sample, available): (&Sample, &str),
    now: Time,
) -> Evaluation {
    let is_unchanged = may_be_unchanged(sample.kind)
        && is_shown_running(host, node, input, now)
        && is_already_recorded(node, input, sample, now)
        && matches_stored_available(node, input, available)
        && !derived_state::is_outdated(node, input, now)
        && run_to_cancel(input, &node.delivered, now).is_none();
    if !is_unchanged {
        return Evaluation::NeedsWrite;
    }
    let rendered = render_answer(input, &node.delivered, now);
    // The slot of a run that cannot be read stays as it is.
    let changes_slot =
        input.unreadable_run.is_none() && rendered.slot.is_some() != holds_slot(input);
    if rendered.delivered != node.delivered || changes_slot {
        return Evaluation::NeedsWrite;
    }
    let has_window = rendered.single.is_some() || !rendered.repeated.is_empty();
    // The agent begins in a window without asking again.
    let begins = eim::may_begin_from(&input.desired, &node.delivered, now);
    let begins = begins.filter(|_| has_window);
    let may_begin = begins.is_some_and(|at| at <= now);
    let answer = PollAnswer {
        // A repeated failure must not be mistaken for the earlier one.
        requires_fence: may_begin || sample.kind == SampleKind::Failed,
        limit_scope: input.limited_scope(),
        // EIM's agents have no long polls.
        waits_for_slot: false,
        // EIM's agents use no decision tag.
        tag: 0,
        payload: AnswerPayload::Eim(wire::encode_answer(rendered, input.facts.os_kind)),
    };
    Evaluation::Unchanged {
        answer: Box::new(answer),
        valid_until: input.steady_until(now).into_iter().chain(begins.filter(|_| !may_begin)).min(),
    }
}

/// Whether the node is trusted, uses EIM's agents and is shown as running.
fn is_shown_running(host: &Host, node: &NodeBrief, input: &DecisionInput, now: Time) -> bool {
    let running = NodeStatus::new(status::RUNNING, Indication::Idle, now);
    host.is_trusted()
        && input.facts.trusted
        && host.public_key.is_empty()
        && host.status.text == running.text
        && running.with_time_of(Some(&node.status)) == node.status
        && node.protocol == AgentProtocol::Eim
        && node.provisioned
}

/// Whether the state that follows from the sample is already stored.
fn is_already_recorded(
    node: &NodeBrief,
    input: &DecisionInput,
    sample: &Sample,
    now: Time,
) -> bool {
    let open = input.run.as_ref().and_then(UpdateRun::as_open);
    let before = PriorState {
        last_sample: node.last_sample.as_ref(),
        delivered: &node.delivered,
        open_run: open.as_ref(),
        facts: &input.facts,
        images: &input.desired.images,
    };
    let shows = VisibleState { status: &node.update_status, conditions: &node.conditions };
    eim::is_unchanged_sample(&before, sample, &shows, now)
}

/// Whether the reported updates equal the stored ones. Image-based nodes report none:
/// [`crate::ImageWatch`] derives theirs from the catalogue.
fn matches_stored_available(node: &NodeBrief, input: &DecisionInput, reported: &str) -> bool {
    if input.facts.os_kind == OsKind::Immutable {
        return true;
    }
    let update = || eim::available_update(&input.facts, &input.desired.images, reported);
    let available = offload_now(reported.len(), update);
    available.is_none_or(|available| nodes::available_digest(&available) == node.available_digest)
}

/// The run to cancel, and the reason.
pub fn run_to_cancel(
    input: &DecisionInput,
    delivered: &DeliveryState,
    now: Time,
) -> Option<(RunId, CancelCause)> {
    let Act::Cancel { run, cause } = input.decide(now).act else {
        return None;
    };
    let may_begin =
        delivered.single.is_some() || delivered.occurrence.is_some() || delivered.was_open(now);
    // The node itself reports a missed window.
    let can_still_begin = may_begin || cause == CancelCause::WindowMissed;
    (!can_still_begin).then_some((run, cause))
}

/// Renders the answer for the node. A node that has finished in a window does not begin in it
/// again, so it needs no slot.
pub fn render_answer(input: &DecisionInput, before: &DeliveryState, now: Time) -> Answer {
    let open = input.run.as_ref().and_then(UpdateRun::as_open);
    let decision = input.decide(now);
    let request = AnswerInput {
        facts: &input.facts,
        desired: &input.desired,
        open_run: open.as_ref(),
        decision: &decision,
        delivered: before,
    };
    let mut answer = eim::render_answer(&request, now);
    let is_settled =
        matches!(decision.reason, Reason::UpToDate { .. } | Reason::FailedInWindow { .. });
    if is_settled {
        answer.slot = None;
    }
    answer
}

/// Whether the node holds a slot of its assignment.
pub fn holds_slot(input: &DecisionInput) -> bool {
    input.applicable_policy().is_some_and(|assigned| assigned.usage.holds_slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_of_an_update_is_always_processed() {
        use SampleKind as K;
        let unchanged = [K::Unspecified, K::UpToDate, K::Downloaded, K::Failed];
        assert!(unchanged.into_iter().all(may_be_unchanged));
        let changing = [K::Downloading, K::Started, K::Updated];
        assert!(!changing.into_iter().any(may_be_unchanged));
    }
}
