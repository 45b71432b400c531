//! Our own agent is installed where an EIM agent is at work.

use evenkeel_domain::assignment::Scope;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::{Attempt, Facts, PollRequest};
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use tonic::Code;
use uuid::Uuid;

use crate::fleet::{EimTestNode, sample, window};
use crate::test_server::{
    TestNode, TestServer, act, began, downloaded, downloading, facts, finished,
};

/// An EIM node that has the only slot of the project and sends these samples.
async fn working_eim_node(server: &TestServer, statuses: &[S]) -> EimTestNode {
    let policy = server.create_policy("demo-hello=1.1").await;
    server.assign(Scope::Project, policy, Some(1), None).await;
    let eim = server.eim_node(1).await;
    server.window(eim.host, 0, 2_000).await;
    for kind in statuses {
        server.send_status(&eim, sample(*kind)).await;
    }
    eim
}

async fn install_own_agent(server: &TestServer, eim: &EimTestNode) -> TestNode {
    let node = server.take_over(eim).await;
    server.report_facts(&node, facts()).await;
    node
}

async fn run_states(server: &TestServer, node: &TestNode) -> Vec<&'static str> {
    let runs = server.runs(node).await;
    runs.iter().map(|run| run.state.name()).collect()
}

#[tokio::test]
async fn an_ordinary_join_token_does_not_replace_an_eim_agent() {
    let server = TestServer::new().await;
    let eim = server.eim_node(1).await;
    let machine = Uuid::parse_str(&eim.guid).expect("a UUID").as_u128();
    server.send_status(&eim, sample(S::UpToDate)).await;
    for one_time in [false, true] {
        let token = server.join_token(one_time, true).await;
        let refused = server.enroll(&token, machine, 1).await.expect_err("refused");
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains("--replace-eim-agents"), "{}", refused.message());
    }
    server.send_status(&eim, sample(S::UpToDate)).await;

    install_own_agent(&server, &eim).await;

    // Our agent is at work now, so an ordinary token is enough for its next request.
    let token = server.join_token(false, true).await;
    server.enroll(&token, machine, 1).await.expect("enrolled again");
}

/// A host that was registered for our agent has no agent yet.
#[tokio::test]
async fn an_ordinary_join_token_is_enough_for_a_host_without_an_agent() {
    let server = TestServer::new().await;
    let registered = server.eim_node(1).await;
    let machine = Uuid::parse_str(&registered.guid).expect("a UUID").as_u128();
    let token = server.join_token(false, false).await;
    let answer = server.enroll(&token, machine, 1).await.expect("enrolled");
    assert_eq!(answer.host_id, registered.host.to_string());
}

#[tokio::test]
async fn the_end_of_an_update_begun_by_the_eim_agent_is_recorded() {
    for (end, state) in [(S::Updated, "succeeded"), (S::UpToDate, "succeeded")] {
        let server = TestServer::new().await;
        let eim = working_eim_node(&server, &[S::UpToDate, S::Started]).await;
        let node = install_own_agent(&server, &eim).await;
        assert_eq!(act(&server.poll(&node).await), "continue");
        server.advance_minutes(10);
        // The database is away when the end is reported for the first time.
        let (away, database) = server.replica().await;
        database.close().await;
        let refused = server.send_status_to(&away, &eim.guid, sample(end)).await;
        refused.expect_err("not stored");
        let answer = server.send_status(&eim, sample(end)).await;
        assert_eq!(window(&answer), None);
        assert_eq!(run_states(&server, &node).await, [state], "{end:?}");
        assert_eq!(server.used_slots(Scope::Project).await, 0);
        assert_ne!(act(&server.poll(&node).await), "continue");
    }
}

#[tokio::test]
async fn an_unannounced_end_of_the_eim_agent_is_recorded_next_to_an_own_run() {
    let server = TestServer::new().await;
    let eim = working_eim_node(&server, &[S::UpToDate]).await;
    let node = install_own_agent(&server, &eim).await;
    server.advance_minutes(70 * 60);
    let policy = server.create_policy("demo-hello=1.1").await;
    server.assign(Scope::Project, policy, Some(1), None).await;
    server.window(eim.host, 0, 60).await;
    let fetched = [(1, downloading()), (2, downloaded())];
    server.report(&node, 1, policy, &fetched).await;
    let answer = server.begin(&node, 1, policy, 2).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    server.advance_minutes(1);
    server.send_status(&eim, sample(S::Updated)).await;
    let mut all = run_states(&server, &node).await;
    all.sort_unstable();
    assert_eq!(all, ["staged", "succeeded"]);
    assert_eq!(server.used_slots(Scope::Project).await, 1, "the own run keeps its slot");
    assert_eq!(server.update_status(&node).await, "Download complete");
    // The same sample again changes nothing.
    server.send_status(&eim, sample(S::Updated)).await;
    assert_eq!(run_states(&server, &node).await.len(), 2);
}

#[tokio::test]
async fn a_download_of_the_eim_agent_is_cancelled_outside_its_window() {
    let server = TestServer::new().await;
    let eim = server.eim_node(1).await;
    server.policy(&eim.as_node(), "demo-hello=1.1").await;
    server.window(eim.host, 60, 120).await;
    for kind in [S::UpToDate, S::Downloading, S::Downloaded] {
        server.send_status(&eim, sample(kind)).await;
    }
    assert_eq!(run_states(&server, &eim.as_node()).await, ["staged"]);
    let node = install_own_agent(&server, &eim).await;
    assert_eq!(run_states(&server, &node).await, ["cancelled"]);
    assert_eq!(act(&server.poll(&node).await), "fetch");
}

/// The EIM agent was removed during an update, so the end is never reported.
#[tokio::test]
async fn a_removed_eim_agent_holds_its_slot_for_an_hour_and_not_for_a_day() {
    let server = TestServer::new().await;
    let eim = working_eim_node(&server, &[S::UpToDate, S::Started]).await;
    server.advance_minutes(300);
    let node = install_own_agent(&server, &eim).await;
    server.advance_minutes(50);
    server.send_status(&eim, sample(S::Started)).await;
    server.advance_minutes(50);
    assert_eq!(server.reap_runs().await, 0, "it was heard");
    assert_eq!(server.used_slots(Scope::Project).await, 1);
    server.advance_minutes(11);
    assert_eq!(server.reap_runs().await, 1);
    assert_eq!(server.used_slots(Scope::Project).await, 0);
    assert_eq!(run_states(&server, &node).await, ["abandoned"]);
    // The EIM agent was only slow.
    server.send_status(&eim, sample(S::Updated)).await;
    assert_eq!(run_states(&server, &node).await, ["succeeded"]);
}

/// In an open window the EIM agent may begin a downloaded update at any moment, and never reports
/// that it did not.
#[tokio::test]
async fn a_download_that_the_eim_agent_may_still_begin_is_waited_for_and_then_cancelled() {
    for by_poll in [true, false] {
        let server = TestServer::new().await;
        let policy = server.create_policy("demo-hello=1.1").await;
        server.assign(Scope::Project, policy, None, Some(1)).await;
        let eim = server.eim_node(1).await;
        server.window(eim.host, 0, 30).await;
        server.window(eim.host, 100, 500).await;
        for kind in [S::UpToDate, S::Downloading, S::Downloaded] {
            server.send_status(&eim, sample(kind)).await;
        }
        let node = install_own_agent(&server, &eim).await;
        server.advance_minutes(20);
        assert_eq!(act(&server.poll(&node).await), "continue");
        let decision = server.decision_input(&node).await.decide(server.now());
        assert_eq!(decision.act.name(), "continue");
        let refused = server.begin(&node, 1, policy, 0).await;
        assert!(!matches!(refused, Answer::Granted(_)), "{refused:?}");
        server.send_status(&eim, sample(S::Downloaded)).await;
        server.advance_minutes(35);
        assert_eq!(
            act(&server.poll(&node).await),
            "continue",
            "late reports are possible for an hour"
        );
        assert_eq!(server.reap_runs().await, 0);
        server.advance_minutes(50);
        if by_poll {
            assert_eq!(act(&server.poll(&node).await), "apply");
        } else {
            assert_eq!(server.reap_runs().await, 1);
        }
        assert_eq!(run_states(&server, &node).await, ["cancelled"]);
        let input = server.decision_input(&node).await;
        assert_eq!(input.decide(server.now()).act.name(), "apply", "no failure");
    }
}

#[tokio::test]
async fn a_download_of_a_removed_eim_agent_is_no_failure() {
    let server = TestServer::new().await;
    let eim = working_eim_node(&server, &[S::UpToDate, S::Downloading, S::Downloaded]).await;
    let node = install_own_agent(&server, &eim).await;
    server.advance_minutes(59);
    assert_eq!(server.reap_runs().await, 0);
    assert_eq!(run_states(&server, &node).await, ["staged"]);
    server.advance_minutes(2);
    assert_eq!(server.reap_runs().await, 1);
    assert_eq!(run_states(&server, &node).await, ["cancelled"]);
}

/// The EIM agent reports every few seconds, and each record is a row of the change log.
#[tokio::test]
async fn the_last_report_of_the_eim_agent_is_recorded_every_few_minutes() {
    let server = TestServer::new().await;
    let eim = working_eim_node(&server, &[S::UpToDate, S::Started]).await;
    let node = install_own_agent(&server, &eim).await;
    let taken_over = server.now();
    let last_report = async || server.node_state(&node).await.delivered.last_heard_at;
    for _ in 0..4 {
        server.advance_minutes(1);
        server.send_status(&eim, sample(S::Started)).await;
        assert_eq!(last_report().await, Some(taken_over));
    }
    server.advance_minutes(1);
    server.send_status(&eim, sample(S::Started)).await;
    assert_eq!(last_report().await, Some(server.now()));
}

#[tokio::test]
async fn a_late_end_of_the_eim_agent_belongs_to_its_run_even_after_an_own_run() {
    let server = TestServer::new().await;
    let eim = working_eim_node(&server, &[S::UpToDate, S::Started]).await;
    let node = install_own_agent(&server, &eim).await;
    server.advance_minutes(61);
    assert_eq!(server.reap_runs().await, 1);
    let policy = server.create_policy("demo-hello=1.1").await;
    let events = [(1, downloading()), (2, began()), (3, finished())];
    server.report(&node, 1, policy, &events).await;
    server.advance_minutes(1);
    let mut before = run_states(&server, &node).await;
    before.sort_unstable();
    assert_eq!(before, ["abandoned", "succeeded"]);
    server.send_status(&eim, sample(S::Updated)).await;
    assert_eq!(run_states(&server, &node).await, ["succeeded", "succeeded"]);
}

/// The decision depends on the facts, which may just have changed.
#[tokio::test]
async fn a_node_with_outdated_facts_begins_nothing_before_it_reports_them() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, -10, 600).await;
    assert_eq!(act(&server.poll(&node).await), "apply");
    let new_facts = Facts { kernel_release: "6.12".into(), ..facts() };
    let changed = |with_facts: bool| PollRequest {
        facts_digest: vec![7; 32],
        facts: with_facts.then(|| new_facts.clone()),
        ..PollRequest::default()
    };
    let answer = server.send_poll(&node, changed(false)).await;
    assert!(answer.facts_required);
    assert_eq!(act(&answer), "idle");
    let decision = answer.decision.expect("a decision");
    assert!(decision.offline_grant.is_none() && !decision.reason.is_empty());
    assert_eq!(act(&server.send_poll(&node, changed(true)).await), "apply");

    let fetched = [(1, downloading()), (2, downloaded())];
    server.report(&node, 1, policy, &fetched).await;
    let open = PollRequest {
        facts_digest: vec![8; 32],
        attempt: Some(Attempt { id: Uuid::from_u128(1).to_string(), last_sequence: 2 }),
        ..PollRequest::default()
    };
    assert_eq!(act(&server.send_poll(&node, open).await), "continue");
    assert_eq!(act(&server.poll_with_attempt(&node, 1).await), "apply");
    let answer = server.begin(&node, 1, policy, 2).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
}
