//! Nodes that are updated by images.

use evenkeel_simulator::truth::{Attempt, Change, EimTruth, OwnTruth, Targeted};

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

fn own(change: Change, book: &Book) -> Vec<Rule> {
    let attempt = Attempt {
        digest: format!("{POLICY}/os-00000001"),
        image: Some(change),
        ..super::own::attempt()
    };
    let truth = OwnTruth {
        attempts: vec![attempt],
        facts_digest: Vec::new(),
    };
    own_broken(&node(), &truth, &[super::own::record()], book)
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
