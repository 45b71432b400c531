//! What holds for any node that asks again and again.

use proptest::collection::vec;
use proptest::prelude::*;

use super::delivery::Node;
use super::*;
use crate::decide::Verdict;
use crate::order::{Order, OrderKind};
use crate::pause::{Pause, PauseScope};

/// What happens to a node between two polls.
#[derive(Clone, Debug)]
pub(super) enum Turn {
    Time(i64),
    Windows(Vec<(i64, i64)>),
    Limit(Option<u32>, u32),
    Paused(bool),
    Ordered(Option<OrderKind>),
    Policy(bool),
    Run(Option<u8>),
    Ended(Verdict),
}

pub(super) fn any_turn() -> impl Strategy<Value = Turn> {
    let windows = vec((0i64..40, 1i64..8), 0..4);
    prop_oneof![
        5 => (1i64..5_000).prop_map(Turn::Time),
        2 => windows.prop_map(Turn::Windows),
        1 => (proptest::option::of(1u32..3), 0u32..3).prop_map(|(limit, held)| Turn::Limit(limit, held)),
        1 => any::<bool>().prop_map(Turn::Paused),
        1 => proptest::option::of(proptest::sample::select(OrderKind::ALL)).prop_map(Turn::Ordered),
        1 => any::<bool>().prop_map(Turn::Policy),
        1 => proptest::option::of(0u8..3).prop_map(Turn::Run),
        1 => proptest::sample::select(Verdict::ALL).prop_map(Turn::Ended),
    ]
}

pub(super) fn take(node: &mut Node, turn: Turn, now: &mut Time) {
    match turn {
        Turn::Time(seconds) => *now += TimeDelta::seconds(seconds),
        Turn::Windows(spans) => {
            let windows = spans
                .iter()
                .map(|(start, length)| window(*start, start + length));
            node.wanted.windows = Windows::from_now_on(windows, NOON - hours(1));
        }
        Turn::Limit(limit, held) => {
            for assigned in &mut node.wanted.policies {
                assigned.limits.max_concurrent = limit;
                assigned.brake.held = held;
            }
        }
        Turn::Paused(is_paused) => {
            let pause = Pause {
                scope: PauseScope::Project,
                reason: String::new(),
                by: String::new(),
                at: *now,
            };
            node.wanted.pauses = if is_paused { vec![pause] } else { vec![] };
        }
        Turn::Ordered(kind) => {
            node.wanted.order = kind.map(|kind| Order {
                kind,
                at: *now,
                until: *now + hours(2),
                reason: String::new(),
                by: String::new(),
            });
        }
        Turn::Policy(is_assigned) => {
            let latest = assigned(policy(1, Wish::Latest));
            node.wanted.policies = if is_assigned { vec![latest] } else { vec![] };
        }
        Turn::Run(state) => {
            let since = *now;
            node.open = state.map(|state| OpenRun {
                target: crate::decide::target(&node.known, &node.wanted).ok(),
                ..open(match state {
                    0 => RunState::Downloading { since },
                    1 => RunState::Staged { since },
                    _ => RunState::Applying { since },
                })
            });
        }
        Turn::Ended(verdict) => {
            if crate::decide::target(&node.known, &node.wanted).is_ok() {
                node.ended(*now, verdict);
            }
        }
    }
}

/// The agent ignores a window that replaces another until it has seen an answer without any (southbound section 3.5).
fn may_follow(before: Option<(Time, Time)>, after: Option<(Time, Time)>) -> bool {
    before.is_none() || after.is_none() || before == after
}

proptest! {
    #[test]
    fn an_agent_is_told_nothing_that_it_may_not_do(
        has_images: bool,
        turns in vec(any_turn(), 1..60),
    ) {
        let windows = [window(1, 3), window(2, 9)];
        let mut node = if has_images { Node::image(&windows) } else { Node::packages(&windows) };
        let mut now = NOON;
        let mut cleared = None;
        for turn in turns {
            let shown = format!("{turn:?}");
            take(&mut node, turn, &mut now);
            let told = node.delivered.single;
            let has_begun = node.open.as_ref().is_some_and(|run| !run.state.is_untouched());
            let was_mine = node.wanted.policies.first().is_some_and(|one| one.brake.mine);
            let answer = node.poll(now);

            prop_assert!(may_follow(told, answer.single), "{shown}");
            if told.is_some() && answer.single.is_none() {
                cleared = Some(now);
            }
            if told.is_none() && answer.single.is_some() {
                prop_assert!(cleared.is_none_or(|at| at + TimeDelta::seconds(15) <= now), "{shown}");
            }
            let Some(single) = answer.single else {
                continue;
            };
            let allowed = node.wanted.windows_now(now);
            let mut allowed = allowed.as_slice().iter();
            prop_assert!(allowed.any(|window| (window.start, window.end) == single), "{shown}");
            prop_assert!(now < single.1);
            prop_assert!(node.wanted.pauses.is_empty(), "{shown}");
            let target = node.open.as_ref().is_some_and(|run| run.target.is_some());
            prop_assert!(target || crate::decide::target(&node.known, &node.wanted).is_ok());
            if has_images {
                prop_assert!(answer.image.is_some());
            }
            let assigned = node.wanted.policies.first().expect("a policy");
            if let Some(limit) = assigned.limits.max_concurrent {
                prop_assert!(was_mine || has_begun || assigned.brake.held < limit, "{shown}");
                prop_assert!(answer.wants_slot(), "{shown}");
            }
            // What was asked twice is answered alike, and there is nothing to write.
            let delivered = node.delivered.clone();
            let again = node.poll(now);
            prop_assert_eq!(again.delivered, delivered);
        }
    }

    /// Whatever happened before, an open window that may be used reaches the node within two answers.
    #[test]
    fn an_open_window_reaches_the_agent(turns in vec(any_turn(), 0..40)) {
        let mut node = Node::packages(&[window(1, 3), window(2, 9)]);
        let mut now = NOON;
        for turn in turns {
            take(&mut node, turn, &mut now);
            node.poll(now);
        }
        let fresh = Node::packages(&[]);
        node = Node { delivered: node.delivered, ..fresh };
        let open = Window { start: now, end: now + hours(5), ..window(0, 1) };
        node.wanted.windows = Windows::from_now_on([open], now);
        let first = node.poll(now).single;
        let second = node.poll(now + TICK).single;
        prop_assert!(first.is_none() || first == second);
        prop_assert_eq!(second, Some((open.start, open.end)));
    }
}
