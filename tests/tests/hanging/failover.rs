//! Another database takes the place of the one that there was.

use std::time::Duration;

use super::house::{House, until};
use super::node::Node;

/// How long a node waits for an answer before it gives a call up.
const IMPATIENCE: Duration = Duration::from_secs(3);

/// Why the view begins anew: what it follows is another server.
const OTHER_SERVER: &str = r#"why="server""#;
const REBUILDS: &str = "evenkeel_view_rebuilds_total";

/// What was written last never reached the one that takes over.
#[tokio::test(flavor = "multi_thread")]
async fn what_only_the_lost_database_knew_is_told_to_nobody_by_the_one_that_takes_over() {
    let mut house = House::open().await;
    let nodes = [
        Node::own(&house, 1).await,
        Node::own(&house, 2).await,
        Node::eim(&house, 3).await,
    ];
    house.until_remembered(&nodes).await;
    let [lost, kept, _] = &nodes;
    let next = house.database.follower().await;
    next.until_like(&house.database).await;
    next.cut_off().await;
    house.wish(&lost.instance).await;
    lost.ask_until_told("apply").await;

    house.door.shut().await;
    next.promote().await;
    house.door.lead_to(&next.socket());
    let before = std::mem::replace(&mut house.database, next);
    before.stop().await;
    house.door.open().await;

    let told = lost.ask_until_answered().await;
    assert_eq!(told, "idle", "nobody here wishes anything of it");
    house.wish(&kept.instance).await;
    kept.ask_until_told("apply").await;
    house.until_as_decided(&nodes).await;
    assert_eq!(lost.ask_until_answered().await, "idle");
    assert_eq!(house.counted(REBUILDS, OTHER_SERVER).await, 1);
    assert!(house.is_running(), "without a restart");
    house.close().await;
}

/// A host that is gone does not hang up, and nobody else does in its place.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_lead_nowhere_hold_up_nobody_for_long() {
    let house = House::with_connections(3).await;
    let nodes = [
        Node::own(&house, 1).await,
        Node::own(&house, 2).await,
        Node::own(&house, 3).await,
        Node::own(&house, 4).await,
    ];
    house.until_remembered(&nodes).await;

    house.door.leave_behind_at_commit();
    let [one, two, three, four] = &nodes;
    let ended = tokio::join!(
        Box::pin(tokio::time::timeout(IMPATIENCE, one.tell_facts())),
        Box::pin(tokio::time::timeout(IMPATIENCE, two.tell_facts())),
        Box::pin(tokio::time::timeout(IMPATIENCE, three.tell_facts())),
        Box::pin(tokio::time::timeout(IMPATIENCE, four.tell_facts())),
    );
    let first = [&ended.0, &ended.1, &ended.2, &ended.3];
    let lost = first.iter().any(|ended| !matches!(ended, Ok(Ok(()))));
    assert!(lost, "nobody's commit was lost: this shows nothing");

    for node in &nodes {
        until("its news is taken", async || {
            let told = tokio::time::timeout(IMPATIENCE, node.tell_facts()).await;
            told.ok()?.ok()
        })
        .await;
    }
    until("it is ready", async || {
        (house.health("/readyz").await.0 == 200).then_some(())
    })
    .await;
    house.wish(&one.instance).await;
    one.ask_until_told("apply").await;
    house.close().await;
}

impl House {
    /// Asks until our own agents are told what an operator is shown, and all are answered from memory.
    async fn until_as_decided(&self, nodes: &[Node]) {
        until("all are told what is decided", async || {
            for node in nodes.iter().filter(|node| node.is_own()) {
                let told = node.ask_in_time().await.ok()?;
                if told != self.decision(&node.instance).await {
                    return None;
                }
            }
            Some(())
        })
        .await;
        self.until_remembered(nodes).await;
    }
}
