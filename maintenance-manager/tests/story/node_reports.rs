//! Reports of nodes besides the progress of an update: run reports, waiting reasons, agent errors,
//! and available versions.

use evenkeel_domain::id::InstanceId;
use evenkeel_domain::package::ObservedVersion;
use evenkeel_domain::policy::{DesiredUpdate, PackageRules, PolicySpec};
use evenkeel_maintenance_manager::Settings;
use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::target::Spec as TargetUpdate;
use evenkeel_proto::agent::{
    AvailablePackage, Facts, Failed, FailureKind, HeldBackCause, HeldBackCount, HeldBackPackage,
    Interruption, InterruptionCause, PhaseSpan, PollRequest, PollResponse, ReportRequest,
    RunReport,
};
use evenkeel_store::{nodes, package_versions, policies};
use prost_types::Timestamp;
use tonic::Code;

use crate::test_server::{
    TestNode, TestServer, act, began, downloaded, downloading, facts, finished, report_request,
    with_credential,
};

pub const MINUTES_PER_DAY: i64 = 24 * 60;

impl TestServer {
    /// A poll of a node with the reason for which it waits.
    async fn poll_waiting(&self, node: &TestNode, waiting: &str) -> PollResponse {
        let request = self.waiting_poll(node, waiting).await;
        self.send_poll(node, request).await
    }

    async fn waiting_poll(&self, node: &TestNode, waiting: &str) -> PollRequest {
        PollRequest {
            facts_digest: self.node_state(node).await.facts_digest,
            waiting: waiting.to_owned(),
            ..PollRequest::default()
        }
    }

    /// Assigns a policy for the newest versions of a minimum age, and opens a window for 60 days.
    pub async fn assign_min_age_policy(&self, node: &TestNode, min_age_days: u32) {
        let rules = PackageRules { min_age_days, ..PackageRules::default() };
        let spec = PolicySpec::parse("careful", "", DesiredUpdate::Latest).expect("a policy");
        let spec = spec.with_package_rules(rules).expect("rules");
        let tx = self.tx().await;
        let policy = policies::create(&tx, &spec, self.now()).await;
        tx.commit().await.expect("committed");
        self.assign_to(node.instance, policy.expect("a policy").id).await;
        self.window(node.host, -1, 60 * MINUTES_PER_DAY).await;
    }
}

/// A report of a complete attempt whose last event has a run report.
fn final_report(event: Kind, run_report: RunReport) -> ReportRequest {
    let all = [(1, downloading()), (2, downloaded()), (3, began()), (4, event)];
    let mut request = report_request(1, evenkeel_domain::id::PolicyId::nth(1), &all);
    request.events[3].report = Some(run_report);
    request
}

pub fn available_package(name: &str, version: &str) -> AvailablePackage {
    AvailablePackage {
        name: name.into(),
        architecture: "amd64".into(),
        installed_version: "1".into(),
        available_version: version.into(),
        ..AvailablePackage::default()
    }
}

pub fn facts_with_available(available: Vec<AvailablePackage>) -> Facts {
    Facts { available, ..facts() }
}

/// The versions that are old enough according to an answer.
pub fn settled_versions(answer: PollResponse) -> Vec<String> {
    let target = match answer.decision.and_then(|decision| decision.act) {
        Some(Act::Apply(apply)) => apply.target,
        other => panic!("nothing is to be applied: {other:?}"),
    };
    let Some(TargetUpdate::Packages(packages)) = target.and_then(|target| target.spec) else {
        panic!("it is updated by packages");
    };
    let versions = packages.aged_versions.into_iter();
    versions.map(|one| format!("{}={}", one.name, one.version)).collect()
}

#[tokio::test]
async fn the_end_of_an_attempt_carries_its_run_report() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let span = |phase: &str, millis, bytes| PhaseSpan { phase: phase.into(), millis, bytes };
    let run_report = RunReport {
        phases: vec![span("download", 1_500, 2_048), span("apply", 3_000, 0)],
        remarks: vec!["cron.service was left as it was".into()],
        preserved_conffiles: vec!["/etc/curlrc".into()],
        restarted_services: vec!["ssh.service".into()],
        reboot_required: true,
        reboot_reasons: vec!["linux-image-amd64 requires it".into()],
        kernel_before: "6.1.0-40-amd64".into(),
        kernel_after: "6.1.0-41-amd64".into(),
        held_back: vec![HeldBackPackage {
            name: "curl".into(),
            available_version: "8.5".into(),
            cause: HeldBackCause::TooYoung.into(),
            ..HeldBackPackage::default()
        }],
        held_back_counts: vec![HeldBackCount {
            cause: HeldBackCause::TooYoung.into(),
            packages: 97,
        }],
        interruptions: vec![Interruption {
            cause: InterruptionCause::MachineRestarted.into(),
            phase: "apply".into(),
            resumed_at: Some(Timestamp { seconds: 1_700_000_000, nanos: 0 }),
            boot_id: "boot-2".into(),
        }],
    };
    for _ in 0..2 {
        let request =
            with_credential(&node.credential, final_report(finished(), run_report.clone()));
        let answer = server.manager.report(request).await.expect("stored");
        assert_eq!(answer.into_inner().acknowledged, 4);
    }
    let run = &server.runs(&node).await[0];
    assert_eq!(run.state.name(), "succeeded");
    let stored = &run.report;
    assert_eq!(stored.phases.len(), 2);
    assert_eq!((stored.phases[0].phase.as_str(), stored.phases[0].bytes), ("download", 2_048));
    assert_eq!(stored.remarks, ["cron.service was left as it was"]);
    assert_eq!(stored.preserved_conffiles, ["/etc/curlrc"]);
    assert_eq!(stored.restarted_services, ["ssh.service"]);
    assert!(stored.reboot_required);
    assert_eq!(stored.reboot_reasons, ["linux-image-amd64 requires it"]);
    let kernels = (stored.kernel_before.as_str(), stored.kernel_after.as_str());
    assert_eq!(kernels, ("6.1.0-40-amd64", "6.1.0-41-amd64"));
    let held_back = &stored.held_back[0];
    assert_eq!((held_back.name.as_str(), held_back.available.as_str()), ("curl", "8.5"));
    let count = &stored.held_back_counts[0];
    assert_eq!((count.cause.as_str(), count.packages), ("too_young", 97));
    let interruption = &stored.interruptions[0];
    assert_eq!((&*interruption.cause, &*interruption.phase), ("machine_restarted", "apply"));
    assert_eq!(interruption.resumed_at.map(|at| at.timestamp()), Some(1_700_000_000));
}

#[tokio::test]
async fn an_oversized_run_report_is_cut_and_the_end_is_stored() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let run_report = RunReport {
        phases: vec![PhaseSpan::default(); 10_000],
        remarks: vec!["\0r".repeat(1_000); 1_000],
        preserved_conffiles: vec!["f".repeat(5_000); 300],
        restarted_services: vec!["s".into(); 10_000],
        reboot_reasons: vec!["r".repeat(5_000); 300],
        kernel_before: "k".repeat(100_000),
        held_back: vec![HeldBackPackage::default(); 10_000],
        ..RunReport::default()
    };
    let failed = Kind::Failed(Failed {
        kind: FailureKind::Limits.into(),
        reason: "the owner allows no removals".into(),
        ..Failed::default()
    });
    let request = with_credential(&node.credential, final_report(failed, run_report));
    server.manager.report(request).await.expect("stored");
    let run = &server.runs(&node).await[0];
    assert_eq!(run.state.name(), "failed");
    let stored = serde_json::to_string(&run.report).expect("JSON");
    assert!(stored.len() < 400_000, "{} bytes", stored.len());
    assert_eq!(
        run.report.restarted_services.last().map(String::as_str),
        Some("… and 9801 more [cut]")
    );
    let history = server.history(run.id).await;
    assert!(history.ends_with("failed->failed"), "{history}");
}

#[tokio::test]
async fn the_reason_for_waiting_is_stored_until_the_update_begins() {
    let server = TestServer::new().await;
    let (node, policy) = server.node_with_staged_attempt().await;
    server.advance_minutes(11);
    assert_eq!(act(&server.poll_with_attempt(&node, 1).await), "apply");
    let attempt = PollRequest {
        attempt: Some(evenkeel_proto::agent::Attempt {
            id: uuid::Uuid::from_u128(1).to_string(),
            last_sequence: 2,
        }),
        ..server.waiting_poll(&node, "alice is\nlogged in").await
    };
    assert_eq!(act(&server.send_poll(&node, attempt.clone()).await), "apply");
    assert_eq!(server.node_state(&node).await.waiting, "alice is logged in");
    let long = PollRequest { waiting: "x".repeat(100_000), ..attempt };
    server.send_poll(&node, long).await;
    let waiting = server.node_state(&node).await.waiting;
    assert!(waiting.len() <= 1_000 && waiting.ends_with("[cut]"), "{waiting}");
    server.begin(&node, 1, policy, 2).await;
    server.report(&node, 1, policy, &[(3, began())]).await;
    assert_eq!(server.node_state(&node).await.waiting, "");
}

/// Nodes poll three times a minute, so an unchanged reason takes no lock and no write.
#[tokio::test]
async fn an_unchanged_waiting_reason_is_not_written_again() {
    let server = TestServer::new().await;
    let node = server.node().await;
    server.poll_waiting(&node, "the disk is full").await;
    let (away, _) = server.replica_with_short_lock_timeout().await;
    let (same, other) = (
        server.waiting_poll(&node, "the disk is full").await,
        server.waiting_poll(&node, "").await,
    );
    let busy = server.tx().await;
    nodes::lock(&busy, node.host).await.expect("a lock");
    let answer = away.poll(with_credential(&node.credential, same)).await;
    answer.expect("nothing is locked");
    let refused = away.poll(with_credential(&node.credential, other)).await;
    assert_eq!(refused.expect_err("a change").code(), Code::Unavailable);
    drop(busy);
    server.poll_waiting(&node, "").await;
    assert_eq!(server.node_state(&node).await.waiting, "");
}

#[tokio::test]
async fn agent_errors_are_a_condition_until_they_are_gone() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let facts_with_errors = |all: &[&str]| Facts {
        agent_errors: all.iter().map(|text| (*text).to_owned()).collect(),
        limits: "hours 22:00-04:00".into(),
        held_back: vec![HeldBackPackage {
            name: "linux-image-amd64".into(),
            cause: HeldBackCause::Policy.into(),
            ..HeldBackPackage::default()
        }],
        ..facts()
    };
    server.report_facts(&node, facts_with_errors(&["the journal was set aside", "b"])).await;
    let state = server.node_state(&node).await;
    let kinds: Vec<_> = state.conditions.iter().map(|one| one.kind.name()).collect();
    assert_eq!(kinds, ["agent_error"]);
    assert_eq!(state.conditions[0].text, "the journal was set aside; b");
    assert_eq!(state.facts["agentErrors"][1], "b");
    assert_eq!(state.facts["limits"], "hours 22:00-04:00");
    assert_eq!(state.facts["heldBack"][0]["cause"], "policy");

    let long = "\0x".repeat(1_000);
    let many: Vec<&str> = (0..1_000).map(|_| long.as_str()).collect();
    server.report_facts(&node, facts_with_errors(&many)).await;
    let state = server.node_state(&node).await;
    assert!(state.conditions[0].text.len() <= 2_000);
    let stored = state.facts["agentErrors"].as_array().expect("a list");
    assert_eq!(stored.len(), 20);
    assert_eq!(stored[19], "… and 981 more [cut]");

    server.report_facts(&node, facts_with_errors(&[])).await;
    assert!(server.node_state(&node).await.conditions.is_empty());
}

#[tokio::test]
async fn the_suites_of_available_packages_are_stored() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let curl = AvailablePackage {
        suites: vec!["bookworm-security".into(); 1_000],
        ..available_package("curl", "2")
    };
    server
        .report_facts(&node, facts_with_available(vec![curl, available_package("jq", "2")]))
        .await;
    let available = server.node_state(&node).await.os_update_available;
    let packages: serde_json::Value = serde_json::from_str(&available).expect("a list");
    assert_eq!(packages[0]["suites"].as_array().map(Vec::len), Some(20));
    assert_eq!(packages[0]["suites"][0], "bookworm-security");
    assert_eq!(packages[1].get("suites"), None);
}

#[tokio::test]
async fn a_version_is_old_enough_some_days_after_it_was_first_reported() {
    let server = TestServer::new().await;
    let (node, other) = (server.nth_node(1).await, server.nth_node(2).await);
    let third = server.nth_node(3).await;
    server.assign_min_age_policy(&node, 7).await;
    // Two other nodes report it first: this counts for the whole project.
    for reporter in [&other, &third] {
        let reported = facts_with_available(vec![available_package("curl", "2")]);
        server.report_facts(reporter, reported).await;
    }
    server.advance_minutes(5 * MINUTES_PER_DAY);
    let both = || vec![available_package("curl", "2"), available_package("jq", "2")];
    let nothing: [&str; 0] = [];
    let answer = server.report_facts(&node, facts_with_available(both())).await;
    assert_eq!(settled_versions(answer), nothing);
    server.advance_minutes(2 * MINUTES_PER_DAY);
    assert_eq!(settled_versions(server.poll(&node).await), ["curl=2"]);
    // A newer version does not remove the older one.
    let newer = vec![available_package("curl", "3"), available_package("jq", "2")];
    let answer = server.report_facts(&node, facts_with_available(newer)).await;
    assert_eq!(settled_versions(answer), ["curl=2"]);
    server.advance_minutes(5 * MINUTES_PER_DAY);
    assert_eq!(settled_versions(server.poll(&node).await), ["curl=2", "jq=2"]);
    server.advance_minutes(2 * MINUTES_PER_DAY);
    let all = ["curl=2", "curl=3", "jq=2"];
    assert_eq!(settled_versions(server.poll(&node).await), all);
    // Versions that the node cannot install are not sent.
    server.report_facts(&other, facts_with_available(vec![available_package("vim", "2")])).await;
    server.advance_minutes(8 * MINUTES_PER_DAY);
    assert_eq!(settled_versions(server.poll(&node).await), all);
}

/// A node names versions that do not exist, and a version a week before it appears.
#[tokio::test]
async fn a_node_that_reports_versions_that_do_not_exist_affects_only_itself() {
    let server = TestServer::new().await;
    let (liar, node) = (server.nth_node(1).await, server.nth_node(2).await);
    for one in [&liar, &node] {
        server.assign_min_age_policy(one, 7).await;
    }
    let version = |n: u32| available_package("curl", &n.to_string());
    let report = async |reporter: &TestNode, n| {
        let answer = server.report_facts(reporter, facts_with_available(vec![version(n)])).await;
        settled_versions(answer)
    };
    let nothing: [&str; 0] = [];
    report(&liar, 1).await;
    report(&liar, 2).await;
    server.advance_minutes(7 * MINUTES_PER_DAY);
    assert_eq!(report(&liar, 2).await, ["curl=1", "curl=2"]);
    // Version 2 appears.
    assert_eq!(report(&node, 2).await, nothing);
    server.advance_minutes(7 * MINUTES_PER_DAY - 1);
    assert_eq!(settled_versions(server.poll(&node).await), nothing);
    server.advance_minutes(1);
    assert_eq!(settled_versions(server.poll(&node).await), ["curl=2"]);
}

/// If removals are allowed, it may be installed one day, so its age counts from now on.
#[tokio::test]
async fn the_age_of_withheld_versions_counts() {
    let server = TestServer::new().await;
    let node = server.node().await;
    server.assign_min_age_policy(&node, 7).await;
    let held_back = HeldBackPackage {
        name: "linux".into(),
        architecture: "amd64".into(),
        installed_version: "1".into(),
        available_version: "2".into(),
        cause: HeldBackCause::Dependencies.into(),
        ..HeldBackPackage::default()
    };
    let reported = Facts {
        held_back: vec![held_back],
        ..facts_with_available(vec![available_package("curl", "2")])
    };
    let answer = server.report_facts(&node, reported).await;
    assert!(settled_versions(answer).is_empty());
    server.advance_minutes(7 * MINUTES_PER_DAY);
    assert_eq!(settled_versions(server.poll(&node).await), ["curl=2", "linux=2"]);
}

/// Nodes report their facts only when they change, and an older server stored no versions from
/// them.
#[tokio::test]
async fn versions_reported_to_an_older_server_age_from_the_next_poll() {
    let server = TestServer::new().await;
    let node = server.node().await;
    server.assign_min_age_policy(&node, 7).await;
    server.report_facts(&node, facts_with_available(vec![available_package("curl", "2")])).await;
    let unnoted = "BEGIN; SET LOCAL evenkeel.tenant = '*'; DELETE FROM package_versions; COMMIT";
    server.store.execute_unprepared(unnoted).await.expect("removed");
    server.advance_minutes(7 * MINUTES_PER_DAY);
    assert!(settled_versions(server.poll(&node).await).is_empty());
    server.advance_minutes(6 * MINUTES_PER_DAY);
    assert!(settled_versions(server.poll(&node).await).is_empty());
    server.advance_minutes(MINUTES_PER_DAY);
    assert_eq!(settled_versions(server.poll(&node).await), ["curl=2"]);
}

#[tokio::test]
async fn a_policy_without_an_age_sends_no_versions() {
    let server = TestServer::new().await;
    let node = server.node().await;
    server.assign_min_age_policy(&node, 0).await;
    server.report_facts(&node, facts_with_available(vec![available_package("curl", "2")])).await;
    server.advance_minutes(30 * MINUTES_PER_DAY);
    assert!(settled_versions(server.poll(&node).await).is_empty());
}

#[tokio::test]
async fn unreported_versions_are_removed_after_a_year() {
    let server = TestServer::new().await;
    let report_version = async |version: &str| {
        let one = ObservedVersion {
            name: "curl".into(),
            architecture: "amd64".into(),
            version: version.into(),
        };
        let tx = server.tx().await;
        let recorded =
            package_versions::record_seen(&tx, InstanceId::nth(1), &[one], server.now()).await;
        assert_eq!(recorded.expect("noted"), 1);
        tx.commit().await.expect("committed");
    };
    report_version("1").await;
    server.advance_minutes(399 * MINUTES_PER_DAY);
    report_version("2").await;
    assert_eq!(server.run_housekeeping(Settings::default()).await.versions, 0);
    server.advance_minutes(2 * MINUTES_PER_DAY);
    assert_eq!(server.run_housekeeping(Settings::default()).await.versions, 1);
    assert_eq!(server.run_housekeeping(Settings::default()).await.versions, 0);
}

/// While servers are upgraded, the newer ones write what the older ones do not know.
#[tokio::test]
async fn a_node_with_a_condition_of_a_newer_release_still_reports() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let newer = "BEGIN; SET LOCAL evenkeel.tenant = '*'; \
         UPDATE node_states SET conditions = '[{\"kind\": \"from_a_newer_release\", \
         \"text\": \"look\", \"since\": \"2026-03-01T12:00:00Z\"}]'; \
         UPDATE hosts SET name = E'edge\\x01'; COMMIT";
    server.store.execute_unprepared(newer).await.expect("written");
    let reported = Facts { agent_errors: vec!["the journal was set aside".to_owned()], ..facts() };
    server.report_facts(&node, reported).await;
    let conditions = server.node_state(&node).await.conditions;
    let kinds: Vec<_> = conditions.iter().map(|one| one.kind.name()).collect();
    assert_eq!(kinds, ["agent_error", "from_a_newer_release"]);
}
