//! Assignments that stop after failures, and how they go on.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::pause::PauseScope;
use evenkeel_store::assignments::{Assignment, Resumption};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Actor, Store, assignments, changes, pauses};

use crate::brake::{Fleet, asks, broken, ends, fleet, staged, used};
use crate::house::NOON;

#[tokio::test]
async fn it_stops_after_failures_until_it_is_resumed() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 3, (None, Some(2))).await;
    for n in 0..2 {
        let run = staged(&store, &fleet, n).await;
        assert!(asks(&store, &fleet, n, NOON).await.expect("an answer"));
        ends(&store, &fleet, run.id, broken(), NOON).await;
    }
    staged(&store, &fleet, 2).await;
    assert_eq!(used(&store, &fleet, NOON).await, (0, 2));
    assert!(!asks(&store, &fleet, 2, NOON).await.expect("an answer"));
    let later = NOON + TimeDelta::minutes(1);
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    assignments::resume(&tx, Scope::Project, &resumption(later))
        .await
        .expect("resumed");
    tx.commit().await.expect("committed");
    assert!(asks(&store, &fleet, 2, later).await.expect("an answer"));
}

fn resumption(at: Time) -> Resumption {
    Resumption {
        at,
        by: "alice".into(),
        reason: "mended".into(),
    }
}

/// Resumes the assignment of the project, and says what is told of it then.
async fn resumed(store: &Store, fleet: &Fleet, at: Time) -> Assignment {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    assignments::resume(&tx, Scope::Project, &resumption(at))
        .await
        .expect("resumed");
    let found = assignments::find(&tx, Scope::Project, at)
        .await
        .expect("assigned");
    tx.commit().await.expect("committed");
    found
}

/// Otherwise a second `resume`, sent because the answer to the first one was lost, would forget what failed since.
#[tokio::test]
async fn to_resume_what_has_not_stopped_forgets_no_failure() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 2, (None, Some(2))).await;
    let mut runs = Vec::new();
    for n in 0..2 {
        runs.push(staged(&store, &fleet, n).await.id);
        assert!(asks(&store, &fleet, n, NOON).await.expect("an answer"));
    }
    ends(&store, &fleet, runs[0], broken(), NOON).await;
    let first = resumed(&store, &fleet, NOON + TimeDelta::minutes(1)).await;
    assert_eq!((first.failures, first.resumption), (1, None));
    ends(&store, &fleet, runs[1], broken(), NOON).await;
    let at = NOON + TimeDelta::minutes(2);
    let second = resumed(&store, &fleet, at).await;
    let told = (second.failures, second.resumption);
    assert_eq!(told, (0, Some(resumption(at))));
}

#[tokio::test]
async fn who_resumed_it_and_why_is_in_the_change_log() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 1, (None, Some(1))).await;
    let run = staged(&store, &fleet, 0).await;
    assert!(asks(&store, &fleet, 0, NOON).await.expect("an answer"));
    ends(&store, &fleet, run.id, broken(), NOON).await;
    let actor = Actor {
        name: "alice".into(),
        request_id: "r-1".into(),
    };
    let tx = store
        .tenant_as(fleet.tenant, &actor)
        .await
        .expect("a transaction");
    let at = NOON + TimeDelta::minutes(1);
    assignments::resume(&tx, Scope::Project, &resumption(at))
        .await
        .expect("resumed");
    let log = changes::of(&tx, "assignment", 0).await.expect("a log");
    let last = log.last().expect("an entry");
    assert_eq!(last.actor.as_deref(), Some("alice"));
    let after = last.after.as_ref().expect("what it is now");
    assert_eq!(
        (&after["resumed_by"], &after["resume_reason"]),
        (&"alice".into(), &"mended".into())
    );

    // A policy that is assigned anew was never resumed.
    let find = async || assignments::find(&tx, Scope::Project, at).await;
    let found = find().await.expect("assigned");
    assignments::set(&tx, Scope::Project, found.policy, found.limits, at)
        .await
        .expect("assigned");
    assert_eq!(find().await.expect("assigned").resumption, None);
}

/// The clocks of servers differ: what one of them recorded as failed may be later than the instant at which another one
/// resumes.
#[tokio::test]
async fn a_failure_by_a_clock_that_is_ahead_does_not_stop_what_was_resumed() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 2, (None, Some(1))).await;
    let run = staged(&store, &fleet, 0).await;
    assert!(asks(&store, &fleet, 0, NOON).await.expect("an answer"));
    let ahead = NOON + TimeDelta::seconds(3);
    ends(&store, &fleet, run.id, broken(), ahead).await;
    let told = resumed(&store, &fleet, NOON).await;
    assert_eq!((told.failures, told.has_stopped()), (0, false));
    staged(&store, &fleet, 1).await;
    assert!(asks(&store, &fleet, 1, NOON).await.expect("an answer"));
}

#[tokio::test]
async fn to_take_a_pause_back_leaves_what_stopped_after_failures_alone() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 2, (None, Some(1))).await;
    let run = staged(&store, &fleet, 0).await;
    assert!(asks(&store, &fleet, 0, NOON).await.expect("an answer"));
    ends(&store, &fleet, run.id, broken(), NOON).await;
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    pauses::clear(&tx, PauseScope::Project)
        .await
        .expect("cleared");
    tx.commit().await.expect("committed");
    let later = NOON + TimeDelta::minutes(1);
    assert_eq!(used(&store, &fleet, later).await, (0, 1));
    staged(&store, &fleet, 1).await;
    assert!(!asks(&store, &fleet, 1, later).await.expect("an answer"));
}
