//! Tables that grow faster than the database takes note of it.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::run::{AttemptId, Patience, RunEvent};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::decisions::{self, Horizon, Reading};
use evenkeel_store::nodes::{self, Machine};
use evenkeel_store::runs::{self, Together};
use evenkeel_store::testing::{fresh_store, read_whole};
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

/// All that a report does which tells a whole attempt.
async fn report(tx: &Tx, machine: Machine, instance: &Instance) {
    let locked = nodes::lock_with_host(tx, machine).await;
    let (host, mut node) = locked.expect("locked");
    let (horizon, reading) = (Horizon::default(), Reading::Look(NOON));
    let world = decisions::world(tx, &host, &node, &horizon, reading).await;
    let world = world.expect("a world");
    assert_eq!(world.wanted.policies.len(), 1);
    let name = AttemptId(Uuid::from_u128(1));
    let known = runs::find_attempt(tx, node.instance, name).await;
    assert!(known.expect("looked for").is_none());
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
    let run = runs::advance_by(tx, attempt(instance, 1), &events, &mut |_| {}).await;
    node.reflect(&run.expect("told"), NOON);
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
    report(&tx, machine, &instance).await;
    assert_eq!(read_whole(&tx).await, before);

    // The control: where the planner is free, as for a list, it takes the short table whole.
    let free = store.snapshot(tenant).await.expect("a snapshot");
    let before = read_whole(&free).await;
    nodes::read(&free, machine).await.expect("a node");
    assert_ne!(read_whole(&free).await, before);
}
