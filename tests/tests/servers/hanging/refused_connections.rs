//! The database refuses connections for a while.

use std::time::Instant;

use tonic::Code;

use super::node::{Node, describe_end};
use super::test_server::{REST_TIMEOUT, TIME_TOLERANCE, TestServer, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_refuses_and_returns_is_used_again_by_the_same_process() {
    let mut server = TestServer::start().await;
    let nodes = [
        Node::join_own(&server, 1).await,
        Node::join_own(&server, 2).await,
        Node::register_eim(&server, 3).await,
    ];
    server.wait_until_cached(&nodes).await;
    let [first, second, eim] = &nodes;
    server.proxy.refuse_all().await;
    let since = Instant::now();

    for node in &nodes {
        let result = node.poll_in_time().await;
        result.unwrap_or_else(|refused| panic!("the answer is not too old: {refused:?}"));
    }
    let (facts, list, ready, alive) = tokio::join!(
        Box::pin(describe_end(second.send_facts())),
        Box::pin(server.list_hosts()),
        Box::pin(server.check_health("/readyz")),
        Box::pin(server.check_health("/livez")),
    );
    assert_eq!(facts, "it is refused", "the facts cannot be stored");
    assert_eq!((list.0, ready.0, alive.0), (503, 503, 200));
    assert!(list.1 < REST_TIMEOUT + TIME_TOLERANCE, "{list:?}");
    let (one, other) = tokio::join!(
        Box::pin(first.poll_until_refused(since)),
        Box::pin(eim.poll_until_refused(since)),
    );
    for refused in [one, other] {
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    }

    server.proxy.forward_all().await;
    for node in &nodes {
        node.poll_until_answered().await;
    }
    until("the facts are accepted", async || {
        (describe_end(second.send_facts()).await == "it is answered").then_some(())
    })
    .await;
    let ready = async || (server.check_health("/readyz").await.0 == 200).then_some(());
    until("the server is ready", ready).await;
    server.order_update(&first.instance).await;
    first.poll_until_action("apply").await;
    assert!(server.is_running(), "without a restart");
    server.stop().await;
}
