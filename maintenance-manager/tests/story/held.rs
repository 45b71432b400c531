//! Polls that are held until there is something new to say.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::SiteId;
use evenkeel_domain::order::OrderKind;
use evenkeel_domain::place::SiteSpec;
use evenkeel_domain::policy::Wish;
use evenkeel_kit::Lifecycle;
use evenkeel_kit::clock::Clock;
use evenkeel_maintenance_manager::{
    Carried, HoldSettings, MaintenanceManager, Settings, SilenceWatch,
};
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::agent::{PollRequest, PollResponse};
use evenkeel_store::{Store, StoreOptions, hosts, sites};
use futures_util::future::{Either, join, select};
use tonic::{Request, Response, Status};

use crate::house::{House, TestNode, act, with};
use crate::image_nodes::{booted, failed_on};

/// Longer than anybody waits here: whoever is answered within that was not held to the end.
const LONG_MILLIS: u32 = 300_000;
pub const WITHIN: Duration = Duration::from_mins(1);

/// Takes back whatever is wished.
const WITHDRAW: &str = "DELETE FROM assignments";

/// Ends all connections to a database but the one over which this is said.
const CUT_OFF: &str = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()";

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(WITHIN, future).await;
    ended.expect("it comes to an end")
}

/// Until all that was committed is known to the one who answers polls.
pub async fn catches_up(server: &MaintenanceManager) {
    let follows = async {
        while !server.caught_up().await {
            tokio::task::yield_now().await;
        }
    };
    within(follows).await;
}

/// Until so many polls are held.
pub async fn until_held(server: &MaintenanceManager, count: usize) {
    let held = async {
        while server.held() != count {
            tokio::task::yield_now().await;
        }
    };
    within(held).await;
}

/// What a node goes by from now on.
pub async fn told(house: &House, node: &TestNode) -> PollResponse {
    catches_up(&house.manager).await;
    house.poll(node).await
}

/// A poll of a node that goes by what it was told, and waits for something new.
pub async fn patient(house: &House, node: &TestNode, told: &PollResponse) -> Request<PollRequest> {
    let said = PollRequest {
        facts_digest: house.known(node).await.facts_digest,
        decision_tag: told.decision_tag,
        may_hold_millis: LONG_MILLIS,
        ..PollRequest::default()
    };
    with(&node.credential, said)
}

pub fn said(answer: Result<Response<PollResponse>, Status>) -> PollResponse {
    answer.expect("an answer").into_inner()
}

/// Another server on the same database, with all that goes on in one.
pub fn server(house: &House, life: &Lifecycle) -> MaintenanceManager {
    let server = MaintenanceManager::new(
        house.store.clone(),
        Arc::clone(&house.clock) as Arc<dyn Clock>,
        Arc::clone(&house.authority),
        Settings::default(),
    );
    server.start_loops(life);
    server
}

/// The node stands at a site of its own.
async fn stands(house: &House, node: &TestNode) -> SiteId {
    let tx = house.tx().await;
    let site = sites::create(&tx, &SiteSpec::default(), house.time()).await;
    let site = site.expect("a site").id;
    let there = hosts::HostChange {
        site: Some(Some(site)),
        ..hosts::HostChange::default()
    };
    let moved = hosts::change(&tx, node.host, &there, house.time()).await;
    moved.expect("placed");
    tx.commit().await.expect("committed");
    site
}

/// A node is held that may apply what is wished, and somebody withdraws that: it is told so.
async fn hears_that_nothing_is_wished(withdraw: impl AsyncFnOnce(&House)) {
    let house = House::new().await;
    let node = house.node().await;
    house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, -10, 600).await;
    let told = told(&house, &node).await;
    assert_eq!(act(&told), "apply");

    let request = patient(&house, &node, &told).await;
    let change = async {
        until_held(&house.manager, 1).await;
        withdraw(&house).await;
    };
    let (answer, ()) = join(within(house.manager.poll(request)), change).await;
    assert_eq!(act(&said(answer)), "idle");
    assert_eq!(house.manager.held(), 0);
}

/// Cuts all off from the database and lets nobody in until something was done there, and it was noticed that it is away.
async fn while_nobody_gets_in(house: &House, sql: &str) {
    let one = StoreOptions {
        max_connections: 1,
        ..StoreOptions::default()
    };
    let inside = Store::connect(&house.url, one).await.expect("the database");
    let run = async |sql: &str| inside.unprepared(sql).await.expect("done");
    let let_in = |most: i32| {
        format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT {most}', current_database()); END $$"
        )
    };
    run(&let_in(0)).await;
    run(CUT_OFF).await;
    run(&format!(
        "BEGIN; SET LOCAL evenkeel.tenant = '*'; {sql}; COMMIT"
    ))
    .await;
    assert!(!house.manager.caught_up().await, "it is away");
    run(&let_in(-1)).await;
    inside.close().await;
}

#[tokio::test]
async fn an_operators_change_reaches_a_node_that_is_held() {
    let house = House::new().await;
    let node = house.node().await;
    house.window(node.host, -10, 600).await;
    let told = told(&house, &node).await;
    assert_eq!(act(&told), "idle");
    assert_ne!(told.decision_tag, 0);
    assert_ne!(told.hold_millis, 0);

    let request = patient(&house, &node, &told).await;
    let change = async {
        until_held(&house.manager, 1).await;
        house.policy(&node, "demo-hello=1.1").await
    };
    let (answer, _) = join(within(house.manager.poll(request)), change).await;
    let answer = said(answer);
    assert_eq!(act(&answer), "apply");
    assert_ne!(answer.decision_tag, told.decision_tag);
    assert_eq!(house.manager.held(), 0);
}

#[tokio::test]
async fn an_idle_node_is_held_to_the_end_of_its_time() {
    let house = House::new().await;
    let node = house.node().await;
    let told = told(&house, &node).await;
    let mut request = patient(&house, &node, &told).await;
    request.get_mut().may_hold_millis = 300;
    let poll = within(house.manager.poll(request));
    let (answer, ()) = join(poll, until_held(&house.manager, 1)).await;
    let answer = said(answer);
    assert_eq!(answer.decision, told.decision);
    assert_eq!(answer.decision_tag, told.decision_tag);
    assert_eq!(house.manager.held(), 0);
}

#[tokio::test]
async fn a_held_node_is_told_when_its_window_opens() {
    let house = House::new().await;
    let node = house.node().await;
    house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 1, 60).await;
    house.clock.advance(TimeDelta::milliseconds(59_500));
    let told = told(&house, &node).await;
    assert_eq!(act(&told), "fetch");

    let request = patient(&house, &node, &told).await;
    let opens = async {
        until_held(&house.manager, 1).await;
        house.clock.advance(TimeDelta::seconds(1));
    };
    let (answer, ()) = join(within(house.manager.poll(request)), opens).await;
    assert_eq!(act(&said(answer)), "apply");
}

#[tokio::test]
async fn an_order_reaches_a_held_node_on_which_an_image_failed_and_so_does_its_end() {
    let house = House::new().await;
    house.catalogue("3.0.1").await;
    house.catalogue("3.0.2").await;
    let node = house.image_node(1, "3.0.1").await;
    let latest = house.make(Wish::Latest).await;
    house.assign_to(node.instance, latest).await;
    house.window(node.host, 0, 600).await;
    let failed = failed_on(booted("3.0.1"), "3.0.2", "it hangs");
    house.tell(&node, failed).await;
    house.clock.advance(TimeDelta::minutes(1));
    let held = told(&house, &node).await;
    assert_eq!(act(&held), "idle");

    let request = patient(&house, &node, &held).await;
    let order = async {
        until_held(&house.manager, 1).await;
        house.order(node.instance, OrderKind::Now).await;
    };
    let (answer, ()) = join(within(house.manager.poll(request)), order).await;
    assert_eq!(act(&said(answer)), "apply");

    let last_second = TimeDelta::hours(1) - TimeDelta::milliseconds(500);
    house.clock.advance(last_second);
    let ordered = told(&house, &node).await;
    assert_eq!(act(&ordered), "apply");
    let request = patient(&house, &node, &ordered).await;
    let lapses = async {
        until_held(&house.manager, 1).await;
        house.clock.advance(TimeDelta::seconds(1));
    };
    let (answer, ()) = join(within(house.manager.poll(request)), lapses).await;
    let answer = said(answer);
    assert_eq!(answer.decision, held.decision);
    assert_eq!(answer.decision_tag, held.decision_tag);
}

#[tokio::test]
async fn a_node_that_goes_by_something_else_is_answered_at_once() {
    let house = House::new().await;
    let node = house.node().await;
    let told = told(&house, &node).await;
    for tag in [0, told.decision_tag ^ 1] {
        let mut request = patient(&house, &node, &told).await;
        request.get_mut().decision_tag = tag;
        let answer = said(within(house.manager.poll(request)).await);
        assert_eq!(answer.decision_tag, told.decision_tag);
    }
    let mut request = patient(&house, &node, &told).await;
    request.get_mut().may_hold_millis = 0;
    said(within(house.manager.poll(request)).await);
}

#[tokio::test]
async fn a_newer_poll_is_held_in_place_of_the_older() {
    let house = House::new().await;
    let node = house.node().await;
    let told = told(&house, &node).await;
    let older = house.manager.poll(patient(&house, &node, &told).await);
    let newer = pin!(async {
        until_held(&house.manager, 1).await;
        let request = patient(&house, &node, &told).await;
        house.manager.poll(request).await
    });
    let Either::Left((answer, newer)) = within(select(older, newer)).await else {
        panic!("the newer one is answered");
    };
    assert_eq!(said(answer).decision_tag, told.decision_tag);
    assert_eq!(house.manager.held(), 1);
    house.policy(&node, "demo-hello=1.1").await;
    let answer = said(within(newer).await);
    assert_ne!(answer.decision_tag, told.decision_tag);
}

#[tokio::test]
async fn who_hangs_up_is_not_held_any_more() {
    let house = House::new().await;
    let node = house.node().await;
    let told = told(&house, &node).await;
    let carried = Carried::default();
    let mut request = patient(&house, &node, &told).await;
    request.extensions_mut().insert(carried.clone());
    let call = house.manager.poll(request);
    let held = pin!(until_held(&house.manager, 1));
    let Either::Right(((), call)) = select(call, held).await else {
        panic!("it is answered");
    };
    assert_eq!(carried.held(), 1);
    drop(call);
    assert_eq!(house.manager.held(), 0);
    assert_eq!(carried.held(), 0);
}

#[tokio::test]
async fn one_that_is_too_much_is_answered_at_once() {
    let full = Settings {
        holds: HoldSettings {
            most: 0,
            ..HoldSettings::default()
        },
        ..Settings::default()
    };
    let house = House::with(full).await;
    let node = house.node().await;
    let before = told(&house, &node).await;
    let request = patient(&house, &node, &before).await;
    let answer = said(within(house.manager.poll(request)).await);
    assert_eq!(answer.decision_tag, before.decision_tag);

    let house = House::new().await;
    let node = house.node().await;
    let before = told(&house, &node).await;
    let proxy = Carried::default();
    (0..16).for_each(|_| proxy.hold());
    let mut request = patient(&house, &node, &before).await;
    request.extensions_mut().insert(proxy.clone());
    let answer = said(within(house.manager.poll(request)).await);
    assert_eq!(answer.decision_tag, before.decision_tag);
    assert_eq!(proxy.held(), 16);
}

#[tokio::test]
async fn a_change_elsewhere_leaves_a_node_held() {
    let house = House::new().await;
    let (node, other) = (house.nth_node(1).await, house.nth_node(2).await);
    let (here, there) = (stands(&house, &node).await, stands(&house, &other).await);
    let policy = house.wish("demo-hello=1.1").await;
    let told = told(&house, &node).await;
    let call = house.manager.poll(patient(&house, &node, &told).await);
    let change = pin!(async {
        until_held(&house.manager, 1).await;
        let there = Scope::Site(there);
        house.assign(there, policy, None, None).await;
        catches_up(&house.manager).await;
    });
    let Either::Right(((), call)) = select(call, change).await else {
        panic!("it is answered");
    };
    assert_eq!(house.manager.held(), 1);
    house.assign(Scope::Site(here), policy, None, None).await;
    let answer = said(within(call).await);
    assert_ne!(answer.decision_tag, told.decision_tag);
}

#[tokio::test]
async fn what_is_gone_from_the_log_reaches_a_node_that_is_held() {
    for gone in ["TRUNCATE change_log", "DELETE FROM change_log"] {
        let both = format!("{WITHDRAW}; {gone}");
        hears_that_nothing_is_wished(async |house| house.by_hand(&both).await).await;
    }
}

#[tokio::test]
async fn what_happens_while_the_database_is_away_reaches_a_node_that_is_held() {
    hears_that_nothing_is_wished(async |house| while_nobody_gets_in(house, WITHDRAW).await).await;
}

#[tokio::test]
async fn what_is_gone_from_the_log_while_the_database_is_away_reaches_a_node_that_is_held() {
    let both = format!("{WITHDRAW}; TRUNCATE change_log");
    hears_that_nothing_is_wished(async |house| while_nobody_gets_in(house, &both).await).await;
}

/// What lets a node begin is told at a stop only as it is by then: somebody must still read the log.
#[tokio::test]
async fn a_stop_tells_the_held_what_they_may_do_as_it_is_by_then() {
    let house = House::new().await;
    let node = house.node().await;
    house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 60, 120).await;
    let told = told(&house, &node).await;
    assert_eq!(act(&told), "fetch");
    let life = Lifecycle::new();
    let server = server(&house, &life);
    catches_up(&server).await;
    let request = patient(&house, &node, &told).await;
    let stop = async {
        until_held(&server, 1).await;
        life.stop();
    };
    let (answer, ()) = join(within(server.poll(request)), stop).await;
    let answer = said(answer);
    assert_eq!(answer.decision, told.decision);
    assert_eq!(answer.decision_tag, told.decision_tag);
    life.run_until_stopped(WITHIN).await;
}

#[tokio::test]
async fn a_stop_lets_the_held_go_and_from_then_on_they_are_due_as_others() {
    let house = House::new().await;
    let node = house.node().await;
    let told = told(&house, &node).await;
    let life = Lifecycle::new();
    let server = server(&house, &life);
    catches_up(&server).await;
    let request = patient(&house, &node, &told).await;
    let stop = async {
        until_held(&server, 1).await;
        life.stop();
    };
    let (answer, ()) = join(within(server.poll(request)), stop).await;
    assert_eq!(said(answer).decision, told.decision);
    let request = patient(&house, &node, &told).await;
    said(within(server.poll(request)).await);
    life.run_until_stopped(WITHIN).await;

    let clock = Arc::clone(&house.clock) as Arc<dyn Clock>;
    let watch = SilenceWatch::new(house.store.clone(), clock, &Settings::default());
    house.pass(4);
    assert_eq!(watch.pass().await.expect("a pass"), 0);
    house.pass(2);
    assert_eq!(watch.pass().await.expect("a pass"), 1);
}
