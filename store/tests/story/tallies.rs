//! How long lists are, by what was added and removed.

use chrono::TimeDelta;
use evenkeel_domain::filter::{Filter, Resource};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::run::{Patience, RunEvent, UpdateRun};
use evenkeel_domain::tenant::TenantId;
use evenkeel_migrations::{Migrator, names};
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::testing::{fresh_database, fresh_store};
use evenkeel_store::{Store, StoreOptions, Tx, hosts, instances, projects, runs, tallies};
use futures_util::future::{join, join_all};
use sea_orm::Database;
use sea_orm_migration::MigratorTrait;

use crate::house::{NOON, attempt, list, node, numbered, project, registration};

/// How many hosts, instances and runs there are, by tally and by looking at each.
async fn lengths_in(tx: &Tx) -> [u64; 3] {
    let mut lengths = [0; 3];
    let tallied = [Resource::Host, Resource::Instance, Resource::Run];
    for (resource, length) in tallied.into_iter().zip(&mut lengths) {
        let whole = list(resource, "", "");
        let each = Listing {
            filter: Some(Filter::All(Vec::new())),
            ..whole.clone()
        };
        *length = listing::count(tx, &whole).await.expect("a number");
        let looked_at = listing::count(tx, &each).await.expect("a number");
        assert_eq!(*length, looked_at, "{resource:?}");
    }
    lengths
}

async fn lengths(store: &Store, tenant: TenantId) -> [u64; 3] {
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    lengths_in(&tx).await
}

async fn ended_run(tx: &Tx, instance: &Instance, n: u128) -> UpdateRun {
    let done = numbered(RunEvent::NothingToDo, 1);
    let patience = Patience::default();
    let run = runs::advance(tx, attempt(instance, n), &done, &patience, NOON).await;
    run.expect("opened and over")
}

#[tokio::test]
async fn a_list_is_as_long_as_what_was_added_less_what_was_removed() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    assert_eq!(lengths(&store, ours).await, [0, 0, 0]);
    node(&store, theirs, 1).await;
    let (host, first) = node(&store, ours, 1).await;
    let (_, second) = node(&store, ours, 2).await;
    node(&store, ours, 3).await;
    assert_eq!(lengths(&store, ours).await, [3, 3, 0]);

    let tx = store.tenant(ours).await.expect("a transaction");
    ended_run(&tx, &first, 1).await;
    ended_run(&tx, &first, 2).await;
    let third = ended_run(&tx, &first, 3).await;
    ended_run(&tx, &second, 4).await;
    assert_eq!(lengths_in(&tx).await, [3, 3, 4]);
    tx.commit().await.expect("committed");
    let tx = store.tenant(ours).await.expect("a transaction");
    runs::delete(&tx, third.id).await.expect("deleted");
    tx.commit().await.expect("committed");
    assert_eq!(lengths(&store, ours).await, [3, 3, 3]);

    // Runs go with their instance.
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
    let expired = runs::expire(&tx, 30, later, 10).await;
    assert_eq!(expired.expect("expired"), 1);
    tx.commit().await.expect("committed");
    assert_eq!(lengths(&store, ours).await, [2, 2, 0]);
    assert_eq!(lengths(&store, theirs).await, [1, 1, 0]);
}

#[tokio::test]
async fn what_was_not_committed_is_not_counted() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    hosts::register(&tx, &registration(2), NOON)
        .await
        .expect("a host");
    assert_eq!(lengths_in(&tx).await, [2, 1, 0]);
    assert_eq!(lengths(&store, tenant).await, [1, 1, 0]);
    drop(tx);
    assert_eq!(lengths(&store, tenant).await, [1, 1, 0]);
}

/// Registers hosts, each by itself.
async fn register(store: &Store, tenant: TenantId, numbers: std::ops::Range<u128>) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    for n in numbers {
        hosts::register(&tx, &registration(n), NOON)
            .await
            .expect("a host");
    }
    tx.commit().await.expect("committed");
}

async fn fold(store: &Store) -> u64 {
    let tx = store.fleet().await.expect("a transaction");
    let folded = tallies::fold(&tx).await.expect("added up");
    tx.commit().await.expect("committed");
    folded
}

#[tokio::test]
async fn many_differences_become_one_whoever_adds_them_up_and_whatever_is_added_meanwhile() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    register(&store, theirs, 1..4).await;
    register(&store, ours, 1..151).await;
    let folds = join_all((0..4).map(|_| fold(&store)));
    let (folded, ()) = join(folds, register(&store, ours, 151..171)).await;
    let folded: u64 = folded.into_iter().sum();
    assert!(folded >= 150, "{folded}");
    assert_eq!(lengths(&store, ours).await, [170, 0, 0]);
    assert_eq!(lengths(&store, theirs).await, [3, 0, 0]);
    assert_eq!(fold(&store).await, 0, "what is left is few");
    assert_eq!(lengths(&store, ours).await, [170, 0, 0]);
}

#[tokio::test]
async fn a_reader_sees_the_same_length_before_and_after() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    register(&store, tenant, 1..151).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    assert_eq!(lengths_in(&tx).await, [150, 0, 0]);
    assert_eq!(fold(&store).await, 150);
    assert_eq!(lengths_in(&tx).await, [150, 0, 0]);
    assert_eq!(lengths(&store, tenant).await, [150, 0, 0]);
}

/// Each would wait for the other otherwise.
#[tokio::test]
async fn what_a_project_that_goes_has_left_is_not_added_up() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    register(&store, tenant, 1..151).await;
    let going = store.fleet().await.expect("a transaction");
    projects::delete(&going, tenant, true)
        .await
        .expect("it goes");
    assert_eq!(fold(&store).await, 0);
    going.commit().await.expect("committed");
    let none = "DO $$ BEGIN PERFORM set_config('evenkeel.tenant', '*', true); \
                IF EXISTS (SELECT FROM tallies) THEN RAISE 'tallies are left'; END IF; END $$";
    store.unprepared(none).await.expect("they went with it");
}

async fn connect(url: &str) -> Store {
    let store = Store::connect(url, StoreOptions::default()).await;
    store.expect("connected")
}

#[tokio::test]
async fn what_was_there_before_anybody_tallied_is_counted_as_well() {
    let url = fresh_database().await;
    let store = connect(&url).await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    let (_, instance) = node(&store, ours, 1).await;
    node(&store, ours, 2).await;
    node(&store, theirs, 1).await;
    let tx = store.tenant(ours).await.expect("a transaction");
    ended_run(&tx, &instance, 1).await;
    tx.commit().await.expect("committed");
    store.close().await;

    let since = names().skip_while(|name| *name != "20261123_000020_long_lists");
    let since = u32::try_from(since.count()).expect("a few steps");
    let db = Database::connect(&url).await.expect("connected");
    Migrator::down(&db, Some(since)).await.expect("undone");
    db.close().await.expect("closed");
    let store = connect(&url).await;
    store.migrate().await.expect("migrated");
    assert_eq!(lengths(&store, ours).await, [2, 2, 1]);
    assert_eq!(lengths(&store, theirs).await, [1, 1, 0]);
    node(&store, theirs, 2).await;
    assert_eq!(lengths(&store, theirs).await, [2, 2, 0]);
}

#[tokio::test]
async fn nothing_is_counted_in_a_table_that_was_emptied() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    node(&store, ours, 1).await;
    node(&store, theirs, 1).await;
    let empty = "TRUNCATE instances CASCADE";
    store.unprepared(empty).await.expect("emptied");
    assert_eq!(lengths(&store, ours).await, [1, 0, 0]);
    assert_eq!(lengths(&store, theirs).await, [1, 0, 0]);
}
