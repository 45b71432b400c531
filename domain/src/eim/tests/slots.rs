//! What is told to an agent that starts by itself, where only so many may begin at once.

use super::delivery::Node;
use super::*;
use crate::decide::Verdict;
use crate::order::{Order, OrderKind};

#[test]
fn a_window_that_is_counted_needs_a_slot() {
    let windows = [window(0, 2)];
    let free = Node::packages(&windows).limited(2, 1, false).ask(NOON);
    let until = Some(NOON + hours(3));
    let slot = Slot {
        scope: Scope::Instance(InstanceId::nth(1)),
        until,
    };
    assert_eq!((free.single, free.slot), (Some(span(0, 2)), Some(slot)));
    let full = Node::packages(&windows).limited(2, 2, false).ask(NOON);
    assert_eq!((full.single, full.wants_slot()), (None, false));
    let mine = Node::packages(&windows).limited(2, 2, true).ask(NOON);
    assert_eq!((mine.single, mine.slot), (Some(span(0, 2)), Some(slot)));
}

#[test]
fn a_slot_is_held_until_the_run_ends_or_the_window_is_over() {
    let mut node = Node::packages(&[window(0, 2)]).limited(1, 0, false);
    assert!(node.poll(NOON).wants_slot());
    node.open = Some(open(RunState::Applying { since: NOON }));
    assert_eq!(
        node.poll(NOON + TICK).slot.map(|slot| slot.until),
        Some(None)
    );
    let late = NOON + hours(3);
    assert!(node.poll(late).wants_slot(), "it goes on after its window");
    node.open = None;
    assert!(!node.poll(late + TICK).wants_slot());

    let mut node = Node::packages(&[window(0, 2)]).limited(1, 0, false);
    node.poll(NOON);
    node.ended(NOON + TICK, Verdict::Good);
    assert!(!node.poll(NOON + TICK).wants_slot(), "it was seen through");
    assert!(!node.poll(NOON + TICK * 2).wants_slot());
}

#[test]
fn a_slot_is_kept_while_one_window_replaces_another() {
    let mut node = Node::packages(&[window(0, 2)]).limited(1, 0, false);
    node.poll(NOON);
    node.wanted.windows = Windows::from_now_on([window(0, 4)], NOON);
    let resting = node.poll(NOON + TICK);
    assert_eq!((resting.single, resting.wants_slot()), (None, true));
    assert_eq!(node.poll(NOON + TICK * 2).single, Some(span(0, 4)));
}

#[test]
fn who_let_a_window_pass_lets_the_others_go_first_in_the_next() {
    let mut node = Node::packages(&[window(0, 2), window(24, 26)]).limited(1, 0, false);
    assert!(node.poll(NOON).wants_slot());
    for hour in [2, 12] {
        assert!(!node.poll(NOON + hours(hour)).wants_slot());
    }
    let opening = NOON + hours(24);
    let answer = node.poll(opening);
    assert_eq!((answer.single, answer.wants_slot()), (None, false));
    let minutes = TimeDelta::minutes(90);
    let answer = node.poll(opening + minutes);
    assert_eq!(answer.single, Some(span(24, 26)), "what nobody else took");
    assert!(answer.wants_slot());
    assert_eq!(node.poll(opening + minutes + TICK).single, answer.single);
}

/// The agent fails if the image is not there when its window opens.
#[test]
fn who_gives_way_still_fetches_its_image_ahead() {
    let mut node = Node::image(&[window(8, 9), window(32, 33)]).limited(1, 0, false);
    assert!(node.poll(NOON + hours(2)).wants_slot());
    for hour in [9, 20] {
        assert!(!node.poll(NOON + hours(hour)).wants_slot());
    }
    let answer = node.poll(NOON + hours(26));
    assert_eq!((answer.single, answer.wants_slot()), (None, false));
    let answer = node.poll(NOON + hours(31));
    assert_eq!(answer.single, Some(span(32, 33)), "an hour before it opens");
    assert!(answer.wants_slot() && answer.image.is_some());
}

#[test]
fn nobody_gives_way_where_next_to_no_time_is_left() {
    let minutes = |from: TimeDelta| Window {
        start: NOON + from,
        end: NOON + from + TimeDelta::minutes(15),
        ..window(0, 1)
    };
    let windows = [minutes(hours(0)), minutes(hours(24))];
    let mut node = Node::packages(&windows).limited(1, 0, false);
    assert!(node.poll(NOON).wants_slot());
    assert!(!node.poll(NOON + hours(1)).wants_slot());
    assert!(node.poll(NOON + hours(24)).wants_slot());
}

#[test]
fn who_began_anything_or_is_ordered_does_not_give_way() {
    let windows = [window(0, 2), window(24, 26)];
    let opening = NOON + hours(24);
    let idle = || {
        let mut node = Node::packages(&windows).limited(1, 0, false);
        node.poll(NOON);
        node.poll(NOON + hours(2));
        node
    };
    let mut begun = idle();
    begun.ended(NOON + hours(1), Verdict::Good);
    assert!(begun.poll(opening).wants_slot());
    assert_eq!(begun.delivered.unused, None, "it is forgotten");

    let mut ordered = idle();
    ordered.wanted.order = Some(Order {
        kind: OrderKind::Now,
        at: opening,
        until: opening + hours(1),
        reason: String::new(),
        by: "somebody".to_owned(),
    });
    assert_eq!(ordered.poll(opening).single, Some(span(24, 25)));

    let mut alone = idle();
    alone.wanted.policies[0].limits.max_concurrent = None;
    assert_eq!(alone.poll(opening).single, Some(span(24, 26)));
}

#[test]
fn what_begins_late_in_a_window_keeps_it() {
    let mut node = Node::packages(&[window(0, 2), window(1, 26)]).limited(1, 0, false);
    node.poll(NOON);
    node.open = Some(open(RunState::Applying { since: NOON }));
    node.poll(NOON + hours(2));
    assert!(node.poll(NOON + hours(3)).wants_slot());
    assert_eq!(node.delivered.unused, None);
}

#[test]
fn an_image_gets_its_slot_when_it_may_be_fetched() {
    let node = Node::image(&[window(8, 9)]).limited(1, 0, false);
    assert!(!node.ask(NOON).wants_slot());
    assert!(node.ask(NOON + hours(2)).wants_slot());
}

#[test]
fn what_was_stopped_begins_nothing_and_ends_what_has_begun() {
    let mut node = Node::packages(&[window(0, 2), window(1, 3)]).limited(9, 0, true);
    node.delivered.single = Some(span(0, 2));
    node.wanted.policies[0].limits.stop_after_failures = Some(1);
    node.wanted.policies[0].brake.failures = 1;
    let answer = node.ask(NOON);
    assert_eq!((answer.single, answer.wants_slot()), (None, false));
    node.open = Some(open(RunState::Applying { since: NOON }));
    let answer = node.ask(NOON);
    assert_eq!(
        (answer.single, answer.wants_slot()),
        (Some(span(0, 2)), true)
    );
}
