//! Nodes that are updated by images.

use evenkeel_simulator::ground_truth::{
    Attempt, AttemptEvent, DeliveredImage, EimGroundTruth, ImageReplacement, OwnGroundTruth,
    StartPermit,
};

use super::*;
use crate::history::operator_log::{DesiredImage, ImageRecord};

fn node() -> SimulatedMember {
    SimulatedMember { is_image: true, ..member() }
}

/// The usual log, with a policy for images, and with the images 3.0.1 to 3.0.3.
fn log_with_desired_image(desired: DesiredImage) -> OperatorLog {
    let mut log = usual_log();
    log.desired_images.insert(POLICY.into(), desired);
    let published = |number| ImageRecord {
        image: format!("3.0.{number}"),
        validity: Validity::since(action(1, 2)),
    };
    log.images = (1..=3).map(published).collect();
    log
}

fn change(from: u32, to: u32) -> ImageReplacement {
    ImageReplacement { from: format!("3.0.{from}"), to: format!("3.0.{to}") }
}

/// The usual attempt, for an image.
fn attempt(change: ImageReplacement) -> Attempt {
    Attempt {
        digest: format!("{POLICY}/os-00000001"),
        booted: Some(change.to.clone()),
        image: Some(change),
        ..super::own::attempt()
    }
}

/// The usual run, with image versions: the one before, the target, and the one that was booted in the end.
fn record(before: &str, target: &str, booted: &str) -> Run {
    Run { image: Some((before.into(), target.into(), booted.into())), ..super::own::record() }
}

fn broken_rules(attempts: Vec<Attempt>, runs: &[Run], log: &OperatorLog) -> Vec<Rule> {
    let ground_truth = OwnGroundTruth { attempts, facts_digest: Vec::new() };
    broken_own_rules(&node(), &ground_truth, runs, log)
}

fn broken_by_change(change: ImageReplacement, log: &OperatorLog) -> Vec<Rule> {
    let record = record(&change.from, &change.to, &change.to);
    broken_rules(vec![attempt(change)], &[record], log)
}

#[test]
fn our_own_agent_gets_no_undesired_image() {
    let newer = |number: u32| DesiredImage::NewerImage(format!("3.0.{number}"));
    assert_eq!(broken_by_change(change(1, 3), &log_with_desired_image(DesiredImage::Newest)), []);
    assert_eq!(broken_by_change(change(1, 2), &log_with_desired_image(newer(2))), []);
    let wrong = [Rule::NoUndesiredImage];
    assert_eq!(
        broken_by_change(change(1, 2), &log_with_desired_image(DesiredImage::Newest)),
        wrong,
        "not the newest"
    );
    assert_eq!(
        broken_by_change(change(1, 3), &log_with_desired_image(newer(2))),
        wrong,
        "another one"
    );
}

#[test]
fn our_own_agent_gets_an_older_image_only_if_the_policy_allows_it() {
    let back = DesiredImage::Image("3.0.2".into());
    assert_eq!(broken_by_change(change(3, 2), &log_with_desired_image(back)), []);
    let onward = DesiredImage::NewerImage("3.0.2".into());
    assert_eq!(
        broken_by_change(change(3, 2), &log_with_desired_image(onward)),
        [Rule::NoUndesiredImage]
    );
    assert_eq!(
        broken_by_change(change(4, 3), &log_with_desired_image(DesiredImage::Newest)),
        [Rule::NoUndesiredImage]
    );
}

#[test]
fn a_policy_for_packages_is_none_for_images() {
    let mut packages = log_with_desired_image(DesiredImage::Newest);
    packages.desired_images.clear();
    let broken = broken_by_change(change(1, 3), &packages);
    assert_eq!(broken, [Rule::NoStartWithoutPermit, Rule::NoUndesiredImage]);
}

/// An attempt at 3.0.2 that ended at 75 with this event, and a second attempt.
fn after_first_attempt(end: &'static str, second: Attempt) -> Vec<Attempt> {
    let event = |(name, time): (&'static str, i64)| AttemptEvent { name, at: moment(time) };
    let first = Attempt {
        id: Uuid::from_u128(9),
        events: [("downloading", 60), (end, 75)].map(event).to_vec(),
        acknowledged: 0,
        permit: None,
        ..attempt(change(1, 2))
    };
    vec![first, second]
}

/// The usual log with an order that was given between these seconds.
fn log_with_order(requested_at: i64, done: i64) -> OperatorLog {
    let mut log = log_with_desired_image(DesiredImage::Image("3.0.2".into()));
    log.windows.push(WindowRecord {
        scope: "inst-00000001".into(),
        window: (at(requested_at), at(300)),
        is_order: true,
        validity: Validity::since(action(requested_at, done)),
    });
    log
}

/// Rules that a second attempt at an image breaks, after a first attempt with this end.
fn broken_by_retry(end: &'static str, is_again: bool, log: &OperatorLog) -> Vec<Rule> {
    let second = Attempt { again: is_again, ..attempt(change(1, 2)) };
    let runs = [record("3.0.1", "3.0.2", "3.0.2")];
    broken_rules(after_first_attempt(end, second), &runs, log)
}

#[test]
fn a_reverted_image_is_retried_only_by_a_later_order() {
    let wrong = [Rule::NoRetryWithoutOrder];
    assert_eq!(broken_by_retry("reverted", true, &log_with_order(80, 85)), []);
    assert_eq!(broken_by_retry("reverted", true, &log_with_order(74, 76)), [], "just then");
    let unordered = log_with_desired_image(DesiredImage::Image("3.0.2".into()));
    assert_eq!(broken_by_retry("reverted", true, &unordered), wrong, "no order");
    let stale = log_with_order(65, 70);
    assert_eq!(broken_by_retry("reverted", true, &stale), wrong, "the order was earlier");
    let late = log_with_order(91, 92);
    assert_eq!(broken_by_retry("reverted", true, &late), wrong, "the order was later");
    let as_any = broken_by_retry("reverted", false, &log_with_order(80, 85));
    assert_eq!(as_any, wrong, "the node did not know that it is an order");
    assert_eq!(broken_by_retry("failed", false, &unordered), [], "it never ran");
}

#[test]
fn a_retry_of_a_failed_image_is_found_whatever_its_result() {
    let refused = Attempt {
        events: vec![AttemptEvent { name: "failed", at: moment(90) }],
        acknowledged: 0,
        permit: None,
        ..attempt(change(1, 2))
    };
    let broken =
        broken_rules(after_first_attempt("reverted", refused), &[], &log_with_order(80, 85));
    assert_eq!(broken, [Rule::NoRetryWithoutOrder]);
}

#[test]
fn a_failed_image_cannot_use_an_older_offline_grant() {
    let ahead = Attempt {
        again: true,
        permit: Some(StartPermit::Offline {
            requested_at: at(88),
            granted_at: at(88),
            windows: vec![(at(100), at(200))],
            expires: at(300),
        }),
        ..attempt(change(1, 2))
    };
    let runs = [record("3.0.1", "3.0.2", "3.0.2")];
    let broken =
        broken_rules(after_first_attempt("reverted", ahead), &runs, &log_with_order(80, 85));
    assert_eq!(broken, [Rule::NoRetryWithoutOrder]);
}

#[test]
fn one_order_allows_one_retry_and_a_later_success_clears_the_failure() {
    let between = |end: &'static str| {
        let mut second = after_first_attempt(end, attempt(change(1, 2))).remove(0);
        second.id = Uuid::from_u128(8);
        second.again = true;
        second.events[0].at = moment(80);
        second.events[1].at = moment(88);
        second
    };
    let tried = |end: &'static str, is_again: bool| {
        let third = Attempt { again: is_again, ..attempt(change(1, 2)) };
        let mut all = after_first_attempt("reverted", third);
        all.insert(1, between(end));
        let runs = [record("3.0.1", "3.0.2", "3.0.2")];
        // Between the first and the second.
        broken_rules(all, &runs, &log_with_order(76, 77))
    };
    assert_eq!(tried("reverted", true), [Rule::NoRetryWithoutOrder]);
    assert_eq!(tried("finished", false), []);
}

#[test]
fn a_record_of_another_image_than_the_one_that_ran_is_found() {
    let wrong = [Rule::BootedIsTrue];
    let log = log_with_desired_image(DesiredImage::Newest);
    let check = |runs: &[Run]| broken_rules(vec![attempt(change(1, 3))], runs, &log);
    assert_eq!(check(&[record("3.0.1", "3.0.3", "3.0.3")]), []);
    assert_eq!(check(&[record("3.0.1", "3.0.3", "3.0.1")]), wrong);
    assert_eq!(check(&[record("3.0.1", "3.0.3", "")]), wrong);
    assert_eq!(check(&[record("3.0.2", "3.0.3", "3.0.3")]), wrong);
    assert_eq!(check(&[record("3.0.1", "3.0.2", "3.0.3")]), wrong);
    assert_eq!(check(&[super::own::record()]), wrong, "no image is recorded");
}

#[test]
fn the_booted_image_is_recorded_with_the_end_and_not_before() {
    let silent = |booted: &str| {
        let mut attempt = attempt(change(1, 3));
        attempt.acknowledged = 3;
        attempt.forgotten = true;
        let mut run = record("3.0.1", "3.0.3", booted);
        run.events.pop();
        run.state = "applying".into();
        broken_rules(vec![attempt], &[run], &log_with_desired_image(DesiredImage::Newest))
    };
    assert_eq!(silent(""), []);
    assert_eq!(silent("3.0.3"), [Rule::BootedIsTrue], "it was not reported");
}

#[test]
fn a_run_for_packages_has_no_image() {
    let broken = broken_own_rules(
        &member(),
        &OwnGroundTruth { attempts: vec![super::own::attempt()], facts_digest: Vec::new() },
        &[record("3.0.1", "3.0.2", "3.0.2")],
        &usual_log(),
    );
    assert_eq!(broken, [Rule::BootedIsTrue]);
}

/// The usual node with EIM's agent that got these images: each with the running version, and from when to when.
fn node_with_deliveries(targets: &[(u32, u32, (i64, i64))]) -> EimGroundTruth {
    let mut ground_truth = super::eim::ground_truth();
    let target = |(image, running, (from, to)): &(u32, u32, (i64, i64))| DeliveredImage {
        version: format!("3.0.{image}"),
        running_version: format!("3.0.{running}"),
        first: (at(*from), at(*from)),
        last: (at(*to), at(*to)),
    };
    ground_truth.images = targets.iter().map(target).collect();
    ground_truth
}

/// The record is open from 103 to 112.
fn broken_by_eim(ground_truth: &EimGroundTruth, log: &OperatorLog) -> Vec<Rule> {
    broken_eim_rules(&node(), ground_truth, &[super::eim::record()], log)
}

#[test]
fn the_eim_agent_gets_no_undesired_image() {
    let newest = log_with_desired_image(DesiredImage::Newest);
    assert_eq!(broken_by_eim(&node_with_deliveries(&[(3, 1, (20, 110))]), &newest), []);
    let broken = broken_by_eim(&node_with_deliveries(&[(2, 1, (20, 110))]), &newest);
    assert_eq!(broken, [Rule::NoUndesiredImage]);
    let onward = log_with_desired_image(DesiredImage::NewerImage("3.0.2".into()));
    let broken = broken_by_eim(&node_with_deliveries(&[(2, 3, (20, 110))]), &onward);
    assert_eq!(broken, [Rule::NoUndesiredImage], "an older one");
    let back = log_with_desired_image(DesiredImage::Image("3.0.2".into()));
    assert_eq!(broken_by_eim(&node_with_deliveries(&[(2, 3, (20, 110))]), &back), []);
}

#[test]
fn the_eim_agent_gets_one_image_until_the_end() {
    let any = |number: u32| DesiredImage::Image(format!("3.0.{number}"));
    let mut log = log_with_desired_image(any(2));
    let other = "osupdatepolicy-00000002".to_owned();
    log.desired_images.insert(other.clone(), any(3));
    log.assignments.push(AssignmentRecord {
        scope: "project".into(),
        policy: other,
        validity: Validity::since(action(6, 7)),
    });
    let frozen = [Rule::TargetIsFrozen];
    let during = node_with_deliveries(&[(2, 1, (20, 105)), (3, 1, (107, 115))]);
    assert_eq!(broken_by_eim(&during, &log), frozen);
    let before = node_with_deliveries(&[(2, 1, (20, 101)), (3, 1, (102, 115))]);
    assert_eq!(broken_by_eim(&before, &log), [], "it had not begun");
    let after = node_with_deliveries(&[(2, 1, (20, 111)), (3, 2, (113, 115))]);
    assert_eq!(broken_by_eim(&after, &log), [], "the run had ended");
}

#[test]
fn only_the_frozen_image_is_delivered_until_the_end() {
    let mut log = log_with_desired_image(DesiredImage::Image("3.0.2".into()));
    log.assignments[0].validity.removed = Some(action(95, 96));
    let late = node_with_deliveries(&[(2, 1, (104, 110))]);
    assert_eq!(broken_by_eim(&late, &log), [], "the answer before was lost");
    let unwished = node_with_deliveries(&[(3, 1, (104, 110))]);
    assert_eq!(broken_by_eim(&unwished, &log), [Rule::NoUndesiredImage]);
    let changed = node_with_deliveries(&[(2, 1, (20, 90)), (3, 1, (104, 110))]);
    assert_eq!(broken_by_eim(&changed, &log), [Rule::NoUndesiredImage]);
    let back = node_with_deliveries(&[(2, 1, (20, 30)), (3, 1, (40, 90)), (2, 1, (104, 110))]);
    let mut earlier = log.clone();
    earlier.assignments[0].validity.removed = Some(action(35, 36));
    let other = "osupdatepolicy-00000002".to_owned();
    let third = DesiredImage::Image("3.0.3".into());
    earlier.desired_images.insert(other.clone(), third);
    earlier.assignments.push(AssignmentRecord {
        scope: "project".into(),
        policy: other,
        validity: Validity::since(action(35, 36)),
    });
    assert_eq!(
        broken_by_eim(&back, &earlier),
        [Rule::NoUndesiredImage],
        "another image had been delivered since"
    );
}

#[test]
fn a_window_without_an_image_is_found() {
    let mut empty = node_with_deliveries(&[]);
    empty.delivered[0].is_empty = true;
    let broken = broken_by_eim(&empty, &log_with_desired_image(DesiredImage::Newest));
    assert_eq!(broken, [Rule::NoUndesiredImage]);
}
