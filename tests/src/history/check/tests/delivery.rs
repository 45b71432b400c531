//! Windows that EIM's agents receive: every answer is checked, not only the first.

use evenkeel_simulator::eim::cron::RepeatedWindows;
use evenkeel_simulator::ground_truth::{DeliveredSchedule, EimGroundTruth, EimSchedule};

use super::eim::{ground_truth, record};
use super::*;
use crate::history::operator_log::{PauseRecord, ScheduleRecord};

fn broken_rules(ground_truth: &EimGroundTruth, log: &OperatorLog) -> Vec<Rule> {
    broken_eim_rules(&member(), ground_truth, &[record()], log)
}

/// The usual window, delivered once more in an answer to a request at 120.
fn still_delivered() -> EimGroundTruth {
    let mut ground_truth = ground_truth();
    ground_truth.delivered[0].answers.push((at(120), at(121)));
    ground_truth
}

#[test]
fn a_window_that_is_still_delivered_in_a_pause_is_found() {
    let mut paused = usual_log();
    let validity = Validity::since(action(110, 111));
    paused.pauses.push(PauseRecord { scope: "project".into(), validity });
    assert_eq!(broken_rules(&ground_truth(), &paused), [], "it was delivered before the pause");
    assert_eq!(broken_rules(&still_delivered(), &paused), [Rule::NoStartWithoutPermit]);
    paused.pauses[0].validity.created.done_at = Some(at(121));
    assert_eq!(broken_rules(&still_delivered(), &paused), [], "it may have come first");
    paused.pauses[0].validity =
        Validity { created: action(110, 111), removed: Some(action(115, 116)) };
    assert_eq!(broken_rules(&still_delivered(), &paused), [], "the pause had ended");
}

#[test]
fn a_window_that_is_delivered_while_every_possible_policy_is_paused_is_found() {
    let validity = || Validity::since(action(110, 111));
    let mut paused = usual_log();
    paused.pauses.push(PauseRecord { scope: POLICY.into(), validity: validity() });
    assert_eq!(broken_rules(&ground_truth(), &paused), []);
    assert_eq!(broken_rules(&still_delivered(), &paused), [Rule::NoStartWithoutPermit]);
    let other = "osupdatepolicy-00000002";
    paused.assignments.push(AssignmentRecord {
        scope: "project".into(),
        policy: other.into(),
        validity: Validity::since(action(6, 7)),
    });
    assert_eq!(broken_rules(&still_delivered(), &paused), [], "the other one may apply");
    paused.pauses.push(PauseRecord { scope: other.into(), validity: validity() });
    assert_eq!(broken_rules(&still_delivered(), &paused), [Rule::NoStartWithoutPermit]);
}

#[test]
fn a_window_that_is_still_delivered_after_its_removal_is_found() {
    let mut closed = usual_log();
    closed.windows[0].validity.removed = Some(action(110, 111));
    assert_eq!(broken_rules(&ground_truth(), &closed), []);
    assert_eq!(broken_rules(&still_delivered(), &closed), [Rule::NoStartWithoutPermit]);
    let mut unwished = usual_log();
    unwished.assignments[0].validity.removed = Some(action(110, 111));
    assert_eq!(broken_rules(&ground_truth(), &unwished), []);
    assert_eq!(broken_rules(&still_delivered(), &unwished), [Rule::NoStartWithoutPermit]);
}

#[test]
fn a_window_that_is_still_delivered_after_its_cancellation_is_found() {
    let mut cancelled = usual_log();
    cancelled.cancellations.push(("inst-00000001".into(), action(110, 111)));
    assert_eq!(broken_rules(&ground_truth(), &cancelled), []);
    assert_eq!(broken_rules(&still_delivered(), &cancelled), [Rule::NoStartWithoutPermit]);
    // Windows that open after the cancellation are valid.
    cancelled.cancellations[0].1 = action(90, 91);
    assert_eq!(broken_rules(&still_delivered(), &cancelled), []);
}

#[test]
fn a_replaced_order_is_not_delivered_any_more() {
    let mut ordered = usual_log();
    ordered.windows[0].scope = "inst-00000001".into();
    ordered.windows[0].is_order = true;
    assert_eq!(broken_rules(&still_delivered(), &ordered), []);
    ordered.windows[0].validity.removed = Some(action(110, 111));
    assert_eq!(broken_rules(&still_delivered(), &ordered), [Rule::NoStartWithoutPermit]);
}

/// A node that got a schedule for each second minute of an hour, 80 seconds long, and started in it.
fn repeating() -> EimGroundTruth {
    let mut ground_truth = ground_truth();
    ground_truth.delivered[0].schedule = EimSchedule::Repeated(second_minute());
    ground_truth.updates[0].window = Some((at(120), at(200)));
    ground_truth.updates[0].began = Some(moment(120));
    ground_truth
}

fn second_minute() -> RepeatedWindows {
    RepeatedWindows::parse(["2", "*", "*", "*", "*"], 80).expect("a cron")
}

fn repeated() -> OperatorLog {
    let mut log = usual_log();
    log.windows.clear();
    log.repeated_schedules.push(ScheduleRecord {
        scope: "site-00000001".into(),
        schedule: second_minute(),
        validity: Validity::since(action(10, 11)),
    });
    log
}

#[test]
fn a_repeated_schedule_follows_the_rules_of_a_window() {
    assert_eq!(broken_rules(&repeating(), &repeated()), []);
    assert_eq!(broken_rules(&repeating(), &usual_log()), [Rule::NoStartWithoutPermit]);
    let mut taken_back = repeated();
    taken_back.repeated_schedules[0].validity.removed = Some(action(30, 31));
    assert_eq!(broken_rules(&repeating(), &taken_back), [Rule::NoStartWithoutPermit]);
    let mut elsewhere = repeating();
    elsewhere.updates[0].window = Some((at(180), at(260)));
    elsewhere.updates[0].began = Some(moment(180));
    assert_eq!(
        broken_rules(&elsewhere, &repeated()),
        [Rule::NoStartWithoutPermit],
        "not in its minutes"
    );
}

#[test]
fn a_cancelled_window_of_a_schedule_is_not_delivered_while_it_is_open() {
    let mut cancelled = repeated();
    cancelled.cancellations.push(("inst-00000001".into(), action(130, 131)));
    let mut still_delivered = repeating();
    still_delivered.delivered[0].answers.push((at(140), at(141)));
    assert_eq!(broken_rules(&still_delivered, &cancelled), [Rule::NoStartWithoutPermit]);
    still_delivered.delivered[0].answers[2] = (at(205), at(206));
    assert_eq!(broken_rules(&still_delivered, &cancelled), [], "the window had ended");
}

#[test]
fn a_schedule_may_be_delivered_window_by_window() {
    let mut one_by_one = repeating();
    one_by_one.delivered[0] = DeliveredSchedule {
        schedule: EimSchedule::Single((at(120), at(200))),
        ..one_by_one.delivered[0].clone()
    };
    assert_eq!(broken_rules(&one_by_one, &repeated()), []);
    one_by_one.delivered[0].schedule = EimSchedule::Single((at(60), at(140)));
    one_by_one.updates[0].window = Some((at(60), at(140)));
    assert_eq!(broken_rules(&one_by_one, &repeated()), [Rule::NoStartWithoutPermit]);
}
