//! Answers to EIM agents under a limit of concurrent updates.

use super::delivery::Node;
use super::*;
use crate::decide::Verdict;
use crate::order::{Order, OrderKind};

#[test]
fn a_counted_window_needs_a_slot() {
    let windows = [window(0, 2)];
    let free = Node::packages(&windows).with_limit(2, 1, false).answer_at(NOON);
    let until = Some(NOON + hours(3));
    let slot = Slot { scope: Scope::Instance(InstanceId::nth(1)), until };
    assert_eq!((free.single, free.slot), (Some(span(0, 2)), Some(slot)));
    let full = Node::packages(&windows).with_limit(2, 2, false).answer_at(NOON);
    assert_eq!((full.single, full.holds_slot()), (None, false));
    let mine = Node::packages(&windows).with_limit(2, 2, true).answer_at(NOON);
    assert_eq!((mine.single, mine.slot), (Some(span(0, 2)), Some(slot)));
}

#[test]
fn a_slot_is_held_until_the_run_or_the_window_ends() {
    let mut node = Node::packages(&[window(0, 2)]).with_limit(1, 0, false);
    assert!(node.poll(NOON).holds_slot());
    node.open = Some(open_run(RunState::Applying { since: NOON }));
    assert_eq!(node.poll(NOON + TICK).slot.map(|slot| slot.until), Some(None));
    let late = NOON + hours(3);
    assert!(node.poll(late).holds_slot(), "the run continues after its window");
    node.open = None;
    assert!(!node.poll(late + TICK).holds_slot());

    let mut node = Node::packages(&[window(0, 2)]).with_limit(1, 0, false);
    node.poll(NOON);
    node.record_end(NOON + TICK, Verdict::Good);
    assert!(!node.poll(NOON + TICK).holds_slot(), "the update is done");
    assert!(!node.poll(NOON + TICK * 2).holds_slot());
}

#[test]
fn a_slot_is_held_while_one_window_replaces_another() {
    let mut node = Node::packages(&[window(0, 2)]).with_limit(1, 0, false);
    node.poll(NOON);
    node.desired.windows = Windows::from_now_on([window(0, 4)], NOON);
    let resting = node.poll(NOON + TICK);
    assert_eq!((resting.single, resting.holds_slot()), (None, true));
    assert_eq!(node.poll(NOON + TICK * 2).single, Some(span(0, 4)));
}

#[test]
fn a_node_that_missed_its_window_yields_in_the_next() {
    let mut node = Node::packages(&[window(0, 2), window(24, 26)]).with_limit(1, 0, false);
    assert!(node.poll(NOON).holds_slot());
    for hour in [2, 12] {
        assert!(!node.poll(NOON + hours(hour)).holds_slot());
    }
    let opening = NOON + hours(24);
    let answer = node.poll(opening);
    assert_eq!((answer.single, answer.holds_slot()), (None, false));
    let minutes = TimeDelta::minutes(90);
    let answer = node.poll(opening + minutes);
    assert_eq!(answer.single, Some(span(24, 26)), "the slot is still free");
    assert!(answer.holds_slot());
    assert_eq!(node.poll(opening + minutes + TICK).single, answer.single);
}

/// The agent fails if the image is missing when its window opens.
#[test]
fn a_yielding_node_still_fetches_its_image_ahead() {
    let mut node = Node::image(&[window(8, 9), window(32, 33)]).with_limit(1, 0, false);
    assert!(node.poll(NOON + hours(2)).holds_slot());
    for hour in [9, 20] {
        assert!(!node.poll(NOON + hours(hour)).holds_slot());
    }
    let answer = node.poll(NOON + hours(26));
    assert_eq!((answer.single, answer.holds_slot()), (None, false));
    let answer = node.poll(NOON + hours(31));
    assert_eq!(answer.single, Some(span(32, 33)), "an hour before it opens");
    assert!(answer.holds_slot() && answer.image.is_some());
}

#[test]
fn no_node_yields_when_little_time_is_left() {
    let minutes = |from: TimeDelta| Window {
        start: NOON + from,
        end: NOON + from + TimeDelta::minutes(15),
        ..window(0, 1)
    };
    let windows = [minutes(hours(0)), minutes(hours(24))];
    let mut node = Node::packages(&windows).with_limit(1, 0, false);
    assert!(node.poll(NOON).holds_slot());
    assert!(!node.poll(NOON + hours(1)).holds_slot());
    assert!(node.poll(NOON + hours(24)).holds_slot());
}

#[test]
fn a_node_that_began_or_has_an_order_does_not_yield() {
    let windows = [window(0, 2), window(24, 26)];
    let opening = NOON + hours(24);
    let idle = || {
        let mut node = Node::packages(&windows).with_limit(1, 0, false);
        node.poll(NOON);
        node.poll(NOON + hours(2));
        node
    };
    let mut begun = idle();
    begun.record_end(NOON + hours(1), Verdict::Good);
    assert!(begun.poll(opening).holds_slot());
    assert_eq!(begun.delivered.unused, None, "the missed window is forgotten");

    let mut ordered = idle();
    ordered.desired.order = Some(Order {
        kind: OrderKind::Now,
        at: opening,
        until: opening + hours(1),
        reason: String::new(),
        by: "operator".to_owned(),
    });
    assert_eq!(ordered.poll(opening).single, Some(span(24, 25)));

    let mut alone = idle();
    alone.desired.policies[0].limits.max_concurrent = None;
    assert_eq!(alone.poll(opening).single, Some(span(24, 26)));
}

#[test]
fn a_late_start_retains_its_slot() {
    let mut node = Node::packages(&[window(0, 2), window(1, 26)]).with_limit(1, 0, false);
    node.poll(NOON);
    node.open = Some(open_run(RunState::Applying { since: NOON }));
    node.poll(NOON + hours(2));
    assert!(node.poll(NOON + hours(3)).holds_slot());
    assert_eq!(node.delivered.unused, None);
}

#[test]
fn an_image_gets_its_slot_when_it_may_be_fetched() {
    let node = Node::image(&[window(8, 9)]).with_limit(1, 0, false);
    assert!(!node.answer_at(NOON).holds_slot());
    assert!(node.answer_at(NOON + hours(2)).holds_slot());
}

#[test]
fn a_stopped_policy_begins_nothing_and_lets_open_runs_end() {
    let mut node = Node::packages(&[window(0, 2), window(1, 3)]).with_limit(9, 0, true);
    node.delivered.single = Some(span(0, 2));
    node.desired.policies[0].limits.stop_after_failures = Some(1);
    node.desired.policies[0].usage.failures = 1;
    let answer = node.answer_at(NOON);
    assert_eq!((answer.single, answer.holds_slot()), (None, false));
    node.open = Some(open_run(RunState::Applying { since: NOON }));
    let answer = node.answer_at(NOON);
    assert_eq!((answer.single, answer.holds_slot()), (Some(span(0, 2)), true));
}
