//! Long polls: polls that wait until their answer changes.

use std::pin::pin;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::SiteId;
use evenkeel_domain::location::SiteSpec;
use evenkeel_domain::order::OrderKind;
use evenkeel_domain::policy::DesiredUpdate;
use evenkeel_kit::Lifecycle;
use evenkeel_maintenance_manager::{
    ConnectionState, LongPollSettings, MaintenanceManager, Settings, SilentNodeWatch,
};
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::{PollRequest, PollResponse};
use evenkeel_store::testing::without_protection;
use evenkeel_store::{Store, StoreOptions, hosts, sites};
use futures_util::future::{Either, join, select, select_all};
use tonic::{Request, Response, Status};

use crate::image_nodes::{facts_after_boot, with_failed_image};
use crate::test_server::{TestNode, TestServer, act, began, finished, with_credential};
use crate::update_limits::staged_nodes;

/// Longer than any test waits: a poll that is answered within [`TEST_TIMEOUT`] did not wait to the
/// end.
const LONG_POLL_MILLIS: u32 = 300_000;
pub const TEST_TIMEOUT: Duration = Duration::from_mins(1);

/// Withdraws all policies.
const DELETE_ASSIGNMENTS_SQL: &str = "DELETE FROM assignments";

/// Ends all connections to a database except the one that runs this statement.
pub const TERMINATE_CONNECTIONS_SQL: &str = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()";

pub async fn with_timeout<T>(future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(TEST_TIMEOUT, future).await;
    ended.expect("no timeout")
}

/// Waits until the manager has read all committed changes.
pub async fn catch_up(manager: &MaintenanceManager) {
    let follows = async {
        while !manager.wait_until_caught_up().await {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(follows).await;
}

/// Waits until this number of long polls is held.
pub async fn wait_for_long_polls(manager: &MaintenanceManager, count: usize) {
    let reached = async {
        while manager.long_poll_count() != count {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(reached).await;
}

pub async fn current_answer(server: &TestServer, node: &TestNode) -> PollResponse {
    catch_up(&server.manager).await;
    server.poll(node).await
}

/// A long poll of a node that already has the answer `previous`.
pub async fn long_poll_request(
    server: &TestServer,
    node: &TestNode,
    previous: &PollResponse,
) -> Request<PollRequest> {
    let poll = PollRequest {
        facts_digest: server.node_state(node).await.facts_digest,
        decision_tag: previous.decision_tag,
        long_poll_millis: LONG_POLL_MILLIS,
        ..PollRequest::default()
    };
    with_credential(&node.credential, poll)
}

pub fn unwrap_answer(answer: Result<Response<PollResponse>, Status>) -> PollResponse {
    answer.expect("an answer").into_inner()
}

/// Starts another server on the same database, with all its background tasks.
pub fn start_replica(server: &TestServer, life: &Lifecycle) -> MaintenanceManager {
    let replica = server.new_manager(server.store.clone(), Settings::default());
    replica.start_tasks(life);
    replica
}

async fn move_to_new_site(server: &TestServer, node: &TestNode) -> SiteId {
    let tx = server.tx().await;
    let site = sites::create(&tx, &SiteSpec::default(), server.now()).await;
    let site = site.expect("a site").id;
    let there = hosts::HostChange { site: Some(Some(site)), ..hosts::HostChange::default() };
    let moved = hosts::change(&tx, node.host, &there, server.now()).await;
    moved.expect("moved");
    tx.commit().await.expect("committed");
    site
}

/// A node that may apply an update has a long poll. The poll ends when the update is withdrawn.
async fn assert_withdrawal_ends_long_poll(withdraw: impl AsyncFnOnce(&TestServer)) {
    let (server, node, _) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, -10, 600).await;
    let previous = current_answer(&server, &node).await;
    assert_eq!(act(&previous), "apply");

    let request = long_poll_request(&server, &node, &previous).await;
    let change = async {
        wait_for_long_polls(&server.manager, 1).await;
        withdraw(&server).await;
    };
    let (answer, ()) = join(with_timeout(server.manager.poll(request)), change).await;
    assert_eq!(act(&unwrap_answer(answer)), "idle");
    assert_eq!(server.manager.long_poll_count(), 0);
}

/// Cuts all connections to the database, runs a statement, and allows connections again after the
/// server has noticed the outage.
async fn execute_during_outage(server: &TestServer, sql: &str) {
    let one = StoreOptions { max_connections: 1, ..StoreOptions::default() };
    let inside = Store::connect(&server.url, one).await.expect("the database");
    let run = async |sql: &str| inside.execute_unprepared(sql).await.expect("done");
    let let_in = |most: i32| {
        format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT {most}', current_database()); END $$"
        )
    };
    run(&let_in(0)).await;
    run(TERMINATE_CONNECTIONS_SQL).await;
    run(&format!("BEGIN; SET LOCAL evenkeel.tenant = '*'; {sql}; COMMIT")).await;
    assert!(!server.manager.wait_until_caught_up().await, "it is away");
    run(&let_in(-1)).await;
    inside.close().await;
}

#[tokio::test]
async fn a_change_of_an_operator_ends_a_long_poll() {
    let server = TestServer::new().await;
    let node = server.node().await;
    server.window(node.host, -10, 600).await;
    let previous = current_answer(&server, &node).await;
    assert_eq!(act(&previous), "idle");
    assert_ne!(previous.decision_tag, 0);
    assert_ne!(previous.next_long_poll_millis, 0);

    let request = long_poll_request(&server, &node, &previous).await;
    let change = async {
        wait_for_long_polls(&server.manager, 1).await;
        server.policy(&node, "demo-hello=1.1").await
    };
    let (answer, _) = join(with_timeout(server.manager.poll(request)), change).await;
    let answer = unwrap_answer(answer);
    assert_eq!(act(&answer), "apply");
    assert_ne!(answer.decision_tag, previous.decision_tag);
    assert_eq!(server.manager.long_poll_count(), 0);
}

#[tokio::test]
async fn a_long_poll_of_an_idle_node_lasts_its_full_time() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let previous = current_answer(&server, &node).await;
    let mut request = long_poll_request(&server, &node, &previous).await;
    request.get_mut().long_poll_millis = 300;
    let poll = with_timeout(server.manager.poll(request));
    let (answer, ()) = join(poll, wait_for_long_polls(&server.manager, 1)).await;
    let answer = unwrap_answer(answer);
    assert_eq!(answer.decision, previous.decision);
    assert_eq!(answer.decision_tag, previous.decision_tag);
    assert_eq!(server.manager.long_poll_count(), 0);
}

#[tokio::test]
async fn a_long_poll_ends_when_the_window_opens() {
    let (server, node, _) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 1, 60).await;
    server.clock.advance(TimeDelta::milliseconds(59_500));
    let previous = current_answer(&server, &node).await;
    assert_eq!(act(&previous), "fetch");

    let request = long_poll_request(&server, &node, &previous).await;
    let opens = async {
        wait_for_long_polls(&server.manager, 1).await;
        server.clock.advance(TimeDelta::seconds(1));
    };
    let (answer, ()) = join(with_timeout(server.manager.poll(request)), opens).await;
    assert_eq!(act(&unwrap_answer(answer)), "apply");
}

#[tokio::test]
async fn an_order_and_its_expiry_end_the_long_poll_of_a_quarantined_node() {
    let server = TestServer::new().await;
    server.add_image("3.0.1").await;
    server.add_image("3.0.2").await;
    let node = server.image_node(1, "3.0.1").await;
    let latest = server.create_policy_for(DesiredUpdate::Latest).await;
    server.assign_to(node.instance, latest).await;
    server.window(node.host, 0, 600).await;
    let failed = with_failed_image(facts_after_boot("3.0.1"), "3.0.2", "it hangs");
    server.report_facts(&node, failed).await;
    server.clock.advance(TimeDelta::minutes(1));
    let quarantined = current_answer(&server, &node).await;
    assert_eq!(act(&quarantined), "idle");

    let request = long_poll_request(&server, &node, &quarantined).await;
    let order = async {
        wait_for_long_polls(&server.manager, 1).await;
        server.order(node.instance, OrderKind::Now).await;
    };
    let (answer, ()) = join(with_timeout(server.manager.poll(request)), order).await;
    assert_eq!(act(&unwrap_answer(answer)), "apply");

    let last_second = TimeDelta::hours(1) - TimeDelta::milliseconds(500);
    server.clock.advance(last_second);
    let ordered = current_answer(&server, &node).await;
    assert_eq!(act(&ordered), "apply");
    let request = long_poll_request(&server, &node, &ordered).await;
    let lapses = async {
        wait_for_long_polls(&server.manager, 1).await;
        server.clock.advance(TimeDelta::seconds(1));
    };
    let (answer, ()) = join(with_timeout(server.manager.poll(request)), lapses).await;
    let answer = unwrap_answer(answer);
    assert_eq!(answer.decision, quarantined.decision);
    assert_eq!(answer.decision_tag, quarantined.decision_tag);
}

#[tokio::test]
async fn a_poll_with_another_tag_is_answered_at_once() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let previous = current_answer(&server, &node).await;
    for tag in [0, previous.decision_tag ^ 1] {
        let mut request = long_poll_request(&server, &node, &previous).await;
        request.get_mut().decision_tag = tag;
        let answer = unwrap_answer(with_timeout(server.manager.poll(request)).await);
        assert_eq!(answer.decision_tag, previous.decision_tag);
    }
    let mut request = long_poll_request(&server, &node, &previous).await;
    request.get_mut().long_poll_millis = 0;
    unwrap_answer(with_timeout(server.manager.poll(request)).await);
}

#[tokio::test]
async fn a_newer_poll_replaces_an_older_long_poll() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let previous = current_answer(&server, &node).await;
    let older = server.manager.poll(long_poll_request(&server, &node, &previous).await);
    let newer = pin!(async {
        wait_for_long_polls(&server.manager, 1).await;
        let request = long_poll_request(&server, &node, &previous).await;
        server.manager.poll(request).await
    });
    let Either::Left((answer, newer)) = with_timeout(select(older, newer)).await else {
        panic!("the newer one is answered");
    };
    assert_eq!(unwrap_answer(answer).decision_tag, previous.decision_tag);
    assert_eq!(server.manager.long_poll_count(), 1);
    server.policy(&node, "demo-hello=1.1").await;
    let answer = unwrap_answer(with_timeout(newer).await);
    assert_ne!(answer.decision_tag, previous.decision_tag);
}

#[tokio::test]
async fn a_closed_connection_ends_its_long_poll() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let previous = current_answer(&server, &node).await;
    let connection = ConnectionState::default();
    let mut request = long_poll_request(&server, &node, &previous).await;
    request.extensions_mut().insert(connection.clone());
    let call = server.manager.poll(request);
    let waiting = pin!(wait_for_long_polls(&server.manager, 1));
    let Either::Right(((), call)) = select(call, waiting).await else {
        panic!("it is answered");
    };
    assert_eq!(connection.long_polls(), 1);
    drop(call);
    assert_eq!(server.manager.long_poll_count(), 0);
    assert_eq!(connection.long_polls(), 0);
}

#[tokio::test]
async fn long_polls_beyond_the_limit_are_answered_at_once() {
    let full = Settings {
        long_poll: LongPollSettings { max_polls: 0, ..LongPollSettings::default() },
        ..Settings::default()
    };
    let server = TestServer::with_settings(full).await;
    let node = server.node().await;
    let before = current_answer(&server, &node).await;
    let request = long_poll_request(&server, &node, &before).await;
    let answer = unwrap_answer(with_timeout(server.manager.poll(request)).await);
    assert_eq!(answer.decision_tag, before.decision_tag);

    let server = TestServer::new().await;
    let node = server.node().await;
    let before = current_answer(&server, &node).await;
    let proxy = ConnectionState::default();
    let _others: Vec<_> = (0..16).map(|_| proxy.acquire_long_poll(16)).collect();
    let mut request = long_poll_request(&server, &node, &before).await;
    request.extensions_mut().insert(proxy.clone());
    let answer = unwrap_answer(with_timeout(server.manager.poll(request)).await);
    assert_eq!(answer.decision_tag, before.decision_tag);
    assert_eq!(proxy.long_polls(), 16);
}

/// The window is open, and the only slot of the assignment is taken.
#[tokio::test]
async fn a_freed_slot_ends_the_long_poll_of_a_node_that_waits_for_it() {
    let server = TestServer::new().await;
    let (nodes, policy) = staged_nodes(&server, 3, Some(1), None).await;
    let [busy, waiting @ ..] = &nodes[..] else { panic!("three nodes") };
    assert!(matches!(server.begin(busy, 1, policy, 2).await, Answer::Granted(_)));
    let mut requests = Vec::new();
    for node in waiting {
        let previous = current_answer(&server, node).await;
        assert_eq!(act(&previous), "continue");
        requests.push(long_poll_request(&server, node, &previous).await);
    }
    let polls = requests.into_iter().map(|request| server.manager.poll(request));
    let ends = pin!(async {
        wait_for_long_polls(&server.manager, waiting.len()).await;
        server.report(busy, 1, policy, &[(3, began()), (4, finished())]).await;
        std::future::pending::<()>().await;
    });
    let Either::Left(((answer, ..), _)) =
        with_timeout(select(select_all(polls.map(Box::pin)), ends)).await
    else {
        panic!("a poll is answered");
    };
    assert_eq!(act(&unwrap_answer(answer)), "apply");
}

/// The server has no task that rechecks long polls at an interval.
#[tokio::test]
async fn a_freed_slot_wakes_a_waiting_node_by_the_change_log_alone() {
    let server = TestServer::new().await;
    let (nodes, policy) = staged_nodes(&server, 2, Some(1), None).await;
    let [busy, waiting] = &nodes[..] else { panic!("two nodes") };
    assert!(matches!(server.begin(busy, 1, policy, 2).await, Answer::Granted(_)));
    let life = Lifecycle::new();
    let manager = server.new_manager(server.store.clone(), Settings::default());
    manager.start_log_follower(&life);
    catch_up(&manager).await;
    let previous = current_answer(&server, waiting).await;
    assert_eq!(act(&previous), "continue");
    let request = long_poll_request(&server, waiting, &previous).await;
    let end = async {
        wait_for_long_polls(&manager, 1).await;
        server.report(busy, 1, policy, &[(3, began()), (4, finished())]).await;
    };
    let (answer, ()) = join(with_timeout(manager.poll(request)), end).await;
    assert_eq!(act(&unwrap_answer(answer)), "apply");
    life.stop();
}

#[tokio::test]
async fn a_change_elsewhere_does_not_end_a_long_poll() {
    let server = TestServer::new().await;
    let (node, other) = (server.nth_node(1).await, server.nth_node(2).await);
    let (here, there) =
        (move_to_new_site(&server, &node).await, move_to_new_site(&server, &other).await);
    let policy = server.create_policy("demo-hello=1.1").await;
    let previous = current_answer(&server, &node).await;
    let call = server.manager.poll(long_poll_request(&server, &node, &previous).await);
    let change = pin!(async {
        wait_for_long_polls(&server.manager, 1).await;
        let there = Scope::Site(there);
        server.assign(there, policy, None, None).await;
        catch_up(&server.manager).await;
    });
    let Either::Right(((), call)) = select(call, change).await else {
        panic!("it is answered");
    };
    assert_eq!(server.manager.long_poll_count(), 1);
    server.assign(Scope::Site(here), policy, None, None).await;
    let answer = unwrap_answer(with_timeout(call).await);
    assert_ne!(answer.decision_tag, previous.decision_tag);
}

#[tokio::test]
async fn a_truncated_change_log_ends_a_long_poll() {
    for truncation in ["TRUNCATE change_log", "DELETE FROM change_log"] {
        let both = format!("{DELETE_ASSIGNMENTS_SQL}; {}", without_protection(truncation));
        assert_withdrawal_ends_long_poll(async |server| server.execute_sql(&both).await).await;
    }
}

#[tokio::test]
async fn a_change_during_an_outage_ends_a_long_poll() {
    assert_withdrawal_ends_long_poll(async |server| {
        execute_during_outage(server, DELETE_ASSIGNMENTS_SQL).await;
    })
    .await;
}

#[tokio::test]
async fn a_truncated_change_log_during_an_outage_ends_a_long_poll() {
    let truncation = without_protection("TRUNCATE change_log");
    let both = format!("{DELETE_ASSIGNMENTS_SQL}; {truncation}");
    assert_withdrawal_ends_long_poll(async |server| execute_during_outage(server, &both).await)
        .await;
}

/// An answer that lets a node begin must be current, so the log is read until all long polls have
/// ended.
#[tokio::test]
async fn a_stop_answers_long_polls_with_the_current_decision() {
    let (server, node, _) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 60, 120).await;
    let previous = current_answer(&server, &node).await;
    assert_eq!(act(&previous), "fetch");
    let life = Lifecycle::new();
    let replica = start_replica(&server, &life);
    catch_up(&replica).await;
    let request = long_poll_request(&server, &node, &previous).await;
    let stop = async {
        wait_for_long_polls(&replica, 1).await;
        life.stop();
    };
    let (answer, ()) = join(with_timeout(replica.poll(request)), stop).await;
    let answer = unwrap_answer(answer);
    assert_eq!(answer.decision, previous.decision);
    assert_eq!(answer.decision_tag, previous.decision_tag);
    life.run_until_stopped(TEST_TIMEOUT).await;
}

#[tokio::test]
async fn a_stop_ends_long_polls_and_restores_their_usual_deadline() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let previous = current_answer(&server, &node).await;
    let life = Lifecycle::new();
    let replica = start_replica(&server, &life);
    catch_up(&replica).await;
    let request = long_poll_request(&server, &node, &previous).await;
    let stop = async {
        wait_for_long_polls(&replica, 1).await;
        life.stop();
    };
    let (answer, ()) = join(with_timeout(replica.poll(request)), stop).await;
    assert_eq!(unwrap_answer(answer).decision, previous.decision);
    let request = long_poll_request(&server, &node, &previous).await;
    unwrap_answer(with_timeout(replica.poll(request)).await);
    life.run_until_stopped(TEST_TIMEOUT).await;

    let watch =
        SilentNodeWatch::new(server.store.clone(), server.shared_clock(), &Settings::default());
    server.advance_minutes(4);
    assert_eq!(watch.pass().await.expect("a pass"), 0);
    server.advance_minutes(2);
    assert_eq!(watch.pass().await.expect("a pass"), 1);
}
