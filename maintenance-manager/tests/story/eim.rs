//! Tests of the gRPC service for EIM's agents.

use crate::test_server::{NOON, TestNode, TestServer};
use evenkeel_domain::host::Registration;
use evenkeel_domain::instance::{InstanceKind, NewInstance};
use evenkeel_domain::os::{OsRelease, OsSpec, SecurityFeature};
use evenkeel_domain::text::Name;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::{hosts, instances, os_profiles};
use tonic::Code;

const GUID: &str = "A1B2C3D4-0000-4000-8000-0000000000FF";

/// A node that was registered and provisioned over REST, as EIM's nodes are.
async fn register_node(server: &TestServer) -> TestNode {
    let tx = server.store.tenant(server.tenant).await.expect("a transaction");
    let registration = Registration::parse("edge-01", GUID, "", true).expect("a registration");
    let host = hosts::register(&tx, &registration, NOON).await.expect("a host");
    let release =
        OsRelease { id: "ubuntu".into(), version_id: "24.04".into(), ..OsRelease::default() };
    let spec = OsSpec::from_release(&release, "amd64").expect("a profile");
    let os = os_profiles::find_or_create(&tx, &spec, NOON).await.expect("an os");
    let new = NewInstance {
        host: host.id,
        os: os.id,
        name: Name::default(),
        kind: InstanceKind::Metal,
        security_feature: SecurityFeature::None,
        policy: None,
        local_account: None,
        custom_configs: Vec::new(),
    };
    let instance = instances::create(&tx, &new, NOON).await.expect("an instance");
    tx.commit().await.expect("committed");
    TestNode { host: host.id, instance: instance.id, credential: String::new() }
}

#[tokio::test]
async fn a_sampled_update_from_the_window_to_the_end() {
    let server = TestServer::new().await;
    let node = register_node(&server).await;
    let policy = server.policy(&node, "curl\njq=1.6").await;
    server.window(node.host, 10, 60).await;

    // The GUID is accepted in either case, and the first sample is a baseline.
    let answer = server.send_sample(&GUID.to_lowercase(), S::Updated, "").await.expect("an answer");
    assert!(server.runs(&node).await.is_empty());
    assert_eq!(answer.installed_packages, "curl\njq");
    let window = answer.update_schedule.and_then(|s| s.single_schedule).expect("a window");
    assert_eq!(window.end_seconds - window.start_seconds, 50 * 60);

    server.send_sample(GUID, S::UpToDate, "").await.expect("an answer");
    server.advance_minutes(11);
    for kind in [S::Started, S::Started, S::Updated, S::Updated, S::UpToDate] {
        server.send_sample(GUID, kind, "").await.expect("an answer");
    }
    assert_eq!(server.run_history(&node).await, "began->applying finished->succeeded");
    assert_eq!(server.runs(&node).await[0].origin.policy_id(), Some(policy));
    assert_eq!(server.update_status(&node).await, "No new updates available");
}

#[tokio::test]
async fn a_fast_update_that_was_never_seen_to_start_has_its_run() {
    let server = TestServer::new().await;
    let node = register_node(&server).await;
    for kind in [S::UpToDate, S::Updated, S::Updated, S::UpToDate] {
        server.send_sample(GUID, kind, "").await.expect("an answer");
    }
    assert_eq!(server.run_history(&node).await, "finished->succeeded");
}

#[tokio::test]
async fn a_repeated_failure_is_one_failure() {
    let server = TestServer::new().await;
    let node = register_node(&server).await;
    let detail = r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"download"}]}"#;
    server.send_sample(GUID, S::UpToDate, "").await.expect("an answer");
    // The detail may belong to an earlier update, so the failure is confirmed when it is repeated.
    for kind in [S::Started, S::Failed, S::Failed, S::Failed] {
        server.send_sample(GUID, kind, detail).await.expect("an answer");
        server.advance_minutes(1);
    }
    assert_eq!(server.run_history(&node).await, "began->applying failed->failed");
    assert_eq!(server.update_status(&node).await, "Update failed");
}

#[tokio::test]
async fn every_field_is_present_in_an_answer_without_a_policy() {
    let server = TestServer::new().await;
    register_node(&server).await;
    let answer = server.send_sample(GUID, S::UpToDate, "").await.expect("an answer");
    assert!(answer.update_source.is_some());
    assert!(answer.os_profile_update_source.is_some());
    let schedule = answer.update_schedule.expect("a schedule, so that it cancels");
    assert!(schedule.single_schedule.is_none());
}

#[tokio::test]
async fn an_unknown_guid_is_refused() {
    let server = TestServer::new().await;
    register_node(&server).await;
    let code = |guid: &'static str| {
        let server = &server;
        async move { server.send_sample(guid, S::UpToDate, "").await.expect_err("refused").code() }
    };
    assert_eq!(code("").await, Code::InvalidArgument);
    assert_eq!(code("not-a-uuid").await, Code::InvalidArgument);
    assert_eq!(code("a1b2c3d4-0000-4000-8000-000000000000").await, Code::NotFound);
}

#[tokio::test]
async fn an_oversized_detail_is_cut_and_its_outcome_is_stored() {
    let server = TestServer::new().await;
    let node = register_node(&server).await;
    server.send_sample(GUID, S::UpToDate, "").await.expect("an answer");
    server.send_sample(GUID, S::Started, "").await.expect("an answer");
    server.send_sample(GUID, S::Failed, &"x\0".repeat(5 << 20)).await.expect("an answer");
    let run = &server.runs(&node).await[0];
    assert_eq!(run.state.name(), "failed");
    assert!(run.log.len() <= 100_000 && run.log.ends_with("[cut]"));
}

#[tokio::test]
async fn an_abandoned_run_is_not_restarted_and_its_late_end_is_recorded() {
    let server = TestServer::new().await;
    let node = register_node(&server).await;
    for kind in [S::UpToDate, S::Started] {
        server.send_sample(GUID, kind, "").await.expect("an answer");
    }
    server.advance_minutes(25 * 60);
    assert_eq!(server.reap_runs().await, 1);
    // A transient fault of the sampling changes nothing.
    for kind in [S::Started, S::Failed, S::Started] {
        server.send_sample(GUID, kind, "").await.expect("an answer");
        assert_eq!(server.runs(&node).await.len(), 1);
    }
    server.send_sample(GUID, S::Updated, "").await.expect("an answer");
    assert_eq!(
        server.run_history(&node).await,
        "began->applying timed_out->abandoned finished->succeeded"
    );
}

#[tokio::test]
async fn an_end_after_an_idle_sample_does_not_belong_to_the_abandoned_run() {
    let server = TestServer::new().await;
    let node = register_node(&server).await;
    for kind in [S::UpToDate, S::Started] {
        server.send_sample(GUID, kind, "").await.expect("an answer");
    }
    server.advance_minutes(25 * 60);
    assert_eq!(server.reap_runs().await, 1);
    for kind in [S::UpToDate, S::Updated] {
        server.send_sample(GUID, kind, "").await.expect("an answer");
    }
    let mut states: Vec<_> = server.runs(&node).await;
    states.sort_by_key(|run| run.started_at);
    let states: Vec<_> = states.iter().map(|run| run.state.name()).collect();
    assert_eq!(states, ["abandoned", "succeeded"]);
}

#[tokio::test]
async fn a_status_of_the_first_sample_is_shown_without_a_run() {
    let server = TestServer::new().await;
    let node = register_node(&server).await;
    for _ in 0..2 {
        server.send_sample(GUID, S::Failed, "an old failure").await.expect("an answer");
    }
    assert!(server.runs(&node).await.is_empty());
    assert_eq!(server.update_status(&node).await, "Update failed");
}

#[tokio::test]
async fn the_delivered_policy_is_the_one_that_began() {
    let server = TestServer::new().await;
    let node = register_node(&server).await;
    let first = server.policy(&node, "curl").await;
    server.window(node.host, 1, 60).await;
    server.send_sample(GUID, S::UpToDate, "").await.expect("an answer");
    server.advance_minutes(2);
    server.policy(&node, "jq").await;
    server.send_sample(GUID, S::Started, "").await.expect("an answer");
    assert_eq!(server.runs(&node).await[0].origin.policy_id(), Some(first));
}

#[tokio::test]
async fn an_eim_agent_next_to_an_own_agent_changes_nothing_and_gets_no_window() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 1, 60).await;
    server.advance_minutes(2);
    let begun = [(1, crate::test_server::downloading()), (2, crate::test_server::began())];
    server.report(&node, 1, policy, &begun).await;
    let guid = uuid::Uuid::from_u128(1).to_string();
    for kind in [S::UpToDate, S::Failed, S::Started] {
        let answer = server.send_sample(&guid, kind, "x").await.expect("an answer");
        let schedule = answer.update_schedule.expect("present");
        assert!(schedule.single_schedule.is_none());
    }
    assert_eq!(server.runs(&node).await[0].state.name(), "applying");
}
