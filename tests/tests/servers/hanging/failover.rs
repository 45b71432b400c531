//! A standby replaces the database.

use std::time::Duration;

use super::node::Node;
use super::test_server::{TestServer, until};

/// Time after which a node gives up a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Reason for which the answer cache is rebuilt: it follows the log of another database server.
const OTHER_SERVER_LABEL: &str = r#"reason="server""#;
const REBUILDS_METRIC: &str = "evenkeel_answer_cache_rebuilds_total";

/// The last writes never reach the standby.
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_only_the_lost_database_had_are_not_sent_after_a_failover() {
    let mut server = TestServer::start().await;
    let nodes = [
        Node::join_own(&server, 1).await,
        Node::join_own(&server, 2).await,
        Node::register_eim(&server, 3).await,
    ];
    server.wait_until_cached(&nodes).await;
    let [lost, other, _] = &nodes;
    let next = server.database.start_standby().await;
    next.wait_until_replayed(&server.database).await;
    next.stop_replication().await;
    server.order_update(&lost.instance).await;
    lost.poll_until_action("apply").await;

    server.proxy.refuse_all().await;
    next.promote().await;
    server.proxy.set_database(&next.socket());
    let before = std::mem::replace(&mut server.database, next);
    before.stop().await;
    server.proxy.forward_all().await;

    let action = lost.poll_until_answered().await;
    assert_eq!(action, "idle", "the standby has no update for the node");
    server.order_update(&other.instance).await;
    other.poll_until_action("apply").await;
    server.wait_until_answers_match_decisions(&nodes).await;
    assert_eq!(lost.poll_until_answered().await, "idle");
    assert_eq!(server.metric_sum(REBUILDS_METRIC, OTHER_SERVER_LABEL).await, 1);
    assert!(server.is_running(), "without a restart");
    server.stop().await;
}

/// A host that has vanished does not close its connections, and nothing else does.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_vanished_host_do_not_block_nodes_for_long() {
    let server = TestServer::with_connections(3).await;
    let nodes = [
        Node::join_own(&server, 1).await,
        Node::join_own(&server, 2).await,
        Node::join_own(&server, 3).await,
        Node::join_own(&server, 4).await,
    ];
    server.wait_until_cached(&nodes).await;

    server.proxy.abandon_connections_at_commit();
    let [one, two, three, four] = &nodes;
    let ended = tokio::join!(
        Box::pin(tokio::time::timeout(CALL_TIMEOUT, one.send_facts())),
        Box::pin(tokio::time::timeout(CALL_TIMEOUT, two.send_facts())),
        Box::pin(tokio::time::timeout(CALL_TIMEOUT, three.send_facts())),
        Box::pin(tokio::time::timeout(CALL_TIMEOUT, four.send_facts())),
    );
    let first = [&ended.0, &ended.1, &ended.2, &ended.3];
    let lost = first.iter().any(|ended| !matches!(ended, Ok(Ok(()))));
    assert!(lost, "no commit was lost: this shows nothing");

    for node in &nodes {
        until("its facts are accepted", async || {
            let result = tokio::time::timeout(CALL_TIMEOUT, node.send_facts()).await;
            result.ok()?.ok()
        })
        .await;
    }
    until("the server is ready", async || {
        (server.check_health("/readyz").await.0 == 200).then_some(())
    })
    .await;
    server.order_update(&one.instance).await;
    one.poll_until_action("apply").await;
    server.stop().await;
}

impl TestServer {
    /// Polls until our agents get the decision that an operator sees, and all answers are cached.
    async fn wait_until_answers_match_decisions(&self, nodes: &[Node]) {
        until("all nodes get their decision", async || {
            for node in nodes.iter().filter(|node| node.is_own()) {
                let action = node.poll_in_time().await.ok()?;
                if action != self.decided_action(&node.instance).await {
                    return None;
                }
            }
            Some(())
        })
        .await;
        self.wait_until_cached(nodes).await;
    }
}
