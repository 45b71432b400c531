//! No outdated answer is sent from the cache: not without a log follower, and not when changes are
//! missing in the log.

use std::time::Duration;

use evenkeel_domain::assignment::Scope;
use evenkeel_maintenance_manager::Settings;
use evenkeel_store::assignments;
use evenkeel_store::testing::without_protection;

use crate::test_server::{TestNode, TestServer, act};

impl TestServer {
    /// A node in an open window.
    async fn node_in_a_window(&self) -> TestNode {
        let node = self.node().await;
        self.window(node.host, -1, 600).await;
        node
    }

    async fn catch_up(&self) {
        while !self.manager.wait_until_caught_up().await {}
    }

    /// Polls until an answer is cached for the only node.
    async fn poll_until_cached(&self, node: &TestNode) {
        while self.manager.cache_sizes().nodes == 0 {
            self.poll(node).await;
            self.catch_up().await;
        }
    }
}

#[tokio::test]
async fn without_a_log_follower_nothing_is_cached_and_answers_are_current() {
    let server = TestServer::without_log_follower(Settings::default()).await;
    let node = server.node_in_a_window().await;
    for _ in 0..3 {
        assert_eq!(act(&server.poll(&node).await), "idle");
        server.policy(&node, "demo-hello=1.1").await;
        assert_eq!(act(&server.poll(&node).await), "apply");
        server.withdraw(&node).await;
    }
    assert_eq!(act(&server.poll(&node).await), "idle");
    assert!(!server.manager.wait_until_caught_up().await);
    assert_eq!(server.manager.cache_sizes().nodes, 0);
}

#[tokio::test]
async fn a_truncated_change_log_invalidates_the_cache() {
    let server = TestServer::new().await;
    let node = server.node_in_a_window().await;
    for _ in 0..3 {
        server.policy(&node, "demo-hello=1.1").await;
        server.catch_up().await;
        assert_eq!(act(&server.poll(&node).await), "apply");
        server.poll_until_cached(&node).await;
        let truncation = without_protection("TRUNCATE change_log");
        server.execute_sql(&format!("DELETE FROM assignments; {truncation}")).await;
        server.catch_up().await;
        assert_eq!(act(&server.poll(&node).await), "idle");
    }
}

#[tokio::test]
async fn a_change_that_is_committed_late_is_not_missed() {
    let server = TestServer::new().await;
    let node = server.node_in_a_window().await;
    let policy = server.create_policy("demo-hello=1.1").await;
    server.catch_up().await;
    server.poll_until_cached(&node).await;
    let scope = Scope::Instance(node.instance);
    let slow = server.tx().await;
    assignments::assign(&slow, scope, policy, server.now()).await.expect("assigned");
    // Later transactions are not read before the slow one has ended.
    server.create_project("other").await;
    assert!(!server.manager.wait_until_caught_up().await);
    assert_eq!(act(&server.poll(&node).await), "idle");
    slow.commit().await.expect("committed");
    server.catch_up().await;
    assert_eq!(act(&server.poll(&node).await), "apply");
}

/// Its session does not have the scope of all projects, or it is connected to another server than
/// the pool.
#[tokio::test]
async fn a_follower_that_does_not_see_changes_stops_the_cache() {
    let server = TestServer::new().await;
    let node = server.node_in_a_window().await;
    server.catch_up().await;
    server.poll_until_cached(&node).await;
    // Only sessions of log readers are read-only.
    for (policy, table) in [("tenant", "change_log"), ("fleet", "log_heartbeat")] {
        let hide = format!(
            "ALTER POLICY {policy} ON {table} USING (current_setting('default_transaction_read_only') = 'off')"
        );
        server.execute_sql(&hide).await;
    }
    server.policy(&node, "demo-hello=1.1").await;
    let polling = async { while act(&server.poll(&node).await) != "apply" {} };
    let within = Duration::from_mins(1);
    tokio::time::timeout(within, polling).await.expect("the answer of the database");
}
