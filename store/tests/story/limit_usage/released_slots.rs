//! The release of slots.

use super::*;

#[tokio::test]
async fn a_run_that_ends_at_once_releases_its_slot() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 1, (Some(1), Some(9))).await;
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let until = NOON + TimeDelta::hours(1);
    limit_usage::take_slot(&tx, Scope::Project, fleet.nodes[0].1.id, Some(until), NOON)
        .await
        .expect("slot taken");
    tx.commit().await.expect("committed");
    record_sample(&store, &fleet, 0, failed_event(), NOON).await;
    assert_eq!(usage_counts(&store, &fleet, NOON).await, (0, 1));
}

/// Housekeeping deletes slots whose grace period has passed.
#[tokio::test]
async fn a_run_that_ends_at_once_releases_only_an_unexpired_slot() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 1, (Some(1), Some(9))).await;
    let (counting, sent) = counting_store(&store);
    let statements = async |at: Time| {
        let before = sent.statements.load(Ordering::Relaxed);
        record_sample(&counting, &fleet, 0, failed_event(), at).await;
        sent.statements.load(Ordering::Relaxed) - before
    };
    let without = statements(NOON).await;
    let until = NOON + TimeDelta::hours(1);
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    limit_usage::take_slot(&tx, Scope::Project, fleet.nodes[0].1.id, Some(until), NOON)
        .await
        .expect("slot taken");
    tx.commit().await.expect("committed");
    let late = until + TimeDelta::hours(25);
    assert_eq!(statements(late).await, without, "its grace period has passed");
    assert_eq!(usage_counts(&store, &fleet, late).await.0, 0);
    assert_eq!(statements(NOON).await, without + 1, "one statement releases the slot");
    let tx = store.fleet().await.expect("a transaction");
    let cleaned = limit_usage::delete_expired_slots(&tx, late, 100).await.expect("cleaned");
    assert_eq!(cleaned, 0);
}

#[tokio::test]
async fn a_slot_is_deleted_with_its_instance_and_after_its_grace_period() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 2, (Some(1), None)).await;
    let until = NOON + TimeDelta::hours(1);
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    for (_, instance) in &fleet.nodes {
        limit_usage::take_slot(&tx, Scope::Project, instance.id, Some(until), NOON)
            .await
            .expect("slot taken");
    }
    instances::delete(&tx, fleet.nodes[0].1.id).await.expect("deleted");
    hosts::delete(&tx, fleet.nodes[0].0.id).await.expect("deleted");
    tx.commit().await.expect("committed");
    assert_eq!(usage_counts(&store, &fleet, NOON).await.0, 1);
    let tx = store.fleet().await.expect("a transaction");
    let later = until + TimeDelta::hours(25);
    let cleaned = limit_usage::delete_expired_slots(&tx, later, 100).await.expect("cleaned");
    assert_eq!(cleaned, 1);
}
