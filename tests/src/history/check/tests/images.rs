//! Nodes that are updated by images.

use evenkeel_simulator::truth::{Attempt, Change, EimTruth, Leave, OwnTruth, Targeted, Told};

use super::*;
use crate::history::book::{Aim, Published};

fn node() -> Member {
    Member {
        is_image: true,
        ..member()
    }
}

/// The usual book, with a policy that aims at images, of which there are 3.0.1 to 3.0.3.
fn aiming(aim: Aim) -> Book {
    let mut book = book();
    book.aims.insert(POLICY.into(), aim);
    let published = |number| Published {
        image: format!("3.0.{number}"),
        held: Held::since(step(1, 2)),
    };
    book.images = (1..=3).map(published).collect();
    book
}

fn change(from: u32, to: u32) -> Change {
    Change {
        from: format!("3.0.{from}"),
        to: format!("3.0.{to}"),
    }
}

/// The usual attempt, at an image.
fn attempt(change: Change) -> Attempt {
    Attempt {
        digest: format!("{POLICY}/os-00000001"),
        booted: Some(change.to.clone()),
        image: Some(change),
        ..super::own::attempt()
    }
}

/// The usual record, with versions of images: the one before, the wanted one and the one that ran in the end.
fn record(before: &str, wanted: &str, booted: &str) -> Run {
    Run {
        image: Some((before.into(), wanted.into(), booted.into())),
        ..super::own::record()
    }
}

fn broken(attempts: Vec<Attempt>, runs: &[Run], book: &Book) -> Vec<Rule> {
    let truth = OwnTruth {
        attempts,
        facts_digest: Vec::new(),
    };
    own_broken(&node(), &truth, runs, book)
}

fn own(change: Change, book: &Book) -> Vec<Rule> {
    let record = record(&change.from, &change.to, &change.to);
    broken(vec![attempt(change)], &[record], book)
}

#[test]
fn our_own_agent_is_brought_to_no_image_that_nobody_wished_for() {
    let named = |number: u32| Aim::NewerImage(format!("3.0.{number}"));
    assert_eq!(own(change(1, 3), &aiming(Aim::Newest)), []);
    assert_eq!(own(change(1, 2), &aiming(named(2))), []);
    let wrong = [Rule::NoImageUnwished];
    assert_eq!(
        own(change(1, 2), &aiming(Aim::Newest)),
        wrong,
        "not the newest"
    );
    assert_eq!(own(change(1, 3), &aiming(named(2))), wrong, "another one");
}

#[test]
fn our_own_agent_is_brought_to_an_older_image_only_if_the_policy_says_so() {
    let back = Aim::Image("3.0.2".into());
    assert_eq!(own(change(3, 2), &aiming(back)), []);
    let onward = Aim::NewerImage("3.0.2".into());
    assert_eq!(own(change(3, 2), &aiming(onward)), [Rule::NoImageUnwished]);
    assert_eq!(
        own(change(4, 3), &aiming(Aim::Newest)),
        [Rule::NoImageUnwished]
    );
}

#[test]
fn a_policy_for_packages_is_none_for_images() {
    let mut packages = aiming(Aim::Newest);
    packages.aims.clear();
    let found = own(change(1, 3), &packages);
    assert_eq!(found, [Rule::NoBeginWithoutLeave, Rule::NoImageUnwished]);
}

/// The usual attempt in the place of one at 3.0.2 that was over at 75 with this word.
fn after(end: &'static str, second: Attempt) -> Vec<Attempt> {
    let told = |(news, time): (&'static str, i64)| Told {
        news,
        at: moment(time),
    };
    let first = Attempt {
        id: Uuid::from_u128(9),
        events: [("downloading", 60), (end, 75)].map(told).to_vec(),
        acknowledged: 0,
        leave: None,
        ..attempt(change(1, 2))
    };
    vec![first, second]
}

/// The usual book with an order that was given between these seconds.
fn ordered(asked: i64, done: i64) -> Book {
    let mut book = aiming(Aim::Image("3.0.2".into()));
    book.windows.push(Opened {
        scope: "inst-00000001".into(),
        window: (at(asked), at(300)),
        is_order: true,
        held: Held::since(step(asked, done)),
    });
    book
}

/// What is wrong with a second attempt at an image after a first one that ended so.
fn tried(end: &'static str, is_again: bool, book: &Book) -> Vec<Rule> {
    let second = Attempt {
        again: is_again,
        ..attempt(change(1, 2))
    };
    let runs = [record("3.0.1", "3.0.2", "3.0.2")];
    broken(after(end, second), &runs, book)
}

#[test]
fn what_a_node_fell_back_from_comes_back_only_by_an_order_that_was_given_after_that() {
    let wrong = [Rule::NoBadImageUnordered];
    assert_eq!(tried("reverted", true, &ordered(80, 85)), []);
    assert_eq!(tried("reverted", true, &ordered(74, 76)), [], "just then");
    let unordered = aiming(Aim::Image("3.0.2".into()));
    assert_eq!(tried("reverted", true, &unordered), wrong, "no order");
    let stale = ordered(65, 70);
    assert_eq!(tried("reverted", true, &stale), wrong, "it came before");
    let late = ordered(91, 92);
    assert_eq!(tried("reverted", true, &late), wrong, "it came afterwards");
    let as_any = tried("reverted", false, &ordered(80, 85));
    assert_eq!(as_any, wrong, "the node was not told that it is an order");
    assert_eq!(tried("failed", false, &unordered), [], "it never ran");
}

#[test]
fn an_image_that_failed_is_refused_whatever_becomes_of_the_attempt() {
    let refused = Attempt {
        events: vec![Told {
            news: "failed",
            at: moment(90),
        }],
        acknowledged: 0,
        leave: None,
        ..attempt(change(1, 2))
    };
    let found = broken(after("reverted", refused), &[], &ordered(80, 85));
    assert_eq!(found, [Rule::NoBadImageUnordered]);
}

#[test]
fn an_image_that_failed_has_no_leave_from_before() {
    let ahead = Attempt {
        again: true,
        leave: Some(Leave::Ahead {
            asked: at(88),
            given: at(88),
            windows: vec![(at(100), at(200))],
            expires: at(300),
        }),
        ..attempt(change(1, 2))
    };
    let runs = [record("3.0.1", "3.0.2", "3.0.2")];
    let found = broken(after("reverted", ahead), &runs, &ordered(80, 85));
    assert_eq!(found, [Rule::NoBadImageUnordered]);
}

#[test]
fn one_order_is_for_one_fall_back_and_an_image_that_was_kept_since_is_as_any_other() {
    let between = |end: &'static str| {
        let mut second = after(end, attempt(change(1, 2))).remove(0);
        second.id = Uuid::from_u128(8);
        second.again = true;
        second.events[0].at = moment(80);
        second.events[1].at = moment(88);
        second
    };
    let tried = |end: &'static str, is_again: bool| {
        let third = Attempt {
            again: is_again,
            ..attempt(change(1, 2))
        };
        let mut all = after("reverted", third);
        all.insert(1, between(end));
        let runs = [record("3.0.1", "3.0.2", "3.0.2")];
        // Between the first and the second.
        broken(all, &runs, &ordered(76, 77))
    };
    assert_eq!(tried("reverted", true), [Rule::NoBadImageUnordered]);
    assert_eq!(tried("finished", false), []);
}

#[test]
fn a_record_of_another_image_than_the_one_that_ran_is_found() {
    let wrong = [Rule::BootedIsTrue];
    let book = aiming(Aim::Newest);
    let judged = |runs: &[Run]| broken(vec![attempt(change(1, 3))], runs, &book);
    assert_eq!(judged(&[record("3.0.1", "3.0.3", "3.0.3")]), []);
    assert_eq!(judged(&[record("3.0.1", "3.0.3", "3.0.1")]), wrong);
    assert_eq!(judged(&[record("3.0.1", "3.0.3", "")]), wrong);
    assert_eq!(judged(&[record("3.0.2", "3.0.3", "3.0.3")]), wrong);
    assert_eq!(judged(&[record("3.0.1", "3.0.2", "3.0.3")]), wrong);
    assert_eq!(judged(&[super::own::record()]), wrong, "nothing is known");
}

#[test]
fn which_image_ran_in_the_end_is_known_with_the_end_and_not_before() {
    let silent = |booted: &str| {
        let mut attempt = attempt(change(1, 3));
        attempt.acknowledged = 3;
        attempt.forgotten = true;
        let mut run = record("3.0.1", "3.0.3", booted);
        run.events.pop();
        run.state = "applying".into();
        broken(vec![attempt], &[run], &aiming(Aim::Newest))
    };
    assert_eq!(silent(""), []);
    assert_eq!(silent("3.0.3"), [Rule::BootedIsTrue], "nobody told it");
}

#[test]
fn a_run_for_packages_has_no_image() {
    let found = own_broken(
        &member(),
        &OwnTruth {
            attempts: vec![super::own::attempt()],
            facts_digest: Vec::new(),
        },
        &[record("3.0.1", "3.0.2", "3.0.2")],
        &book(),
    );
    assert_eq!(found, [Rule::BootedIsTrue]);
}

/// The usual node of the ancestor's agent, told these images: each with the one that ran, and from when to when.
fn told(targets: &[(u32, u32, (i64, i64))]) -> EimTruth {
    let mut truth = super::eim::truth();
    let target = |(image, running, (from, to)): &(u32, u32, (i64, i64))| Targeted {
        image: format!("3.0.{image}"),
        running: format!("3.0.{running}"),
        first: (at(*from), at(*from)),
        last: (at(*to), at(*to)),
    };
    truth.targets = targets.iter().map(target).collect();
    truth
}

/// The record is open from 103 to 112.
fn eim(truth: &EimTruth, book: &Book) -> Vec<Rule> {
    eim_broken(&node(), truth, &[super::eim::record()], book)
}

#[test]
fn the_ancestors_agent_is_told_no_image_that_nobody_wished_for() {
    let newest = aiming(Aim::Newest);
    assert_eq!(eim(&told(&[(3, 1, (20, 110))]), &newest), []);
    let found = eim(&told(&[(2, 1, (20, 110))]), &newest);
    assert_eq!(found, [Rule::NoImageUnwished]);
    let onward = aiming(Aim::NewerImage("3.0.2".into()));
    let found = eim(&told(&[(2, 3, (20, 110))]), &onward);
    assert_eq!(found, [Rule::NoImageUnwished], "an older one");
    let back = aiming(Aim::Image("3.0.2".into()));
    assert_eq!(eim(&told(&[(2, 3, (20, 110))]), &back), []);
}

#[test]
fn the_ancestors_agent_is_told_one_image_until_the_end() {
    let any = |number: u32| Aim::Image(format!("3.0.{number}"));
    let mut book = aiming(any(2));
    let other = "osupdatepolicy-00000002".to_owned();
    book.aims.insert(other.clone(), any(3));
    book.wishes.push(Wished {
        scope: "project".into(),
        policy: other,
        held: Held::since(step(6, 7)),
    });
    let frozen = [Rule::TargetIsFrozen];
    let during = told(&[(2, 1, (20, 105)), (3, 1, (107, 115))]);
    assert_eq!(eim(&during, &book), frozen);
    let before = told(&[(2, 1, (20, 101)), (3, 1, (102, 115))]);
    assert_eq!(eim(&before, &book), [], "it had not begun");
    let after = told(&[(2, 1, (20, 111)), (3, 2, (113, 115))]);
    assert_eq!(eim(&after, &book), [], "it was over");
}

#[test]
fn only_what_was_frozen_is_told_until_the_end_whatever_is_wished_for() {
    let mut book = aiming(Aim::Image("3.0.2".into()));
    book.wishes[0].held.gone = Some(step(95, 96));
    let late = told(&[(2, 1, (104, 110))]);
    assert_eq!(eim(&late, &book), [], "the answer before was lost");
    let unwished = told(&[(3, 1, (104, 110))]);
    assert_eq!(eim(&unwished, &book), [Rule::NoImageUnwished]);
    let changed = told(&[(2, 1, (20, 90)), (3, 1, (104, 110))]);
    assert_eq!(eim(&changed, &book), [Rule::NoImageUnwished]);
    let back = told(&[(2, 1, (20, 30)), (3, 1, (40, 90)), (2, 1, (104, 110))]);
    let mut earlier = book.clone();
    earlier.wishes[0].held.gone = Some(step(35, 36));
    let other = "osupdatepolicy-00000002".to_owned();
    let third = Aim::Image("3.0.3".into());
    earlier.aims.insert(other.clone(), third);
    earlier.wishes.push(Wished {
        scope: "project".into(),
        policy: other,
        held: Held::since(step(35, 36)),
    });
    assert_eq!(
        eim(&back, &earlier),
        [Rule::NoImageUnwished],
        "another one had been told since"
    );
}

#[test]
fn a_window_without_an_image_is_found() {
    let mut empty = told(&[]);
    empty.delivered[0].is_empty = true;
    let found = eim(&empty, &aiming(Aim::Newest));
    assert_eq!(found, [Rule::NoImageUnwished]);
}
