//! Our agent comes where one of the ancestor's is at work.

use evenkeel_domain::assignment::Scope;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::{Attempt, Facts, PollRequest};
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use uuid::Uuid;

use crate::fleet::{OldNode, sample, window};
use crate::house::{House, TestNode, act, began, downloaded, downloading, facts, finished};

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

/// What it had only fetched in a window that is open it may begin at any moment; then nobody would say that it did not.
#[tokio::test]
async fn what_the_old_agent_may_still_begin_is_waited_for_and_then_given_up() {
    for by_poll in [true, false] {
        let house = House::new().await;
        let policy = house.wish("demo-hello=1.1").await;
        house.assign(Scope::Project, policy, None, Some(1)).await;
        let old = house.old_node(1).await;
        house.window(old.host, 0, 30).await;
        house.window(old.host, 100, 500).await;
        for kind in [S::UpToDate, S::Downloading, S::Downloaded] {
            house.say(&old, sample(kind)).await;
        }
        let node = ours(&house, &old).await;
        house.pass(20);
        assert_eq!(act(&house.poll(&node).await), "continue");
        let decision = house.explained(&node).await.decide(house.time());
        assert_eq!(decision.act.name(), "continue");
        let refused = house.begin(&node, 1, policy, 0).await;
        assert!(!matches!(refused, Answer::Granted(_)), "{refused:?}");
        house.say(&old, sample(S::Downloaded)).await;
        house.pass(35);
        assert_eq!(act(&house.poll(&node).await), "continue", "an hour's echo");
        assert_eq!(house.track().await, 0);
        house.pass(50);
        if by_poll {
            assert_eq!(act(&house.poll(&node).await), "apply");
        } else {
            assert_eq!(house.track().await, 1);
        }
        assert_eq!(states(&house, &node).await, ["cancelled"]);
        let world = house.explained(&node).await;
        assert_eq!(world.decide(house.time()).act.name(), "apply", "no failure");
    }
}

#[tokio::test]
async fn what_an_old_agent_that_is_gone_had_only_fetched_is_no_failure() {
    let house = House::new().await;
    let old = at_work(&house, &[S::UpToDate, S::Downloading, S::Downloaded]).await;
    let node = ours(&house, &old).await;
    house.pass(59);
    assert_eq!(house.track().await, 0);
    assert_eq!(states(&house, &node).await, ["staged"]);
    house.pass(2);
    assert_eq!(house.track().await, 1);
    assert_eq!(states(&house, &node).await, ["cancelled"]);
}

/// It speaks every few seconds, and each note of it is a row of the change log.
#[tokio::test]
async fn the_last_word_of_the_old_agent_is_noted_every_few_minutes() {
    let house = House::new().await;
    let old = at_work(&house, &[S::UpToDate, S::Started]).await;
    let node = ours(&house, &old).await;
    let taken_over = house.time();
    let last_word = async || house.known(&node).await.delivered.last_word;
    for _ in 0..4 {
        house.pass(1);
        house.say(&old, sample(S::Started)).await;
        assert_eq!(last_word().await, Some(taken_over));
    }
    house.pass(1);
    house.say(&old, sample(S::Started)).await;
    assert_eq!(last_word().await, Some(house.time()));
}

#[tokio::test]
async fn a_late_end_of_the_old_agents_is_that_of_its_run_also_after_one_of_ours() {
    let house = House::new().await;
    let old = at_work(&house, &[S::UpToDate, S::Started]).await;
    let node = ours(&house, &old).await;
    house.pass(61);
    assert_eq!(house.track().await, 1);
    let policy = house.wish("demo-hello=1.1").await;
    let events = [(1, downloading()), (2, began()), (3, finished())];
    house.report(&node, 1, policy, &events).await;
    house.pass(1);
    let mut before = states(&house, &node).await;
    before.sort_unstable();
    assert_eq!(before, ["abandoned", "succeeded"]);
    house.say(&old, sample(S::Updated)).await;
    assert_eq!(states(&house, &node).await, ["succeeded", "succeeded"]);
}

/// What our agent is to do follows from what the node is, and that may just have changed.
#[tokio::test]
async fn a_node_whose_facts_are_not_known_begins_nothing_before_it_has_told_them() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, -10, 600).await;
    assert_eq!(act(&house.poll(&node).await), "apply");
    let news = Facts {
        kernel_release: "6.12".into(),
        ..facts()
    };
    let changed = |whole: bool| PollRequest {
        facts_digest: vec![7; 32],
        facts: whole.then(|| news.clone()),
        ..PollRequest::default()
    };
    let answer = house.ask(&node, changed(false)).await;
    assert!(answer.want_facts);
    assert_eq!(act(&answer), "idle");
    let decision = answer.decision.expect("a decision");
    assert!(decision.grant.is_none() && !decision.reason.is_empty());
    assert_eq!(act(&house.ask(&node, changed(true)).await), "apply");

    let fetched = [(1, downloading()), (2, downloaded())];
    house.report(&node, 1, policy, &fetched).await;
    let open = PollRequest {
        facts_digest: vec![8; 32],
        attempt: Some(Attempt {
            id: Uuid::from_u128(1).to_string(),
            last_sequence: 2,
        }),
        ..PollRequest::default()
    };
    assert_eq!(act(&house.ask(&node, open).await), "continue");
    assert_eq!(act(&house.poll_with(&node, 1).await), "apply");
    let answer = house.begin(&node, 1, policy, 2).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
}
