//! Long polls that no change wakes, and nodes whose connection is lost during a long poll.

use std::pin::pin;
use std::time::Duration;

use evenkeel_kit::Lifecycle;
use evenkeel_maintenance_manager::{
    LongPollSettings, MaintenanceManager, Settings, SilentNodeWatch,
};
use evenkeel_proto::agent::PollResponse;
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_store::contacts::{self, Contact};
use futures_util::future::{Either, join, select};
use tonic::{Response, Status};

use crate::long_poll::{
    TEST_TIMEOUT, catch_up, current_answer, long_poll_request, start_replica, unwrap_answer,
    wait_for_long_polls, with_timeout,
};
use crate::node_reports::MINUTES_PER_DAY;
use crate::test_server::{
    TestNode, TestServer, act, began, reason, report_request, with_credential,
};
use crate::update_limits::{failed, staged_nodes};

/// Starts a long poll of a node and waits until it is held. Dropping it closes the connection.
async fn start_long_poll<'a>(
    manager: &'a MaintenanceManager,
    server: &TestServer,
    node: &TestNode,
) -> impl Future<Output = Result<Response<PollResponse>, Status>> + 'a {
    let previous = current_answer(server, node).await;
    catch_up(manager).await;
    let call = manager.poll(long_poll_request(server, node, &previous).await);
    let waiting = pin!(wait_for_long_polls(manager, 1));
    let Either::Right(((), call)) = select(call, waiting).await else {
        panic!("it is answered");
    };
    call
}

async fn mark_silent_nodes(server: &TestServer) -> usize {
    let watch =
        SilentNodeWatch::new(server.store.clone(), server.shared_clock(), &Settings::default());
    watch.pass().await.expect("a pass")
}

/// A change of slots wakes only a few of the nodes that depend on them, or each would wake all. The
/// others are rechecked in turn.
#[tokio::test]
async fn a_node_that_was_not_woken_learns_that_its_assignment_was_stopped() {
    let server = TestServer::with_settings(Settings {
        long_poll: LongPollSettings {
            recheck_interval: Duration::from_millis(200),
            ..LongPollSettings::default()
        },
        ..Settings::default()
    })
    .await;
    let (nodes, policy) = staged_nodes(&server, 2, None, Some(1)).await;
    server.begin(&nodes[1], 1, policy, 2).await;
    let previous = current_answer(&server, &nodes[0]).await;
    assert_eq!(act(&previous), "apply");
    let poll = server.manager.poll(long_poll_request(&server, &nodes[0], &previous).await);
    let fails = async {
        wait_for_long_polls(&server.manager, 1).await;
        let events = [(3, began()), (4, failed())];
        server.report(&nodes[1], 1, policy, &events).await;
    };
    let (answer, ()) = join(with_timeout(poll), fails).await;
    let answer = unwrap_answer(answer);
    assert_ne!(answer.decision_tag, previous.decision_tag);
    assert_eq!(act(&answer), "continue");
    let reason = reason(&answer);
    assert!(reason.starts_with("1 update of project failed"), "{reason}");
}

#[tokio::test]
async fn a_node_lost_during_a_long_poll_is_silent_as_soon_as_others() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let life = Lifecycle::new();
    let replica = start_replica(&server, &life);
    drop(start_long_poll(&replica, &server, &node).await);
    life.stop();
    life.run_until_stopped(TEST_TIMEOUT).await;

    server.advance_minutes(4);
    assert_eq!(mark_silent_nodes(&server).await, 0);
    server.advance_minutes(2);
    assert_eq!(mark_silent_nodes(&server).await, 1);
}

#[tokio::test]
async fn an_answered_long_poll_restores_the_usual_deadline() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let life = Lifecycle::new();
    let replica = start_replica(&server, &life);
    let previous = current_answer(&server, &node).await;
    catch_up(&replica).await;
    let poll = replica.poll(long_poll_request(&server, &node, &previous).await);
    let assign = async {
        wait_for_long_polls(&replica, 1).await;
        server.policy(&node, "demo-hello=1.1").await;
    };
    let (answer, ()) = join(with_timeout(poll), assign).await;
    assert_ne!(unwrap_answer(answer).decision_tag, previous.decision_tag);
    life.stop();
    life.run_until_stopped(TEST_TIMEOUT).await;

    server.advance_minutes(4);
    assert_eq!(mark_silent_nodes(&server).await, 0);
    server.advance_minutes(2);
    assert_eq!(mark_silent_nodes(&server).await, 1);
}

/// `evenkeel-agent doctor` tests the connection like this.
#[tokio::test]
async fn a_connection_test_during_a_long_poll_makes_no_node_silent() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let (life, elsewhere) = (Lifecycle::new(), Lifecycle::new());
    let (one, other) = (start_replica(&server, &life), start_replica(&server, &elsewhere));
    let call = start_long_poll(&one, &server, &node).await;
    server.advance_minutes(1);
    let nothing = report_request(1, evenkeel_domain::id::PolicyId::nth(1), &[]);
    let answer = other.report(with_credential(&node.credential, nothing)).await;
    answer.expect("an answer");
    elsewhere.stop();
    elsewhere.run_until_stopped(TEST_TIMEOUT).await;
    server.advance_minutes(8);
    assert_eq!(mark_silent_nodes(&server).await, 0, "its poll is held");
    drop(call);
}

#[tokio::test]
async fn a_node_lost_here_and_polling_elsewhere_is_not_silent() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let (life, elsewhere) = (Lifecycle::new(), Lifecycle::new());
    let (one, other) = (start_replica(&server, &life), start_replica(&server, &elsewhere));
    let first = start_long_poll(&one, &server, &node).await;
    server.advance_minutes(1);
    let second = start_long_poll(&other, &server, &node).await;
    // The loss of the first connection is noticed last.
    server.advance_minutes(1);
    drop(first);
    for life in [life, elsewhere] {
        life.stop();
        life.run_until_stopped(TEST_TIMEOUT).await;
    }
    server.advance_minutes(8);
    assert_eq!(mark_silent_nodes(&server).await, 0, "it is due in five minutes, twice");
    drop(second);
}

/// A server that is killed cannot restore the deadlines of its long polls.
#[tokio::test]
async fn a_node_lost_with_its_server_is_silent_after_twice_its_long_poll() {
    let server = TestServer::new().await;
    let node = server.node().await;
    server.advance_minutes(1);
    let settings =
        Settings { contact_write_interval: Duration::from_millis(10), ..Settings::default() };
    let replica = server.new_manager(server.store.clone(), settings);
    replica.start_tasks(&Lifecycle::new());
    let call = start_long_poll(&replica, &server, &node).await;
    let written = async {
        let last = async || contacts::last_contact(&server.tx().await, node.instance).await;
        while last().await.expect("an answer") != Some(server.now()) {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(written).await;

    // From here on nothing polls or drops the call, as if its server were gone.
    server.advance_minutes(10);
    assert_eq!(mark_silent_nodes(&server).await, 0, "its poll may be held elsewhere");
    server.advance_minutes(2);
    assert_eq!(mark_silent_nodes(&server).await, 1);
    drop(call);
}

/// The grant may have been sent with the answer to a poll that was held for an hour.
#[tokio::test]
async fn an_offline_grant_counts_from_the_last_possible_answer_to_a_long_poll() {
    let server = TestServer::new().await;
    let (node, _) = server.node_with_staged_attempt().await;
    server.advance_minutes(30);
    let heard =
        Contact { tenant: server.tenant, instance: node.instance, at: server.now(), due: None };
    let tx = server.store.fleet().await.expect("a transaction");
    contacts::record_contacts(&tx, vec![heard], heard.at).await.expect("noted");
    tx.commit().await.expect("committed");
    server.advance_minutes(7 * MINUTES_PER_DAY + 60 + 4);
    assert_eq!(server.reap_runs().await, 0);
    server.advance_minutes(2);
    assert_eq!(server.reap_runs().await, 1);
}
