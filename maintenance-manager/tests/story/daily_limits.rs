//! Limits of what nodes may store within a day.

use std::time::Duration;

use evenkeel_domain::id::PolicyId;
use evenkeel_maintenance_manager::{DailyLimitSettings, MaintenanceManager, Settings};
use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::{AvailablePackage, Facts, PollRequest};
use evenkeel_proto::hostmgr::{HwInfo, SystemInfo};
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::testing::drop_after_polls;
use sha2::{Digest as _, Sha256};
use tonic::{Code, Status};

use crate::fleet::sample;
use crate::test_server::{
    TestNode, TestServer, began, downloading, facts, finished, report_request, with_credential,
};

async fn server_with(daily_limits: DailyLimitSettings) -> TestServer {
    TestServer::with_settings(Settings { daily_limits, ..Settings::default() }).await
}

async fn poll_error(server: &TestServer, node: &TestNode, request: PollRequest) -> Status {
    let answer = server.manager.poll(with_credential(&node.credential, request)).await;
    answer.expect_err("refused")
}

async fn conditions(server: &TestServer, node: &TestNode) -> Vec<String> {
    let conditions = server.node_state(node).await.conditions;
    conditions.iter().map(|condition| condition.kind.name().to_owned()).collect()
}

fn assert_limited(refused: &Status) {
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.metadata().contains_key("grpc-retry-pushback-ms"), "{refused:?}");
}

#[tokio::test]
async fn a_node_opens_no_more_runs_than_a_day_allows() {
    let limits = DailyLimitSettings { max_runs_per_node: 2, ..DailyLimitSettings::default() };
    let server = server_with(limits).await;
    let (node, other) = (server.nth_node(1).await, server.nth_node(2).await);
    let policy = server.policy(&node, "demo-hello=1.1").await;
    for attempt in 1..=2 {
        server.report(&node, attempt, policy, &[(1, downloading())]).await;
    }
    let third = report_request(3, policy, &[(1, downloading())]);
    let refused = server.manager.report(with_credential(&node.credential, third)).await;
    assert_limited(&refused.expect_err("too many"));
    assert_eq!(server.runs(&node).await.len(), 2);
    assert_eq!(conditions(&server, &node).await, ["daily_limit"]);
    // The open run goes on, and another node has its own limit.
    server.report(&node, 2, policy, &[(2, began()), (3, finished())]).await;
    assert_eq!(server.runs(&node).await[1].state.name(), "succeeded");
    server.report(&other, 1, policy, &[(1, downloading())]).await;
    assert!(conditions(&server, &other).await.is_empty());
    // The condition ends with a change a day later.
    server.advance_minutes(24 * 60);
    server.report_facts(&node, Facts { agent_version: "0.2.0".into(), ..facts() }).await;
    assert!(conditions(&server, &node).await.is_empty());
}

#[tokio::test]
async fn a_used_up_limit_is_shown_although_the_node_disconnects() {
    let limits = DailyLimitSettings { max_runs_per_node: 1, ..DailyLimitSettings::default() };
    let server = server_with(limits).await;
    for polls in 1..=u8::MAX {
        let node = server.nth_node(polls).await;
        open_run(&server, &server.manager, &node, 1).await.expect("the first");
        let report = || {
            let report = report_request(2, PolicyId::nth(1), &[(1, downloading())]);
            server.manager.report(with_credential(&node.credential, report))
        };
        server.read_changes().await;

        let ended = drop_after_polls(report(), polls.into()).await;

        assert_limited(&report().await.expect_err("too many"));
        let shown = async { while conditions(&server, &node).await.is_empty() {} };
        tokio::time::timeout(Duration::from_mins(1), shown).await.expect("it is shown");
        if ended.is_some() {
            return;
        }
    }
    panic!("the report does not end");
}

/// Sends the first event of an attempt to a server.
async fn open_run(
    server: &TestServer,
    manager: &MaintenanceManager,
    node: &TestNode,
    attempt: u128,
) -> Result<(), Status> {
    let policy = PolicyId::nth(1);
    let report = report_request(attempt, policy, &[(1, downloading())]);
    server.read_changes().await;
    manager.report(with_credential(&node.credential, report)).await.map(drop)
}

/// Another process on the same database, which has just started.
async fn restarted(server: &TestServer, daily_limits: DailyLimitSettings) -> MaintenanceManager {
    let settings = Settings { daily_limits, ..Settings::default() };
    server.new_manager(server.connect().await, settings)
}

#[tokio::test]
async fn the_limits_of_a_node_hold_for_all_processes_and_over_restarts() {
    let limits = DailyLimitSettings { max_runs_per_node: 2, ..DailyLimitSettings::default() };
    let server = server_with(limits.clone()).await;
    let node = server.node().await;
    let replica = restarted(&server, limits.clone()).await;
    open_run(&server, &server.manager, &node, 1).await.expect("the first");
    open_run(&server, &replica, &node, 2).await.expect("the second");
    for manager in [&server.manager, &replica, &restarted(&server, limits).await] {
        let refused = open_run(&server, manager, &node, 3).await.expect_err("too many");
        assert_limited(&refused);
        assert!(refused.message().contains("the node has used up"), "{refused}");
    }
    assert_eq!(server.runs(&node).await.len(), 2);
    assert_eq!(conditions(&server, &node).await, ["daily_limit"]);
}

#[tokio::test]
async fn the_limits_of_a_project_hold_for_all_processes_and_over_restarts() {
    let limits = DailyLimitSettings { max_runs_per_project: 3, ..DailyLimitSettings::default() };
    let server = server_with(limits.clone()).await;
    let (one, other) = (server.nth_node(1).await, server.nth_node(2).await);
    let replica = restarted(&server, limits.clone()).await;
    open_run(&server, &server.manager, &one, 1).await.expect("the first");
    open_run(&server, &server.manager, &other, 2).await.expect("the second");
    open_run(&server, &replica, &other, 3).await.expect("the third");
    for manager in [&server.manager, &replica] {
        manager.exchange_daily_usage().await.expect("exchanged");
    }
    let late = restarted(&server, limits).await;
    late.exchange_daily_usage().await.expect("exchanged");
    for manager in [&replica, &late] {
        let refused = open_run(&server, manager, &one, 4).await.expect_err("too many");
        assert_limited(&refused);
        assert!(refused.message().contains("the project has used up"), "{refused}");
    }
}

#[tokio::test]
async fn the_bytes_of_a_node_add_up_over_all_processes() {
    let limits =
        DailyLimitSettings { max_bytes_per_node: 16 << 20, ..DailyLimitSettings::default() };
    let server = server_with(limits.clone()).await;
    let node = server.node().await;
    let send = async |manager: &MaintenanceManager, letter: &str| {
        let facts = Facts { reboot_reasons: vec![letter.repeat(4_000); 1_500], ..facts() };
        let request = PollRequest { facts: Some(facts), ..PollRequest::default() };
        manager.poll(with_credential(&node.credential, request)).await
    };
    for letter in ["a", "b"] {
        let process = restarted(&server, limits.clone()).await;
        send(&process, letter).await.expect("within the limit");
    }
    let process = restarted(&server, limits).await;
    assert_limited(&send(&process, "c").await.expect_err("above the limit"));
    // What was refused is not stored.
    assert!(server.node_state(&node).await.facts.to_string().contains("bbbb"));
}

#[tokio::test]
async fn hardware_that_changes_counts_and_unchanged_hardware_costs_nothing() {
    let limits =
        DailyLimitSettings { max_bytes_per_node: 16 << 20, ..DailyLimitSettings::default() };
    let server = server_with(limits).await;
    let eim = server.eim_node(1).await;
    let machine = |serial: &str| SystemInfo {
        hw_info: Some(HwInfo {
            serial_num: serial.to_owned(),
            product_name: "x".repeat(3 << 20),
            ..HwInfo::default()
        }),
        ..SystemInfo::default()
    };
    for serial in ["1", "2", "2", "2", "3", "4", "5"] {
        server.send_system_info(&eim.guid, machine(serial)).await.expect("within the limit");
    }
    assert_limited(&server.send_system_info(&eim.guid, machine("6")).await.expect_err("too much"));
    let stored = server.hardware(eim.host).await.expect("hardware");
    assert_eq!(stored.serial_number, "5");
    assert_eq!(conditions(&server, &eim.as_node()).await, ["daily_limit"]);
}

#[tokio::test]
async fn eims_agents_open_no_more_runs_than_a_day_allows() {
    let limits = DailyLimitSettings { max_runs_per_node: 1, ..DailyLimitSettings::default() };
    let server = server_with(limits).await;
    let eim = server.eim_node(1).await;
    for kind in [S::UpToDate, S::Started, S::Started, S::Updated] {
        server.send_status(&eim, sample(kind)).await;
    }
    let refused = server.send_status_to(&server.manager, &eim.guid, sample(S::Started)).await;
    assert_limited(&refused.expect_err("too many"));
    assert_eq!(server.run_history(&eim.as_node()).await, "began->applying finished->succeeded");
}

#[tokio::test]
async fn a_replaced_eim_agent_opens_no_more_runs_than_a_day_allows() {
    let limits = DailyLimitSettings { max_runs_per_node: 1, ..DailyLimitSettings::default() };
    let server = server_with(limits).await;
    let eim = server.eim_node(1).await;
    server.send_status(&eim, sample(S::UpToDate)).await;
    let node = server.take_over(&eim).await;
    server.report_facts(&node, facts()).await;
    let send_end = async |version: &str| {
        let detail = format!(
            r#"{{"update_log":[{{"package_name":"a","status":"installed","version":"{version}"}}]}}"#
        );
        server.send_sample(&eim.guid, S::Updated, &detail).await
    };
    send_end("1").await.expect("stored");
    assert_limited(&send_end("2").await.expect_err("too many"));
    assert_eq!(server.runs(&node).await.len(), 1);
}

#[tokio::test]
async fn a_node_stores_no_more_package_lists_than_a_day_allows() {
    let limits =
        DailyLimitSettings { max_package_lists_per_node: 1, ..DailyLimitSettings::default() };
    let server = server_with(limits).await;
    let (node, other) = (server.nth_node(1).await, server.nth_node(2).await);
    let list = |version: &str| format!(r#"{{"repo":[{{"name":"apt","version":"{version}"}}]}}"#);
    let request = |version: &str| PollRequest {
        facts: Some(Facts { packages_digest: Sha256::digest(list(version)).to_vec(), ..facts() }),
        packages: list(version),
        ..PollRequest::default()
    };
    server.send_poll(&node, request("1")).await;
    assert_limited(&poll_error(&server, &node, request("2")).await);
    let stored = server.node_state(&node).await.packages_digest;
    assert_eq!(stored, Some(Sha256::digest(list("1")).into()));
    // A list that the project has already costs nothing.
    server.send_poll(&other, request("2")).await;
    server.send_poll(&node, request("2")).await;
}

#[tokio::test]
async fn a_node_reports_no_more_new_versions_than_a_day_allows() {
    let limits = DailyLimitSettings { max_versions_per_node: 4, ..DailyLimitSettings::default() };
    let server = server_with(limits).await;
    let node = server.node().await;
    let request = |versions: std::ops::Range<u32>| {
        let available = |n| AvailablePackage {
            name: "demo-hello".into(),
            architecture: "all".into(),
            available_version: format!("1.{n}"),
            ..AvailablePackage::default()
        };
        let facts = Facts { available: versions.map(available).collect(), ..facts() };
        PollRequest { facts: Some(facts), ..PollRequest::default() }
    };
    server.send_poll(&node, request(0..3)).await;
    assert_limited(&poll_error(&server, &node, request(3..6)).await);
    let available = server.node_state(&node).await.os_update_available;
    assert!(available.contains("1.0") && !available.contains("1.3"), "{available}");
    server.send_poll(&node, request(0..4)).await;
}

#[tokio::test]
async fn a_node_sends_no_more_bytes_than_a_day_allows() {
    let limits =
        DailyLimitSettings { max_bytes_per_node: 16 << 20, ..DailyLimitSettings::default() };
    let server = server_with(limits).await;
    let node = server.node().await;
    let long_facts = |letter: &str| {
        let facts = Facts { reboot_reasons: vec![letter.repeat(4_000); 1_500], ..facts() };
        PollRequest { facts: Some(facts), ..PollRequest::default() }
    };
    for letter in ["a", "b"] {
        server.send_poll(&node, long_facts(letter)).await;
    }
    assert_limited(&poll_error(&server, &node, long_facts("c")).await);
    // Polls without changes cost nothing.
    server.poll(&node).await;
}
