//! Until when an answer stays valid, and which samples change nothing.

use proptest::collection::vec;
use proptest::prelude::*;

use super::delivery::{Node, with_schedules};
use super::evidence::any_sample;
use super::invariants::{any_change, apply_change};
use super::*;
use crate::status::{Indication, Status};

fn minutes(count: i64) -> TimeDelta {
    TimeDelta::minutes(count)
}

#[test]
fn a_node_without_windows_is_answered_the_same_for_ever() {
    for mut node in [Node::packages(&[]), Node::image(&[])] {
        node.poll(NOON);
        assert_eq!(node.steady_until(NOON), None);
    }
}

#[test]
fn a_delivered_window_lists_each_instant_of_change() {
    let mut node = Node::packages(&[window(1, 2)]);
    node.poll(NOON);
    let until = |late| {
        let until = node.steady_until(NOON + minutes(late));
        until.map(|until| (until - NOON).num_minutes())
    };
    for (late, next) in [
        (0, Some(55)),
        (55, Some(60)),
        (60, Some(110)),
        (111, Some(120)),
        (120, Some(180)),
        (180, None),
    ] {
        assert_eq!(until(late), next, "after {late} minutes");
    }
}

/// Five minutes for a clock that is ahead, and five until the agent polls again.
#[test]
fn an_agent_may_begin_by_itself_from_ten_minutes_before_a_window_on() {
    let mut node = Node::packages(&[window(1, 2), window(4, 5)]);
    node.poll(NOON);
    let from = |node: &Node, late| {
        let from = may_begin_from(&node.desired, &node.delivered, NOON + minutes(late));
        from.map(|from| (from - NOON).num_minutes())
    };
    for (late, expected) in [
        (0, Some(50)),
        (50, Some(50)),
        (90, Some(90)),
        (179, Some(179)),
        (180, Some(230)),
        (299, Some(299)),
        (300, None),
    ] {
        assert_eq!(from(&node, late), expected, "after {late} minutes");
    }
    // A delivered window counts even if no window applies any more.
    node.desired.windows = Windows::default();
    assert_eq!(from(&node, 0), Some(50));
    assert_eq!(from(&node, 180), None);
    let repeated = with_schedules(Node::packages(&[]));
    assert!(from(&repeated, 0).is_some(), "repeated schedules have windows too");
}

/// At that instant the agent would still begin in the window, and a moment later it would not.
#[test]
fn a_window_is_worth_it_for_ten_minutes_and_no_less() {
    let node = Node::packages(&[window(0, 1), window(0, 3)]);
    let last = NOON + minutes(50);
    let too_late = last + TimeDelta::nanoseconds(1);
    assert_eq!(node.answer_at(last).single, Some(span(0, 1)));
    assert_eq!(node.answer_at(too_late).single, Some(span(0, 3)));
    for now in [NOON, last] {
        assert_eq!(node.steady_until(now), Some(too_late));
    }
}

#[test]
fn a_replacing_window_waits_for_the_gap() {
    let mut node = Node::packages(&[window(1, 2)]);
    node.poll(NOON);
    node.desired.windows = Windows::from_now_on([window(3, 4)], NOON);
    let cleared = NOON + TICK;
    node.poll(cleared);
    let follows = cleared + TimeDelta::seconds(15);
    assert_eq!(node.steady_until(cleared), Some(follows));
    assert_eq!(node.answer_at(follows).single, Some(span(3, 4)));
}

#[test]
fn a_repeated_sample_is_unchanged_and_a_new_one_is_not() {
    let mut story = Story::at_rest(false);
    let (rest, failed) = (sample(SampleKind::UpToDate), sample(SampleKind::Failed));
    assert!(story.is_unchanged(&rest, story.now));
    assert!(!story.is_unchanged(&sample(SampleKind::Downloading), story.now));
    assert!(!story.is_unchanged(&failed, story.now), "an anomaly");
    story.receive(&failed);
    assert!(story.is_unchanged(&failed, story.now), "the anomaly is stored");
    assert!(!story.is_unchanged(&rest, story.now), "it clears the anomaly");

    let mut doubted = Story::at_rest(true);
    doubted.receive(&failed);
    assert!(!doubted.is_unchanged(&failed, doubted.now), "it is unconfirmed");
    doubted.receive(&failed);
    assert!(doubted.is_unchanged(&failed, doubted.now), "it is confirmed");
}

/// The run was given up in the meantime, and that status is displayed.
#[test]
fn a_sample_with_another_status_is_a_change() {
    let mut story = Story::at_rest(false);
    story.status = "Update failed";
    let rest = sample(SampleKind::UpToDate);
    assert!(!story.is_unchanged(&rest, story.now));
    story.receive(&rest);
    assert!(story.is_unchanged(&rest, story.now));
}

impl Story {
    fn is_unchanged(&self, sample: &Sample, now: Time) -> bool {
        let mut all = SampleKind::ALL.iter().map(|kind| kind.status());
        let of_kind = all.find(|(text, _)| *text == self.status);
        let indication = of_kind.map_or(Indication::Unspecified, |(_, indication)| indication);
        let status = Status::new(self.status, indication, NOON);
        let shows = VisibleState { status: &status, conditions: &self.conditions };
        let open = self.open_run();
        is_unchanged_sample(&self.prior_state(open.as_ref()), sample, &shows, now)
    }

    /// All stored state except the runs.
    fn stored_state(&self) -> (Option<LastSample>, &'static str, Vec<Condition>, Image) {
        let (conditions, running) = (&self.conditions, &self.facts.running);
        let last = self.last_sample.clone();
        (last, self.status, conditions.clone(), running.clone())
    }
}

proptest! {
    /// Whatever happened before: once the node has its answer, it gets the same one again.
    #[test]
    fn a_node_gets_the_same_answer_until_the_next_instant_of_change(
        has_images: bool,
        has_repeated: bool,
        turns in vec(any_change(), 0..30),
        share in 0i32..1_000,
    ) {
        let windows = [window(1, 3), window(2, 9)];
        let mut node = if has_images { Node::image(&windows) } else { Node::packages(&windows) };
        if has_repeated {
            node = with_schedules(node);
        }
        let mut now = NOON;
        for turn in turns {
            apply_change(&mut node, turn, &mut now);
            node.poll(now);
        }
        for _ in 0..5 {
            node.poll(now);
        }
        let answer = node.answer_at(now);
        prop_assert_eq!(&answer.delivered, &node.delivered, "no change to store");
        let until = node.steady_until(now);
        prop_assert!(until.is_none_or(|until| now < until));
        let begins = may_begin_from(&node.desired, &node.delivered, now);
        prop_assert!(begins.is_none_or(|begins| now <= begins));
        let spans = answer.repeated.iter().map(|_| answer.delivered.occurrence);
        for (start, _) in spans.chain([answer.single]).flatten() {
            let soon = (start - minutes(10)).max(now);
            prop_assert!(begins.is_some_and(|begins| begins <= soon));
        }
        let may_begin = begins.is_some_and(|begins| begins <= now);
        let until = until.into_iter().chain(begins.filter(|_| !may_begin)).min();
        let end = until.unwrap_or(now + hours(400));
        let within = now + (end - now) / 1_000 * share;
        for later in [within, end - TimeDelta::nanoseconds(1)] {
            prop_assert_eq!(&node.answer_at(later), &answer);
            let begins = may_begin_from(&node.desired, &node.delivered, later);
            prop_assert_eq!(begins.is_some_and(|begins| begins <= later), may_begin);
        }
    }

    /// An unchanged sample changes nothing when it is received, any other one changes something, and time has no effect.
    #[test]
    fn a_sample_is_unchanged_when_it_changes_nothing(
        samples in vec((any_sample(), 1usize..4), 1..12),
        has_images: bool,
        in_window: bool,
    ) {
        let mut story = Story::at_rest(in_window);
        if has_images {
            story.facts = node(OsKind::Immutable);
            story.images = vec![image(1, "3.0.1"), image(2, "3.0.2")];
        }
        let repeated = |(sample, times): &(Sample, usize)| vec![sample.clone(); *times];
        for sample in samples.iter().flat_map(repeated) {
            let now = story.now;
            let is_settled = story.is_unchanged(&sample, now);
            let until = story.delivered.steady_until(now);
            let last = until.unwrap_or(now + hours(400)) - TimeDelta::nanoseconds(1);
            prop_assert_eq!(story.is_unchanged(&sample, last), is_settled);
            let before = story.stored_state();
            let proof = story.receive(&sample);
            let is_new = !proof.events.is_empty() || before != story.stored_state();
            prop_assert_eq!(is_settled, !is_new, "{:?}", sample);
        }
    }
}
