//! Updates that have begun while an object that applies to the node cannot be read.

use super::delivery::{Node, with_schedules};
use super::*;
use crate::decide::UnreadableObject;
use crate::order::{Order, OrderKind};

/// The inputs of a node for each kind of object that cannot be read, and so is not among them: none of
/// its own; its schedule; its policy, also if the project has another one with a limit.
fn without_unreadable(node: &Node) -> Vec<(&'static str, UpdateIntent)> {
    let of_project = AssignedPolicy {
        scope: Scope::Project,
        limits: UpdateLimits { max_concurrent: Some(1), ..UpdateLimits::default() },
        ..assigned(policy(2, DesiredUpdate::Latest))
    };
    let object = |kind| Some(UnreadableObject { kind, id: "1".to_owned() });
    let readable = |kind| UpdateIntent { unreadable: object(kind), ..node.desired.clone() };
    vec![
        ("another object", readable("pause of a")),
        ("the schedule", {
            let windows = Windows::from_now_on([], NOON);
            UpdateIntent { windows, repeated_schedules: vec![], ..readable("schedule") }
        }),
        ("the policy", UpdateIntent { policies: vec![], ..readable("policy") }),
        ("the nearest policy", UpdateIntent { policies: vec![of_project], ..readable("policy") }),
    ]
}

#[test]
fn an_update_that_has_begun_keeps_its_window_whatever_cannot_be_read() {
    let mut node = Node::packages(&[window(-1, 3)]);
    let target = Some(Target::for_packages(&node.desired.policies[0].policy));
    assert_eq!(node.poll(NOON).single, Some(span(-1, 3)));
    let in_state = |state| Some(OpenRun { target: target.clone(), ..open_run(state) });
    for (lacking, desired) in without_unreadable(&node) {
        node.desired = desired;
        node.open = in_state(RunState::Applying { since: NOON });
        let answer = node.answer_at(NOON + TICK);
        assert_eq!(answer.single, Some(span(-1, 3)), "{lacking}");
        assert_eq!(answer.delivered, node.delivered, "{lacking}");
        assert_eq!(node.answer_at(NOON + hours(3)).single, None, "{lacking}");
        for open in [None, in_state(RunState::Staged { since: NOON })] {
            node.open = open;
            assert_eq!(node.answer_at(NOON + TICK).single, None, "{lacking}");
        }
    }
}

/// The store keeps the slots of a node that has begun.
#[test]
fn an_update_that_has_begun_takes_no_slot_of_a_farther_policy_if_its_own_cannot_be_read() {
    let mut node = Node::packages(&[window(-1, 3)]).with_limit(1, 0, false);
    let target = Some(Target::for_packages(&node.desired.policies[0].policy));
    assert!(node.poll(NOON).holds_slot());
    node.open = Some(OpenRun { target, ..open_run(RunState::Applying { since: NOON }) });
    let own = Some(Slot { scope: Scope::Instance(InstanceId::nth(1)), until: None });
    for (lacking, desired) in without_unreadable(&node) {
        let is_own_readable = desired.policies.first().is_some_and(|one| one.usage.holds_slot);
        node.desired = desired;
        let answer = node.answer_at(NOON + TICK);
        assert_eq!(answer.slot, own.filter(|_| is_own_readable), "{lacking}");
    }
}

#[test]
fn an_update_that_has_begun_keeps_the_schedule_that_the_agent_repeats() {
    let mut node = with_schedules(Node::packages(&[]));
    let target = Some(Target::for_packages(&node.desired.policies[0].policy));
    let repeated = node.poll(NOON + hours(1)).repeated;
    assert_eq!(repeated.len(), 1);
    node.open = Some(OpenRun { target, ..open_run(RunState::Applying { since: NOON }) });
    let now = NOON + hours(1) + TICK;
    for (lacking, desired) in without_unreadable(&node) {
        let is_schedule_readable = !desired.repeated_schedules.is_empty();
        node.desired = desired;
        let answer = node.answer_at(now);
        assert_eq!(answer.delivered.occurrence, Some(span(1, 2)), "{lacking}");
        assert_eq!(!answer.repeated.is_empty(), is_schedule_readable, "{lacking}");
        assert!(answer.repeated.is_empty() || answer.repeated == repeated, "{lacking}");
    }
}

#[test]
fn a_cancel_order_closes_the_window_of_an_update_whose_policy_cannot_be_read() {
    let mut node = Node::packages(&[window(-1, 3)]);
    let target = Some(Target::for_packages(&node.desired.policies[0].policy));
    node.poll(NOON);
    node.open = Some(OpenRun { target, ..open_run(RunState::Applying { since: NOON }) });
    node.desired = without_unreadable(&node).swap_remove(2).1;
    node.desired.order = Some(Order {
        kind: OrderKind::Cancel,
        at: NOON,
        until: NOON + hours(2),
        reason: String::new(),
        by: String::new(),
    });
    assert_eq!(node.answer_at(NOON + TICK).single, None);
}
