//! Node state that follows from the desired update. It is stored with the node and written only
//! when it changes.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::condition::{self, Condition, ConditionKind};
use evenkeel_domain::decide::resolve_target;
use evenkeel_domain::eim;
use evenkeel_domain::os::OsKind;
use evenkeel_store::decisions::DecisionInput;
use evenkeel_store::nodes::{NodeBrief, NodeState};

/// How long the condition of a used up daily limit is shown, unless a call is refused again.
const DAILY_LIMIT_SHOWN_FOR: TimeDelta = TimeDelta::days(1);

/// Updates the conditions that follow from the desired update and, on image-based nodes, the
/// available updates.
pub fn update(node: &mut NodeState, input: &DecisionInput, now: Time) {
    node.conditions.retain(|one| {
        one.kind != ConditionKind::DailyLimit || now < one.since + DAILY_LIMIT_SHOWN_FOR
    });
    node.conditions = derive_conditions(&node.conditions, input, now);
    if let Some(available) = derive_available(input) {
        node.os_update_available = available;
    }
}

/// Whether a condition would change. Available images are no reason to write: [`crate::ImageWatch`]
/// updates them.
pub fn is_outdated(node: &NodeBrief, input: &DecisionInput, now: Time) -> bool {
    derive_conditions(&node.conditions, input, now) != node.conditions
}

fn derive_conditions(before: &[Condition], input: &DecisionInput, now: Time) -> Vec<Condition> {
    let mut conditions = before.to_vec();
    // An image that failed stays quarantined whatever is ordered, so the condition does not flap.
    let reason = match resolve_target(&input.facts, &input.desired) {
        Ok(target) => input.facts.quarantine_reason(&target),
        Err(reason) => Some(reason),
    };
    let holds = reason.and_then(|reason| reason.condition());
    condition::replace(&mut conditions, ConditionKind::depends_on_policy, holds, now);
    conditions
}

/// The available updates of an image-based node. `None` keeps the stored value, so that it does not
/// flap while nothing is known. Package-based nodes report their updates themselves.
fn derive_available(input: &DecisionInput) -> Option<String> {
    match input.facts.os_kind {
        OsKind::Mutable => None,
        OsKind::Immutable => eim::available_update(&input.facts, &input.desired.images, ""),
    }
}
