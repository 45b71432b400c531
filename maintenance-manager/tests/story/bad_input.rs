//! Invalid input of nodes: the status codes are those of EIM, and other nodes are not affected.

use std::time::Instant;

use evenkeel_maintenance_manager::{RateLimitSettings, Settings};
use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{
    AvailablePackage, BeginRequest, Cancelled, Event, Facts, Failed, PollRequest, RebootBegun,
    ReportRequest, VerifyBegun,
};
use evenkeel_proto::maintmgr::UpdateStatus;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use futures_util::future::join_all;
use tonic::Code;
use uuid::Uuid;

use crate::fleet::sample;
use crate::test_server::{
    TestServer, act, began, downloaded, downloading, facts, finished, report_request,
    with_credential,
};

#[tokio::test]
async fn an_invalid_or_unknown_guid_has_the_code_of_eim() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    for (guid, code) in [
        ("", Code::InvalidArgument),
        ("not-a-uuid", Code::InvalidArgument),
        ("a1b2c3d4000040008000000000000001", Code::InvalidArgument),
        ("a1b2c3d4-0000-4000-8000-000000000077", Code::NotFound),
        ("00000000-0000-0000-0000-000000000000", Code::NotFound),
    ] {
        let refused = server.send_status_to(&server.manager, guid, sample(S::UpToDate)).await;
        assert_eq!(refused.expect_err(guid).code(), code, "{guid}");
    }
    let request = evenkeel_proto::maintmgr::PlatformUpdateStatusRequest {
        host_guid: node.guid.clone(),
        update_status: None,
    };
    let request = with_credential(&server.eim_token(), request);
    let refused = server.manager.platform_update_status(request).await;
    assert_eq!(refused.expect_err("no status").code(), Code::InvalidArgument);
}

#[tokio::test]
async fn an_unknown_status_is_shown_as_unknown_and_changes_no_run() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    let strange = UpdateStatus { status_type: 4_711, ..UpdateStatus::default() };
    server.send_status(&node, sample(S::UpToDate)).await;
    server.send_status(&node, strange.clone()).await;
    assert_eq!(server.update_status(&node.as_node()).await, "Unknown");
    server.send_status(&node, sample(S::Started)).await;
    server.send_status(&node, strange).await;
    assert_eq!(server.run_history(&node.as_node()).await, "began->applying");
    server.send_status(&node, sample(S::Updated)).await;
    assert_eq!(server.run_history(&node.as_node()).await, "began->applying finished->succeeded");
}

#[tokio::test]
async fn an_event_with_unknown_values_is_stored_as_the_nearest_known_one() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let failed = Kind::Failed(Failed { kind: 4_711, ..Failed::default() });
    server.report(&node, 1, policy, &[(1, downloading()), (2, failed)]).await;
    assert_eq!(server.runs(&node).await[0].state.name(), "failed");
    let cancelled = Kind::Cancelled(Cancelled { cause: "an unknown cause".into() });
    server.report(&node, 2, policy, &[(1, downloading()), (2, cancelled)]).await;
    let states: Vec<_> = server.runs(&node).await.iter().map(|run| run.state.name()).collect();
    assert!(states.contains(&"cancelled"), "{states:?}");
}

#[tokio::test]
async fn a_hundred_thousand_packages_are_accepted_and_one_more_is_refused() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let package = |n: usize| AvailablePackage {
        name: format!("package-{n}"),
        architecture: "amd64".into(),
        installed_version: "1".into(),
        available_version: "2".into(),
        ..AvailablePackage::default()
    };
    let many = |count| Facts { available: (0..count).map(package).collect(), ..facts() };
    server.report_facts(&node, many(100_000)).await;
    let state = server.node_state(&node).await;
    let (kinds, available) = (state.conditions, state.os_update_available);
    assert_eq!(kinds[0].kind.name(), "detail_cut");
    assert!(kinds[0].text.starts_with("100000 packages"), "{}", kinds[0].text);
    assert!((400_000..=500_000).contains(&available.len()));
    let entries: Vec<serde_json::Value> = serde_json::from_str(&available).expect("whole entries");
    assert_eq!(entries[0]["name"], "package-0");
    let request = PollRequest { facts: Some(many(100_001)), ..PollRequest::default() };
    let refused = server.manager.poll(with_credential(&node.credential, request)).await;
    assert_eq!(refused.expect_err("too many").code(), Code::InvalidArgument);
    assert_eq!(server.node_state(&node).await.os_update_available, available);
    // With a shorter list the condition is cleared.
    server.report_facts(&node, many(3)).await;
    let state = server.node_state(&node).await;
    assert!(state.conditions.is_empty(), "{:?}", state.conditions);
    let entries: Vec<serde_json::Value> =
        serde_json::from_str(&state.os_update_available).expect("whole entries");
    assert_eq!(entries.len(), 3);
}

/// A node reports events without end, and then the end of the run.
#[tokio::test]
async fn the_history_of_a_run_is_bounded_and_its_end_is_stored() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let restart = || Kind::RebootBegun(RebootBegun {});
    let look = || Kind::VerifyBegun(VerifyBegun {});
    let mut events = vec![(1, downloading()), (2, began())];
    events.extend((3..=1_000).map(|n| (n, if n % 2 == 0 { look() } else { restart() })));
    server.report(&node, 1, policy, &events).await;
    let more: Vec<_> = (1_001..=1_200).map(|n| (n, restart())).collect();
    assert_eq!(server.report(&node, 1, policy, &more).await.acknowledged, 1_200);
    let ended = [(1_201, finished()), (1_202, began())];
    server.report(&node, 1, policy, &ended).await;
    let run = &server.runs(&node).await[0];
    assert_eq!((run.state.name(), run.sequence), ("succeeded", 1_202));
    let history = server.run_history(&node).await;
    let history: Vec<_> = history.split(' ').collect();
    assert_eq!(history.len(), 1_001);
    assert_eq!(history[1_000], "finished->succeeded");
}

#[tokio::test]
async fn a_malformed_package_list_is_refused() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let text = "{\"repo\":\"everything\"}";
    let reported =
        Facts { packages_digest: <sha2::Sha256 as sha2::Digest>::digest(text).to_vec(), ..facts() };
    server.report_facts(&node, reported).await;
    let request = PollRequest { packages: text.into(), ..PollRequest::default() };
    let refused = server.manager.poll(with_credential(&node.credential, request)).await;
    assert_eq!(refused.expect_err("no list").code(), Code::InvalidArgument);
    assert_eq!(server.node_state(&node).await.packages_digest, None);
}

/// The node's clock is stored next to the server's and decides nothing.
#[tokio::test]
async fn any_node_time_is_stored_and_changes_nothing() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let years = [-62_135_596_800, 0, 253_402_300_799, i64::MAX, i64::MIN];
    let event = |(n, seconds): (usize, i64)| Event {
        sequence: u32::try_from(n + 1).expect("small"),
        node_time: Some(prost_types::Timestamp { seconds, nanos: -5 }),
        ..report_request(1, policy, &[(1, downloading())]).events[0].clone()
    };
    let request = ReportRequest {
        events: years.into_iter().enumerate().map(event).collect(),
        ..report_request(1, policy, &[])
    };
    let answer = server.manager.report(with_credential(&node.credential, request)).await;
    assert_eq!(answer.expect("stored").into_inner().acknowledged, 5);
    let run = &server.runs(&node).await[0];
    assert_eq!(run.started_at, crate::test_server::NOON);
}

#[tokio::test]
async fn replayed_and_reordered_reports_do_not_change_the_history() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let all = [(1, downloading()), (2, downloaded()), (3, began()), (4, finished())];
    for order in [[3, 2], [1, 3], [0, 3], [2, 0], [1, 1], [2, 3], [3, 0]] {
        for n in order {
            server.report(&node, 1, policy, &all[n..=n]).await;
        }
    }
    let answer = server.report(&node, 1, policy, &all).await;
    assert_eq!(answer.acknowledged, 4);
    assert_eq!(
        server.run_history(&node).await,
        "downloading->downloading downloaded->staged began->applying finished->succeeded"
    );
}

#[tokio::test]
async fn a_report_for_an_ended_run_is_acknowledged_and_changes_nothing() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let all = [(1, downloading()), (2, began()), (3, finished())];
    server.report(&node, 1, policy, &all).await;
    let late = server.report(&node, 1, policy, &[(4, began()), (5, downloading())]).await;
    assert_eq!(late.acknowledged, 5);
    assert_eq!(server.runs(&node).await[0].state.name(), "succeeded");
    assert_eq!(server.update_status(&node).await, "Update completed");
}

#[tokio::test]
async fn attempt_ids_are_scoped_to_their_node() {
    let server = TestServer::new().await;
    let (one, two) = (server.nth_node(1).await, server.nth_node(2).await);
    let policy = server.policy(&one, "demo-hello=1.1").await;
    server.report(&one, 1, policy, &[(1, downloading())]).await;
    server.report(&two, 1, policy, &[(1, downloading()), (2, finished())]).await;
    assert_eq!(server.runs(&one).await[0].state.name(), "downloading");
    let begin = BeginRequest { attempt_id: "x".into(), ..BeginRequest::default() };
    let refused = server.manager.begin(with_credential(&one.credential, begin)).await;
    assert_eq!(refused.expect_err("no attempt").code(), Code::InvalidArgument);
}

#[tokio::test]
async fn an_eim_node_of_another_project_is_not_found() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    let theirs = server.create_project("theirs").await;
    let token = server.token("agent", &[evenkeel_auth::Role::Node(theirs.uuid())]);
    for guid in [node.guid.clone(), Uuid::from_u128(7).to_string()] {
        let request = evenkeel_proto::maintmgr::PlatformUpdateStatusRequest {
            host_guid: guid,
            update_status: Some(sample(S::UpToDate)),
        };
        let request = with_credential(&token, request);
        let refused = server.manager.platform_update_status(request).await;
        assert_eq!(refused.expect_err("foreign").code(), Code::NotFound);
    }
}

/// A server that answers 20 calls of a caller at once, and then one call a second.
async fn server_with_strict_rate_limit() -> TestServer {
    let settings = Settings {
        rate_limit: RateLimitSettings { calls_per_second: 1, burst: 20 },
        ..Settings::default()
    };
    TestServer::with_settings(settings).await
}

/// The maximum number of calls of one caller that such a server can have answered since an instant.
fn max_calls_since(begun: Instant) -> usize {
    20 + usize::try_from(begun.elapsed().as_secs()).expect("a short time") + 1
}

/// A caller that names another node in each call must not get a new allowance each time.
#[tokio::test]
async fn a_refused_node_is_limited_under_any_name_it_claims() {
    let server = server_with_strict_rate_limit().await;
    let existing = server.eim_node(1).await;
    server.send_status(&existing, sample(S::UpToDate)).await;
    let (begun, mut codes) = (Instant::now(), Vec::new());
    for n in 0..100 {
        let guid = match n % 10 {
            0 => format!("unknown {n}"),
            _ => Uuid::from_u128(n).to_string(),
        };
        let answer = server.send_status_to(&server.manager, &guid, sample(S::UpToDate));
        codes.push(answer.await.expect_err("unknown").code());
    }
    let heard = codes.iter().filter(|code| **code != Code::ResourceExhausted);
    assert!(heard.count() <= max_calls_since(begun), "{codes:?}");
    assert!(codes.contains(&Code::NotFound), "{codes:?}");
    // An existing node with the same token is not limited.
    server.send_status(&existing, sample(S::UpToDate)).await;
}

/// Any EIM agent's token of the project may name any of its nodes.
#[tokio::test]
async fn a_caller_over_its_limit_does_not_block_the_node_that_it_names() {
    let server = server_with_strict_rate_limit().await;
    let victim = server.eim_node(1).await;
    let role = [evenkeel_auth::Role::Node(server.tenant.uuid())];
    let say = async |agent: &str| {
        let request = evenkeel_proto::maintmgr::PlatformUpdateStatusRequest {
            host_guid: victim.guid.clone(),
            update_status: Some(sample(S::UpToDate)),
        };
        let request = with_credential(&server.token(agent, &role), request);
        server.manager.platform_update_status(request).await
    };
    say("its own").await.expect("an answer");
    let (begun, mut heard) = (Instant::now(), 0);
    for _ in 0..100 {
        heard += usize::from(say("another").await.is_ok());
    }
    assert!(heard <= max_calls_since(begun), "{heard}");
    for _ in 0..10 {
        say("its own").await.expect("not limited");
    }
}

#[tokio::test]
async fn unauthenticated_callers_are_limited() {
    let server = server_with_strict_rate_limit().await;
    let node = server.node().await;
    let call = || server.manager.poll(with_credential("forged", PollRequest::default()));
    let begun = Instant::now();
    let answers = join_all((0..100).map(|_| call())).await;
    let codes = answers.into_iter().map(|answer| answer.expect_err("forged").code());
    let (flooding, heard): (Vec<_>, Vec<_>) =
        codes.partition(|code| *code == Code::ResourceExhausted);
    assert!(heard.iter().all(|code| *code == Code::Unauthenticated), "{heard:?}");
    assert!(heard.len() <= max_calls_since(begun), "{flooding:?}");
    assert_eq!(act(&server.poll(&node).await), "idle");
}

/// Admitted machines use nothing of the allowance of their address, so a roll-out continues.
#[tokio::test]
async fn callers_with_made_up_join_tokens_are_limited_and_a_roll_out_is_not() {
    let server = server_with_strict_rate_limit().await;
    let token = server.join_token(false, true).await;
    let arrivals = join_all((1..=50).map(|machine| server.enroll(&token, machine, 1)));
    for arrived in arrivals.await {
        arrived.expect("admitted");
    }
    let begun = Instant::now();
    let made_up = evenkeel_auth::JoinToken::generate(None).expect("randomness");
    let made_up = made_up.text().reveal().to_owned();
    let tries = join_all((1..=100).map(|machine| server.enroll(&made_up, machine, 1))).await;
    let refused = tries.into_iter().map(|tried| tried.expect_err("made up"));
    let (flooding, heard): (Vec<_>, Vec<_>) =
        refused.partition(|refused| refused.code() == Code::ResourceExhausted);
    let is_denied = |refused: &tonic::Status| refused.code() == Code::PermissionDenied;
    assert!(heard.iter().all(is_denied), "{heard:?}");
    // Calls that run at the same time may be refused together.
    let most = max_calls_since(begun) + 4;
    assert!(heard.len() <= most, "{}", heard.len());
    let hint = |refused: &tonic::Status| refused.metadata().contains_key("grpc-retry-pushback-ms");
    assert!(flooding.iter().all(hint), "{flooding:?}");
}

#[tokio::test]
async fn one_node_over_its_rate_limit_does_not_affect_others() {
    let server = server_with_strict_rate_limit().await;
    let (loud, other, eim) =
        (server.nth_node(1).await, server.nth_node(2).await, server.eim_node(3).await);
    let poll = || server.manager.poll(with_credential(&loud.credential, PollRequest::default()));
    let begun = Instant::now();
    let answers = join_all((0..100).map(|_| poll())).await;
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    let codes: Vec<_> = refused.map(tonic::Status::code).collect();
    assert!(100 - codes.len() <= max_calls_since(begun), "{codes:?}");
    let flooding = |code: &Code| *code == Code::ResourceExhausted;
    assert!(codes.iter().all(flooding), "{codes:?}");
    assert_eq!(act(&server.poll(&other).await), "idle");
    server.send_status(&eim, sample(S::UpToDate)).await;

    let begun = Instant::now();
    let calls =
        (0..100).map(|_| server.send_status_to(&server.manager, &eim.guid, sample(S::UpToDate)));
    let refused = join_all(calls).await.into_iter().filter_map(Result::err);
    let codes: Vec<_> = refused.map(|status| status.code()).collect();
    assert!(100 - codes.len() <= max_calls_since(begun), "{codes:?}");
    assert!(codes.iter().all(flooding), "{codes:?}");
    assert_eq!(act(&server.poll(&other).await), "idle");
}
