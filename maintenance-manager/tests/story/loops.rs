//! Background tasks: silent nodes and housekeeping; and the signs of life that end a silence.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::Lifecycle;
use evenkeel_maintenance_manager::{
    ChangeSealing, Housekeeping, MaintenanceManager, RemovedRows, RunReaper, Settings,
    SilentNodeWatch,
};
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::agent::{Facts, PollRequest};
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::change_seals::{self, AuditRequest};
use evenkeel_store::nodes;
use evenkeel_store::settings::{self, ProjectSettings};
use futures_util::future::join_all;
use tonic::Code;

use crate::fleet::sample;
use crate::test_server::{TestServer, downloading, facts, finished, with_credential};

impl TestServer {
    pub async fn run_housekeeping(&self, settings: Settings) -> RemovedRows {
        let housekeeping = Housekeeping::new(self.store.clone(), self.shared_clock(), &settings);
        housekeeping.pass().await.expect("a pass")
    }

    /// Seals all changes. Returns their number.
    pub async fn seal_changes(&self) -> u64 {
        let mut sealing = ChangeSealing::new(self.store.clone());
        sealing.pass().await.expect("a pass").changes
    }
}

#[tokio::test]
async fn a_node_that_falls_silent_is_shown_so_and_comes_back_by_itself() {
    let server = TestServer::new().await;
    let (ours, eim) = (server.node().await, server.eim_node(2).await);
    server.send_status(&eim, sample(S::UpToDate)).await;
    assert_eq!(server.host_status(ours.host).await, "Running");
    for (host, instance) in [(ours.host, ours.instance), (eim.host, eim.instance)] {
        assert_eq!(server.silent_for(instance, 4).await, 0, "not yet");
        assert_eq!(server.silent_for(instance, 6).await, 1);
        assert_eq!(server.host_status(host).await, "No Connection");
    }
    server.poll(&ours).await;
    server.send_status(&eim, sample(S::UpToDate)).await;
    for (host, instance) in [(ours.host, ours.instance), (eim.host, eim.instance)] {
        assert_eq!(server.host_status(host).await, "Running");
        assert_eq!(server.state(instance).await.status.text, "Running");
    }
}

#[tokio::test]
async fn a_node_that_comes_and_goes_is_marked_silent_once_each_time() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let watch =
        SilentNodeWatch::new(server.store.clone(), server.shared_clock(), &Settings::default());
    for _ in 0..3 {
        assert_eq!(server.silent_for(node.instance, 6).await, 1);
        assert_eq!(watch.pass().await.expect("a pass"), 0, "it is shown");
        assert_eq!(server.host_status(node.host).await, "No Connection");
        server.advance_minutes(1);
        server.poll(&node).await;
        assert_eq!(server.host_status(node.host).await, "Running");
        // Contacts are written in batches. Until then the time of the status "Running" counts as a
        // contact.
        assert_eq!(watch.pass().await.expect("a pass"), 0);
        let status = server.state(node.instance).await.status;
        assert_eq!((status.text.as_str(), status.at), ("Running", server.now()));
    }
}

#[tokio::test]
async fn two_replicas_mark_a_node_silent_once() {
    let server = TestServer::new().await;
    let nodes = [server.eim_node(1).await, server.eim_node(2).await];
    for node in &nodes {
        server.send_status(node, sample(S::UpToDate)).await;
    }
    server.silent_for(nodes[0].instance, 0).await;
    server.silent_for(nodes[1].instance, 0).await;
    server.advance_minutes(10);
    let watch =
        SilentNodeWatch::new(server.store.clone(), server.shared_clock(), &Settings::default());
    let marked = join_all((0..4).map(|_| watch.pass())).await;
    let marked: usize = marked.into_iter().map(|marked| marked.expect("a pass")).sum();
    assert_eq!(marked, 2);
}

/// The reaper checks every open run every half minute, and must not block the reports of the nodes.
#[tokio::test]
async fn the_reaper_locks_no_node_whose_run_is_not_due() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 0, 600).await;
    let begun = [(1, downloading()), (2, crate::test_server::began())];
    server.report(&node, 1, policy, &begun).await;
    server.advance_minutes(60);
    let (_, impatient) = server.replica_with_short_lock_timeout().await;
    let reaper = RunReaper::new(impatient, server.shared_clock(), &Settings::default());
    let busy = server.tx().await;
    nodes::lock(&busy, node.host).await.expect("a lock");
    assert_eq!(reaper.pass().await.expect("nothing is due"), 0);
    server.advance_minutes(24 * 60);
    assert_eq!(reaper.pass().await.expect("a pass"), 0, "it is locked");
    drop(busy);
    assert_eq!(reaper.pass().await.expect("a pass"), 1);
}

#[tokio::test]
async fn a_locked_node_blocks_only_its_own_run() {
    let server = TestServer::new().await;
    let (one, other) = (server.nth_node(1).await, server.nth_node(2).await);
    for node in [&one, &other] {
        let policy = server.policy(node, "demo-hello=1.1").await;
        let begun = [(1, downloading()), (2, crate::test_server::began())];
        server.report(node, 1, policy, &begun).await;
        server.advance_minutes(1);
    }
    server.advance_minutes(25 * 60);
    let (away, impatient) = server.replica_with_short_lock_timeout().await;
    let reaper = RunReaper::new(impatient.clone(), server.shared_clock(), &Settings::default());
    let busy = server.tx().await;
    nodes::lock(&busy, one.host).await.expect("a lock");
    assert_eq!(reaper.pass().await.expect("a pass"), 1);
    assert_eq!(server.runs(&other).await[0].state.name(), "abandoned");
    assert_eq!(server.runs(&one).await[0].state.name(), "applying");
    // A call of the node times out on the lock, too. This must not count as an outage of the
    // database.
    let request = PollRequest { facts: Some(facts()), ..PollRequest::default() };
    let refused = away.poll(with_credential(&one.credential, request)).await;
    let refused = refused.expect_err("it is locked");
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("busy"), "{}", refused.message());
    drop(busy);
    impatient.close().await;
    reaper.pass().await.expect_err("the database is away");
}

#[tokio::test]
async fn a_heartbeat_of_the_host_manager_is_a_sign_of_life() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    let (guid, shout) = (node.guid.clone(), node.guid.to_uppercase());
    server.send_heartbeat(&shout).await.expect("heard");
    assert_eq!(server.host_status(node.host).await, "Running");
    server.send_status(&node, sample(S::UpToDate)).await;
    assert_eq!(server.silent_for(node.instance, 10).await, 1);
    server.send_heartbeat(&guid).await.expect("heard");
    assert_eq!(server.host_status(node.host).await, "Running");
    assert_eq!(server.state(node.instance).await.status.text, "Running");
    for (guid, code) in [
        ("", Code::InvalidArgument),
        ("unknown", Code::InvalidArgument),
        ("a1b2c3d4-0000-4000-8000-000000000000", Code::NotFound),
    ] {
        assert_eq!(server.send_heartbeat(guid).await.expect_err(guid).code(), code);
    }
}

#[tokio::test]
async fn runs_are_retained_as_their_project_or_else_the_server_configures() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let ends = async |attempt| {
        let events = [(1, downloading()), (2, crate::test_server::began()), (3, finished())];
        server.report(&node, attempt, policy, &events).await;
    };
    ends(1).await;
    server.advance_minutes(20 * 24 * 60);
    ends(2).await;
    server.report(&node, 3, policy, &[(1, downloading())]).await;
    server.advance_minutes(11 * 24 * 60);
    let count_runs = async || server.runs(&node).await.len();

    let never = Settings { run_retention: Duration::ZERO, ..Settings::default() };
    assert_eq!(server.run_housekeeping(never).await.runs, 0);
    assert_eq!(count_runs().await, 3);
    let write = async |retention_days| {
        let tx = server.tx().await;
        let settings = ProjectSettings { retention_days, ..ProjectSettings::default() };
        settings::set(&tx, &settings).await.expect("written");
        tx.commit().await.expect("committed");
    };
    write(Some(0)).await;
    assert_eq!(server.run_housekeeping(Settings::default()).await.runs, 0);
    write(None).await;
    assert_eq!(server.run_housekeeping(Settings::default()).await.runs, 1, "30 days");
    write(Some(1)).await;
    let removed = join_all((0..4).map(|_| server.run_housekeeping(Settings::default()))).await;
    assert_eq!(removed.iter().map(|removed| removed.runs).sum::<u64>(), 1);
    assert_eq!(count_runs().await, 1, "open runs stay");
}

#[tokio::test]
async fn the_change_log_is_retained_as_the_server_configures() {
    let server = TestServer::new().await;
    server.node().await;
    let sealed = server.seal_changes().await;
    server.advance_minutes(31 * 24 * 60);
    let never = Settings {
        change_log_retention: Duration::ZERO,
        user_change_retention: Duration::ZERO,
        ..Settings::default()
    };
    assert_eq!(server.run_housekeeping(never).await.changes, 0);
    let by_server = server.run_housekeeping(Settings::default()).await.changes;
    assert!(by_server > 0, "{by_server} of {sealed}");
    assert_eq!(server.run_housekeeping(Settings::default()).await.changes, 0);
    // Changes of users are kept longer.
    server.advance_minutes(400 * 24 * 60);
    let by_users = server.run_housekeeping(Settings::default()).await.changes;
    assert_eq!(by_server + by_users, sealed);
}

#[tokio::test]
async fn changes_are_sealed_without_a_call() {
    let server = TestServer::without_log_follower(Settings::default()).await;
    server.node().await;
    let life = Lifecycle::new();
    server.manager.start_tasks(&life);
    let sealed = async {
        loop {
            let request = AuditRequest::default();
            let report = change_seals::verify(&server.store, &request).await.expect("a report");
            let mut projects = report.projects.values();
            if projects.all(|project| project.chain.seals > 0 && project.unsealed.is_none()) {
                return report;
            }
        }
    };
    let within = Duration::from_mins(1);
    let report = tokio::time::timeout(within, sealed).await.expect("it seals");
    assert!(report.is_unaltered() && !report.projects.is_empty(), "{report:?}");
    life.stop();
    let exit = life.run_until_stopped(within).await;
    assert_eq!(format!("{exit:?}"), format!("{:?}", ExitCode::SUCCESS));
}

#[tokio::test]
async fn housekeeping_runs_on_schedule_and_a_stop_is_orderly() {
    let settings = Settings { housekeeping_schedule: "* * * * * *".into(), ..Settings::default() };
    let server = TestServer::without_log_follower(settings).await;
    let node = server.node().await;
    let policy = server.policy(&node, "demo-hello=1.1").await;
    let events = [(1, downloading()), (2, finished())];
    server.report(&node, 1, policy, &events).await;
    server.advance_minutes(31 * 24 * 60);
    let life = Lifecycle::new();
    server.manager.start_tasks(&life);
    let removed = async {
        while !server.runs(&node).await.is_empty() {
            server.advance_minutes(1);
        }
    };
    let within = Duration::from_mins(1);
    tokio::time::timeout(within, removed).await.expect("housekeeping ran");
    life.stop();
    let exit = life.run_until_stopped(within).await;
    assert_eq!(format!("{exit:?}"), format!("{:?}", ExitCode::SUCCESS));
}

#[tokio::test]
async fn an_invalid_schedule_is_rejected_at_start() {
    let server = TestServer::new().await;
    let settings = Settings { housekeeping_schedule: "now and then".into(), ..Settings::default() };
    let manager = MaintenanceManager::new(
        server.store.clone(),
        server.shared_clock(),
        Arc::clone(&server.authority),
        Arc::clone(&server.ca),
        settings,
    );
    let error = manager.expect_err("an invalid schedule").to_string();
    assert!(error.contains("housekeeping_schedule"), "{error}");
}

#[tokio::test]
async fn a_package_list_is_stored_as_long_as_a_node_has_it() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let lists = [r#"{"repo":[]}"#, r#"{"repo":[{"name":"apt","version":"1"}]}"#];
    for text in lists {
        let digest = <sha2::Sha256 as sha2::Digest>::digest(text).to_vec();
        let reported = Facts { packages_digest: digest, ..facts() };
        let request =
            PollRequest { facts: Some(reported), packages: text.into(), ..PollRequest::default() };
        assert!(!server.send_poll(&node, request).await.packages_required);
    }
    assert_eq!(server.run_housekeeping(Settings::default()).await.contents, 0, "not yet");
    server.advance_minutes(3 * 24 * 60);
    assert_eq!(server.run_housekeeping(Settings::default()).await.contents, 1);
    server.advance_minutes(30 * 24 * 60);
    assert_eq!(server.run_housekeeping(Settings::default()).await.contents, 0);
    assert!(server.node_state(&node).await.packages_digest.is_some());
}
