//! Which runs count as failures of an assignment.

use super::*;

#[tokio::test]
async fn a_run_that_fails_before_its_permit_counts() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 3, (None, Some(2))).await;
    for n in 0..2 {
        let run = stage_run(&store, &fleet, n).await;
        end_run(&store, &fleet, run.id, failed_event(), NOON).await;
    }
    assert_eq!(usage_counts(&store, &fleet, NOON).await, (0, 2));
    stage_run(&store, &fleet, 2).await;
    assert!(!request_start(&store, &fleet, 2, NOON).await.expect("an answer"));
}

/// A run that ends without a verdict says nothing about the quality of the update. A node without a
/// permit that goes away was not changed.
#[tokio::test]
async fn a_run_without_a_verdict_counts_only_if_it_timed_out_after_its_permit() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 5, (None, Some(9))).await;
    let late = NOON + TimeDelta::days(31);
    for (n, (is_permitted, event)) in [
        (true, RunEvent::Superseded),
        (true, RunEvent::Finished),
        (false, RunEvent::Superseded),
        (false, RunEvent::TimedOut),
    ]
    .into_iter()
    .enumerate()
    {
        let run = stage_run(&store, &fleet, n).await;
        if is_permitted {
            assert!(request_start(&store, &fleet, n, NOON).await.expect("an answer"));
        }
        end_run(&store, &fleet, run.id, event, late).await;
    }
    assert_eq!(usage_counts(&store, &fleet, late).await, (0, 0));
    let run = stage_run(&store, &fleet, 4).await;
    assert!(request_start(&store, &fleet, 4, NOON).await.expect("an answer"));
    end_run(&store, &fleet, run.id, RunEvent::TimedOut, late).await;
    assert_eq!(usage_counts(&store, &fleet, late).await, (0, 1));
}

#[tokio::test]
async fn a_run_that_failed_before_the_assignment_does_not_count() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 1, (None, Some(1))).await;
    let run = stage_run(&store, &fleet, 0).await;
    end_run(&store, &fleet, run.id, failed_event(), NOON).await;
    assert_eq!(usage_counts(&store, &fleet, NOON).await, (0, 1));
    let later = NOON + TimeDelta::minutes(1);
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let before = assignments::find(&tx, Scope::Project, NOON).await.expect("assigned");
    let again = assignments::set(&tx, Scope::Project, before.policy, before.limits, later).await;
    again.expect("assigned");
    tx.commit().await.expect("committed");
    assert_eq!(usage_counts(&store, &fleet, later).await, (0, 0));
}

#[tokio::test]
async fn a_failure_counts_for_the_assignment_of_its_run_only() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 3, (None, Some(9))).await;
    let site = create_site(&store, fleet.tenant, None).await;
    let policy = create_latest_policy(&store, fleet.tenant).await;
    let at_site = Scope::Site(site.id);
    assign(&store, fleet.tenant, at_site, policy.id, (None, Some(9))).await;
    move_to_site(&store, fleet.tenant, &fleet.nodes[0].0, site.id).await;
    let failures = async || {
        let tx = store.tenant(fleet.tenant).await.expect("a transaction");
        let count =
            async |scope| assignments::find(&tx, scope, NOON).await.expect("assigned").failures;
        (count(at_site).await, count(Scope::Project).await)
    };
    let planned = stage_run(&store, &fleet, 0).await;
    end_run(&store, &fleet, planned.id, failed_event(), NOON).await;
    assert_eq!(failures().await, (1, 0));
    // A permit under another assignment than the one under which the run opened decides.
    let permitted = stage_run(&store, &fleet, 1).await;
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    runs::grant(&tx, &permitted, Some(at_site), NOON).await.expect("granted");
    tx.commit().await.expect("committed");
    end_run(&store, &fleet, permitted.id, failed_event(), NOON).await;
    assert_eq!(failures().await, (2, 0));
    let elsewhere = stage_run(&store, &fleet, 2).await;
    end_run(&store, &fleet, elsewhere.id, failed_event(), NOON).await;
    assert_eq!(failures().await, (2, 1));
}
