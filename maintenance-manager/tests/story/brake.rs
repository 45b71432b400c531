//! The brake: how many are changed at once, and when it stops, by both protocols.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::PolicyId;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{Failed, FailureKind};
use evenkeel_proto::maintmgr::UpdateStatus;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use futures_util::future::join_all;

use crate::fleet::{sample, window};
use crate::house::{House, TestNode, act, began, downloaded, downloading, finished, reason};

/// Nodes that have fetched and stand before an open window, with a policy of the project that has limits.
pub async fn ready(
    house: &House,
    count: u8,
    at_once: Option<u32>,
    failures: Option<u32>,
) -> (Vec<TestNode>, PolicyId) {
    let policy = house.wish("demo-hello=1.1").await;
    house
        .assign(Scope::Project, policy, at_once, failures)
        .await;
    let mut nodes = Vec::new();
    for n in 1..=count {
        let node = house.nth_node(n).await;
        house.window(node.host, 1, 600).await;
        nodes.push(node);
    }
    house.pass(2);
    for node in &nodes {
        fetched(house, node, policy).await;
    }
    (nodes, policy)
}

async fn fetched(house: &House, node: &TestNode, policy: PolicyId) {
    let events = [(1, downloading()), (2, downloaded())];
    house.report(node, 1, policy, &events).await;
}

fn is_granted(answer: &Answer) -> bool {
    matches!(answer, Answer::Granted(_))
}

pub fn failed() -> News {
    News::Failed(Failed {
        kind: FailureKind::Apply.into(),
        reason: "apt-get ended with 100".into(),
        ..Failed::default()
    })
}

#[tokio::test]
async fn no_more_begin_at_once_than_the_assignment_allows() {
    let house = House::new().await;
    let (nodes, policy) = ready(&house, 6, Some(2), None).await;
    let answers = join_all(nodes.iter().map(|node| house.begin(node, 1, policy, 2))).await;
    let granted: Vec<bool> = answers.iter().map(is_granted).collect();
    assert_eq!(granted.iter().filter(|granted| **granted).count(), 2);
    assert_eq!(house.slots(Scope::Project).await, 2);

    // Asking again gives the same answer.
    for (node, was_granted) in nodes.iter().zip(&granted) {
        let again = house.begin(node, 1, policy, 2).await;
        assert_eq!(is_granted(&again), *was_granted);
    }
    let waiting = granted
        .iter()
        .position(|granted| !granted)
        .expect("one waits");
    let Answer::Refused(refused) = house.begin(&nodes[waiting], 1, policy, 2).await else {
        panic!("it waits");
    };
    assert!(
        refused.reason.contains("as many as project allows at once"),
        "{}",
        refused.reason
    );

    // Who has ended makes room for the next one, and for one only.
    let done = granted
        .iter()
        .position(|granted| *granted)
        .expect("one began");
    let ended = [(3, began()), (4, finished())];
    house.report(&nodes[done], 1, policy, &ended).await;
    let rest = nodes.iter().enumerate().filter(|(n, _)| !granted[*n]);
    let answers = join_all(rest.map(|(_, node)| house.begin(node, 1, policy, 2))).await;
    assert_eq!(
        answers.iter().filter(|answer| is_granted(answer)).count(),
        1
    );
}

#[tokio::test]
async fn a_node_that_vanishes_keeps_its_slot_until_its_run_times_out() {
    let house = House::new().await;
    let (nodes, policy) = ready(&house, 2, Some(1), None).await;
    assert!(is_granted(&house.begin(&nodes[0], 1, policy, 2).await));
    house.pass(120);
    house.track().await;
    assert!(!is_granted(&house.begin(&nodes[1], 1, policy, 2).await));
    house.pass(25 * 60);
    assert!(house.track().await >= 1);
    assert_eq!(house.slots(Scope::Project).await, 0);
}

#[tokio::test]
async fn leave_whose_answer_was_lost_is_given_again_and_its_slot_comes_back() {
    let house = House::new().await;
    let (nodes, policy) = ready(&house, 2, Some(1), None).await;
    // The answer is lost, also the one to the same question again.
    for _ in 0..2 {
        assert!(is_granted(&house.begin(&nodes[0], 1, policy, 2).await));
        house.pass(1);
    }
    assert_eq!(act(&house.poll_with(&nodes[0], 1).await), "apply");
    house.pass(10);
    house.poll_with(&nodes[0], 1).await;
    assert_eq!(
        house.slots(Scope::Project).await,
        1,
        "it still holds its attempt"
    );
    // It lost its disk, and with it the attempt.
    assert_eq!(act(&house.poll(&nodes[0]).await), "apply");
    assert_eq!(house.slots(Scope::Project).await, 0);
    assert_eq!(house.runs(&nodes[0]).await[0].state.name(), "abandoned");
    assert!(is_granted(&house.begin(&nodes[1], 1, policy, 2).await));
    // Its disk is found again: the end counts after all.
    let ended = [(3, began()), (4, finished())];
    house.report(&nodes[0], 1, policy, &ended).await;
    assert_eq!(house.runs(&nodes[0]).await[0].state.name(), "succeeded");
    assert_eq!(house.slots(Scope::Project).await, 1, "that of the other");
}

#[tokio::test]
async fn a_poll_that_crosses_the_request_to_begin_takes_no_slot_away() {
    let house = House::new().await;
    let (nodes, policy) = ready(&house, 1, Some(1), None).await;
    assert!(is_granted(&house.begin(&nodes[0], 1, policy, 2).await));
    house.pass(4);
    house.poll(&nodes[0]).await;
    house.report(&nodes[0], 1, policy, &[(3, began())]).await;
    house.pass(4);
    house.poll(&nodes[0]).await;
    assert_eq!(house.runs(&nodes[0]).await[0].state.name(), "applying");
    assert_eq!(house.slots(Scope::Project).await, 1);
}

#[tokio::test]
async fn a_slot_is_kept_while_its_assignment_is_changed_taken_back_and_made_anew() {
    let house = House::new().await;
    let (nodes, policy) = ready(&house, 2, Some(1), None).await;
    assert!(is_granted(&house.begin(&nodes[0], 1, policy, 2).await));
    house.report(&nodes[0], 1, policy, &[(3, began())]).await;
    // Other limits, another policy and back, and no assignment for a while.
    house.assign(Scope::Project, policy, Some(1), Some(9)).await;
    assert!(!is_granted(&house.begin(&nodes[1], 1, policy, 2).await));
    let other = house.wish("demo-other=1").await;
    house.assign(Scope::Project, other, Some(1), None).await;
    let tx = house.tx().await;
    let cleared = evenkeel_store::assignments::clear(&tx, Scope::Project).await;
    cleared.expect("taken back");
    tx.commit().await.expect("committed");
    house.assign(Scope::Project, policy, Some(1), None).await;
    assert_eq!(house.slots(Scope::Project).await, 1);
    assert!(!is_granted(&house.begin(&nodes[1], 1, policy, 2).await));
    house.report(&nodes[0], 1, policy, &[(4, finished())]).await;
    assert_eq!(house.slots(Scope::Project).await, 0);
    assert!(is_granted(&house.begin(&nodes[1], 1, policy, 2).await));
}

#[tokio::test]
async fn another_attempt_lets_the_slot_of_the_one_before_go() {
    let house = House::new().await;
    let (nodes, policy) = ready(&house, 2, Some(1), None).await;
    assert!(is_granted(&house.begin(&nodes[0], 1, policy, 2).await));
    house
        .report(&nodes[0], 2, policy, &[(1, downloading())])
        .await;
    assert_eq!(house.slots(Scope::Project).await, 0);
    assert!(is_granted(&house.begin(&nodes[1], 1, policy, 2).await));
    assert!(!is_granted(&house.begin(&nodes[0], 2, policy, 1).await));
}

/// An update that took the place of another one, unseen between two samples, goes on under its leave.
#[tokio::test]
async fn what_follows_another_update_without_a_pause_counts_for_the_same_assignment() {
    let house = House::new().await;
    let policy = house.wish("curl").await;
    house.assign(Scope::Project, policy, Some(1), Some(1)).await;
    let (one, other) = (house.old_node(1).await, house.old_node(2).await);
    for node in [&one, &other] {
        house.window(node.host, 0, 600).await;
        house.say(node, sample(S::UpToDate)).await;
    }
    house.say(&one, sample(S::Started)).await;
    house.say(&one, sample(S::Downloading)).await;
    let states = house.runs(&one.as_node()).await;
    let mut states: Vec<_> = states.iter().map(|run| run.state.name()).collect();
    states.sort_unstable();
    assert_eq!(states, ["abandoned", "downloading"]);
    assert_eq!(house.slots(Scope::Project).await, 1);
    house.say(&one, sample(S::Started)).await;
    let failed = UpdateStatus {
        status_detail: "no".into(),
        ..sample(S::Failed)
    };
    house.say(&one, failed).await;
    assert_eq!(house.slots(Scope::Project).await, 0);
    house.pass(1);
    assert_eq!(window(&house.say(&other, sample(S::UpToDate)).await), None);
    let decision = house.explained(&other.as_node()).await.decide(house.time());
    assert_eq!(decision.because.code(), "stopped");
}

#[tokio::test]
async fn what_follows_another_update_has_one_slot_also_when_another_assignment_applies() {
    let house = House::new().await;
    let policy = house.wish("curl").await;
    house.assign(Scope::Project, policy, Some(1), None).await;
    let node = house.old_node(1).await;
    house.window(node.host, 0, 600).await;
    house.say(&node, sample(S::UpToDate)).await;
    house.say(&node, sample(S::Started)).await;
    assert_eq!(house.slots(Scope::Project).await, 1);
    let nearer = Scope::Instance(node.instance);
    house.assign(nearer, policy, Some(1), None).await;
    house.say(&node, sample(S::Downloading)).await;
    let states = house.runs(&node.as_node()).await;
    assert_eq!(states.len(), 2, "{states:?}");
    assert_eq!(house.slots(Scope::Project).await, 0);
    assert_eq!(house.slots(nearer).await, 1);
}

#[tokio::test]
async fn too_many_failures_stop_it_until_it_is_assigned_anew() {
    let house = House::new().await;
    let (nodes, policy) = ready(&house, 4, None, Some(2)).await;
    for node in &nodes[..2] {
        assert!(is_granted(&house.begin(node, 1, policy, 2).await));
        house
            .report(node, 1, policy, &[(3, began()), (4, failed())])
            .await;
    }
    let Answer::Refused(refused) = house.begin(&nodes[2], 1, policy, 2).await else {
        panic!("two have failed");
    };
    assert!(
        refused.reason.starts_with("2 updates of project failed"),
        "{}",
        refused.reason
    );
    let waiting = house.poll_with(&nodes[2], 1).await;
    assert_eq!(act(&waiting), "continue");
    assert_eq!(reason(&waiting), refused.reason);
    house.pass(1);
    house.assign(Scope::Project, policy, None, Some(2)).await;
    assert!(is_granted(&house.begin(&nodes[2], 1, policy, 2).await));
}

#[tokio::test]
async fn a_pause_holds_from_the_next_poll_on_and_leaves_what_has_begun_alone() {
    use evenkeel_domain::pause::PauseScope;
    let house = House::new().await;
    let (nodes, policy) = ready(&house, 2, None, None).await;
    let old = house.old_node(9).await;
    house.window(old.host, 0, 600).await;
    house.say(&old, sample(S::UpToDate)).await;
    assert!(is_granted(&house.begin(&nodes[0], 1, policy, 2).await));
    house.report(&nodes[0], 1, policy, &[(3, began())]).await;
    for scope in [PauseScope::Project, PauseScope::Policy(policy)] {
        house.pause(scope).await;
        assert_eq!(act(&house.poll_with(&nodes[0], 1).await), "continue");
        let held = house.poll_with(&nodes[1], 1).await;
        assert_eq!(act(&held), "continue");
        assert!(
            reason(&held).starts_with("alice paused updates of"),
            "{}",
            reason(&held)
        );
        assert!(!is_granted(&house.begin(&nodes[1], 1, policy, 2).await));
        assert_eq!(window(&house.say(&old, sample(S::UpToDate)).await), None);
        house.resume(scope).await;
    }
    assert_eq!(act(&house.poll_with(&nodes[1], 1).await), "apply");
    assert!(is_granted(&house.begin(&nodes[1], 1, policy, 2).await));
    house.pass(1);
    assert!(window(&house.say(&old, sample(S::UpToDate)).await).is_some());
}

/// Agents that start by themselves: only so many are told of the window.
#[tokio::test]
async fn only_so_many_of_the_ancestors_nodes_get_the_window_at_a_time() {
    let house = House::new().await;
    let policy = house.wish("curl").await;
    house.assign(Scope::Project, policy, Some(2), None).await;
    let mut nodes = Vec::new();
    for n in 1..=6 {
        let node = house.old_node(n).await;
        house.window(node.host, 1, 600).await;
        house.say(&node, sample(S::UpToDate)).await;
        nodes.push(node);
    }
    house.pass(2);
    let ask = async |kind| {
        let answers = join_all(nodes.iter().map(|node| house.say(node, sample(kind)))).await;
        answers
            .iter()
            .map(|answer| window(answer).is_some())
            .collect::<Vec<_>>()
    };
    let told = ask(S::UpToDate).await;
    assert_eq!(told.iter().filter(|told| **told).count(), 2);
    assert_eq!(ask(S::UpToDate).await, told, "who has it keeps it");
    assert_eq!(house.slots(Scope::Project).await, 2);

    // One of them is seen through, and another one gets the window.
    let first = told.iter().position(|told| *told).expect("one");
    for kind in [S::Started, S::Updated, S::UpToDate] {
        house.say(&nodes[first], sample(kind)).await;
    }
    assert_eq!(house.slots(Scope::Project).await, 1);
    house.pass(1);
    let next = join_all(
        nodes
            .iter()
            .map(|node| house.say(node, sample(S::UpToDate))),
    )
    .await;
    let new = next
        .iter()
        .zip(&told)
        .filter(|(answer, had)| window(answer).is_some() && !**had);
    assert_eq!(new.count(), 1);
    assert_eq!(house.slots(Scope::Project).await, 2);
}

/// The one that asks first would get the slot window after window, and nobody else ever.
#[tokio::test]
async fn one_that_never_starts_does_not_starve_the_others() {
    let house = House::new().await;
    let policy = house.wish("curl").await;
    house.assign(Scope::Project, policy, Some(1), None).await;
    let (idle, willing) = (house.old_node(1).await, house.old_node(2).await);
    for node in [&idle, &willing] {
        for day in [0, 1] {
            house
                .window(node.host, 1_440 * day + 1, 1_440 * day + 121)
                .await;
        }
        house.say(node, sample(S::UpToDate)).await;
    }
    house.pass(1);
    assert!(window(&house.say(&idle, sample(S::UpToDate)).await).is_some());
    assert_eq!(
        window(&house.say(&willing, sample(S::UpToDate)).await),
        None
    );
    house.pass(1_439);
    assert_eq!(window(&house.say(&idle, sample(S::UpToDate)).await), None);
    house.pass(2);
    assert_eq!(window(&house.say(&idle, sample(S::UpToDate)).await), None);
    let because = house.explained(&idle.as_node()).await.decide(house.time());
    assert_eq!(because.because.code(), "gives_way");
    assert!(because.next.is_some_and(|next| house.time() < next));
    assert!(window(&house.say(&willing, sample(S::UpToDate)).await).is_some());
    for kind in [S::Started, S::Updated, S::UpToDate] {
        house.say(&willing, sample(kind)).await;
    }
    // What nobody else needs is its own again.
    house.pass(90);
    assert!(window(&house.say(&idle, sample(S::UpToDate)).await).is_some());
}

#[tokio::test]
async fn a_window_that_is_taken_back_makes_room() {
    let house = House::new().await;
    let policy = house.wish("curl").await;
    house.assign(Scope::Project, policy, Some(1), None).await;
    let (one, two) = (house.old_node(1).await, house.old_node(2).await);
    for node in [&one, &two] {
        house.window(node.host, 0, 600).await;
        house.say(node, sample(S::UpToDate)).await;
    }
    assert!(window(&house.say(&one, sample(S::UpToDate)).await).is_some());
    assert_eq!(window(&house.say(&two, sample(S::UpToDate)).await), None);
    // Another policy, nearer than the counted one.
    house.policy(&one.as_node(), "jq").await;
    for _ in 0..3 {
        house.say(&one, sample(S::UpToDate)).await;
        house.pass(1);
    }
    assert!(window(&house.say(&two, sample(S::UpToDate)).await).is_some());
}

/// Both protocols share the slots of one assignment, at two replicas.
#[tokio::test]
async fn a_race_of_both_protocols_at_two_replicas_never_grants_one_too_many() {
    for round in 0..5_u32 {
        let house = House::new().await;
        let limit = 1 + round % 3;
        let (nodes, policy) = ready(&house, 5, Some(limit), None).await;
        let (other, _database) = house.replica().await;
        let mut old = Vec::new();
        for n in 11..=15 {
            let node = house.old_node(n).await;
            house.window(node.host, 0, 600).await;
            old.push(node);
        }
        let begins = join_all(nodes.iter().enumerate().map(|(n, node)| {
            let manager = if n % 2 == 0 { &house.manager } else { &other };
            house.begin_at(manager, node, policy)
        }));
        let says = join_all(old.iter().enumerate().map(|(n, node)| {
            let manager = if n % 2 == 0 { &other } else { &house.manager };
            house.say_at(manager, &node.guid, sample(S::UpToDate))
        }));
        let (begun, said) = futures_util::future::join(begins, says).await;
        let begun = begun.iter().filter(|answer| is_granted(answer)).count();
        let said = said.into_iter().map(|answer| answer.expect("an answer"));
        let said = said.filter(|answer| window(answer).is_some()).count();
        assert_eq!(
            begun + said,
            limit as usize,
            "round {round}: {begun} and {said}"
        );
        assert_eq!(house.slots(Scope::Project).await, limit);
    }
}
