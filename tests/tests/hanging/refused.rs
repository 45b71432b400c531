//! The database refuses connections for a while.

use std::time::Instant;

use tonic::Code;

use super::house::{House, REST_ANSWER, SLACK, until};
use super::node::{Node, end};

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_refuses_and_returns_is_used_again_by_the_same_process() {
    let mut house = House::open().await;
    let nodes = [
        Node::own(&house, 1).await,
        Node::own(&house, 2).await,
        Node::eim(&house, 3).await,
    ];
    house.until_remembered(&nodes).await;
    let [first, second, eim] = &nodes;
    house.door.shut().await;
    let since = Instant::now();

    for node in &nodes {
        let told = node.ask_in_time().await;
        told.unwrap_or_else(|refused| panic!("it is not too old: {refused:?}"));
    }
    let (news, list, ready, alive) = tokio::join!(
        Box::pin(end(second.tell_facts())),
        Box::pin(house.list()),
        Box::pin(house.health("/readyz")),
        Box::pin(house.health("/livez")),
    );
    assert_eq!(news, "it is refused", "it cannot be stored");
    assert_eq!((list.0, ready.0, alive.0), (503, 503, 200));
    assert!(list.1 < REST_ANSWER + SLACK, "{list:?}");
    let (one, other) = tokio::join!(
        Box::pin(first.ask_until_refused(since)),
        Box::pin(eim.ask_until_refused(since)),
    );
    for refused in [one, other] {
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    }

    house.door.open().await;
    for node in &nodes {
        node.ask_until_answered().await;
    }
    until("the news is taken", async || {
        (end(second.tell_facts()).await == "it is answered").then_some(())
    })
    .await;
    let ready = async || (house.health("/readyz").await.0 == 200).then_some(());
    until("it is ready", ready).await;
    house.wish(&first.instance).await;
    first.ask_until_told("apply").await;
    assert!(house.is_running(), "without a restart");
    house.close().await;
}
