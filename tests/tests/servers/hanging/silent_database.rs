//! The database stops answering but keeps its connections.

use std::time::Instant;

use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_simulator::connection::retry_pushback;
use tonic::Code;

use super::database_proxy::TrafficMode;
use super::node::{Node, describe_end};
use super::test_server::{REST_TIMEOUT, TIME_TOLERANCE, TestServer, until};

/// Nodes of both protocols that report no changes.
async fn cached_nodes(server: &TestServer) -> [Node; 3] {
    let nodes = [
        Node::join_own(server, 1).await,
        Node::join_own(server, 2).await,
        Node::register_eim(server, 3).await,
    ];
    server.wait_until_cached(&nodes).await;
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_answers_are_sent_until_they_are_too_old_then_all_polls_are_refused_in_time() {
    let mut server = TestServer::start().await;
    let nodes = cached_nodes(&server).await;
    server.proxy.hold_all();
    let since = Instant::now();

    for node in &nodes {
        let result = node.poll_in_time().await;
        result.unwrap_or_else(|refused| panic!("the answer is not too old: {refused:?}"));
    }
    let [one, two, eim] = &nodes;
    let (one, two, eim, list, ready, alive) = tokio::join!(
        Box::pin(one.poll_until_refused(since)),
        Box::pin(two.poll_until_refused(since)),
        Box::pin(eim.poll_until_refused(since)),
        Box::pin(server.list_hosts()),
        Box::pin(server.check_health("/readyz")),
        Box::pin(server.check_health("/livez")),
    );
    for refused in [one, two, eim] {
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    }
    assert_eq!(list.0, 503);
    assert!(list.1 < REST_TIMEOUT + TIME_TOLERANCE, "{list:?}");
    assert_eq!(ready.0, 503);
    assert!(ready.1 < REST_TIMEOUT, "{ready:?}");
    assert_eq!(alive.0, 200, "the process is alive");

    server.proxy.forward_all().await;
    for node in &nodes {
        node.poll_until_answered().await;
    }
    until("the server is ready", async || {
        (server.check_health("/readyz").await.0 == 200).then_some(())
    })
    .await;
    server.wait_until_cached(&nodes).await;
    let [one, ..] = &nodes;
    server.order_update(&one.instance).await;
    one.poll_until_action("apply").await;
    assert!(server.is_running(), "without a restart");
    server.stop().await;
}

/// The database falls silent while calls of every kind are in progress.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_waits_for_a_silent_database() {
    let server = TestServer::start().await;
    let (describes, stages) = (Node::join_own(&server, 1).await, Node::join_own(&server, 2).await);
    let (begins, eim) = (Node::join_own(&server, 3).await, Node::register_eim(&server, 4).await);
    let token = server.create_join_token().await;
    server.order_update(&stages.instance).await;
    server.order_update(&begins.instance).await;
    let (staging_target, starting_target) =
        (stages.wait_for_target().await, begins.wait_for_target().await);
    let stored = begins.report_staged(&starting_target).await;
    assert_eq!(stored.expect("the report is stored"), 2);

    server.proxy.set_mode_at_commit(TrafficMode::HoldAll);
    let ends = tokio::join!(
        Box::pin(describe_end(describes.send_facts())),
        Box::pin(describe_end(stages.report_staged(&staging_target))),
        Box::pin(describe_end(begins.request_start(&starting_target))),
        Box::pin(describe_end(eim.send_status(StatusType::Started))),
        Box::pin(describe_end(describes.enroll_other(&token, 5))),
    );
    let (facts, report, start, sample, newcomer) = ends;
    let refused = "it is refused".to_owned();
    assert_eq!(
        [
            ("facts", facts),
            ("a report", report),
            ("a start request", start),
            ("a status", sample),
            ("an enrolment", newcomer),
        ],
        [
            ("facts", refused.clone()),
            ("a report", refused.clone()),
            ("a start request", refused.clone()),
            ("a status", refused.clone()),
            ("an enrolment", refused),
        ]
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_refused_while_the_database_is_silent_get_a_retry_time() {
    let server = TestServer::start().await;
    let nodes = cached_nodes(&server).await;
    server.proxy.hold_all();
    let since = Instant::now();
    let [one, two, eim] = &nodes;
    let (one, two, eim) = tokio::join!(
        Box::pin(one.poll_until_refused(since)),
        Box::pin(two.poll_until_refused(since)),
        Box::pin(eim.poll_until_refused(since)),
    );
    for refused in [one, two, eim] {
        assert!(retry_pushback(&refused).is_some(), "no retry time: {refused:?}");
    }
    server.stop().await;
}
