//! The database says nothing any more, without hanging up.

use std::time::Instant;

use tonic::Code;

use super::house::{House, REST_ANSWER, SLACK, until};
use super::node::Node;

/// Nodes of both kinds that say nothing new.
async fn quiet_nodes(house: &House) -> [Node; 3] {
    let nodes = [
        Node::own(house, 1).await,
        Node::own(house, 2).await,
        Node::eim(house, 3).await,
    ];
    house.until_remembered(&nodes).await;
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_remembered_is_told_until_it_is_too_old_and_then_all_are_refused_in_time() {
    let mut house = House::open().await;
    let nodes = quiet_nodes(&house).await;
    house.door.fall_silent();
    let since = Instant::now();

    for node in &nodes {
        let told = node.ask_in_time().await;
        told.unwrap_or_else(|refused| panic!("it is not too old: {refused:?}"));
    }
    let [one, two, eim] = &nodes;
    let (one, two, eim, list, ready, alive) = tokio::join!(
        Box::pin(one.ask_until_refused(since)),
        Box::pin(two.ask_until_refused(since)),
        Box::pin(eim.ask_until_refused(since)),
        Box::pin(house.list()),
        Box::pin(house.health("/readyz")),
        Box::pin(house.health("/livez")),
    );
    for refused in [one, two, eim] {
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    }
    assert_eq!(list.0, 503);
    assert!(list.1 < REST_ANSWER + SLACK, "{list:?}");
    assert_eq!(ready.0, 503);
    assert!(ready.1 < REST_ANSWER, "{ready:?}");
    assert_eq!(alive.0, 200, "the process works");

    house.door.open().await;
    for node in &nodes {
        node.ask_until_answered().await;
    }
    until("it is ready", async || {
        (house.health("/readyz").await.0 == 200).then_some(())
    })
    .await;
    house.until_remembered(&nodes).await;
    let [one, ..] = &nodes;
    house.wish(&one.instance).await;
    one.ask_until_told("apply").await;
    assert!(house.is_running(), "without a restart");
    house.close().await;
}
