//! Properties of the answers to a node that polls repeatedly.

use proptest::collection::vec;
use proptest::prelude::*;

use super::delivery::Node;
use super::*;
use crate::decide::Verdict;
use crate::order::{Order, OrderKind};
use crate::pause::{Pause, PauseScope};

/// A change between two polls.
#[derive(Clone, Debug)]
pub(super) enum NodeChange {
    Time(i64),
    Windows(Vec<(i64, i64)>),
    Limit(Option<u32>, u32),
    Paused(bool),
    Ordered(Option<OrderKind>),
    Policy(bool),
    Run(Option<u8>),
    Ended(Verdict),
}

pub(super) fn any_change() -> impl Strategy<Value = NodeChange> {
    let windows = vec((0i64..40, 1i64..8), 0..4);
    prop_oneof![
        5 => (1i64..5_000).prop_map(NodeChange::Time),
        2 => windows.prop_map(NodeChange::Windows),
        1 => (proptest::option::of(1u32..3), 0u32..3).prop_map(|(limit, in_use)| NodeChange::Limit(limit, in_use)),
        1 => any::<bool>().prop_map(NodeChange::Paused),
        1 => proptest::option::of(proptest::sample::select(OrderKind::ALL)).prop_map(NodeChange::Ordered),
        1 => any::<bool>().prop_map(NodeChange::Policy),
        1 => proptest::option::of(0u8..3).prop_map(NodeChange::Run),
        1 => proptest::sample::select(Verdict::ALL).prop_map(NodeChange::Ended),
    ]
}

pub(super) fn apply_change(node: &mut Node, turn: NodeChange, now: &mut Time) {
    match turn {
        NodeChange::Time(seconds) => *now += TimeDelta::seconds(seconds),
        NodeChange::Windows(spans) => {
            let windows = spans.iter().map(|(start, length)| window(*start, start + length));
            node.desired.windows = Windows::from_now_on(windows, NOON - hours(1));
        }
        NodeChange::Limit(limit, in_use) => {
            for assigned in &mut node.desired.policies {
                assigned.limits.max_concurrent = limit;
                assigned.usage.held_by_others = in_use;
            }
        }
        NodeChange::Paused(is_paused) => {
            let pause = Pause {
                scope: PauseScope::Project,
                reason: String::new(),
                by: String::new(),
                at: *now,
            };
            node.desired.pauses = if is_paused { vec![pause] } else { vec![] };
        }
        NodeChange::Ordered(kind) => {
            node.desired.order = kind.map(|kind| Order {
                kind,
                at: *now,
                until: *now + hours(2),
                reason: String::new(),
                by: String::new(),
            });
        }
        NodeChange::Policy(is_assigned) => {
            let latest = assigned(policy(1, DesiredUpdate::Latest));
            node.desired.policies = if is_assigned { vec![latest] } else { vec![] };
        }
        NodeChange::Run(state) => {
            let since = *now;
            node.open = state.map(|state| OpenRun {
                target: crate::decide::resolve_target(&node.facts, &node.desired).ok(),
                ..open_run(match state {
                    0 => RunState::Downloading { since },
                    1 => RunState::Staged { since },
                    _ => RunState::Applying { since },
                })
            });
        }
        NodeChange::Ended(verdict) => {
            if crate::decide::resolve_target(&node.facts, &node.desired).is_ok() {
                node.record_end(*now, verdict);
            }
        }
    }
}

/// The agent ignores a window that replaces another until it has seen an answer without any.
fn may_follow(before: Option<(Time, Time)>, after: Option<(Time, Time)>) -> bool {
    before.is_none() || after.is_none() || before == after
}

proptest! {
    #[test]
    fn an_agent_gets_nothing_that_it_may_not_do(
        has_images: bool,
        turns in vec(any_change(), 1..60),
    ) {
        let windows = [window(1, 3), window(2, 9)];
        let mut node = if has_images { Node::image(&windows) } else { Node::packages(&windows) };
        let mut now = NOON;
        let mut cleared = None;
        for turn in turns {
            let change = format!("{turn:?}");
            apply_change(&mut node, turn, &mut now);
            let previous = node.delivered.single;
            let has_begun = node.open.as_ref().is_some_and(|run| !run.state.is_untouched());
            let was_mine = node.desired.policies.first().is_some_and(|one| one.usage.holds_slot);
            let answer = node.poll(now);

            prop_assert!(may_follow(previous, answer.single), "{change}");
            if previous.is_some() && answer.single.is_none() {
                cleared = Some(now);
            }
            if previous.is_none() && answer.single.is_some() {
                prop_assert!(cleared.is_none_or(|at| at + TimeDelta::seconds(15) <= now), "{change}");
            }
            let Some(single) = answer.single else {
                continue;
            };
            let allowed = node.desired.effective_windows(now);
            let mut allowed = allowed.as_slice().iter();
            prop_assert!(allowed.any(|window| (window.start, window.end) == single), "{change}");
            prop_assert!(now < single.1);
            prop_assert!(node.desired.pauses.is_empty(), "{change}");
            let target = node.open.as_ref().is_some_and(|run| run.target.is_some());
            prop_assert!(target || crate::decide::resolve_target(&node.facts, &node.desired).is_ok());
            if has_images {
                prop_assert!(answer.image.is_some());
            }
            let assigned = node.desired.policies.first().expect("a policy");
            if let Some(limit) = assigned.limits.max_concurrent {
                prop_assert!(was_mine || has_begun || assigned.usage.held_by_others < limit, "{change}");
                prop_assert!(answer.holds_slot(), "{change}");
            }
            // A second poll gets the same answer, and there is no change to store.
            let delivered = node.delivered.clone();
            let again = node.poll(now);
            prop_assert_eq!(again.delivered, delivered);
        }
    }

    /// Whatever happened before, an open window that may be used reaches the node within two answers.
    #[test]
    fn an_open_window_reaches_the_agent(turns in vec(any_change(), 0..40)) {
        let mut node = Node::packages(&[window(1, 3), window(2, 9)]);
        let mut now = NOON;
        for turn in turns {
            apply_change(&mut node, turn, &mut now);
            node.poll(now);
        }
        let fresh = Node::packages(&[]);
        node = Node { delivered: node.delivered, ..fresh };
        let open = Window { start: now, end: now + hours(5), ..window(0, 1) };
        node.desired.windows = Windows::from_now_on([open], now);
        let first = node.poll(now).single;
        let second = node.poll(now + TICK).single;
        prop_assert!(first.is_none() || first == second);
        prop_assert_eq!(second, Some((open.start, open.end)));
    }
}
