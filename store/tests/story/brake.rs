//! The brake of assignments: never one too many, whoever asks at the same time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Limits, Scope};
use evenkeel_domain::decide::{Act, Reason, target};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::RunId;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::run::{
    AttemptId, Failure, FailureKind, Happening, Origin, Patience, RunEvent, UpdateRun,
};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::decisions::Reading;
use evenkeel_store::nodes::{self, Machine};
use evenkeel_store::runs::{self, Opening, Subject};
use evenkeel_store::testing::{counting, fresh_database, fresh_store};
use evenkeel_store::{
    Store, StoreError, StoreOptions, Tx, assignments, brake, hosts, instances, schedules,
};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::house::{
    NOON, assign, latest, node, numbered, project, site, spoke, stands_at, window, world,
};

/// A fleet in one project with a policy for all of it and an open window.
pub async fn fleet(store: &Store, size: u128, limits: (Option<u32>, Option<u32>)) -> Fleet {
    let tenant = project(store, "ours").await;
    let policy = latest(store, tenant).await;
    assign(store, tenant, Scope::Project, policy.id, limits).await;
    let mut nodes = Vec::new();
    for n in 1..=size {
        let (host, instance) = node(store, tenant, n).await;
        spoke(store, tenant, &host).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let open = window(ScheduleTarget::Host(host.id), -1, 48);
        schedules::create(&tx, &open, NOON)
            .await
            .expect("scheduled");
        tx.commit().await.expect("committed");
        nodes.push((host, instance));
    }
    Fleet { tenant, nodes }
}

pub struct Fleet {
    pub tenant: TenantId,
    nodes: Vec<(Host, Instance)>,
}

/// The node has fetched everything and waits for leave.
pub async fn staged(store: &Store, fleet: &Fleet, n: usize) -> UpdateRun {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let (host, instance) = &fleet.nodes[n];
    let seen = world(&tx, host, Reading::Look(NOON)).await;
    let opening = Opening {
        instance: instance.id,
        name: "edge update".into(),
        description: String::new(),
        attempt: Some(AttemptId(Uuid::now_v7())),
        origin: Origin {
            target: target(&seen.known, &seen.wanted).ok(),
            policy: None,
            order: None,
        },
        follows: None,
    };
    let downloaded = numbered(RunEvent::Downloaded, 1);
    let subject = Subject::New(Box::new(opening));
    let run = runs::advance(&tx, subject, &downloaded, &Patience::default(), NOON)
        .await
        .expect("opened");
    tx.commit().await.expect("committed");
    run
}

/// The node asks for leave to begin, as it is judged at the door.
pub async fn asks(store: &Store, fleet: &Fleet, n: usize, now: Time) -> Result<bool, StoreError> {
    let tx = store.tenant(fleet.tenant).await?;
    tx.judge_wanted().await?;
    let machine = Machine::Host(fleet.nodes[n].0.id);
    let (host, _) = nodes::lock_with_host(&tx, machine).await?;
    let world = world(&tx, &host, Reading::Judge(now)).await;
    let run = world.run.as_ref().expect("an open run");
    if !matches!(world.decide(now).act, Act::Apply { .. }) {
        return Ok(false);
    }
    let under = world.applies().map(|assigned| assigned.scope);
    runs::grant(&tx, run, under, now).await?;
    tx.commit().await?;
    Ok(true)
}

pub async fn ends(store: &Store, fleet: &Fleet, run: RunId, event: RunEvent, now: Time) {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let happening = Happening::of(event);
    runs::advance(
        &tx,
        Subject::Run(run),
        &happening,
        &Patience::default(),
        now,
    )
    .await
    .expect("ended");
    tx.commit().await.expect("committed");
}

pub fn broken() -> RunEvent {
    RunEvent::Failed(Failure {
        kind: FailureKind::Apply,
        reason: "a script failed".into(),
    })
}

pub async fn used(store: &Store, fleet: &Fleet, now: Time) -> (u32, u32) {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let one = assignments::find(&tx, Scope::Project, now).await;
    let one = one.expect("it is assigned");
    (one.held, one.failures)
}

async fn set_limit(store: &Store, fleet: &Fleet, limit: u32) {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let before = assignments::find(&tx, Scope::Project, NOON).await;
    let policy = before.expect("it is assigned").policy;
    let limits = Limits::parse(Some(limit), None).expect("limits");
    assignments::set(&tx, Scope::Project, policy, limits, NOON)
        .await
        .expect("assigned");
    tx.commit().await.expect("committed");
}

/// One node that is in everybody's way is no database that is away.
#[tokio::test]
async fn what_others_hold_for_too_long_is_told_from_a_database_that_is_away() {
    let url = fresh_database().await;
    let (soon, late) = (Duration::from_millis(100), Duration::from_secs(30));
    let store = Store::connect(&url, StoreOptions::default()).await;
    let store = store.expect("the database");
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    let busy = store.tenant(tenant).await.expect("a transaction");
    nodes::lock(&busy, host.id).await.expect("a lock");
    for (lock_timeout, statement_timeout) in [(soon, late), (late, soon)] {
        let options = StoreOptions {
            lock_timeout,
            statement_timeout,
            ..StoreOptions::default()
        };
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

/// Two processes on one database, twenty nodes that ask at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_one_too_many_gets_leave() {
    const NODES: usize = 20;
    let url = fresh_database().await;
    let options = || StoreOptions {
        max_connections: 10,
        acquire_timeout: std::time::Duration::from_secs(30),
        ..StoreOptions::default()
    };
    let one = Store::connect(&url, options()).await.expect("connected");
    let other = Store::connect(&url, options()).await.expect("connected");
    let fleet = fleet(&one, NODES as u128, (Some(1), None)).await;
    for (round, limit) in [1, 10, 3, 1, 10, 19].into_iter().enumerate() {
        set_limit(&other, &fleet, limit).await;
        let mut open = Vec::new();
        for n in 0..NODES {
            open.push(staged(&one, &fleet, n).await.id);
        }
        // Each asks twice: the answer to the first may have been lost.
        let asked = (0..2 * NODES).map(|n| {
            let store = if n % 2 == 0 { &one } else { &other };
            asks(store, &fleet, n % NODES, NOON)
        });
        let answers: Result<Vec<_>, _> = join_all(asked).await.into_iter().collect();
        let answers = answers.expect("answers");
        let granted = (0..NODES).filter(|n| answers[*n] || answers[n + NODES]);
        assert_eq!(granted.count(), limit as usize, "round {round}");
        assert_eq!(used(&one, &fleet, NOON).await.0, limit);
        for run in open {
            ends(&other, &fleet, run, RunEvent::Finished, NOON).await;
        }
        assert_eq!(used(&one, &fleet, NOON).await.0, 0, "all ended");
    }
}

#[tokio::test]
async fn who_has_a_slot_keeps_it_until_its_run_ends() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 2, (Some(1), None)).await;
    let first = staged(&store, &fleet, 0).await;
    staged(&store, &fleet, 1).await;
    assert!(asks(&store, &fleet, 0, NOON).await.expect("an answer"));
    assert!(!asks(&store, &fleet, 1, NOON).await.expect("an answer"));
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let seen = world(&tx, &fleet.nodes[1].0, Reading::Look(NOON)).await;
    let because = seen.decide(NOON).because;
    assert!(
        matches!(because, Reason::NoFreeSlot { limit: 1, .. }),
        "{because}"
    );
    drop(tx);
    // It asks again, because the answer was lost, and after it began.
    assert!(asks(&store, &fleet, 0, NOON).await.expect("an answer"));
    ends(&store, &fleet, first.id, RunEvent::Began, NOON).await;
    assert!(!asks(&store, &fleet, 1, NOON).await.expect("an answer"));
    ends(&store, &fleet, first.id, RunEvent::Finished, NOON).await;
    assert!(asks(&store, &fleet, 1, NOON).await.expect("an answer"));
}

/// The limit is set while nodes are being changed: they count.
#[tokio::test]
async fn a_limit_counts_what_began_before_it_was_set() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 2, (None, None)).await;
    staged(&store, &fleet, 0).await;
    staged(&store, &fleet, 1).await;
    assert!(asks(&store, &fleet, 0, NOON).await.expect("an answer"));
    set_limit(&store, &fleet, 1).await;
    assert!(!asks(&store, &fleet, 1, NOON).await.expect("an answer"));
}

/// It was given leave and never heard of again.
#[tokio::test]
async fn a_node_that_vanishes_keeps_its_slot_until_its_run_times_out() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 2, (Some(1), Some(1))).await;
    let run = staged(&store, &fleet, 0).await;
    staged(&store, &fleet, 1).await;
    assert!(asks(&store, &fleet, 0, NOON).await.expect("an answer"));
    let patience = Patience::default();
    let late = NOON + patience.applying;
    let early = late - TimeDelta::seconds(1);
    assert!(!asks(&store, &fleet, 1, early).await.expect("an answer"));

    let times_out = async |tx: &Tx, now| {
        let event = Happening::of(RunEvent::TimedOut);
        runs::advance(tx, Subject::Run(run.id), &event, &patience, now).await
    };
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let refused = times_out(&tx, early).await;
    assert!(
        matches!(refused, Err(StoreError::Refused(_))),
        "{refused:?}"
    );
    let ended = times_out(&tx, late).await.expect("its time has come");
    assert_eq!(ended.state.name(), "abandoned");
    tx.commit().await.expect("committed");
    // Its slot is free, and it counts as a failure.
    assert_eq!(used(&store, &fleet, late).await, (0, 1));
    assert!(!asks(&store, &fleet, 1, late).await.expect("an answer"));
}

/// What failed before it was given leave, or was called off, says nothing about the update.
#[tokio::test]
async fn only_what_was_given_leave_counts_as_failed() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 3, (None, Some(1))).await;
    let run = staged(&store, &fleet, 0).await;
    ends(&store, &fleet, run.id, broken(), NOON).await;
    for (n, event) in [(1, RunEvent::Superseded), (2, RunEvent::Finished)] {
        let run = staged(&store, &fleet, n).await;
        assert!(asks(&store, &fleet, n, NOON).await.expect("an answer"));
        ends(&store, &fleet, run.id, event, NOON).await;
    }
    assert_eq!(used(&store, &fleet, NOON).await, (0, 0));
}

/// One of the ancestor's agents starts by itself: it holds its slot while it may.
#[tokio::test]
async fn a_window_that_passes_without_news_lets_its_slot_go() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 2, (Some(1), None)).await;
    let (_, instance) = &fleet.nodes[0];
    let until = NOON + TimeDelta::hours(1);
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    brake::hold(&tx, Scope::Project, instance.id, Some(until), NOON)
        .await
        .expect("held");
    tx.commit().await.expect("committed");
    assert_eq!(
        used(&store, &fleet, until - TimeDelta::seconds(1)).await.0,
        1
    );
    assert_eq!(used(&store, &fleet, until).await.0, 0);

    // The news comes late, but it comes: it is being changed after all.
    let late = until + TimeDelta::minutes(5);
    let run = sampled(&store, &fleet, 0, RunEvent::Began, late).await;
    let much_later = until + TimeDelta::days(2);
    assert_eq!(used(&store, &fleet, much_later).await.0, 1);
    let tx = store.fleet().await.expect("a transaction");
    let cleaned = brake::clean(&tx, much_later, 100).await.expect("cleaned");
    assert_eq!(cleaned, 0);
    drop(tx);
    ends(&store, &fleet, run.id, broken(), much_later).await;
    // It held a slot, so its failure counts.
    assert_eq!(used(&store, &fleet, much_later).await, (0, 1));
}

/// Evidence of one of the ancestor's agents: without an attempt, and without asking.
async fn sampled(store: &Store, fleet: &Fleet, n: usize, event: RunEvent, at: Time) -> UpdateRun {
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let opening = Opening {
        instance: fleet.nodes[n].1.id,
        name: "edge update".into(),
        description: String::new(),
        attempt: None,
        origin: Origin {
            target: None,
            policy: None,
            order: None,
        },
        follows: None,
    };
    let subject = Subject::New(Box::new(opening));
    let happening = Happening::of(event);
    let run = runs::advance(&tx, subject, &happening, &Patience::default(), at)
        .await
        .expect("opened");
    tx.commit().await.expect("committed");
    run
}

#[tokio::test]
async fn a_run_that_is_over_at_once_lets_its_slot_go() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 1, (Some(1), Some(9))).await;
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    let until = NOON + TimeDelta::hours(1);
    brake::hold(&tx, Scope::Project, fleet.nodes[0].1.id, Some(until), NOON)
        .await
        .expect("held");
    tx.commit().await.expect("committed");
    sampled(&store, &fleet, 0, broken(), NOON).await;
    assert_eq!(used(&store, &fleet, NOON).await, (0, 1));
}

/// What its grace is over of is left to the housekeeping.
#[tokio::test]
async fn a_run_that_is_over_at_once_asks_only_for_what_it_holds() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 1, (Some(1), Some(9))).await;
    let (counting, sent) = counting(&store);
    let statements = async |at: Time| {
        let before = sent.statements.load(Ordering::Relaxed);
        sampled(&counting, &fleet, 0, broken(), at).await;
        sent.statements.load(Ordering::Relaxed) - before
    };
    let without = statements(NOON).await;
    let until = NOON + TimeDelta::hours(1);
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    brake::hold(&tx, Scope::Project, fleet.nodes[0].1.id, Some(until), NOON)
        .await
        .expect("held");
    tx.commit().await.expect("committed");
    let late = until + TimeDelta::hours(25);
    assert_eq!(statements(late).await, without, "its grace is over");
    assert_eq!(used(&store, &fleet, late).await.0, 0);
    assert_eq!(statements(NOON).await, without + 1, "it is let go");
    let tx = store.fleet().await.expect("a transaction");
    let cleaned = brake::clean(&tx, late, 100).await.expect("cleaned");
    assert_eq!(cleaned, 0);
}

#[tokio::test]
async fn a_slot_is_forgotten_with_its_instance_and_with_time() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 2, (Some(1), None)).await;
    let until = NOON + TimeDelta::hours(1);
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    for (_, instance) in &fleet.nodes {
        brake::hold(&tx, Scope::Project, instance.id, Some(until), NOON)
            .await
            .expect("held");
    }
    instances::delete(&tx, fleet.nodes[0].1.id)
        .await
        .expect("deleted");
    hosts::delete(&tx, fleet.nodes[0].0.id)
        .await
        .expect("deleted");
    tx.commit().await.expect("committed");
    assert_eq!(used(&store, &fleet, NOON).await.0, 1);
    let tx = store.fleet().await.expect("a transaction");
    let later = until + TimeDelta::hours(25);
    let cleaned = brake::clean(&tx, later, 100).await.expect("cleaned");
    assert_eq!(cleaned, 1);
}

/// Two assignments with limits of their own do not wait for each other, and do not count each other.
#[tokio::test]
async fn each_assignment_counts_for_itself() {
    let store = fresh_store().await;
    let fleet = fleet(&store, 2, (Some(1), None)).await;
    let there = site(&store, fleet.tenant, None).await;
    let policy = latest(&store, fleet.tenant).await;
    assign(
        &store,
        fleet.tenant,
        Scope::Site(there.id),
        policy.id,
        (Some(1), None),
    )
    .await;
    stands_at(&store, fleet.tenant, &fleet.nodes[1].0, there.id).await;
    staged(&store, &fleet, 0).await;
    staged(&store, &fleet, 1).await;
    assert!(asks(&store, &fleet, 0, NOON).await.expect("an answer"));
    assert!(asks(&store, &fleet, 1, NOON).await.expect("an answer"));
}
