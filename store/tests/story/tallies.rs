//! Lengths of lists, computed from tallies of inserts and deletes.

use chrono::TimeDelta;
use evenkeel_domain::filter::{Filter, Resource};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::run::{RunEvent, RunTimeouts, UpdateRun};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::{Store, Tx, hosts, instances, projects, runs, tallies};
use futures_util::future::{join, join_all};

use crate::fixtures::{
    NOON, create_node, new_attempt, numbered_record, parse_listing, registration,
    remove_deleted_projects, store_with_project, store_with_two_projects,
};

/// Number of hosts, instances and runs. Fails unless the tally equals a count of the rows.
async fn lengths_in(tx: &Tx) -> [u64; 3] {
    let mut lengths = [0; 3];
    let tallied = [Resource::Host, Resource::Instance, Resource::Run];
    for (resource, length) in tallied.into_iter().zip(&mut lengths) {
        let unfiltered = parse_listing(resource, "", "");
        let each = Listing { filter: Some(Filter::All(Vec::new())), ..unfiltered.clone() };
        *length = listing::count(tx, &unfiltered).await.expect("a number");
        let looked_at = listing::count(tx, &each).await.expect("a number");
        assert_eq!(*length, looked_at, "{resource:?}");
    }
    lengths
}

async fn lengths(store: &Store, tenant: TenantId) -> [u64; 3] {
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    lengths_in(&tx).await
}

async fn create_ended_run(tx: &Tx, instance: &Instance, n: u128) -> UpdateRun {
    let done = numbered_record(RunEvent::NothingToDo, 1);
    let timeouts = RunTimeouts::default();
    let run = runs::advance(tx, new_attempt(instance, n), &done, &timeouts, NOON).await;
    run.expect("opened and ended")
}

#[tokio::test]
async fn the_length_of_a_list_is_inserts_minus_deletes() {
    let (store, ours, theirs) = store_with_two_projects().await;
    assert_eq!(lengths(&store, ours).await, [0, 0, 0]);
    create_node(&store, theirs, 1).await;
    let (host, first) = create_node(&store, ours, 1).await;
    let (_, second) = create_node(&store, ours, 2).await;
    create_node(&store, ours, 3).await;
    assert_eq!(lengths(&store, ours).await, [3, 3, 0]);

    let tx = store.tenant(ours).await.expect("a transaction");
    create_ended_run(&tx, &first, 1).await;
    create_ended_run(&tx, &first, 2).await;
    let third = create_ended_run(&tx, &first, 3).await;
    create_ended_run(&tx, &second, 4).await;
    assert_eq!(lengths_in(&tx).await, [3, 3, 4]);
    tx.commit().await.expect("committed");
    let tx = store.tenant(ours).await.expect("a transaction");
    runs::delete(&tx, third.id).await.expect("deleted");
    tx.commit().await.expect("committed");
    assert_eq!(lengths(&store, ours).await, [3, 3, 3]);

    // Runs are deleted with their instance.
    let tx = store.tenant(ours).await.expect("a transaction");
    instances::delete(&tx, first.id).await.expect("deleted");
    assert_eq!(lengths_in(&tx).await, [3, 2, 1]);
    tx.commit().await.expect("committed");
    let tx = store.tenant(ours).await.expect("a transaction");
    hosts::delete(&tx, host.id).await.expect("deleted");
    tx.commit().await.expect("committed");
    assert_eq!(lengths(&store, ours).await, [2, 2, 1]);

    let tx = store.fleet().await.expect("a transaction");
    let later = NOON + TimeDelta::days(40);
    let expired = runs::delete_expired(&tx, 30, later, 10).await;
    assert_eq!(expired.expect("expired"), 1);
    tx.commit().await.expect("committed");
    assert_eq!(lengths(&store, ours).await, [2, 2, 0]);
    assert_eq!(lengths(&store, theirs).await, [1, 1, 0]);
}

#[tokio::test]
async fn uncommitted_rows_are_not_counted() {
    let (store, tenant) = store_with_project().await;
    create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    hosts::register(&tx, &registration(2), NOON).await.expect("a host");
    assert_eq!(lengths_in(&tx).await, [2, 1, 0]);
    assert_eq!(lengths(&store, tenant).await, [1, 1, 0]);
    drop(tx);
    assert_eq!(lengths(&store, tenant).await, [1, 1, 0]);
}

/// Registers hosts in one transaction.
async fn register_hosts(store: &Store, tenant: TenantId, numbers: std::ops::Range<u128>) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    for n in numbers {
        hosts::register(&tx, &registration(n), NOON).await.expect("a host");
    }
    tx.commit().await.expect("committed");
}

async fn fold(store: &Store) -> u64 {
    let tx = store.fleet().await.expect("a transaction");
    let folded = tallies::fold(&tx).await.expect("folded");
    tx.commit().await.expect("committed");
    folded
}

#[tokio::test]
async fn concurrent_folds_and_inserts_preserve_the_length() {
    let (store, ours, theirs) = store_with_two_projects().await;
    register_hosts(&store, theirs, 1..4).await;
    register_hosts(&store, ours, 1..151).await;
    let folds = join_all((0..4).map(|_| fold(&store)));
    let (folded, ()) = join(folds, register_hosts(&store, ours, 151..171)).await;
    let folded: u64 = folded.into_iter().sum();
    assert!(folded >= 150, "{folded}");
    assert_eq!(lengths(&store, ours).await, [170, 0, 0]);
    assert_eq!(lengths(&store, theirs).await, [3, 0, 0]);
    assert_eq!(fold(&store).await, 0, "too few rows to fold");
    assert_eq!(lengths(&store, ours).await, [170, 0, 0]);
}

#[tokio::test]
async fn a_snapshot_has_the_same_length_before_and_after_a_fold() {
    let (store, tenant) = store_with_project().await;
    register_hosts(&store, tenant, 1..151).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    assert_eq!(lengths_in(&tx).await, [150, 0, 0]);
    assert_eq!(fold(&store).await, 150);
    assert_eq!(lengths_in(&tx).await, [150, 0, 0]);
    assert_eq!(lengths(&store, tenant).await, [150, 0, 0]);
}

/// Otherwise the deletion and the fold would wait for each other.
#[tokio::test]
async fn tallies_of_a_project_being_deleted_are_not_folded() {
    let (store, tenant) = store_with_project().await;
    register_hosts(&store, tenant, 1..151).await;
    let going = store.fleet().await.expect("a transaction");
    projects::delete(&going, tenant, true, NOON).await.expect("deleted");
    assert_eq!(fold(&store).await, 0);
    going.commit().await.expect("committed");
    remove_deleted_projects(&store, 100).await;
    let none = "DO $$ BEGIN PERFORM set_config('evenkeel.tenant', '*', true); \
                IF EXISTS (SELECT FROM tallies) THEN RAISE 'tallies are left'; END IF; END $$";
    store.execute_unprepared(none).await.expect("no tallies");
}

#[tokio::test]
async fn an_emptied_table_has_the_length_zero() {
    let (store, ours, theirs) = store_with_two_projects().await;
    create_node(&store, ours, 1).await;
    create_node(&store, theirs, 1).await;
    let empty = "TRUNCATE instances CASCADE";
    store.execute_unprepared(empty).await.expect("emptied");
    assert_eq!(lengths(&store, ours).await, [1, 0, 0]);
    assert_eq!(lengths(&store, theirs).await, [1, 0, 0]);
}
