//! Limits of assignments: concurrent requests never get more slots than the limit.

mod counted_failures;
mod released_slots;

use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Scope, UpdateLimits};
use evenkeel_domain::decide::{Act, Reason, resolve_target};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::RunId;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::run::{
    AttemptId, Failure, FailureKind, Origin, RunEvent, RunEventRecord, RunTimeouts, UpdateRun,
};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::decisions::ReadMode;
use evenkeel_store::nodes::{self, MachineKey};
use evenkeel_store::runs::{self, RunOpening, Subject};
use evenkeel_store::testing::{counting_store, fresh_database, fresh_store};
use evenkeel_store::{
    Store, StoreError, StoreOptions, Tx, assignments, hosts, instances, limit_usage, schedules,
};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::fixtures::{
    NOON, assign, create_latest_policy, create_node, create_project, create_site, move_to_site,
    numbered_record, read_decision_input, save_as_own_agent, window,
};

/// Nodes of one project with one policy for all and an open window each.
pub async fn create_fleet(
    store: &Store,
    size: u128,
    limits: (Option<u32>, Option<u32>),
) -> LimitedFleet {
    let tenant = create_project(store, "ours").await;
    let policy = create_latest_policy(store, tenant).await;
    assign(store, tenant, Scope::Project, policy.id, limits).await;
    let mut nodes = Vec::new();
    for n in 1..=size {
        let (host, instance) = create_node(store, tenant, n).await;
        save_as_own_agent(store, tenant, &host).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let open = window(ScheduleTarget::Host(host.id), -1, 48);
        schedules::create(&tx, &open, NOON).await.expect("scheduled");
        tx.commit().await.expect("committed");
        nodes.push((host, instance));
    }
    LimitedFleet { tenant, nodes }
}

pub struct LimitedFleet {
    pub tenant: TenantId,
    nodes: Vec<(Host, Instance)>,
}

/// Stages a run: the node has fetched everything and waits for a start permit.
pub async fn stage_run(store: &Store, fleet: &LimitedFleet, n: usize) -> UpdateRun {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let (host, instance) = &fleet.nodes[n];
    let input = read_decision_input(&tx, host, ReadMode::Preview(NOON)).await;
    let opening = RunOpening {
        instance: instance.id,
        name: "edge update".into(),
        description: String::new(),
        attempt: Some(AttemptId(Uuid::now_v7())),
        origin: Origin {
            target: resolve_target(&input.facts, &input.desired).ok(),
            policy: None,
            order: None,
        },
        follows: None,
        assignment: input.applicable_policy().map(|assigned| assigned.scope),
    };
    let downloaded = numbered_record(RunEvent::Downloaded, 1);
    let subject = Subject::New(Box::new(opening));
    let run = runs::advance(&tx, subject, &downloaded, &RunTimeouts::default(), NOON)
        .await
        .expect("opened");
    tx.commit().await.expect("committed");
    run
}

/// Requests the start of the node's run, as a poll does. Returns whether it was granted.
pub async fn request_start(
    store: &Store,
    fleet: &LimitedFleet,
    n: usize,
    now: Time,
) -> Result<bool, StoreError> {
    let tx = store.tenant(fleet.tenant).await?;
    tx.lock_for_decision().await?;
    let machine = MachineKey::Host(fleet.nodes[n].0.id);
    let (host, _) = nodes::lock_with_host(&tx, machine).await?;
    let input = read_decision_input(&tx, &host, ReadMode::Grant(now)).await;
    let run = input.run.as_ref().expect("an open run");
    if !matches!(input.decide(now).act, Act::Apply { .. }) {
        return Ok(false);
    }
    let under = input.applicable_policy().map(|assigned| assigned.scope);
    runs::grant(&tx, run, under, now).await?;
    tx.commit().await?;
    Ok(true)
}

pub async fn end_run(store: &Store, fleet: &LimitedFleet, run: RunId, event: RunEvent, now: Time) {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let record = RunEventRecord::from_event(event);
    runs::advance(&tx, Subject::Run(run), &record, &RunTimeouts::default(), now)
        .await
        .expect("ended");
    tx.commit().await.expect("committed");
}

pub fn failed_event() -> RunEvent {
    RunEvent::Failed(Failure { kind: FailureKind::Apply, reason: "a script failed".into() })
}

pub async fn usage_counts(store: &Store, fleet: &LimitedFleet, now: Time) -> (u32, u32) {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let one = assignments::find(&tx, Scope::Project, now).await;
    let one = one.expect("assigned");
    (one.held_slots, one.failures)
}

async fn set_limit(store: &Store, fleet: &LimitedFleet, limit: u32) {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let before = assignments::find(&tx, Scope::Project, NOON).await;
    let policy = before.expect("assigned").policy;
    let limits = UpdateLimits::parse(Some(limit), None).expect("limits");
    assignments::set(&tx, Scope::Project, policy, limits, NOON).await.expect("assigned");
    tx.commit().await.expect("committed");
}

/// A lock timeout caused by one node must not look like an unreachable database.
#[tokio::test]
async fn a_lock_timeout_is_distinguished_from_an_unreachable_database() {
    let url = fresh_database().await;
    let (soon, late) = (Duration::from_millis(100), Duration::from_secs(30));
    let store = Store::connect(&url, StoreOptions::default()).await;
    let store = store.expect("the database");
    let tenant = create_project(&store, "ours").await;
    let (host, _) = create_node(&store, tenant, 1).await;
    let busy = store.tenant(tenant).await.expect("a transaction");
    nodes::lock(&busy, host.id).await.expect("a lock");
    for (lock_timeout, statement_timeout) in [(soon, late), (late, soon)] {
        let options = StoreOptions { lock_timeout, statement_timeout, ..StoreOptions::default() };
        let other = Store::connect(&url, options).await.expect("the database");
        let tx = other.tenant(tenant).await.expect("a transaction");
        let refused = nodes::lock(&tx, host.id).await;
        assert!(matches!(refused, Err(StoreError::Busy(_))), "{refused:?}");
        drop(tx);
        other.close().await;
        let away = other.tenant(tenant).await;
        assert!(matches!(away, Err(StoreError::Unreachable(_))), "{away:?}");
    }
}

/// Two processes share one database; twenty nodes request a start at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_never_exceed_the_limit() {
    const NODES: usize = 20;
    let url = fresh_database().await;
    let options = || StoreOptions {
        max_connections: 10,
        acquire_timeout: std::time::Duration::from_secs(30),
        ..StoreOptions::default()
    };
    let one = Store::connect(&url, options()).await.expect("connected");
    let other = Store::connect(&url, options()).await.expect("connected");
    let fleet = create_fleet(&one, NODES as u128, (Some(1), None)).await;
    for (round, limit) in [1, 10, 3, 1, 10, 19].into_iter().enumerate() {
        set_limit(&other, &fleet, limit).await;
        let mut open = Vec::new();
        for n in 0..NODES {
            open.push(stage_run(&one, &fleet, n).await.id);
        }
        // Each node requests twice, because the first answer may be lost.
        let requests = (0..2 * NODES).map(|n| {
            let store = if n % 2 == 0 { &one } else { &other };
            request_start(store, &fleet, n % NODES, NOON)
        });
        let answers: Result<Vec<_>, _> = join_all(requests).await.into_iter().collect();
        let answers = answers.expect("answers");
        let granted = (0..NODES).filter(|n| answers[*n] || answers[n + NODES]);
        assert_eq!(granted.count(), limit as usize, "round {round}");
        assert_eq!(usage_counts(&one, &fleet, NOON).await.0, limit);
        for run in open {
            end_run(&other, &fleet, run, RunEvent::Finished, NOON).await;
        }
        assert_eq!(usage_counts(&one, &fleet, NOON).await.0, 0, "all ended");
    }
}

#[tokio::test]
async fn a_node_holds_its_slot_until_its_run_ends() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 2, (Some(1), None)).await;
    let first = stage_run(&store, &fleet, 0).await;
    stage_run(&store, &fleet, 1).await;
    assert!(request_start(&store, &fleet, 0, NOON).await.expect("an answer"));
    assert!(!request_start(&store, &fleet, 1, NOON).await.expect("an answer"));
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let input = read_decision_input(&tx, &fleet.nodes[1].0, ReadMode::Preview(NOON)).await;
    let because = input.decide(NOON).reason;
    assert!(matches!(because, Reason::NoFreeSlot { limit: 1, .. }), "{because}");
    drop(tx);
    // The node requests again because the answer was lost, and again after it began.
    assert!(request_start(&store, &fleet, 0, NOON).await.expect("an answer"));
    end_run(&store, &fleet, first.id, RunEvent::Began, NOON).await;
    assert!(!request_start(&store, &fleet, 1, NOON).await.expect("an answer"));
    end_run(&store, &fleet, first.id, RunEvent::Finished, NOON).await;
    assert!(request_start(&store, &fleet, 1, NOON).await.expect("an answer"));
}

/// The limit is set while nodes are being updated; those nodes count.
#[tokio::test]
async fn a_new_limit_counts_runs_that_have_begun() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 2, (None, None)).await;
    stage_run(&store, &fleet, 0).await;
    stage_run(&store, &fleet, 1).await;
    assert!(request_start(&store, &fleet, 0, NOON).await.expect("an answer"));
    set_limit(&store, &fleet, 1).await;
    assert!(!request_start(&store, &fleet, 1, NOON).await.expect("an answer"));
}

/// The node got a start permit and never reported again.
#[tokio::test]
async fn a_silent_node_holds_its_slot_until_its_run_times_out() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 2, (Some(1), Some(1))).await;
    let run = stage_run(&store, &fleet, 0).await;
    stage_run(&store, &fleet, 1).await;
    assert!(request_start(&store, &fleet, 0, NOON).await.expect("an answer"));
    let timeouts = RunTimeouts::default();
    let late = NOON + timeouts.applying;
    let early = late - TimeDelta::seconds(1);
    assert!(!request_start(&store, &fleet, 1, early).await.expect("an answer"));

    let times_out = async |tx: &Tx, now| {
        let event = RunEventRecord::from_event(RunEvent::TimedOut);
        runs::advance(tx, Subject::Run(run.id), &event, &timeouts, now).await
    };
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let refused = times_out(&tx, early).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    let ended = times_out(&tx, late).await.expect("the timeout has passed");
    assert_eq!(ended.state.name(), "abandoned");
    tx.commit().await.expect("committed");
    // The slot is free, and the run counts as a failure.
    assert_eq!(usage_counts(&store, &fleet, late).await, (0, 1));
    assert!(!request_start(&store, &fleet, 1, late).await.expect("an answer"));
}

/// An EIM agent starts by itself, so it holds a slot as long as it may start.
#[tokio::test]
async fn a_slot_is_released_when_its_window_passes_without_a_report() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 2, (Some(1), None)).await;
    let (_, instance) = &fleet.nodes[0];
    let until = NOON + TimeDelta::hours(1);
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    limit_usage::take_slot(&tx, Scope::Project, instance.id, Some(until), NOON)
        .await
        .expect("slot taken");
    tx.commit().await.expect("committed");
    assert_eq!(usage_counts(&store, &fleet, until - TimeDelta::seconds(1)).await.0, 1);
    assert_eq!(usage_counts(&store, &fleet, until).await.0, 0);

    // A late report arrives: the node is being updated after all.
    let late = until + TimeDelta::minutes(5);
    let run = record_sample(&store, &fleet, 0, RunEvent::Began, late).await;
    let much_later = until + TimeDelta::days(2);
    assert_eq!(usage_counts(&store, &fleet, much_later).await.0, 1);
    let tx = store.fleet().await.expect("a transaction");
    let cleaned = limit_usage::delete_expired_slots(&tx, much_later, 100).await.expect("cleaned");
    assert_eq!(cleaned, 0);
    drop(tx);
    end_run(&store, &fleet, run.id, failed_event(), much_later).await;
    // The run held a slot, so its failure counts.
    assert_eq!(usage_counts(&store, &fleet, much_later).await, (0, 1));
}

/// Evidence of an EIM agent: it has no attempt and requests no start.
async fn record_sample(
    store: &Store,
    fleet: &LimitedFleet,
    n: usize,
    event: RunEvent,
    at: Time,
) -> UpdateRun {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let opening = RunOpening {
        instance: fleet.nodes[n].1.id,
        name: "edge update".into(),
        description: String::new(),
        attempt: None,
        origin: Origin { target: None, policy: None, order: None },
        follows: None,
        assignment: None,
    };
    let subject = Subject::New(Box::new(opening));
    let record = RunEventRecord::from_event(event);
    let run =
        runs::advance(&tx, subject, &record, &RunTimeouts::default(), at).await.expect("opened");
    tx.commit().await.expect("committed");
    run
}

/// Two assignments with their own limits do not wait for each other and do not count each other.
#[tokio::test]
async fn each_assignment_counts_its_own_slots() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 2, (Some(1), None)).await;
    let second_site = create_site(&store, fleet.tenant, None).await;
    let policy = create_latest_policy(&store, fleet.tenant).await;
    assign(&store, fleet.tenant, Scope::Site(second_site.id), policy.id, (Some(1), None)).await;
    move_to_site(&store, fleet.tenant, &fleet.nodes[1].0, second_site.id).await;
    stage_run(&store, &fleet, 0).await;
    stage_run(&store, &fleet, 1).await;
    assert!(request_start(&store, &fleet, 0, NOON).await.expect("an answer"));
    assert!(request_start(&store, &fleet, 1, NOON).await.expect("an answer"));
}
