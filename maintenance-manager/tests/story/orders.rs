//! Orders of a person for one node, outside of the plan.

use evenkeel_domain::order::OrderKind;
use evenkeel_proto::agent::Cancelled;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::maintmgr::update_status::StatusType as S;

use crate::fleet::{sample, window};
use crate::test_server::{TestServer, act, began, downloaded, downloading, finished, reason};

#[tokio::test]
async fn an_ordered_update_needs_no_window_and_stores_its_reason() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    assert_eq!(act(&server.poll(&node).await), "idle");
    server.order(node.instance, OrderKind::Now).await;
    server.advance_minutes(1);
    assert_eq!(act(&server.poll(&node).await), "apply");
    let fetched = [(1, downloading()), (2, downloaded())];
    server.report(&node, 1, policy, &fetched).await;
    let answer = server.begin(&node, 1, policy, 2).await;
    assert!(matches!(answer, Answer::Granted(_)));
    let ended = [(3, began()), (4, finished())];
    server.report(&node, 1, policy, &ended).await;
    let run = &server.runs(&node).await[0];
    let order = run.origin.order.as_ref().expect("the order is stored");
    assert_eq!((order.by.as_str(), order.reason.as_str()), ("alice", "requested by a customer"));
    assert_eq!(act(&server.poll(&node).await), "idle", "it is done once");
}

#[tokio::test]
async fn an_unused_order_expires() {
    let (server, node, _) = TestServer::with_policy("demo-hello=1.1").await;
    server.order(node.instance, OrderKind::Now).await;
    server.advance_minutes(61);
    let answer = server.poll(&node).await;
    assert_eq!(act(&answer), "idle");
    assert_eq!(reason(&answer), "no schedule opens a window for updates");
}

#[tokio::test]
async fn a_cancelled_update_waits_for_the_next_window() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 0, 60).await;
    let fetched = [(1, downloading()), (2, downloaded())];
    server.report(&node, 1, policy, &fetched).await;
    assert_eq!(act(&server.poll_with_attempt(&node, 1).await), "apply");
    server.order(node.instance, OrderKind::Cancel).await;
    assert_eq!(act(&server.poll_with_attempt(&node, 1).await), "cancel");
    let answer = server.begin(&node, 1, policy, 2).await;
    assert!(matches!(answer, Answer::Refused(_)));
    let cancelled = Kind::Cancelled(Cancelled { cause: "requested".into() });
    server.report(&node, 1, policy, &[(3, cancelled)]).await;
    assert_eq!(server.runs(&node).await[0].state.name(), "cancelled");
    assert_eq!(act(&server.poll(&node).await), "idle");
    server.window(node.host, 120, 180).await;
    server.advance_minutes(121);
    assert_eq!(act(&server.poll(&node).await), "apply");
}

#[tokio::test]
async fn a_begun_update_is_not_cancelled() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 0, 60).await;
    server.report(&node, 1, policy, &[(1, downloading())]).await;
    server.begin(&node, 1, policy, 1).await;
    server.report(&node, 1, policy, &[(2, began())]).await;
    server.order(node.instance, OrderKind::Cancel).await;
    assert_eq!(act(&server.poll_with_attempt(&node, 1).await), "continue");
}

#[tokio::test]
async fn an_order_gives_an_eim_node_a_window_and_a_cancellation_none() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    server.policy(&node.as_node(), "curl").await;
    assert_eq!(window(&server.send_status(&node, sample(S::UpToDate)).await), None);
    server.order(node.instance, OrderKind::Now).await;
    let offered = window(&server.send_status(&node, sample(S::UpToDate)).await);
    let (start, end) = offered.expect("a window");
    assert_eq!(end - start, 3_600);
    server.order(node.instance, OrderKind::Cancel).await;
    assert_eq!(window(&server.send_status(&node, sample(S::UpToDate)).await), None);
}

/// The node gets an answer without a window first: until it has this answer, it may begin by
/// itself.
#[tokio::test]
async fn a_download_of_an_eim_node_is_cancelled_when_it_cannot_begin_any_more() {
    let server = TestServer::new().await;
    let old = server.add_image("3.0.1").await;
    server.add_image("3.0.2").await;
    let node = server.eim_node_with_os(1, old).await;
    let latest = server.create_policy_for(evenkeel_domain::policy::DesiredUpdate::Latest).await;
    server.assign_to(node.instance, latest).await;
    server.window(node.host, 30, 600).await;
    for kind in [S::UpToDate, S::Downloading, S::Downloaded] {
        assert!(window(&server.send_status(&node, sample(kind)).await).is_some());
    }
    server.withdraw(&node.as_node()).await;
    let state = async || server.runs(&node.as_node()).await[0].state.name();
    assert_eq!(window(&server.send_status(&node, sample(S::Downloaded)).await), None);
    assert_eq!(state().await, "staged");
    server.send_status(&node, sample(S::Downloaded)).await;
    assert_eq!(state().await, "cancelled");
    server.send_status(&node, sample(S::Downloaded)).await;
    assert_eq!(server.runs(&node.as_node()).await.len(), 1);
}

/// An unreachable node may begin under an offline grant.
#[tokio::test]
async fn a_staged_run_of_an_absent_node_is_cancelled_when_its_offline_grant_expires() {
    let server = TestServer::new().await;
    let (node, _) = server.node_with_staged_attempt().await;
    server.advance_minutes(30);
    assert_eq!(server.reap_runs().await, 0);
    server.advance_minutes(8 * 24 * 60);
    assert_eq!(server.reap_runs().await, 1);
    assert_eq!(server.runs(&node).await[0].state.name(), "cancelled");
}

#[tokio::test]
async fn an_update_under_an_offline_grant_is_recorded_when_the_node_returns() {
    let server = TestServer::new().await;
    let (node, policy) = server.node_with_staged_attempt().await;
    server.advance_minutes(24 * 60);
    assert_eq!(server.reap_runs().await, 0);
    server.report(&node, 1, policy, &[(3, began()), (4, finished())]).await;
    assert_eq!(server.runs(&node).await[0].state.name(), "succeeded");
}
