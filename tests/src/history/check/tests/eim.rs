//! Nodes with EIM's agent.

use evenkeel_simulator::ground_truth::{
    DeliveredSchedule, EimGroundTruth, EimSchedule, EimUpdate, StatusReport, UpdateEnd,
};

use super::*;
use crate::history::operator_log::PauseRecord;

/// A node that received the window, started in it at 101 and finished at 110.
pub(super) fn ground_truth() -> EimGroundTruth {
    EimGroundTruth {
        updates: vec![EimUpdate {
            window: Some((at(100), at(200))),
            began: Some(moment(101)),
            ended: Some((moment(110), UpdateEnd::Updated)),
            image: None,
        }],
        reports: vec![
            report("up_to_date", None, 20, 100),
            report("started", Some(0), 102, 109),
            report("updated", Some(0), 111, 113),
            report("up_to_date", Some(0), 114, 150),
        ],
        delivered: vec![DeliveredSchedule {
            schedule: EimSchedule::Single((at(100), at(200))),
            answers: vec![(at(20), at(21)), (at(50), at(51))],
            is_empty: false,
        }],
        images: Vec::new(),
    }
}

pub(super) fn report(
    kind: &'static str,
    update: Option<usize>,
    from: i64,
    to: i64,
) -> StatusReport {
    StatusReport {
        kind,
        detail: String::new(),
        image_version: String::new(),
        update,
        spurious: false,
        between: (at(from), at(to)),
        acknowledged: 3,
    }
}

pub(super) fn record() -> Run {
    let events = [("began", "applying", None, 103), ("finished", "succeeded", None, 112)];
    run(1, None, &events)
}

fn broken_rules(ground_truth: &EimGroundTruth, runs: &[Run], log: &OperatorLog) -> Vec<Rule> {
    broken_eim_rules(&member(), ground_truth, runs, log)
}

#[test]
fn a_record_that_matches_the_reports_breaks_no_rule() {
    assert_eq!(broken_rules(&ground_truth(), &[record()], &usual_log()), []);
    let fast = run(1, None, &[("finished", "succeeded", None, 112)]);
    let mut unseen = ground_truth();
    unseen.reports.remove(1);
    assert_eq!(broken_rules(&unseen, &[fast], &usual_log()), [], "its start was missed");
}

#[test]
fn an_acknowledged_end_without_a_run_is_lost() {
    assert_eq!(broken_rules(&ground_truth(), &[], &usual_log()), [Rule::NoReportIsLost]);
    let open = run(1, None, &[("began", "applying", None, 103)]);
    assert_eq!(broken_rules(&ground_truth(), &[open], &usual_log()), [Rule::NoReportIsLost]);
}

#[test]
fn an_unacknowledged_or_indistinguishable_end_need_not_be_recorded() {
    let mut silent = ground_truth();
    silent.reports[2].acknowledged = 0;
    assert_eq!(broken_rules(&silent, &[], &usual_log()), []);
    let mut alike = ground_truth();
    alike.reports = vec![report("updated", None, 20, 100), report("updated", Some(0), 111, 113)];
    assert_eq!(broken_rules(&alike, &[], &usual_log()), []);
    alike.reports[1].detail = "other detail".into();
    assert_eq!(broken_rules(&alike, &[], &usual_log()), [Rule::NoReportIsLost]);
}

#[test]
fn a_failure_without_detail_must_be_recorded_after_many_reports() {
    let mut failed = ground_truth();
    failed.updates[0].ended = Some((moment(110), UpdateEnd::Failed));
    failed.reports.truncate(3);
    failed.reports[2].kind = "failed";
    assert_eq!(broken_rules(&failed, &[], &usual_log()), []);
    failed.reports[2].acknowledged = 30;
    assert_eq!(broken_rules(&failed, &[], &usual_log()), [Rule::NoReportIsLost]);
    let good = run(1, None, &[("failed", "failed", None, 112)]);
    assert_eq!(broken_rules(&failed, &[good], &usual_log()), []);
}

#[test]
fn an_update_that_is_two_runs_is_found() {
    let again = run(2, None, &[("finished", "succeeded", None, 113)]);
    assert_eq!(
        broken_rules(&ground_truth(), &[record(), again.clone()], &usual_log()),
        [Rule::NoRunTwice]
    );
    let mut spurious = ground_truth();
    let lie = StatusReport { spurious: true, ..report("failed", Some(0), 105, 106) };
    spurious.reports.insert(2, lie);
    spurious.reports[1].between.1 = at(104);
    let cut = run(1, None, &[("began", "applying", None, 103), ("failed", "failed", None, 105)]);
    assert_eq!(
        broken_rules(&spurious, &[cut, again], &usual_log()),
        [],
        "the server cannot know better"
    );
}

#[test]
fn a_downloaded_update_is_called_off_when_it_is_no_longer_desired() {
    let mut fetched = ground_truth();
    fetched.reports.insert(1, report("downloaded", Some(0), 22, 99));
    fetched.reports[0].between.1 = at(21);
    let events = [("downloaded", "staged", None, 30), ("cancelled", "cancelled", None, 45)];
    let called_off = run(2, None, &events);
    let mut unwished = usual_log();
    unwished.assignments[0].validity.removed = Some(action(40, 41));
    let mut again = unwished.assignments[0].clone();
    again.validity = Validity::since(action(48, 49));
    unwished.assignments.push(again);
    fetched.delivered[0].answers.remove(1);
    let runs = [called_off, record()];
    assert_eq!(broken_rules(&fetched, &runs, &unwished), []);
    let broken = broken_rules(&fetched, &runs, &usual_log());
    assert_eq!(broken, [Rule::NothingIsInvented, Rule::NoRunTwice]);
}

#[test]
fn one_run_for_two_updates_is_found() {
    let mut twice = ground_truth();
    twice.updates.push(EimUpdate {
        began: Some(moment(120)),
        ended: Some((moment(130), UpdateEnd::Updated)),
        ..twice.updates[0].clone()
    });
    twice.reports[3].between.1 = at(119);
    twice.reports.push(report("started", Some(1), 121, 129));
    twice.reports.push(report("updated", Some(1), 131, 132));
    let mut events = record();
    events.events.extend(run(1, None, &[("finished", "succeeded", None, 131)]).events);
    let broken = broken_rules(&twice, &[events], &usual_log());
    assert_eq!(broken, [Rule::NoRunTwice, Rule::NoReportIsLost]);
}

#[test]
fn an_event_that_no_report_explains_is_found() {
    let before =
        run(1, None, &[("began", "applying", None, 101), ("finished", "succeeded", None, 112)]);
    assert_eq!(broken_rules(&ground_truth(), &[before], &usual_log()), [Rule::NothingIsInvented]);
    let other = run(1, None, &[("failed", "failed", None, 112)]);
    let broken = broken_rules(&ground_truth(), &[other], &usual_log());
    assert_eq!(broken, [Rule::NothingIsInvented, Rule::NoReportIsLost]);
}

#[test]
fn an_end_that_differs_from_the_node_is_found() {
    let mut other = record();
    other.state = "abandoned".into();
    assert_eq!(broken_rules(&ground_truth(), &[other], &usual_log()), [Rule::EndsMatch]);
}

#[test]
fn a_window_that_does_not_exist_or_is_not_desired_or_is_paused_is_found() {
    let mut unmade = usual_log();
    unmade.windows.clear();
    let mut unwished = usual_log();
    unwished.assignments.clear();
    let mut paused = usual_log();
    let validity = Validity::since(action(15, 16));
    paused.pauses.push(PauseRecord { scope: "project".into(), validity });
    for log in [unmade, unwished, paused] {
        assert_eq!(broken_rules(&ground_truth(), &[record()], &log), [Rule::NoStartWithoutPermit]);
    }
}

#[test]
fn a_start_outside_the_window_by_the_node_clock_is_found() {
    let mut early = ground_truth();
    early.updates[0].began = Some(Moment { node_time: at(99), true_time: at(101) });
    assert_eq!(broken_rules(&early, &[record()], &usual_log()), [Rule::NoStartWithoutPermit]);
    let mut untold = ground_truth();
    untold.delivered.clear();
    assert_eq!(broken_rules(&untold, &[record()], &usual_log()), [Rule::NoStartWithoutPermit]);
}

#[test]
fn two_open_runs_are_found() {
    let mut second = ground_truth();
    second.reports.push(report("started", Some(1), 160, 170));
    second.updates.push(EimUpdate { ended: None, ..second.updates[0].clone() });
    let open = run(2, None, &[("began", "applying", None, 161)]);
    let mut late = record();
    late.events[1].at = at(162);
    let broken = broken_rules(&second, &[late, open], &usual_log());
    assert!(broken.contains(&Rule::NoTwoOpenRuns), "{broken:?}");
}
