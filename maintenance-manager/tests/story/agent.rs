//! Tests of the gRPC service for our own agent.

use std::time::Duration;

use crate::test_server::{
    TestNode, TestServer, act, began, downloaded, downloading, enroll_request, facts, finished,
    reason, with_credential,
};
use chrono::TimeDelta;
use evenkeel_auth::KeyFingerprint;
use evenkeel_domain::id::HostId;
use evenkeel_domain::package::PackageChange as StoredChange;
use evenkeel_maintenance_manager::Settings;
use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{
    Cancelled, Downloading, Facts, Failed, FailureKind, NothingToDo, PackageChange, Plan,
    PollRequest,
};
use evenkeel_store::changes::{self, ChangeFilter};
use evenkeel_store::hosts;
use futures_util::future::join_all;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Request};

#[tokio::test]
async fn a_node_that_has_only_enrolled_has_a_decision() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let answer = server.poll(&node).await;
    assert_eq!(act(&answer), "idle");
    assert_eq!(reason(&answer), "no update policy is assigned to the instance");
}

#[tokio::test]
async fn an_update_from_the_window_to_the_end() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 600, 660).await;

    assert_eq!(act(&server.poll(&node).await), "idle");
    server.advance_minutes(300);
    assert_eq!(act(&server.poll(&node).await), "fetch");
    server.report(&node, 1, policy, &[(1, downloading()), (2, downloaded())]).await;
    assert_eq!(act(&server.poll(&node).await), "continue");
    assert!(matches!(server.begin(&node, 1, policy, 2).await, Answer::Refused(_)));

    server.advance_minutes(300);
    assert_eq!(act(&server.poll(&node).await), "apply");
    assert!(matches!(server.begin(&node, 1, policy, 2).await, Answer::Granted(_)));
    server.report(&node, 1, policy, &[(3, began())]).await;
    assert_eq!(server.update_status(&node).await, "Updating");
    server.report(&node, 1, policy, &[(4, finished())]).await;

    assert_eq!(act(&server.poll(&node).await), "idle");
    assert_eq!(server.update_status(&node).await, "Update completed");
    let run = &server.runs(&node).await[0];
    assert!(run.packages[0].is_done(), "{:?}", run.packages);
    assert_eq!(run.origin.policy_id(), Some(policy));
    assert_eq!(
        server.run_history(&node).await,
        "downloading->downloading downloaded->staged began->applying finished->succeeded"
    );
}

#[tokio::test]
async fn a_repeated_report_changes_nothing() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 1, 60).await;
    server.advance_minutes(2);
    let all = [(1, downloading()), (2, downloaded()), (3, began()), (4, finished())];
    for _ in 0..3 {
        let answer = server.report(&node, 1, policy, &all).await;
        assert_eq!(answer.acknowledged, 4);
    }
    let answers = join_all((0..20).map(|_| server.report(&node, 1, policy, &all))).await;
    assert!(answers.iter().all(|answer| answer.acknowledged == 4));
    assert_eq!(
        server.run_history(&node).await,
        "downloading->downloading downloaded->staged began->applying finished->succeeded"
    );
}

#[tokio::test]
async fn a_planned_package_has_its_suites_and_its_security_flag() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let change = |name: &str, suite: &str, suites: &[&str]| PackageChange {
        name: name.to_owned(),
        after: "1.1".to_owned(),
        suite: suite.to_owned(),
        suites: suites.iter().map(|&suite| suite.to_owned()).collect(),
        ..PackageChange::default()
    };
    let changes = vec![
        change("demo-hello", "bookworm", &["bookworm", "bookworm-security"]),
        change("older-agent", "bookworm-security", &[]),
        change("point-release", "bookworm", &["bookworm"]),
        change("removed", "", &[]),
    ];
    let plan = Plan { changes, ..Plan::default() };
    let planned = Kind::Downloading(Downloading { plan: Some(plan) });
    server.report(&node, 1, policy, &[(1, planned), (2, downloaded())]).await;
    let packages = &server.runs(&node).await[0].packages;
    assert_eq!(packages[0].suites, ["bookworm", "bookworm-security"]);
    assert_eq!(packages[1].suites, ["bookworm-security"]);
    let security: Vec<_> = packages.iter().map(StoredChange::is_security).collect();
    assert_eq!(security, [Some(true), Some(true), Some(false), None]);
}

#[tokio::test]
async fn a_changed_host_name_and_serial_number_reach_the_host() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let report = async |host_name: &str, serial: &str| {
        let reported =
            Facts { host_name: host_name.to_owned(), serial_number: serial.to_owned(), ..facts() };
        server.report_facts(&node, reported).await;
        let tx = server.tx().await;
        let host = hosts::find(&tx, node.host).await.expect("a host");
        assert_eq!(host.name.to_string(), "edge-01", "the name that users see and change");
        let serial = host.serial.map(|serial| serial.as_str().to_owned());
        (host.hostname, serial.unwrap_or_default())
    };
    let shown = |host_name: &str, serial: &str| (host_name.to_owned(), serial.to_owned());
    assert_eq!(report("", "").await, shown("edge-01", ""), "an older agent");
    assert_eq!(report("edge-02", "SN-1").await, shown("edge-02", "SN-1"));
    assert_eq!(report("edge-03", "SN-2").await, shown("edge-03", "SN-2"), "another board");
    assert_eq!(report("edge-03", "none").await, shown("edge-03", "SN-2"), "a placeholder");
    server.execute_sql("UPDATE hosts SET serial = 'REGISTERED1'").await;
    assert_eq!(report("edge-03", "SN-3").await, shown("edge-03", "REGISTERED1"));
    assert_eq!(report("edge-03", "SN-4").await, shown("edge-03", "REGISTERED1"));
}

#[tokio::test]
async fn a_missing_event_is_requested_again() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    assert_eq!(server.report(&node, 1, policy, &[(2, downloaded())]).await.acknowledged, 0);
    assert!(server.runs(&node).await.is_empty());
    assert_eq!(server.report(&node, 1, policy, &[(1, downloading())]).await.acknowledged, 1);
    let answer = server.report(&node, 1, policy, &[(2, downloaded()), (4, finished())]).await;
    assert_eq!(answer.acknowledged, 2);
    assert_eq!(server.runs(&node).await[0].state.name(), "staged");
}

#[tokio::test]
async fn a_window_that_ends_before_an_update_began_creates_no_run() {
    let (server, node, _) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 10, 20).await;
    server.advance_minutes(30);
    let answer = server.poll(&node).await;
    assert_eq!(act(&answer), "idle");
    assert_eq!(reason(&answer), "no schedule opens a window for updates");
    assert!(server.runs(&node).await.is_empty());
}

#[tokio::test]
async fn a_download_for_a_missed_window_ends_as_one_cancelled_run() {
    let server = TestServer::new().await;
    let (node, policy) = server.node_with_staged_attempt().await;
    server.advance_minutes(30);
    assert_eq!(act(&server.poll(&node).await), "cancel");
    let cancelled = Kind::Cancelled(Cancelled { cause: "window_missed".into() });
    assert_eq!(server.reap_runs().await, 0, "the node reports it itself");
    assert_eq!(server.report(&node, 1, policy, &[(3, cancelled)]).await.acknowledged, 3);
    let all = server.runs(&node).await;
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].state.name(), "cancelled");
    assert_eq!(server.update_status(&node).await, "Update cancelled");
}

/// The server cancelled the attempt while the node was away. The node must not keep it for ever.
#[tokio::test]
async fn a_node_gives_up_an_attempt_that_the_server_cancelled_and_starts_the_next() {
    let server = TestServer::new().await;
    let (node, policy) = server.node_with_staged_attempt().await;
    server.advance_minutes(8 * 24 * 60);
    assert_eq!(server.reap_runs().await, 1);
    server.window(node.host, 1, 60).await;
    server.advance_minutes(2);
    for attempt in [1, 77] {
        let answer = server.poll_with_attempt(&node, attempt).await;
        assert_eq!(act(&answer), "cancel", "attempt {attempt} has no open run");
    }
    assert_eq!(act(&server.poll(&node).await), "apply");
    server.report(&node, 2, policy, &[(1, downloading())]).await;
    assert_eq!(act(&server.poll_with_attempt(&node, 2).await), "apply");
    assert!(matches!(server.begin(&node, 2, policy, 1).await, Answer::Granted(_)));
}

/// The server must not cancel an attempt that may have begun: the report may still be on its way.
#[tokio::test]
async fn a_permitted_start_is_not_cancelled() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 1, 20).await;
    server.advance_minutes(2);
    server.report(&node, 1, policy, &[(1, downloading()), (2, downloaded())]).await;
    assert!(matches!(server.begin(&node, 1, policy, 2).await, Answer::Granted(_)));
    server.advance_minutes(60);
    assert_eq!(server.reap_runs().await, 0);
    server.report(&node, 1, policy, &[(3, began()), (4, finished())]).await;
    assert_eq!(server.runs(&node).await[0].state.name(), "succeeded");
}

#[tokio::test]
async fn a_withdrawn_update_never_begins() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 1, 60).await;
    server.advance_minutes(2);
    server.report(&node, 1, policy, &[(1, downloading()), (2, downloaded())]).await;
    server.withdraw(&node).await;
    let Answer::Refused(refused) = server.begin(&node, 1, policy, 2).await else {
        panic!("it was withdrawn");
    };
    assert!(refused.reason.ends_with("is no longer desired"), "{}", refused.reason);
}

#[tokio::test]
async fn no_attempt_begins_with_unreported_events() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 1, 60).await;
    server.advance_minutes(2);
    for reported in [0, 1] {
        assert!(
            matches!(server.begin(&node, 1, policy, 2).await, Answer::Refused(_)),
            "{reported}"
        );
        server.report(&node, 1, policy, &[(1, downloading())]).await;
    }
}

#[tokio::test]
async fn a_failed_update_is_not_retried_in_its_window() {
    let (server, node, policy) = TestServer::with_policy("demo-bad=1.1").await;
    server.window(node.host, 1, 60).await;
    server.advance_minutes(2);
    let failed = Kind::Failed(Failed {
        kind: FailureKind::Apply.into(),
        reason: "apt-get ended with 100".into(),
        log: "demo-bad: postinst fails on purpose\0".into(),
        ..Failed::default()
    });
    server.report(&node, 1, policy, &[(1, downloading()), (2, downloaded())]).await;
    server.begin(&node, 1, policy, 2).await;
    server.report(&node, 1, policy, &[(3, began()), (4, failed)]).await;
    let answer = server.poll(&node).await;
    assert_eq!(act(&answer), "idle");
    assert!(reason(&answer).contains("the next attempt is made in the next window"));
    assert!(server.runs(&node).await[0].log.starts_with("demo-bad: postinst fails"));
    server.window(node.host, 120, 180).await;
    server.advance_minutes(121);
    assert_eq!(act(&server.poll(&node).await), "apply");
}

#[tokio::test]
async fn an_update_that_changes_nothing_has_its_run() {
    let (server, node, policy) = TestServer::with_policy("").await;
    server.window(node.host, 1, 60).await;
    server.advance_minutes(2);
    server.report(&node, 1, policy, &[(1, Kind::NothingToDo(NothingToDo {}))]).await;
    assert_eq!(server.run_history(&node).await, "nothing_to_do->succeeded");
    assert_eq!(act(&server.poll(&node).await), "idle");
}

#[tokio::test]
async fn a_new_attempt_ends_the_one_before_it() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 1, 60).await;
    server.report(&node, 1, policy, &[(1, downloading())]).await;
    server.report(&node, 2, policy, &[(1, downloading())]).await;
    // Late events of the first attempt are acknowledged and change nothing.
    assert_eq!(server.report(&node, 1, policy, &[(2, downloaded())]).await.acknowledged, 2);
    let mut states: Vec<_> = server.runs(&node).await.iter().map(|run| run.state.name()).collect();
    states.sort_unstable();
    assert_eq!(states, ["abandoned", "downloading"]);
    assert_eq!(server.update_status(&node).await, "Downloading artifacts");
}

#[tokio::test]
async fn a_silent_run_is_abandoned_and_its_late_end_is_recorded() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 1, 60).await;
    server.advance_minutes(2);
    server.report(&node, 1, policy, &[(1, downloading()), (2, downloaded())]).await;
    server.begin(&node, 1, policy, 2).await;
    server.report(&node, 1, policy, &[(3, began())]).await;
    server.advance_minutes(23 * 60);
    assert_eq!(server.reap_runs().await, 0);
    server.advance_minutes(2 * 60);
    assert_eq!(server.reap_runs().await, 1);
    assert_eq!(server.update_status(&node).await, "Update failed");
    server.report(&node, 1, policy, &[(4, finished())]).await;
    assert_eq!(server.update_status(&node).await, "Update completed");
}

#[tokio::test]
async fn facts_are_requested_until_they_are_stored() {
    let server = TestServer::new().await;
    let token = server.join_token(true, true).await;
    let answer = server.enroll(&token, 1, 1).await.expect("enrolled");
    let node = crate::test_server::TestNode {
        host: answer.host_id.parse().expect("a host"),
        instance: answer.instance_id.parse().expect("an instance"),
        credential: answer.credential,
    };
    assert!(server.poll(&node).await.facts_required);
    let digest = <sha2::Sha256 as sha2::Digest>::digest(prost::Message::encode_to_vec(&facts()));
    server.report_facts(&node, facts()).await;
    let request = PollRequest { facts_digest: digest.to_vec(), ..PollRequest::default() };
    let answer =
        server.manager.poll(with_credential(&node.credential, request)).await.expect("an answer");
    assert!(!answer.into_inner().facts_required);
}

#[tokio::test]
async fn an_enrolment_is_recorded_with_the_address_of_the_machine() {
    let server = TestServer::new().await;
    let token = server.join_token(true, true).await;
    let mut request = Request::new(enroll_request(&token, 1, 1));
    let address = "[::ffff:192.0.2.7]:1234".parse().expect("an address");
    let connection = TcpConnectInfo { local_addr: None, remote_addr: Some(address) };
    request.extensions_mut().insert(connection);
    let answer = server.manager.enroll(request).await.expect("enrolled").into_inner();
    let host: HostId = answer.host_id.parse().expect("a host");
    let tx = server.tx().await;
    let found = changes::list(&tx, &ChangeFilter::default(), None, 100).await.expect("changes");
    let is_of_host = |kind: &str, object| kind == "host" && object == host.bits();
    let mut of_host = found.iter().filter(|change| is_of_host(&change.kind, change.object));
    let change = of_host.next().expect("the host was created");
    assert_eq!(change.client_address.as_deref(), Some("192.0.2.7"));
}

#[tokio::test]
async fn a_one_time_join_token_admits_one_machine() {
    let server = TestServer::new().await;
    let token = server.join_token(true, true).await;
    let first = server.enroll(&token, 1, 1).await.expect("the machine");
    let again = server.enroll(&token, 1, 1).await.expect("its answer was lost");
    assert_eq!(first.host_id, again.host_id);
    let other = server.enroll(&token, 2, 2).await.expect_err("another machine");
    assert_eq!(other.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_machine_is_not_taken_over_by_another_with_its_uuid() {
    let server = TestServer::new().await;
    let token = server.join_token(false, true).await;
    server.enroll(&token, 1, 1).await.expect("the machine");
    let clone = server.enroll(&token, 1, 2).await.expect_err("its clone");
    assert_eq!(clone.code(), Code::FailedPrecondition);
    assert!(clone.message().contains("evenkeel host delete host-"), "{}", clone.message());
}

#[tokio::test]
async fn an_unregistered_machine_needs_a_token_that_allows_it() {
    let server = TestServer::new().await;
    let token = server.join_token(false, false).await;
    let refused = server.enroll(&token, 1, 1).await.expect_err("not registered");
    assert_eq!(refused.code(), Code::PermissionDenied);
    server.advance_minutes(120);
    let late = server.enroll(&token, 1, 1).await.expect_err("expired");
    assert_eq!(late.message(), "the join token has expired");
    for bad in ["", "ekj1..x", "nonsense", "ekj1..AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
        let refused = server.enroll(bad, 1, 1).await.expect_err(bad);
        assert!(matches!(refused.code(), Code::InvalidArgument | Code::PermissionDenied));
    }
}

#[tokio::test]
async fn only_nodes_may_poll() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let role = evenkeel_auth::Role::Write(server.tenant.uuid());
    let poll = |token: String| server.manager.poll(with_credential(&token, PollRequest::default()));
    let refused = poll(server.token("alice", &[role])).await.expect_err("an operator");
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(poll("x".repeat(10_000)).await.expect_err("noise").code(), Code::Unauthenticated);
    server.advance_minutes(91 * 24 * 60);
    let late = poll(node.credential.clone()).await.expect_err("expired");
    assert_eq!(late.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_credential_is_replaced_before_it_expires() {
    let server = TestServer::new().await;
    let node = server.node().await;
    assert!(server.poll(&node).await.credential.is_empty());
    server.advance_minutes(24 * 60 + 1);
    // Not cached, and then cached.
    for _ in 0..2 {
        let renewed = server.poll(&node).await.credential;
        let expected = server.now() + TimeDelta::days(90);
        let caller = server.authority.verify(&renewed, server.now()).expect("a credential");
        assert_eq!(caller.expires_at, expected);
        let node = TestNode { credential: renewed, host: node.host, instance: node.instance };
        assert!(server.poll(&node).await.credential.is_empty());
    }
}

#[tokio::test]
async fn a_short_lived_credential_is_replaced_when_a_third_of_its_lifetime_is_left() {
    let credential_lifetime = Duration::from_hours(3);
    let settings = Settings { credential_lifetime, ..Settings::default() };
    let server = TestServer::with_settings(settings).await;
    let node = server.node().await;
    server.advance_minutes(119);
    assert!(server.poll(&node).await.credential.is_empty());
    server.advance_minutes(2);
    assert!(!server.poll(&node).await.credential.is_empty());
}

#[tokio::test]
async fn a_node_of_another_project_is_not_found() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let theirs = server.create_project("theirs").await;
    let (host, key) = (node.host.to_string(), KeyFingerprint::from_public_key(b"key"));
    let foreign = (theirs.uuid(), host.as_str());
    let hour = TimeDelta::hours(1);
    let issued = server.authority.issue_credential(foreign, &key, hour, server.now());
    let credential = issued.expect("a credential");
    let request = with_credential(credential.token.reveal(), PollRequest::default());
    assert_eq!(server.manager.poll(request).await.expect_err("foreign").code(), Code::NotFound);
}
