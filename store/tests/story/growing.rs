//! Tables that grow faster than the database takes note of it.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::run::{AttemptId, Patience, RunEvent, UpdateRun};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::decisions::{self, Horizon, Reading};
use evenkeel_store::nodes::{self, Machine};
use evenkeel_store::runs::{self, Together};
use evenkeel_store::testing::{fresh_store, looked_at, read_whole};
use evenkeel_store::{Store, Tx, schedules};
use uuid::Uuid;

use crate::house::{
    NOON, assign, attempt, latest, node, numbered, project, region, site, stands_at, window,
};

/// One of each thing that a decision about a node is made from, and the node.
async fn one_of_each(store: &Store, tenant: TenantId) -> (Machine, Instance) {
    let (host, instance) = node(store, tenant, 1).await;
    let inner = region(store, tenant, "ulm", None).await;
    let place = site(store, tenant, Some(inner.id)).await;
    stands_at(store, tenant, &host, place.id).await;
    let policy = latest(store, tenant).await;
    assign(
        store,
        tenant,
        Scope::Site(place.id),
        policy.id,
        (None, None),
    )
    .await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let nightly = window(ScheduleTarget::Site(place.id), 0, 4);
    let made = schedules::create(&tx, &nightly, NOON).await;
    made.expect("a schedule");
    tx.commit().await.expect("committed");
    (Machine::Host(host.id), instance)
}

/// An attempt from its beginning to its end.
async fn whole_attempt(tx: &Tx, instance: &Instance, number: u128) -> UpdateRun {
    let rest = [
        numbered(RunEvent::Downloaded, 2),
        numbered(RunEvent::Began, 3),
        numbered(RunEvent::Finished, 4),
    ];
    let events = Together {
        first: &numbered(RunEvent::Downloading, 1),
        rest: &rest,
        patience: &Patience::default(),
        now: NOON,
    };
    let run = runs::advance_by(tx, attempt(instance, number), &events, &mut |_| {}).await;
    run.expect("told")
}

/// All that a report does which tells a whole attempt: the one with this number.
async fn report(tx: &Tx, machine: Machine, instance: &Instance, number: u128) {
    let locked = nodes::lock_with_host(tx, machine).await;
    let (host, mut node) = locked.expect("locked");
    let (horizon, reading) = (Horizon::default(), Reading::Look(NOON));
    let world = decisions::world(tx, &host, &node, &horizon, reading).await;
    let world = world.expect("a world");
    assert_eq!(world.wanted.policies.len(), 1);
    let name = AttemptId(Uuid::from_u128(number));
    let known = runs::find_attempt(tx, node.instance, name).await;
    assert!(known.expect("looked for").is_none());
    let run = whole_attempt(tx, instance, number).await;
    node.reflect(&run, NOON);
    nodes::save(tx, &node).await.expect("saved");
}

/// With one row in each, to read a whole table is the cheapest way to a row, and a plan that does so is kept while
/// thousands of nodes begin for the first time.
#[tokio::test]
async fn a_report_never_looks_through_a_whole_table_even_if_it_is_short() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (machine, instance) = one_of_each(&store, tenant).await;
    store.analyze().await.expect("analyzed");
    let tx = store.tenant(tenant).await.expect("a transaction");
    let before = read_whole(&tx).await;
    report(&tx, machine, &instance, 1).await;
    assert_eq!(read_whole(&tx).await, before);

    // The control: where the planner is free, as for a list, it takes the short table whole.
    let free = store.snapshot(tenant).await.expect("a snapshot");
    let before = read_whole(&free).await;
    nodes::read(&free, machine).await.expect("a node");
    assert_ne!(read_whole(&free).await, before);
}

/// While a table is new the planner knows nothing of it, and a connection keeps what it planned then. One node had told
/// its runs when this one planned, and a hundred have when it reports again.
#[tokio::test]
async fn a_report_looks_at_no_more_rows_when_others_have_told_theirs() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (machine, instance) = one_of_each(&store, tenant).await;
    let mut others = Vec::new();
    for number in 2..=100 {
        others.push(node(&store, tenant, number).await.1);
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    // Of a statement that is made again and again, the sixth plan is kept.
    for number in 1..=6 {
        report(&tx, machine, &instance, number).await;
    }
    let before = runs_looked_at(&tx, machine, &instance, 7).await;
    for (number, other) in (1_001..).zip(&others) {
        whole_attempt(&tx, other, number).await;
    }
    for (number, other) in (2_001..).zip(&others) {
        let first = numbered(RunEvent::Downloading, 1);
        let patience = Patience::default();
        let open = runs::advance(&tx, attempt(other, number), &first, &patience, NOON).await;
        open.expect("begun");
    }
    let after = runs_looked_at(&tx, machine, &instance, 8).await;
    assert!((1..100).contains(&before), "{before}");
    assert!(after < before + 20, "{after} and not {before}");
}

/// How many rows of runs a report looks at.
async fn runs_looked_at(tx: &Tx, machine: Machine, instance: &Instance, number: u128) -> i64 {
    let before = looked_at(tx, "update_runs").await;
    report(tx, machine, instance, number).await;
    looked_at(tx, "update_runs").await - before
}

/// Of indexes that look equally good the planner takes the newest (docs/adr/0023).
#[tokio::test]
async fn the_key_of_runs_is_newer_than_what_is_of_all_runs_and_older_than_what_finds_those_of_a_node()
 {
    let store = fresh_store().await;
    let sql = "DO $$ DECLARE found text; BEGIN \
               SELECT string_agg(c.relname, ' ' ORDER BY c.oid DESC) INTO found FROM pg_index i \
               JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = 'update_runs'::regclass; \
               IF found NOT LIKE 'one_open_run_per_instance update_runs_attempt update_runs_policy update_runs_pkey %' THEN \
               RAISE 'newest first: %', found; END IF; END $$";
    store.unprepared(sql).await.expect("in their order");
}
