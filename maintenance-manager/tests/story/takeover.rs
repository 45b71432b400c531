//! Our agent comes where one of the ancestor's is at work.

use evenkeel_domain::assignment::Scope;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::maintmgr::update_status::StatusType as S;

use crate::fleet::{OldNode, sample, window};
use crate::house::{House, TestNode, act, downloaded, downloading, facts};

/// A node of the ancestor's that has the only slot of the project and says these things.
async fn at_work(house: &House, says: &[S]) -> OldNode {
    let policy = house.wish("demo-hello=1.1").await;
    house.assign(Scope::Project, policy, Some(1), None).await;
    let old = house.old_node(1).await;
    house.window(old.host, 0, 2_000).await;
    for kind in says {
        house.say(&old, sample(*kind)).await;
    }
    old
}

async fn ours(house: &House, old: &OldNode) -> TestNode {
    let node = house.takes_over(old).await;
    house.tell(&node, facts()).await;
    node
}

async fn states(house: &House, node: &TestNode) -> Vec<&'static str> {
    let runs = house.runs(node).await;
    runs.iter().map(|run| run.state.name()).collect()
}

#[tokio::test]
async fn the_end_of_what_the_old_agent_had_begun_is_recorded() {
    for (end, state) in [(S::Updated, "succeeded"), (S::UpToDate, "succeeded")] {
        let house = House::new().await;
        let old = at_work(&house, &[S::UpToDate, S::Started]).await;
        let node = ours(&house, &old).await;
        assert_eq!(act(&house.poll(&node).await), "continue");
        house.pass(10);
        // The database is away for the first time that it is told.
        let (away, database) = house.replica().await;
        database.close().await;
        let refused = house.say_at(&away, &old.guid, sample(end)).await;
        refused.expect_err("not stored");
        let answer = house.say(&old, sample(end)).await;
        assert_eq!(window(&answer), None);
        assert_eq!(states(&house, &node).await, [state], "{end:?}");
        assert_eq!(house.slots(Scope::Project).await, 0);
        assert_ne!(act(&house.poll(&node).await), "continue");
    }
}

#[tokio::test]
async fn an_end_that_nobody_had_announced_is_kept_beside_what_ours_does() {
    let house = House::new().await;
    let old = at_work(&house, &[S::UpToDate]).await;
    let node = ours(&house, &old).await;
    house.pass(70 * 60);
    let policy = house.wish("demo-hello=1.1").await;
    house.assign(Scope::Project, policy, Some(1), None).await;
    house.window(old.host, 0, 60).await;
    let fetched = [(1, downloading()), (2, downloaded())];
    house.report(&node, 1, policy, &fetched).await;
    let answer = house.begin(&node, 1, policy, 2).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    house.pass(1);
    house.say(&old, sample(S::Updated)).await;
    let mut all = states(&house, &node).await;
    all.sort_unstable();
    assert_eq!(all, ["staged", "succeeded"]);
    assert_eq!(house.slots(Scope::Project).await, 1, "ours keeps its leave");
    assert_eq!(house.shown(&node).await, "Download complete");
    // The same once more is nothing new.
    house.say(&old, sample(S::Updated)).await;
    assert_eq!(states(&house, &node).await.len(), 2);
}

#[tokio::test]
async fn what_the_old_agent_had_only_fetched_is_given_up_outside_its_window() {
    let house = House::new().await;
    let old = house.old_node(1).await;
    house.policy(&old.as_node(), "demo-hello=1.1").await;
    house.window(old.host, 60, 120).await;
    for kind in [S::UpToDate, S::Downloading, S::Downloaded] {
        house.say(&old, sample(kind)).await;
    }
    assert_eq!(states(&house, &old.as_node()).await, ["staged"]);
    let node = ours(&house, &old).await;
    assert_eq!(states(&house, &node).await, ["cancelled"]);
    assert_eq!(act(&house.poll(&node).await), "fetch");
}

/// It was removed in the middle of its work: nobody will ever say how that ended.
#[tokio::test]
async fn an_old_agent_that_is_gone_holds_its_slot_for_an_hour_and_not_for_a_day() {
    let house = House::new().await;
    let old = at_work(&house, &[S::UpToDate, S::Started]).await;
    house.pass(300);
    let node = ours(&house, &old).await;
    house.pass(50);
    house.say(&old, sample(S::Started)).await;
    house.pass(50);
    assert_eq!(house.track().await, 0, "it was heard");
    assert_eq!(house.slots(Scope::Project).await, 1);
    house.pass(11);
    assert_eq!(house.track().await, 1);
    assert_eq!(house.slots(Scope::Project).await, 0);
    assert_eq!(states(&house, &node).await, ["abandoned"]);
    // It was only slow.
    house.say(&old, sample(S::Updated)).await;
    assert_eq!(states(&house, &node).await, ["succeeded"]);
}
