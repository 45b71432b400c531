//! What a person orders for one node, outside the plan.

use evenkeel_domain::order::OrderKind;
use evenkeel_proto::agent::Cancelled;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::maintmgr::update_status::StatusType as S;

use crate::fleet::{sample, window};
use crate::house::{House, act, began, downloaded, downloading, finished, reason};

#[tokio::test]
async fn an_update_that_is_ordered_needs_no_window_and_keeps_its_reason() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    assert_eq!(act(&house.poll(&node).await), "idle");
    house.order(node.instance, OrderKind::Now).await;
    house.pass(1);
    assert_eq!(act(&house.poll(&node).await), "apply");
    let fetched = [(1, downloading()), (2, downloaded())];
    house.report(&node, 1, policy, &fetched).await;
    let answer = house.begin(&node, 1, policy, 2).await;
    assert!(matches!(answer, Answer::Granted(_)));
    let ended = [(3, began()), (4, finished())];
    house.report(&node, 1, policy, &ended).await;
    let run = &house.runs(&node).await[0];
    let order = run.origin.order.as_ref().expect("the order is kept");
    assert_eq!(
        (order.by.as_str(), order.reason.as_str()),
        ("alice", "a customer asked")
    );
    assert_eq!(act(&house.poll(&node).await), "idle", "it is done once");
}

#[tokio::test]
async fn an_order_that_nobody_used_is_over_in_its_time() {
    let house = House::new().await;
    let node = house.node().await;
    house.policy(&node, "demo-hello=1.1").await;
    house.order(node.instance, OrderKind::Now).await;
    house.pass(61);
    let answer = house.poll(&node).await;
    assert_eq!(act(&answer), "idle");
    assert_eq!(reason(&answer), "no schedule opens a window for updates");
}

#[tokio::test]
async fn an_update_that_is_called_off_waits_for_the_next_window() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 0, 60).await;
    let fetched = [(1, downloading()), (2, downloaded())];
    house.report(&node, 1, policy, &fetched).await;
    assert_eq!(act(&house.poll_with(&node, 1).await), "apply");
    house.order(node.instance, OrderKind::Cancel).await;
    assert_eq!(act(&house.poll_with(&node, 1).await), "cancel");
    let answer = house.begin(&node, 1, policy, 2).await;
    assert!(matches!(answer, Answer::Refused(_)));
    let cancelled = News::Cancelled(Cancelled {
        cause: "requested".into(),
    });
    house.report(&node, 1, policy, &[(3, cancelled)]).await;
    assert_eq!(house.runs(&node).await[0].state.name(), "cancelled");
    assert_eq!(act(&house.poll(&node).await), "idle");
    house.window(node.host, 120, 180).await;
    house.pass(121);
    assert_eq!(act(&house.poll(&node).await), "apply");
}

#[tokio::test]
async fn what_has_begun_is_not_called_off() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 0, 60).await;
    house.report(&node, 1, policy, &[(1, downloading())]).await;
    house.begin(&node, 1, policy, 1).await;
    house.report(&node, 1, policy, &[(2, began())]).await;
    house.order(node.instance, OrderKind::Cancel).await;
    assert_eq!(act(&house.poll_with(&node, 1).await), "continue");
}

#[tokio::test]
async fn the_ancestors_nodes_are_ordered_by_a_window_and_called_off_without_one() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    house.policy(&node.as_node(), "curl").await;
    assert_eq!(window(&house.say(&node, sample(S::UpToDate)).await), None);
    house.order(node.instance, OrderKind::Now).await;
    let told = window(&house.say(&node, sample(S::UpToDate)).await);
    let (start, end) = told.expect("a window");
    assert_eq!(end - start, 3_600);
    house.order(node.instance, OrderKind::Cancel).await;
    assert_eq!(window(&house.say(&node, sample(S::UpToDate)).await), None);
}

/// It is told no window first: until it has heard that, it may begin by itself.
#[tokio::test]
async fn what_one_of_the_ancestors_nodes_has_fetched_is_given_up_when_it_cannot_begin_any_more() {
    let house = House::new().await;
    let old = house.catalogue("3.0.1").await;
    house.catalogue("3.0.2").await;
    let node = house.old_node_on(1, old).await;
    let latest = house.make(evenkeel_domain::policy::Wish::Latest).await;
    house.assign_to(node.instance, latest).await;
    house.window(node.host, 30, 600).await;
    for kind in [S::UpToDate, S::Downloading, S::Downloaded] {
        assert!(window(&house.say(&node, sample(kind)).await).is_some());
    }
    house.withdraw(&node.as_node()).await;
    let state = async || house.runs(&node.as_node()).await[0].state.name();
    assert_eq!(window(&house.say(&node, sample(S::Downloaded)).await), None);
    assert_eq!(state().await, "staged");
    house.say(&node, sample(S::Downloaded)).await;
    assert_eq!(state().await, "cancelled");
    house.say(&node, sample(S::Downloaded)).await;
    assert_eq!(house.runs(&node.as_node()).await.len(), 1);
}

/// A node that cannot be reached may begin by leave that it was given ahead.
#[tokio::test]
async fn what_waits_on_a_node_that_is_away_is_given_up_when_its_leave_is_over() {
    let house = House::new().await;
    let (node, _) = house.node_that_waits().await;
    house.pass(30);
    assert_eq!(house.track().await, 0);
    house.pass(8 * 24 * 60);
    assert_eq!(house.track().await, 1);
    assert_eq!(house.runs(&node).await[0].state.name(), "cancelled");
}

#[tokio::test]
async fn what_a_node_did_by_leave_given_ahead_is_recorded_when_it_comes_back() {
    let house = House::new().await;
    let (node, policy) = house.node_that_waits().await;
    house.pass(24 * 60);
    assert_eq!(house.track().await, 0);
    house
        .report(&node, 1, policy, &[(3, began()), (4, finished())])
        .await;
    assert_eq!(house.runs(&node).await[0].state.name(), "succeeded");
}
