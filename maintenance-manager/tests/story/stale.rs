//! Nothing is said from memory that may be wrong: not while nobody follows the changes, nor when some of them are lost.

use evenkeel_domain::assignment::Scope;
use evenkeel_maintenance_manager::Settings;
use evenkeel_store::assignments;

use crate::house::{House, TestNode, act, project};

impl House {
    /// A node in an open window.
    async fn node_in_a_window(&self) -> TestNode {
        let node = self.node().await;
        self.window(node.host, -1, 600).await;
        node
    }

    async fn knows_all(&self) {
        while !self.manager.caught_up().await {}
    }

    /// Polls until something is remembered of the only node there is.
    async fn poll_until_remembered(&self, node: &TestNode) {
        while self.manager.sizes().nodes == 0 {
            self.poll(node).await;
            self.knows_all().await;
        }
    }
}

#[tokio::test]
async fn while_nobody_follows_the_changes_nothing_is_remembered_and_all_is_right() {
    let house = House::at_rest(Settings::default()).await;
    let node = house.node_in_a_window().await;
    for _ in 0..3 {
        assert_eq!(act(&house.poll(&node).await), "idle");
        house.policy(&node, "demo-hello=1.1").await;
        assert_eq!(act(&house.poll(&node).await), "apply");
        house.withdraw(&node).await;
    }
    assert_eq!(act(&house.poll(&node).await), "idle");
    assert!(!house.manager.caught_up().await);
    assert_eq!(house.manager.sizes().nodes, 0);
}

#[tokio::test]
async fn what_is_missing_in_the_log_is_looked_up_all_the_same() {
    let house = House::new().await;
    let node = house.node_in_a_window().await;
    for _ in 0..3 {
        house.policy(&node, "demo-hello=1.1").await;
        house.knows_all().await;
        assert_eq!(act(&house.poll(&node).await), "apply");
        house.poll_until_remembered(&node).await;
        house
            .by_hand("DELETE FROM assignments; TRUNCATE change_log")
            .await;
        house.knows_all().await;
        assert_eq!(act(&house.poll(&node).await), "idle");
    }
}

#[tokio::test]
async fn a_change_that_is_committed_late_is_not_missed() {
    let house = House::new().await;
    let node = house.node_in_a_window().await;
    let policy = house.wish("demo-hello=1.1").await;
    house.knows_all().await;
    house.poll_until_remembered(&node).await;
    let scope = Scope::Instance(node.instance);
    let slow = house.tx().await;
    assignments::assign(&slow, scope, policy, house.time())
        .await
        .expect("assigned");
    // Others go on meanwhile, and what they do is not known before the slow one is over.
    project(&house.store, "other").await;
    assert!(!house.manager.caught_up().await);
    assert_eq!(act(&house.poll(&node).await), "idle");
    slow.commit().await.expect("committed");
    house.knows_all().await;
    assert_eq!(act(&house.poll(&node).await), "apply");
}
