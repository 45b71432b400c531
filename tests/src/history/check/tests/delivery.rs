//! Windows that the ancestor's agents are told: every answer counts, not only the first.

use evenkeel_simulator::eim::cron::Repeats;
use evenkeel_simulator::truth::{Delivered, EimTruth, Opening};

use super::eim::{record, truth};
use super::*;
use crate::history::book::{Paused, Repeated};

fn broken(truth: &EimTruth, book: &Book) -> Vec<Rule> {
    eim_broken(&member(), truth, &[record()], book)
}

/// The window of the truth, still told in an answer that was asked for at 120.
fn still_told() -> EimTruth {
    let mut truth = truth();
    truth.delivered[0].answers.push((at(120), at(121)));
    truth
}

#[test]
fn a_window_that_is_still_told_in_a_pause_is_found() {
    let mut paused = book();
    let held = Held::since(step(110, 111));
    paused.pauses.push(Paused {
        scope: "project".into(),
        held,
    });
    assert_eq!(
        broken(&truth(), &paused),
        [],
        "it was told before the pause"
    );
    assert_eq!(broken(&still_told(), &paused), [Rule::NoBeginWithoutLeave]);
    paused.pauses[0].held.made.done = Some(at(121));
    assert_eq!(broken(&still_told(), &paused), [], "it may have come first");
    paused.pauses[0].held = Held {
        made: step(110, 111),
        gone: Some(step(115, 116)),
    };
    assert_eq!(broken(&still_told(), &paused), [], "it was over");
}

#[test]
fn a_window_that_is_told_while_all_that_may_be_wished_for_is_paused_is_found() {
    let held = || Held::since(step(110, 111));
    let mut paused = book();
    paused.pauses.push(Paused {
        scope: POLICY.into(),
        held: held(),
    });
    assert_eq!(broken(&truth(), &paused), []);
    assert_eq!(broken(&still_told(), &paused), [Rule::NoBeginWithoutLeave]);
    let other = "osupdatepolicy-00000002";
    paused.wishes.push(Wished {
        scope: "project".into(),
        policy: other.into(),
        held: Held::since(step(6, 7)),
    });
    assert_eq!(
        broken(&still_told(), &paused),
        [],
        "the other one may apply"
    );
    paused.pauses.push(Paused {
        scope: other.into(),
        held: held(),
    });
    assert_eq!(broken(&still_told(), &paused), [Rule::NoBeginWithoutLeave]);
}

#[test]
fn a_window_that_is_still_told_after_it_was_taken_back_is_found() {
    let mut closed = book();
    closed.windows[0].held.gone = Some(step(110, 111));
    assert_eq!(broken(&truth(), &closed), []);
    assert_eq!(broken(&still_told(), &closed), [Rule::NoBeginWithoutLeave]);
    let mut unwished = book();
    unwished.wishes[0].held.gone = Some(step(110, 111));
    assert_eq!(broken(&truth(), &unwished), []);
    assert_eq!(
        broken(&still_told(), &unwished),
        [Rule::NoBeginWithoutLeave]
    );
}

#[test]
fn a_window_that_is_still_told_after_it_was_cancelled_is_found() {
    let mut cancelled = book();
    cancelled
        .cancelled
        .push(("inst-00000001".into(), step(110, 111)));
    assert_eq!(broken(&truth(), &cancelled), []);
    assert_eq!(
        broken(&still_told(), &cancelled),
        [Rule::NoBeginWithoutLeave]
    );
    // Windows that open later count again.
    cancelled.cancelled[0].1 = step(90, 91);
    assert_eq!(broken(&still_told(), &cancelled), []);
}

#[test]
fn an_order_that_was_replaced_is_not_told_any_more() {
    let mut ordered = book();
    ordered.windows[0].scope = "inst-00000001".into();
    ordered.windows[0].is_order = true;
    assert_eq!(broken(&still_told(), &ordered), []);
    ordered.windows[0].held.gone = Some(step(110, 111));
    assert_eq!(broken(&still_told(), &ordered), [Rule::NoBeginWithoutLeave]);
}

/// A node that was told to begin at each second minute of an hour for 80 seconds, and did.
fn repeating() -> EimTruth {
    let mut truth = truth();
    truth.delivered[0].window = Opening::Again(second_minute());
    truth.updates[0].window = Some((at(120), at(200)));
    truth.updates[0].began = Some(moment(120));
    truth
}

fn second_minute() -> Repeats {
    Repeats::read(["2", "*", "*", "*", "*"], 80).expect("a cron")
}

fn repeated() -> Book {
    let mut book = book();
    book.windows.clear();
    book.repeated.push(Repeated {
        scope: "site-00000001".into(),
        schedule: second_minute(),
        held: Held::since(step(10, 11)),
    });
    book
}

#[test]
fn a_schedule_that_repeats_itself_is_judged_as_a_window_is() {
    assert_eq!(broken(&repeating(), &repeated()), []);
    assert_eq!(broken(&repeating(), &book()), [Rule::NoBeginWithoutLeave]);
    let mut taken_back = repeated();
    taken_back.repeated[0].held.gone = Some(step(30, 31));
    assert_eq!(
        broken(&repeating(), &taken_back),
        [Rule::NoBeginWithoutLeave]
    );
    let mut elsewhere = repeating();
    elsewhere.updates[0].window = Some((at(180), at(260)));
    elsewhere.updates[0].began = Some(moment(180));
    assert_eq!(
        broken(&elsewhere, &repeated()),
        [Rule::NoBeginWithoutLeave],
        "not in its minutes"
    );
}

#[test]
fn a_window_of_a_schedule_that_was_cancelled_is_not_told_while_it_is_open() {
    let mut cancelled = repeated();
    cancelled
        .cancelled
        .push(("inst-00000001".into(), step(130, 131)));
    let mut still_told = repeating();
    still_told.delivered[0].answers.push((at(140), at(141)));
    assert_eq!(broken(&still_told, &cancelled), [Rule::NoBeginWithoutLeave]);
    still_told.delivered[0].answers[2] = (at(205), at(206));
    assert_eq!(broken(&still_told, &cancelled), [], "it was over");
}

#[test]
fn a_schedule_may_be_told_window_by_window() {
    let mut one_by_one = repeating();
    one_by_one.delivered[0] = Delivered {
        window: Opening::Once((at(120), at(200))),
        ..one_by_one.delivered[0].clone()
    };
    assert_eq!(broken(&one_by_one, &repeated()), []);
    one_by_one.delivered[0].window = Opening::Once((at(60), at(140)));
    one_by_one.updates[0].window = Some((at(60), at(140)));
    assert_eq!(
        broken(&one_by_one, &repeated()),
        [Rule::NoBeginWithoutLeave]
    );
}
