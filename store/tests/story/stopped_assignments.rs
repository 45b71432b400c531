//! Assignments that stop after failures, and how they are resumed.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::pause::PauseScope;
use evenkeel_store::assignments::{Assignment, Resumption};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Actor, Store, assignments, changes, pauses};

use crate::fixtures::NOON;
use crate::limit_usage::{
    LimitedFleet, create_fleet, end_run, failed_event, request_start, stage_run, usage_counts,
};

#[tokio::test]
async fn an_assignment_stops_after_failures_until_it_is_resumed() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 3, (None, Some(2))).await;
    for n in 0..2 {
        let run = stage_run(&store, &fleet, n).await;
        assert!(request_start(&store, &fleet, n, NOON).await.expect("an answer"));
        end_run(&store, &fleet, run.id, failed_event(), NOON).await;
    }
    stage_run(&store, &fleet, 2).await;
    assert_eq!(usage_counts(&store, &fleet, NOON).await, (0, 2));
    assert!(!request_start(&store, &fleet, 2, NOON).await.expect("an answer"));
    let later = NOON + TimeDelta::minutes(1);
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    assignments::resume(&tx, Scope::Project, &resumption(later)).await.expect("resumed");
    tx.commit().await.expect("committed");
    assert!(request_start(&store, &fleet, 2, later).await.expect("an answer"));
}

fn resumption(at: Time) -> Resumption {
    Resumption { at, by: "alice".into(), reason: "fixed".into() }
}

/// Resumes the assignment of the project and reads it back.
async fn resume_project(store: &Store, fleet: &LimitedFleet, at: Time) -> Assignment {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    assignments::resume(&tx, Scope::Project, &resumption(at)).await.expect("resumed");
    let assignment = assignments::find(&tx, Scope::Project, at).await.expect("assigned");
    tx.commit().await.expect("committed");
    assignment
}

/// Otherwise a repeated `resume`, sent because the first answer was lost, would forget later
/// failures.
#[tokio::test]
async fn resuming_an_assignment_that_has_not_stopped_retains_its_failures() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 2, (None, Some(2))).await;
    let mut runs = Vec::new();
    for n in 0..2 {
        runs.push(stage_run(&store, &fleet, n).await.id);
        assert!(request_start(&store, &fleet, n, NOON).await.expect("an answer"));
    }
    end_run(&store, &fleet, runs[0], failed_event(), NOON).await;
    let first = resume_project(&store, &fleet, NOON + TimeDelta::minutes(1)).await;
    assert_eq!((first.failures, first.resumption), (1, None));
    end_run(&store, &fleet, runs[1], failed_event(), NOON).await;
    let at = NOON + TimeDelta::minutes(2);
    let second = resume_project(&store, &fleet, at).await;
    let observed = (second.failures, second.resumption);
    assert_eq!(observed, (0, Some(resumption(at))));
}

#[tokio::test]
async fn the_change_log_names_who_resumed_and_why() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 1, (None, Some(1))).await;
    let run = stage_run(&store, &fleet, 0).await;
    assert!(request_start(&store, &fleet, 0, NOON).await.expect("an answer"));
    end_run(&store, &fleet, run.id, failed_event(), NOON).await;
    let actor = Actor {
        name: "alice".into(),
        request_id: "r-1".into(),
        client_address: "192.0.2.7".into(),
    };
    let tx = store.tenant_as(fleet.tenant, &actor).await.expect("a transaction");
    let at = NOON + TimeDelta::minutes(1);
    assignments::resume(&tx, Scope::Project, &resumption(at)).await.expect("resumed");
    let log = changes::list_for_resource(&tx, "assignment", 0).await.expect("a log");
    let last = log.last().expect("an entry");
    assert_eq!(last.actor.as_deref(), Some("alice"));
    let after = last.after.as_ref().expect("the row after the change");
    assert_eq!((&after["resumed_by"], &after["resume_reason"]), (&"alice".into(), &"fixed".into()));

    // A policy that is assigned again has no resumption.
    let find = async || assignments::find(&tx, Scope::Project, at).await;
    let assignment = find().await.expect("assigned");
    assignments::set(&tx, Scope::Project, assignment.policy, assignment.limits, at)
        .await
        .expect("assigned");
    assert_eq!(find().await.expect("assigned").resumption, None);
}

/// The clocks of servers differ: a failure recorded by one server may be later than the resumption
/// recorded by another.
#[tokio::test]
async fn a_failure_from_a_fast_clock_does_not_stop_a_resumed_assignment() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 2, (None, Some(1))).await;
    let run = stage_run(&store, &fleet, 0).await;
    assert!(request_start(&store, &fleet, 0, NOON).await.expect("an answer"));
    let ahead = NOON + TimeDelta::seconds(3);
    end_run(&store, &fleet, run.id, failed_event(), ahead).await;
    let assignment = resume_project(&store, &fleet, NOON).await;
    assert_eq!((assignment.failures, assignment.has_stopped()), (0, false));
    stage_run(&store, &fleet, 1).await;
    assert!(request_start(&store, &fleet, 1, NOON).await.expect("an answer"));
}

#[tokio::test]
async fn clearing_a_pause_does_not_resume_a_stopped_assignment() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 2, (None, Some(1))).await;
    let run = stage_run(&store, &fleet, 0).await;
    assert!(request_start(&store, &fleet, 0, NOON).await.expect("an answer"));
    end_run(&store, &fleet, run.id, failed_event(), NOON).await;
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    pauses::clear(&tx, PauseScope::Project).await.expect("cleared");
    tx.commit().await.expect("committed");
    let later = NOON + TimeDelta::minutes(1);
    assert_eq!(usage_counts(&store, &fleet, later).await, (0, 1));
    stage_run(&store, &fleet, 1).await;
    assert!(!request_start(&store, &fleet, 1, later).await.expect("an answer"));
}
