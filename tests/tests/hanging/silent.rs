//! The database says nothing any more, without hanging up.

use std::time::Instant;

use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_simulator::line::pushback;
use tonic::Code;

use super::door::Passage;
use super::house::{House, REST_ANSWER, SLACK, until};
use super::node::{Node, end};

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

/// Whatever a call is for, it is under way when the database falls silent.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_database_that_is_silent() {
    let house = House::open().await;
    let (describes, stages) = (Node::own(&house, 1).await, Node::own(&house, 2).await);
    let (begins, eim) = (Node::own(&house, 3).await, Node::eim(&house, 4).await);
    let token = house.join_token().await;
    house.wish(&stages.instance).await;
    house.wish(&begins.instance).await;
    let (wanted, leave_for) = (stages.target().await, begins.target().await);
    let stored = begins.stage(&leave_for).await;
    assert_eq!(stored.expect("it is stored"), 2);

    house.door.at_commit(Passage::Silent);
    let ends = tokio::join!(
        Box::pin(end(describes.tell_facts())),
        Box::pin(end(stages.stage(&wanted))),
        Box::pin(end(begins.begin(&leave_for))),
        Box::pin(end(eim.show(StatusType::Started))),
        Box::pin(end(describes.bring(&token, 5))),
    );
    let (facts, report, leave, sample, newcomer) = ends;
    let refused = "it is refused".to_owned();
    assert_eq!(
        [
            ("facts", facts),
            ("a report", report),
            ("a request to begin", leave),
            ("a sample", sample),
            ("one who joins", newcomer),
        ],
        [
            ("facts", refused.clone()),
            ("a report", refused.clone()),
            ("a request to begin", refused.clone()),
            ("a sample", refused.clone()),
            ("one who joins", refused),
        ]
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_while_the_database_is_silent_is_told_when_to_come_back() {
    let house = House::open().await;
    let nodes = quiet_nodes(&house).await;
    house.door.fall_silent();
    let since = Instant::now();
    let [one, two, eim] = &nodes;
    let (one, two, eim) = tokio::join!(
        Box::pin(one.ask_until_refused(since)),
        Box::pin(two.ask_until_refused(since)),
        Box::pin(eim.ask_until_refused(since)),
    );
    for refused in [one, two, eim] {
        assert!(pushback(&refused).is_some(), "no time is told: {refused:?}");
    }
    house.close().await;
}
