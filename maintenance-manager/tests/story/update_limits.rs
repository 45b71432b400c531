//! Update limits of an assignment: concurrent and failed updates, over both protocols.

use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::PolicyId;
use evenkeel_kit::TestClock;
use evenkeel_maintenance_manager::{MaintenanceManager, Settings};
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{Failed, FailureKind};
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService as _;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, UpdateStatus};
use futures_util::future::join_all;

use crate::fleet::{sample, window};
use crate::test_server::{
    TestNode, TestServer, act, began, downloaded, downloading, finished, reason, with_credential,
};

/// Nodes with a downloaded attempt in an open window, under a project assignment with limits.
pub async fn staged_nodes(
    server: &TestServer,
    count: u8,
    at_once: Option<u32>,
    failures: Option<u32>,
) -> (Vec<TestNode>, PolicyId) {
    let policy = server.create_policy("demo-hello=1.1").await;
    server.assign(Scope::Project, policy, at_once, failures).await;
    let mut nodes = Vec::new();
    for n in 1..=count {
        let node = server.nth_node(n).await;
        server.window(node.host, 1, 600).await;
        nodes.push(node);
    }
    server.advance_minutes(2);
    for node in &nodes {
        report_download(server, node, policy).await;
    }
    (nodes, policy)
}

async fn report_download(server: &TestServer, node: &TestNode, policy: PolicyId) {
    let events = [(1, downloading()), (2, downloaded())];
    server.report(node, 1, policy, &events).await;
}

fn is_granted(answer: &Answer) -> bool {
    matches!(answer, Answer::Granted(_))
}

pub fn failed() -> Kind {
    Kind::Failed(Failed {
        kind: FailureKind::Apply.into(),
        reason: "apt-get ended with 100".into(),
        ..Failed::default()
    })
}

#[tokio::test]
async fn no_more_begin_at_once_than_the_assignment_allows() {
    let server = TestServer::new().await;
    let (nodes, policy) = staged_nodes(&server, 6, Some(2), None).await;
    let answers = join_all(nodes.iter().map(|node| server.begin(node, 1, policy, 2))).await;
    let granted: Vec<bool> = answers.iter().map(is_granted).collect();
    assert_eq!(granted.iter().filter(|granted| **granted).count(), 2);
    assert_eq!(server.used_slots(Scope::Project).await, 2);

    // A repeated request gets the same answer.
    for (node, was_granted) in nodes.iter().zip(&granted) {
        let again = server.begin(node, 1, policy, 2).await;
        assert_eq!(is_granted(&again), *was_granted);
    }
    let waiting = granted.iter().position(|granted| !granted).expect("one waits");
    let Answer::Refused(refused) = server.begin(&nodes[waiting], 1, policy, 2).await else {
        panic!("it waits");
    };
    assert!(refused.reason.contains("as many as project allows at once"), "{}", refused.reason);

    // An ended run frees its slot for exactly one other node.
    let done = granted.iter().position(|granted| *granted).expect("one began");
    let ended = [(3, began()), (4, finished())];
    server.report(&nodes[done], 1, policy, &ended).await;
    let rest = nodes.iter().enumerate().filter(|(n, _)| !granted[*n]);
    let answers = join_all(rest.map(|(_, node)| server.begin(node, 1, policy, 2))).await;
    assert_eq!(answers.iter().filter(|answer| is_granted(answer)).count(), 1);
}

#[tokio::test]
async fn a_node_that_vanishes_holds_its_slot_until_its_run_times_out() {
    let server = TestServer::new().await;
    let (nodes, policy) = staged_nodes(&server, 2, Some(1), None).await;
    assert!(is_granted(&server.begin(&nodes[0], 1, policy, 2).await));
    server.advance_minutes(120);
    server.reap_runs().await;
    assert!(!is_granted(&server.begin(&nodes[1], 1, policy, 2).await));
    server.advance_minutes(25 * 60);
    assert!(server.reap_runs().await >= 1);
    assert_eq!(server.used_slots(Scope::Project).await, 0);
}

#[tokio::test]
async fn a_permit_whose_answer_was_lost_is_granted_again_and_its_slot_is_freed() {
    let server = TestServer::new().await;
    let (nodes, policy) = staged_nodes(&server, 2, Some(1), None).await;
    // The answer is lost, also the answer to the repeated request.
    for _ in 0..2 {
        assert!(is_granted(&server.begin(&nodes[0], 1, policy, 2).await));
        server.advance_minutes(1);
    }
    assert_eq!(act(&server.poll_with_attempt(&nodes[0], 1).await), "apply");
    server.advance_minutes(10);
    server.poll_with_attempt(&nodes[0], 1).await;
    assert_eq!(server.used_slots(Scope::Project).await, 1, "it still holds its attempt");
    // The node lost its disk, and with it the attempt.
    assert_eq!(act(&server.poll(&nodes[0]).await), "apply");
    assert_eq!(server.used_slots(Scope::Project).await, 0);
    assert_eq!(server.runs(&nodes[0]).await[0].state.name(), "abandoned");
    assert!(is_granted(&server.begin(&nodes[1], 1, policy, 2).await));
    // The disk is found again: the end of the run is recorded after all.
    let ended = [(3, began()), (4, finished())];
    server.report(&nodes[0], 1, policy, &ended).await;
    assert_eq!(server.runs(&nodes[0]).await[0].state.name(), "succeeded");
    assert_eq!(server.used_slots(Scope::Project).await, 1, "the slot of the other node");
}

#[tokio::test]
async fn a_poll_during_a_start_request_frees_no_slot() {
    let server = TestServer::new().await;
    let (nodes, policy) = staged_nodes(&server, 1, Some(1), None).await;
    assert!(is_granted(&server.begin(&nodes[0], 1, policy, 2).await));
    server.advance_minutes(4);
    server.poll(&nodes[0]).await;
    server.report(&nodes[0], 1, policy, &[(3, began())]).await;
    server.advance_minutes(4);
    server.poll(&nodes[0]).await;
    assert_eq!(server.runs(&nodes[0]).await[0].state.name(), "applying");
    assert_eq!(server.used_slots(Scope::Project).await, 1);
}

#[tokio::test]
async fn a_slot_is_held_while_its_assignment_is_changed_deleted_and_recreated() {
    let server = TestServer::new().await;
    let (nodes, policy) = staged_nodes(&server, 2, Some(1), None).await;
    assert!(is_granted(&server.begin(&nodes[0], 1, policy, 2).await));
    server.report(&nodes[0], 1, policy, &[(3, began())]).await;
    // Other limits, another policy and back, and no assignment for a while.
    server.assign(Scope::Project, policy, Some(1), Some(9)).await;
    assert!(!is_granted(&server.begin(&nodes[1], 1, policy, 2).await));
    let other = server.create_policy("demo-other=1").await;
    server.assign(Scope::Project, other, Some(1), None).await;
    let tx = server.tx().await;
    let cleared = evenkeel_store::assignments::clear(&tx, Scope::Project).await;
    cleared.expect("taken back");
    tx.commit().await.expect("committed");
    server.assign(Scope::Project, policy, Some(1), None).await;
    assert_eq!(server.used_slots(Scope::Project).await, 1);
    assert!(!is_granted(&server.begin(&nodes[1], 1, policy, 2).await));
    server.report(&nodes[0], 1, policy, &[(4, finished())]).await;
    assert_eq!(server.used_slots(Scope::Project).await, 0);
    assert!(is_granted(&server.begin(&nodes[1], 1, policy, 2).await));
}

#[tokio::test]
async fn a_new_attempt_frees_the_slot_of_the_previous_one() {
    let server = TestServer::new().await;
    let (nodes, policy) = staged_nodes(&server, 2, Some(1), None).await;
    assert!(is_granted(&server.begin(&nodes[0], 1, policy, 2).await));
    server.report(&nodes[0], 2, policy, &[(1, downloading())]).await;
    assert_eq!(server.used_slots(Scope::Project).await, 0);
    assert!(is_granted(&server.begin(&nodes[1], 1, policy, 2).await));
    assert!(!is_granted(&server.begin(&nodes[0], 2, policy, 1).await));
}

/// An update that replaced another one between two samples continues with its permit.
#[tokio::test]
async fn an_update_that_directly_follows_another_counts_for_the_same_assignment() {
    let server = TestServer::new().await;
    let policy = server.create_policy("curl").await;
    server.assign(Scope::Project, policy, Some(1), Some(1)).await;
    let (one, other) = (server.eim_node(1).await, server.eim_node(2).await);
    for node in [&one, &other] {
        server.window(node.host, 0, 600).await;
        server.send_status(node, sample(S::UpToDate)).await;
    }
    server.send_status(&one, sample(S::Started)).await;
    server.send_status(&one, sample(S::Downloading)).await;
    let states = server.runs(&one.as_node()).await;
    let mut states: Vec<_> = states.iter().map(|run| run.state.name()).collect();
    states.sort_unstable();
    assert_eq!(states, ["abandoned", "downloading"]);
    assert_eq!(server.used_slots(Scope::Project).await, 1);
    server.send_status(&one, sample(S::Started)).await;
    let failed = UpdateStatus { status_detail: "no".into(), ..sample(S::Failed) };
    server.send_status(&one, failed).await;
    assert_eq!(server.used_slots(Scope::Project).await, 0);
    server.advance_minutes(1);
    assert_eq!(window(&server.send_status(&other, sample(S::UpToDate)).await), None);
    let decision = server.decision_input(&other.as_node()).await.decide(server.now());
    assert_eq!(decision.reason.code(), "stopped");
}

#[tokio::test]
async fn an_update_that_directly_follows_another_holds_one_slot_of_a_new_assignment() {
    let server = TestServer::new().await;
    let policy = server.create_policy("curl").await;
    server.assign(Scope::Project, policy, Some(1), None).await;
    let node = server.eim_node(1).await;
    server.window(node.host, 0, 600).await;
    server.send_status(&node, sample(S::UpToDate)).await;
    server.send_status(&node, sample(S::Started)).await;
    assert_eq!(server.used_slots(Scope::Project).await, 1);
    let nearer = Scope::Instance(node.instance);
    server.assign(nearer, policy, Some(1), None).await;
    server.send_status(&node, sample(S::Downloading)).await;
    let states = server.runs(&node.as_node()).await;
    assert_eq!(states.len(), 2, "{states:?}");
    assert_eq!(server.used_slots(Scope::Project).await, 0);
    assert_eq!(server.used_slots(nearer).await, 1);
}

#[tokio::test]
async fn too_many_failures_stop_a_policy_until_it_is_assigned_again() {
    let server = TestServer::new().await;
    let (nodes, policy) = staged_nodes(&server, 4, None, Some(2)).await;
    for node in &nodes[..2] {
        assert!(is_granted(&server.begin(node, 1, policy, 2).await));
        server.report(node, 1, policy, &[(3, began()), (4, failed())]).await;
    }
    let Answer::Refused(refused) = server.begin(&nodes[2], 1, policy, 2).await else {
        panic!("two have failed");
    };
    assert!(refused.reason.starts_with("2 updates of project failed"), "{}", refused.reason);
    let waiting = server.poll_with_attempt(&nodes[2], 1).await;
    assert_eq!(act(&waiting), "continue");
    assert_eq!(reason(&waiting), refused.reason);
    server.advance_minutes(1);
    server.assign(Scope::Project, policy, None, Some(2)).await;
    assert!(is_granted(&server.begin(&nodes[2], 1, policy, 2).await));
}

/// A policy that no node can plan fails before any node requests a permit.
#[tokio::test]
async fn updates_that_fail_while_they_are_planned_stop_the_assignment() {
    let server = TestServer::new().await;
    let policy = server.create_policy("nosuchpkg").await;
    server.assign(Scope::Project, policy, Some(1), Some(2)).await;
    let mut nodes = Vec::new();
    for n in 1..=3 {
        let node = server.nth_node(n).await;
        server.window(node.host, 0, 600).await;
        nodes.push(node);
    }
    assert_eq!(act(&server.poll(&nodes[2]).await), "apply");
    server.report(&nodes[0], 1, policy, &[(1, failed())]).await;
    assert_eq!(act(&server.poll(&nodes[2]).await), "apply", "one failure");
    server.report(&nodes[1], 1, policy, &[(1, downloading())]).await;
    server.report(&nodes[1], 1, policy, &[(2, failed())]).await;
    let stopped = server.poll(&nodes[2]).await;
    assert_eq!(act(&stopped), "idle");
    assert!(reason(&stopped).starts_with("2 updates of project failed"), "{}", reason(&stopped));
    // A late report about an earlier policy does not count for the present one.
    server.advance_minutes(1);
    let other = server.create_policy("demo-hello=1.1").await;
    server.assign(Scope::Project, other, Some(1), Some(1)).await;
    server.report(&nodes[0], 2, policy, &[(1, failed())]).await;
    assert_eq!(act(&server.poll(&nodes[2]).await), "apply");
}

#[tokio::test]
async fn a_pause_applies_from_the_next_poll_and_spares_begun_updates() {
    use evenkeel_domain::pause::PauseScope;
    let server = TestServer::new().await;
    let (nodes, policy) = staged_nodes(&server, 2, None, None).await;
    let eim = server.eim_node(9).await;
    server.window(eim.host, 0, 600).await;
    server.send_status(&eim, sample(S::UpToDate)).await;
    assert!(is_granted(&server.begin(&nodes[0], 1, policy, 2).await));
    server.report(&nodes[0], 1, policy, &[(3, began())]).await;
    for scope in [PauseScope::Project, PauseScope::Policy(policy)] {
        server.pause(scope).await;
        assert_eq!(act(&server.poll_with_attempt(&nodes[0], 1).await), "continue");
        let paused = server.poll_with_attempt(&nodes[1], 1).await;
        assert_eq!(act(&paused), "continue");
        assert!(reason(&paused).starts_with("alice paused updates of"), "{}", reason(&paused));
        assert!(!is_granted(&server.begin(&nodes[1], 1, policy, 2).await));
        assert_eq!(window(&server.send_status(&eim, sample(S::UpToDate)).await), None);
        server.resume(scope).await;
    }
    assert_eq!(act(&server.poll_with_attempt(&nodes[1], 1).await), "apply");
    assert!(is_granted(&server.begin(&nodes[1], 1, policy, 2).await));
    server.advance_minutes(1);
    assert!(window(&server.send_status(&eim, sample(S::UpToDate)).await).is_some());
}

/// EIM agents start by themselves, so only a limited number of them gets the window.
#[tokio::test]
async fn the_limit_applies_to_the_windows_of_eim_nodes() {
    let server = TestServer::new().await;
    let policy = server.create_policy("curl").await;
    server.assign(Scope::Project, policy, Some(2), None).await;
    let mut nodes = Vec::new();
    for n in 1..=6 {
        let node = server.eim_node(n).await;
        server.window(node.host, 1, 600).await;
        server.send_status(&node, sample(S::UpToDate)).await;
        nodes.push(node);
    }
    server.advance_minutes(2);
    let send_all = async |kind| {
        let answers =
            join_all(nodes.iter().map(|node| server.send_status(node, sample(kind)))).await;
        answers.iter().map(|answer| window(answer).is_some()).collect::<Vec<_>>()
    };
    let has_window = send_all(S::UpToDate).await;
    assert_eq!(has_window.iter().filter(|has_window| **has_window).count(), 2);
    assert_eq!(send_all(S::UpToDate).await, has_window, "a delivered window stays");
    assert_eq!(server.used_slots(Scope::Project).await, 2);

    // One of them finishes, and another one gets the window.
    let first = has_window.iter().position(|has_window| *has_window).expect("one");
    for kind in [S::Started, S::Updated, S::UpToDate] {
        server.send_status(&nodes[first], sample(kind)).await;
    }
    assert_eq!(server.used_slots(Scope::Project).await, 1);
    server.advance_minutes(1);
    let next =
        join_all(nodes.iter().map(|node| server.send_status(node, sample(S::UpToDate)))).await;
    let new =
        next.iter().zip(&has_window).filter(|(answer, had)| window(answer).is_some() && !**had);
    assert_eq!(new.count(), 1);
    assert_eq!(server.used_slots(Scope::Project).await, 2);
}

/// Otherwise the node that polls first would get the slot in every window.
#[tokio::test]
async fn a_node_that_never_starts_does_not_starve_the_others() {
    let server = TestServer::new().await;
    let policy = server.create_policy("curl").await;
    server.assign(Scope::Project, policy, Some(1), None).await;
    let (idle, willing) = (server.eim_node(1).await, server.eim_node(2).await);
    for node in [&idle, &willing] {
        for day in [0, 1] {
            server.window(node.host, 1_440 * day + 1, 1_440 * day + 121).await;
        }
        server.send_status(node, sample(S::UpToDate)).await;
    }
    server.advance_minutes(1);
    assert!(window(&server.send_status(&idle, sample(S::UpToDate)).await).is_some());
    assert_eq!(window(&server.send_status(&willing, sample(S::UpToDate)).await), None);
    server.advance_minutes(1_439);
    assert_eq!(window(&server.send_status(&idle, sample(S::UpToDate)).await), None);
    server.advance_minutes(2);
    assert_eq!(window(&server.send_status(&idle, sample(S::UpToDate)).await), None);
    let because = server.decision_input(&idle.as_node()).await.decide(server.now());
    assert_eq!(because.reason.code(), "yields_slot");
    assert!(because.next_change.is_some_and(|next| server.now() < next));
    assert!(window(&server.send_status(&willing, sample(S::UpToDate)).await).is_some());
    for kind in [S::Started, S::Updated, S::UpToDate] {
        server.send_status(&willing, sample(kind)).await;
    }
    // A slot that no other node needs goes back to it.
    server.advance_minutes(90);
    assert!(window(&server.send_status(&idle, sample(S::UpToDate)).await).is_some());
}

/// Otherwise a replica whose clock is ahead would give away a slot that is still held.
#[tokio::test]
async fn a_slot_is_held_until_its_end_by_the_clock_of_the_database() {
    let server = TestServer::new().await;
    let policy = server.create_policy("curl").await;
    server.assign(Scope::Project, policy, Some(1), None).await;
    let (one, two) = (server.eim_node(1).await, server.eim_node(2).await);
    for (node, closes) in [(&one, 11), (&two, 600)] {
        server.window(node.host, 1, closes).await;
        server.send_status(node, sample(S::UpToDate)).await;
    }
    server.advance_minutes(2);
    assert!(window(&server.send_status(&one, sample(S::UpToDate)).await).is_some());
    // The slot counts for an hour after its window.
    server.advance_minutes(38);
    let clock = Arc::new(TestClock::new(server.now() + TimeDelta::minutes(50)));
    let (authority, ca) = (Arc::clone(&server.authority), Arc::clone(&server.ca));
    let store = server.connect().await;
    let ahead = MaintenanceManager::new(store, clock, authority, ca, Settings::default());
    let request = PlatformUpdateStatusRequest {
        host_guid: two.guid.clone(),
        update_status: Some(sample(S::UpToDate)),
    };
    let request = with_credential(&server.eim_token(), request);
    let answer = ahead.expect("valid settings").platform_update_status(request).await;
    assert_eq!(window(&answer.expect("an answer").into_inner()), None);
    assert_eq!(server.used_slots(Scope::Project).await, 1);
}

#[tokio::test]
async fn a_withdrawn_window_frees_its_slot() {
    let server = TestServer::new().await;
    let policy = server.create_policy("curl").await;
    server.assign(Scope::Project, policy, Some(1), None).await;
    let (one, two) = (server.eim_node(1).await, server.eim_node(2).await);
    for node in [&one, &two] {
        server.window(node.host, 0, 600).await;
        server.send_status(node, sample(S::UpToDate)).await;
    }
    assert!(window(&server.send_status(&one, sample(S::UpToDate)).await).is_some());
    assert_eq!(window(&server.send_status(&two, sample(S::UpToDate)).await), None);
    // Another policy with a nearer scope than the limited one.
    server.policy(&one.as_node(), "jq").await;
    for _ in 0..3 {
        server.send_status(&one, sample(S::UpToDate)).await;
        server.advance_minutes(1);
    }
    assert!(window(&server.send_status(&two, sample(S::UpToDate)).await).is_some());
}

/// Both protocols share the slots of one assignment, at two replicas.
#[tokio::test]
async fn a_race_of_both_protocols_at_two_replicas_never_grants_one_too_many() {
    for round in 0..5_u32 {
        let server = TestServer::new().await;
        let limit = 1 + round % 3;
        let (nodes, policy) = staged_nodes(&server, 5, Some(limit), None).await;
        let (other, _database) = server.replica().await;
        let mut eim_nodes = Vec::new();
        for n in 11..=15 {
            let node = server.eim_node(n).await;
            server.window(node.host, 0, 600).await;
            eim_nodes.push(node);
        }
        let begins = join_all(nodes.iter().enumerate().map(|(n, node)| {
            let manager = if n % 2 == 0 { &server.manager } else { &other };
            server.begin_on(manager, node, policy)
        }));
        let samples = join_all(eim_nodes.iter().enumerate().map(|(n, node)| {
            let manager = if n % 2 == 0 { &other } else { &server.manager };
            server.send_status_to(manager, &node.guid, sample(S::UpToDate))
        }));
        let (begun, windows) = futures_util::future::join(begins, samples).await;
        let begun = begun.iter().filter(|answer| is_granted(answer)).count();
        let windows = windows.into_iter().map(|answer| answer.expect("an answer"));
        let windows = windows.filter(|answer| window(answer).is_some()).count();
        assert_eq!(begun + windows, limit as usize, "round {round}: {begun} and {windows}");
        assert_eq!(server.used_slots(Scope::Project).await, limit);
    }
}
