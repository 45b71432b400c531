//! How much a small change of a large row writes.

use evenkeel_domain::package::{ObservedPackage, PackageChange, PackageResult};
use evenkeel_domain::run::{RunEvent, RunTimeouts};
use evenkeel_store::runs::{self, Subject};
use evenkeel_store::testing::fresh_database;
use evenkeel_store::{Store, StoreOptions, nodes};
use sea_orm::{ConnectionTrait, Database, DatabaseConnection, DbBackend, Statement};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::fixtures::{NOON, create_node, create_project, new_attempt, numbered_record};

/// Small changes; with each, a table may grow by its row without the long columns.
const CHANGES: u32 = 20;
const MAX_GROWTH_PER_CHANGE: i64 = 8 << 10;

/// Long enough that a rewrite shows, and short enough for a quick test.
const ENTRIES: u128 = 10_000;

async fn store_and_connection() -> (Store, DatabaseConnection) {
    let url = fresh_database().await;
    let store = Store::connect(&url, StoreOptions::default()).await.expect("a store");
    (store, Database::connect(&url).await.expect("connected"))
}

/// The size of a table with its long values and without its indexes, in bytes.
async fn table_size(db: &DatabaseConnection, table: &str) -> i64 {
    let query = format!("SELECT pg_table_size('{table}')");
    let query = Statement::from_string(DbBackend::Postgres, query);
    let row = db.query_one_raw(query).await.expect("answered");
    row.expect("a row").try_get_by_index(0).expect("a number")
}

/// A text that Postgres cannot compress.
fn random_text(n: u128) -> String {
    let seed = Uuid::from_u128(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    Uuid::new_v5(&seed, b"text").simple().to_string()
}

#[tokio::test]
async fn a_small_event_does_not_write_a_large_plan_again() {
    let (store, db) = store_and_connection().await;
    let tenant = create_project(&store, "ours").await;
    let (_, instance) = create_node(&store, tenant, 1).await;
    let change = |n| PackageChange {
        name: random_text(n),
        architecture: "all".into(),
        before: None,
        desired: Some(random_text(n + ENTRIES)),
        ..PackageChange::default()
    };
    let mut first = numbered_record(RunEvent::Downloading, 1);
    first.evidence.plan = Some((0..ENTRIES).map(change).collect());
    let timeouts = RunTimeouts::default();
    let tx = store.tenant(tenant).await.expect("a transaction");
    let opened = runs::advance(&tx, new_attempt(&instance, 1), &first, &timeouts, NOON).await;
    let run = opened.expect("opened");
    tx.commit().await.expect("committed");

    let before = table_size(&db, "update_runs").await;
    for number in 2..2 + CHANGES {
        let event = if number % 2 == 0 { RunEvent::RebootBegun } else { RunEvent::VerifyBegun };
        let event = numbered_record(event, number);
        let tx = store.tenant(tenant).await.expect("a transaction");
        let moved = runs::advance(&tx, Subject::Run(run.id), &event, &timeouts, NOON).await;
        moved.expect("moved");
        tx.commit().await.expect("committed");
    }
    let growth = table_size(&db, "update_runs").await - before;
    let limit = i64::from(CHANGES) * MAX_GROWTH_PER_CHANGE;
    assert!(before > 2 * limit && growth <= limit, "from {before} by {growth}");
    // The results of the end are added to the stored plan.
    let mut end = numbered_record(RunEvent::Finished, 2 + CHANGES);
    let observed = ObservedPackage { version: None, state: "installed".into() };
    end.evidence.results = vec![PackageResult {
        name: run.packages[7].name.clone(),
        architecture: "all".into(),
        observed: observed.clone(),
    }];
    let tx = store.tenant(tenant).await.expect("a transaction");
    runs::advance(&tx, Subject::Run(run.id), &end, &timeouts, NOON).await.expect("moved");
    let mut expected = run.packages;
    expected[7].observed = Some(observed);
    assert_eq!(runs::find(&tx, run.id).await.expect("found").packages, expected);
}

#[tokio::test]
async fn a_small_change_of_a_node_does_not_write_its_facts_again() {
    let (store, db) = store_and_connection().await;
    let tenant = create_project(&store, "ours").await;
    let (host, _) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.facts = json!({"heldBack": (0..ENTRIES).map(random_text).collect::<Value>()});
    node.os_update_available = (0..ENTRIES).map(random_text).collect();
    nodes::save(&tx, &node).await.expect("saved");
    tx.commit().await.expect("committed");

    let before = table_size(&db, "node_states").await;
    for number in 0..CHANGES {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let locked = nodes::lock(&tx, host.id).await.expect("locked");
        node = nodes::NodeState { waiting: format!("for {number}"), ..locked.clone() };
        nodes::save_changes(&tx, &locked, &node).await.expect("saved");
        tx.commit().await.expect("committed");
    }
    let growth = table_size(&db, "node_states").await - before;
    let limit = i64::from(CHANGES) * MAX_GROWTH_PER_CHANGE;
    assert!(before > 2 * limit && growth <= limit, "from {before} by {growth}");
    let tx = store.tenant(tenant).await.expect("a transaction");
    assert_eq!(nodes::lock(&tx, host.id).await.expect("locked"), node);
}
