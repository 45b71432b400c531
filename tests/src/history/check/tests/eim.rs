//! Nodes of the ancestor's agent.

use evenkeel_simulator::truth::{Delivered, EimTruth, End, Opening, Said, Update};

use super::*;
use crate::history::book::Paused;

/// A node that was told the window, began in it at 101 and ended well at 110.
pub(super) fn truth() -> EimTruth {
    EimTruth {
        updates: vec![Update {
            window: Some((at(100), at(200))),
            began: Some(moment(101)),
            ended: Some((moment(110), End::Updated)),
            image: None,
        }],
        said: vec![
            said("up_to_date", None, 20, 100),
            said("started", Some(0), 102, 109),
            said("updated", Some(0), 111, 113),
            said("up_to_date", Some(0), 114, 150),
        ],
        delivered: vec![Delivered {
            window: Opening::Once((at(100), at(200))),
            answers: vec![(at(20), at(21)), (at(50), at(51))],
            is_empty: false,
        }],
        targets: Vec::new(),
    }
}

pub(super) fn said(kind: &'static str, update: Option<usize>, from: i64, to: i64) -> Said {
    Said {
        kind,
        detail: String::new(),
        image: String::new(),
        update,
        spurious: false,
        between: (at(from), at(to)),
        acknowledged: 3,
    }
}

pub(super) fn record() -> Run {
    let events = [
        ("began", "applying", None, 103),
        ("finished", "succeeded", None, 112),
    ];
    run(1, None, &events)
}

fn broken(truth: &EimTruth, runs: &[Run], book: &Book) -> Vec<Rule> {
    eim_broken(&member(), truth, runs, book)
}

#[test]
fn what_was_recorded_as_it_was_shown_is_fine() {
    assert_eq!(broken(&truth(), &[record()], &book()), []);
    let fast = run(1, None, &[("finished", "succeeded", None, 112)]);
    let mut unseen = truth();
    unseen.said.remove(1);
    assert_eq!(
        broken(&unseen, &[fast], &book()),
        [],
        "its start was missed"
    );
}

#[test]
fn an_acknowledged_end_without_a_run_is_lost() {
    assert_eq!(broken(&truth(), &[], &book()), [Rule::NoReportIsLost]);
    let open = run(1, None, &[("began", "applying", None, 103)]);
    assert_eq!(broken(&truth(), &[open], &book()), [Rule::NoReportIsLost]);
}

#[test]
fn an_end_that_nobody_acknowledged_or_could_tell_apart_is_not_asked_for() {
    let mut silent = truth();
    silent.said[2].acknowledged = 0;
    assert_eq!(broken(&silent, &[], &book()), []);
    let mut alike = truth();
    alike.said = vec![
        said("updated", None, 20, 100),
        said("updated", Some(0), 111, 113),
    ];
    assert_eq!(broken(&alike, &[], &book()), []);
    alike.said[1].detail = "other words".into();
    assert_eq!(broken(&alike, &[], &book()), [Rule::NoReportIsLost]);
}

#[test]
fn a_failure_without_words_counts_when_it_was_said_often() {
    let mut failed = truth();
    failed.updates[0].ended = Some((moment(110), End::Failed));
    failed.said.truncate(3);
    failed.said[2].kind = "failed";
    assert_eq!(broken(&failed, &[], &book()), []);
    failed.said[2].acknowledged = 30;
    assert_eq!(broken(&failed, &[], &book()), [Rule::NoReportIsLost]);
    let good = run(1, None, &[("failed", "failed", None, 112)]);
    assert_eq!(broken(&failed, &[good], &book()), []);
}

#[test]
fn an_update_that_is_two_runs_is_found() {
    let again = run(2, None, &[("finished", "succeeded", None, 113)]);
    assert_eq!(
        broken(&truth(), &[record(), again.clone()], &book()),
        [Rule::NoRunTwice]
    );
    let mut misled = truth();
    let lie = Said {
        spurious: true,
        ..said("failed", Some(0), 105, 106)
    };
    misled.said.insert(2, lie);
    misled.said[1].between.1 = at(104);
    let cut = run(
        1,
        None,
        &[
            ("began", "applying", None, 103),
            ("failed", "failed", None, 105),
        ],
    );
    assert_eq!(
        broken(&misled, &[cut, again], &book()),
        [],
        "nobody can know better"
    );
}

#[test]
fn what_was_only_fetched_is_called_off_when_nobody_wishes_for_it_any_more() {
    let mut fetched = truth();
    fetched.said.insert(1, said("downloaded", Some(0), 22, 99));
    fetched.said[0].between.1 = at(21);
    let events = [
        ("downloaded", "staged", None, 30),
        ("cancelled", "cancelled", None, 45),
    ];
    let called_off = run(2, None, &events);
    let mut unwished = book();
    unwished.wishes[0].held.gone = Some(step(40, 41));
    let mut again = unwished.wishes[0].clone();
    again.held = Held::since(step(48, 49));
    unwished.wishes.push(again);
    fetched.delivered[0].answers.remove(1);
    let runs = [called_off, record()];
    assert_eq!(broken(&fetched, &runs, &unwished), []);
    let found = broken(&fetched, &runs, &book());
    assert_eq!(found, [Rule::NothingIsInvented, Rule::NoRunTwice]);
}

#[test]
fn one_run_for_two_updates_is_found() {
    let mut twice = truth();
    twice.updates.push(Update {
        began: Some(moment(120)),
        ended: Some((moment(130), End::Updated)),
        ..twice.updates[0].clone()
    });
    twice.said[3].between.1 = at(119);
    twice.said.push(said("started", Some(1), 121, 129));
    twice.said.push(said("updated", Some(1), 131, 132));
    let mut events = record();
    events
        .events
        .extend(run(1, None, &[("finished", "succeeded", None, 131)]).events);
    let found = broken(&twice, &[events], &book());
    assert_eq!(found, [Rule::NoRunTwice, Rule::NoReportIsLost]);
}

#[test]
fn what_no_sample_says_is_found() {
    let before = run(
        1,
        None,
        &[
            ("began", "applying", None, 101),
            ("finished", "succeeded", None, 112),
        ],
    );
    assert_eq!(
        broken(&truth(), &[before], &book()),
        [Rule::NothingIsInvented]
    );
    let other = run(1, None, &[("failed", "failed", None, 112)]);
    let found = broken(&truth(), &[other], &book());
    assert_eq!(found, [Rule::NothingIsInvented, Rule::NoReportIsLost]);
}

#[test]
fn another_end_than_the_nodes_is_found() {
    let mut other = record();
    other.state = "abandoned".into();
    assert_eq!(broken(&truth(), &[other], &book()), [Rule::EndsMatch]);
}

#[test]
fn a_window_that_nobody_made_or_wished_or_that_was_paused_is_found() {
    let mut unmade = book();
    unmade.windows.clear();
    let mut unwished = book();
    unwished.wishes.clear();
    let mut paused = book();
    let held = Held::since(step(15, 16));
    paused.pauses.push(Paused {
        scope: "project".into(),
        held,
    });
    for book in [unmade, unwished, paused] {
        assert_eq!(
            broken(&truth(), &[record()], &book),
            [Rule::NoBeginWithoutLeave]
        );
    }
}

#[test]
fn a_begin_outside_the_window_by_the_nodes_clock_is_found() {
    let mut early = truth();
    early.updates[0].began = Some(Moment {
        node: at(99),
        truth: at(101),
    });
    assert_eq!(
        broken(&early, &[record()], &book()),
        [Rule::NoBeginWithoutLeave]
    );
    let mut untold = truth();
    untold.delivered.clear();
    assert_eq!(
        broken(&untold, &[record()], &book()),
        [Rule::NoBeginWithoutLeave]
    );
}

#[test]
fn two_open_runs_are_found() {
    let mut second = truth();
    second.said.push(said("started", Some(1), 160, 170));
    second.updates.push(Update {
        ended: None,
        ..second.updates[0].clone()
    });
    let open = run(2, None, &[("began", "applying", None, 161)]);
    let mut late = record();
    late.events[1].at = at(162);
    let found = broken(&second, &[late, open], &book());
    assert!(found.contains(&Rule::NoTwoOpenRuns), "{found:?}");
}
