//! Overload: which calls are refused, and which are still answered.

use std::collections::HashSet;
use std::time::Duration;

use evenkeel_auth::JoinToken;
use evenkeel_maintenance_manager::{LoadSettings, PollBatchSettings, RateLimitSettings, Settings};
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::maintmgr::PlatformUpdateStatusRequest;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService as _;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::testing::query_text;
use evenkeel_store::{ShareSizes, StoreOptions, join_tokens};
use futures_util::future::{FutureExt as _, join, join_all};
use tonic::{Code, Request, Status};

use crate::fleet::{EimTestNode, sample};
use crate::heartbeats::send_heartbeat;
use crate::long_poll::{catch_up, with_timeout};
use crate::node_reports::{available_package, facts_with_available};
use crate::poll_cost::unchanged_poll;
use crate::test_server::{TestServer, enroll_request, with_credential};

/// A server with a limit on the calls in flight.
async fn server_with_query_call_limit(query_call_limit: u32) -> TestServer {
    let load = LoadSettings { query_call_limit, ..LoadSettings::default() };
    TestServer::with_settings(Settings { load, ..Settings::default() }).await
}

/// The retry hint of a refusal, in milliseconds.
fn retry_hint_millis(refused: &Status) -> u64 {
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    let hint = refused.metadata().get("grpc-retry-pushback-ms");
    let hint = hint.and_then(|hint| hint.to_str().ok()?.parse().ok());
    hint.expect("a hint")
}

/// A refusal would cost as much as the answer, and the node would come back.
#[tokio::test]
async fn a_cached_poll_is_answered_under_overload() {
    let server = server_with_query_call_limit(2).await;
    let mut polls = Vec::new();
    for n in 1..=3 {
        let node = server.nth_node(n).await;
        polls.push((unchanged_poll(&server, &node).await, node.credential));
    }
    let poll = |n: usize| {
        let (payload, credential): &(PollRequest, String) = &polls[n];
        server.manager.poll(with_credential(credential, payload.clone()))
    };
    catch_up(&server.manager).await;
    poll(0).await.expect("an answer");
    let answers = join_all([poll(1), poll(2), poll(0)]).await;
    let [first, second, cached] = &answers[..] else {
        panic!("three answers");
    };
    assert!(first.is_ok() && cached.is_ok());
    let refused = second.as_ref().expect_err("the limit is reached");
    assert!(retry_hint_millis(refused) > 0);
}

#[tokio::test]
async fn refused_polls_come_back_at_different_times() {
    let server = server_with_query_call_limit(2).await;
    let node = server.node().await;
    let unchanged = unchanged_poll(&server, &node).await;
    let poll = |_| {
        let request = with_credential(&node.credential, unchanged.clone());
        server.manager.poll(request)
    };
    catch_up(&server.manager).await;
    let answers = join_all((0..21).map(poll)).await;
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    let hints: Vec<_> = refused.map(retry_hint_millis).collect();
    assert_eq!(hints.len(), 20, "all but the first");
    let different: HashSet<_> = hints.iter().collect();
    assert!(different.len() > 10, "they come back together: {hints:?}");
}

#[tokio::test]
async fn polls_that_wait_too_long_in_the_queue_are_refused() {
    let poll_batch =
        PollBatchSettings { workers: 1, max_size: 1, queue_timeout: Duration::from_millis(1) };
    let server =
        TestServer::without_log_follower(Settings { poll_batch, ..Settings::default() }).await;
    let node = server.node().await;
    let unchanged = unchanged_poll(&server, &node).await;
    let poll = |_| {
        let request = with_credential(&node.credential, unchanged.clone());
        server.manager.poll(request)
    };
    let answers = tokio::task::unconstrained(join_all((0..40).map(poll))).await;
    assert!(answers[0].is_ok(), "a worker is free: {:?}", answers[0]);
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    let hints: Vec<_> = refused.map(retry_hint_millis).collect();
    assert!(!hints.is_empty(), "one after the other within a millisecond");
}

/// Polls that need a single evaluation must not keep the database connections from others.
#[tokio::test]
async fn few_polls_may_wait_for_a_single_evaluation() {
    let poll_batch =
        PollBatchSettings { queue_timeout: Duration::from_mins(1), ..PollBatchSettings::default() };
    let rate_limit = RateLimitSettings { calls_per_second: 0, ..RateLimitSettings::default() };
    let server =
        TestServer::with_settings(Settings { poll_batch, rate_limit, ..Settings::default() }).await;
    let node = server.node().await;
    server.assign_min_age_policy(&node, 7).await;
    server.report_facts(&node, facts_with_available(vec![available_package("curl", "2")])).await;
    let unchanged = unchanged_poll(&server, &node).await;
    let poll = |_| {
        let request = with_credential(&node.credential, unchanged.clone());
        server.manager.poll(request)
    };
    catch_up(&server.manager).await;
    let answers = tokio::task::unconstrained(join_all((0..200).map(poll))).await;
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    let refused = refused.map(retry_hint_millis).count();
    assert!((1..=102).contains(&refused), "{refused}: 2 of the project are evaluated, 96 wait");
}

/// A refused call of an EIM agent is repeated three times within seconds.
#[tokio::test]
async fn eim_agents_are_served_while_own_agents_overload_the_server() {
    let server = server_with_query_call_limit(4).await;
    let node = server.node().await;
    let unchanged = unchanged_poll(&server, &node).await;
    let eim = server.eim_node(7).await;
    let ours = (0..3).map(|_| {
        let poll = server.manager.poll(with_credential(&node.credential, unchanged.clone()));
        poll.map(|answer| answer.map(drop)).boxed()
    });
    catch_up(&server.manager).await;
    let theirs = send_status(&server, &eim, S::UpToDate).boxed();
    let answers = join_all(ours.chain([theirs])).await;
    let [_, _, third, theirs] = &answers[..] else {
        panic!("four answers");
    };
    assert!(retry_hint_millis(third.as_ref().expect_err("two own polls are the limit")) > 0);
    assert!(theirs.is_ok(), "{theirs:?}");
}

#[tokio::test]
async fn failure_reports_of_eim_agents_are_accepted_under_overload() {
    let server = server_with_query_call_limit(4).await;
    let mut eim_nodes = Vec::new();
    for n in 1..=4 {
        eim_nodes.push(server.eim_node(n).await);
    }
    for kind in [S::UpToDate, S::Started] {
        server.send_status(&eim_nodes[3], sample(kind)).await;
    }
    catch_up(&server.manager).await;
    let token = server.eim_token();
    let answers = join_all([
        send_status(&server, &eim_nodes[0], S::UpToDate).boxed(),
        send_status(&server, &eim_nodes[1], S::UpToDate).boxed(),
        send_heartbeat(&server.manager, &token, &eim_nodes[2]).boxed(),
        send_status(&server, &eim_nodes[3], S::Failed).boxed(),
    ])
    .await;
    let [first, second, heartbeat, failed] = &answers[..] else {
        panic!("four answers");
    };
    assert!(first.is_ok(), "{first:?}");
    for refused in [second, heartbeat] {
        let refused = refused.as_ref().expect_err("one EIM query is the limit");
        assert!(retry_hint_millis(refused) > 0);
    }
    assert!(failed.is_ok(), "{failed:?}");
    // A failure is confirmed when it is reported again.
    server.advance_minutes(1);
    server.send_status(&eim_nodes[3], sample(S::Failed)).await;
    let history = server.run_history(&eim_nodes[3].as_node()).await;
    assert_eq!(history, "began->applying failed->failed");
    for eim in &eim_nodes[1..3] {
        server.send_status(eim, sample(S::UpToDate)).await;
    }
}

async fn send_status(server: &TestServer, eim: &EimTestNode, kind: S) -> Result<(), Status> {
    let request = PlatformUpdateStatusRequest {
        host_guid: eim.guid.clone(),
        update_status: Some(sample(kind)),
    };
    let request = with_credential(&server.eim_token(), request);
    let answer = server.manager.platform_update_status(request).await;
    answer.map(drop)
}

#[tokio::test]
async fn a_node_of_another_project_is_served_while_one_project_uses_its_connections() {
    let server = TestServer::new().await;
    let other = server.in_new_project("other").await;
    let (ours, theirs) = (server.nth_node(1).await, other.nth_node(2).await);
    let our_poll = unchanged_poll(&server, &ours).await;
    let their_poll = unchanged_poll(&other, &theirs).await;
    let options = StoreOptions {
        max_connections: 6,
        shares: Some(ShareSizes { nodes: 2, rest_reads: 1, rest_writes: 1, logins: 1 }),
        acquire_timeout: Duration::from_secs(1),
        ..StoreOptions::default()
    };
    let store = server.connect_with(options).await;
    // It does not follow the change log, so each poll reads from the database.
    let manager = server.new_manager(store.clone(), Settings::default());
    let connection = store.tenant(server.tenant).await.expect("a connection of the nodes");
    // On a busy machine, the database would end it otherwise.
    connection.set("idle_in_transaction_session_timeout", "0").await.expect("set");

    let refused = manager.poll(with_credential(&ours.credential, our_poll.clone())).await;
    let refused = refused.expect_err("the project uses its part");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    let changed_poll = PollRequest {
        facts: Some(facts_with_available(vec![available_package("curl", "2")])),
        ..their_poll.clone()
    };
    for request in [their_poll, changed_poll] {
        let answer = manager.poll(with_credential(&theirs.credential, request)).await;
        answer.expect("another project gets a connection");
    }
    drop(connection);
    manager.poll(with_credential(&ours.credential, our_poll)).await.expect("an answer");
}

/// The enrolments with one join token wait for each other, and each of them holds a permit.
#[tokio::test]
async fn a_machine_of_another_project_enrols_while_one_project_uses_its_enrolments() {
    let server = TestServer::new().await;
    let other = server.in_new_project("other").await;
    let ours = server.join_token(false, true).await;
    let theirs = other.join_token(false, true).await;
    let enroll = |token: &str, machine: u8| {
        server.manager.enroll(Request::new(enroll_request(token, machine.into(), machine)))
    };
    let tx = server.tx().await;
    // On a busy machine, the database would end it otherwise.
    tx.set("idle_in_transaction_session_timeout", "0").await.expect("set");
    let digest = *JoinToken::parse(&ours).expect("a join token").secret_hash().as_bytes();
    join_tokens::lock(&tx, digest).await.expect("locked");
    let our_machines = join_all((1..=8).map(|machine| enroll(&ours, machine)));
    let their_machine = async {
        let sql = "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() \
                   AND wait_event_type = 'Lock'";
        while query_text(&server.store, sql).await != "3" {
            tokio::task::yield_now().await;
        }
        enroll(&theirs, 100).await.expect("another project has a permit");
        drop(tx);
    };
    let (enrolled, ()) = with_timeout(join(our_machines, their_machine)).await;
    for enrolled in enrolled {
        enrolled.expect("the others wait in turn");
    }
}
