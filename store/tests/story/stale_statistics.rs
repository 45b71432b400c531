//! Query plans while tables grow faster than their statistics.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::run::{AttemptId, RunEvent, RunTimeouts, UpdateRun};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::decisions::{self, PlanningLimits, ReadMode};
use evenkeel_store::nodes::{self, MachineKey};
use evenkeel_store::runs::{self, EventBatch};
use evenkeel_store::testing::{fresh_store, rows_read, sequential_scans};
use evenkeel_store::{Store, Tx, schedules};
use uuid::Uuid;

use crate::fixtures::{
    NOON, assign, create_latest_policy, create_node, create_region, create_site, move_to_site,
    new_attempt, numbered_record, store_with_project, window,
};

/// Creates a node and one of each resource that its decision depends on.
async fn create_one_of_each(store: &Store, tenant: TenantId) -> (MachineKey, Instance) {
    let (host, instance) = create_node(store, tenant, 1).await;
    let inner = create_region(store, tenant, "ulm", None).await;
    let location = create_site(store, tenant, Some(inner.id)).await;
    move_to_site(store, tenant, &host, location.id).await;
    let policy = create_latest_policy(store, tenant).await;
    assign(store, tenant, Scope::Site(location.id), policy.id, (None, None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let nightly = window(ScheduleTarget::Site(location.id), 0, 4);
    let created = schedules::create(&tx, &nightly, NOON).await;
    created.expect("a schedule");
    tx.commit().await.expect("committed");
    (MachineKey::Host(host.id), instance)
}

/// Records an attempt from its beginning to its end.
async fn record_attempt(tx: &Tx, instance: &Instance, number: u128) -> UpdateRun {
    let rest = [
        numbered_record(RunEvent::Downloaded, 2),
        numbered_record(RunEvent::Began, 3),
        numbered_record(RunEvent::Finished, 4),
    ];
    let events = EventBatch {
        first: &numbered_record(RunEvent::Downloading, 1),
        rest: &rest,
        timeouts: &RunTimeouts::default(),
        now: NOON,
    };
    let run = runs::advance_all(tx, new_attempt(instance, number), &events, &mut |_| {}).await;
    run.expect("advanced")
}

/// Does everything that a report with one complete attempt does.
async fn send_report(tx: &Tx, machine: MachineKey, instance: &Instance, number: u128) {
    let locked = nodes::lock_with_host(tx, machine).await;
    let (host, mut node) = locked.expect("locked");
    let (planning_limits, reading) = (PlanningLimits::default(), ReadMode::Preview(NOON));
    let input = decisions::load_decision_input(tx, &host, &node, &planning_limits, reading).await;
    let input = input.expect("a decision input");
    assert_eq!(input.desired.policies.len(), 1);
    let name = AttemptId(Uuid::from_u128(number));
    let existing = runs::find_attempt(tx, node.instance, name).await;
    assert!(existing.expect("an answer").is_none());
    let run = record_attempt(tx, instance, number).await;
    node.reflect(&run, NOON);
    nodes::save(tx, &node).await.expect("saved");
}

/// With one row in each table, a sequential scan is the cheapest plan. A prepared plan of that kind
/// would stay in use while thousands of nodes report for the first time.
#[tokio::test]
async fn a_report_never_scans_a_table_even_if_it_is_short() {
    let (store, tenant) = store_with_project().await;
    let (machine, instance) = create_one_of_each(&store, tenant).await;
    store.analyze().await.expect("analyzed");
    let tx = store.tenant(tenant).await.expect("a transaction");
    let before = sequential_scans(&tx).await;
    send_report(&tx, machine, &instance, 1).await;
    assert_eq!(sequential_scans(&tx).await, before);

    // Control: where the planner is free, as for a list, it scans the short table.
    let free = store.snapshot(tenant).await.expect("a snapshot");
    let before = sequential_scans(&free).await;
    nodes::find_with_host(&free, machine).await.expect("a node");
    assert_ne!(sequential_scans(&free).await, before);
}

/// While a table is new, the planner has no statistics, and a connection keeps its prepared plan.
/// One node had runs when the plan was made; a hundred have when the node reports again.
#[tokio::test]
async fn a_report_reads_no_more_rows_when_other_nodes_have_runs() {
    let (store, tenant) = store_with_project().await;
    let (machine, instance) = create_one_of_each(&store, tenant).await;
    let mut others = Vec::new();
    for number in 2..=100 {
        others.push(create_node(&store, tenant, number).await.1);
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    // Postgres keeps the sixth plan of a prepared statement.
    for number in 1..=6 {
        send_report(&tx, machine, &instance, number).await;
    }
    let before = run_rows_read(&tx, machine, &instance, 7).await;
    for (number, other) in (1_001..).zip(&others) {
        record_attempt(&tx, other, number).await;
    }
    for (number, other) in (2_001..).zip(&others) {
        let first = numbered_record(RunEvent::Downloading, 1);
        let timeouts = RunTimeouts::default();
        let open = runs::advance(&tx, new_attempt(other, number), &first, &timeouts, NOON).await;
        open.expect("begun");
    }
    let after = run_rows_read(&tx, machine, &instance, 8).await;
    assert!((1..100).contains(&before), "{before}");
    assert!(after < before + 20, "{after} rows instead of {before}");
}

/// Number of rows of `update_runs` that a report reads.
async fn run_rows_read(tx: &Tx, machine: MachineKey, instance: &Instance, number: u128) -> i64 {
    let before = rows_read(tx, "update_runs").await;
    send_report(tx, machine, instance, number).await;
    rows_read(tx, "update_runs").await - before
}

/// Of indexes with equal cost the planner takes the newest (docs/adr/0023).
#[tokio::test]
async fn indexes_of_runs_have_the_order_that_the_planner_needs() {
    let store = fresh_store().await;
    let sql = "DO $$ DECLARE found text; BEGIN \
               SELECT string_agg(c.relname, ' ' ORDER BY c.oid DESC) INTO found FROM pg_index i \
               JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = 'update_runs'::regclass; \
               IF found NOT LIKE 'one_open_run_per_instance update_runs_permitted update_runs_open update_runs_failures '
               'update_runs_attempt update_runs_policy update_runs_pkey %' THEN \
               RAISE 'newest first: %', found; END IF; END $$";
    store.execute_unprepared(sql).await.expect("indexes in this order");
}
