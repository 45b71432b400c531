//! The package rules of a policy, as a node gets them, and policies that this release cannot read.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::policy::{
    DesiredUpdate, PackageRules, PolicySpec, RebootRule, ServiceRule, UnusedPackagesRule,
};
use evenkeel_proto::agent as wire;
use evenkeel_proto::agent::PollResponse;
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::target::Spec as TargetUpdate;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::policies;
use evenkeel_store::testing::drop_check_constraints;
use tonic::Code;

use crate::fleet::{sample, window};
use crate::test_server::{
    NOON, TestNode, TestServer, act, began, downloaded, downloading, reason, report_request,
    with_credential,
};

/// The packages that a node shall download.
fn packages_to_fetch(answer: PollResponse) -> wire::Packages {
    let target = match answer.decision.and_then(|decision| decision.act) {
        Some(Act::Fetch(fetch)) => fetch.target,
        other => panic!("nothing is to be fetched: {other:?}"),
    };
    match target.and_then(|target| target.spec) {
        Some(TargetUpdate::Packages(packages)) => packages,
        other => panic!("no packages: {other:?}"),
    }
}

/// A node that may download the newest packages under these rules.
async fn node_with_rules(
    server: &TestServer,
    rules: PackageRules,
    allow_downgrade: bool,
) -> TestNode {
    let node = server.node().await;
    let spec = PolicySpec::parse("policy", "", DesiredUpdate::Latest).expect("a policy");
    let spec = PolicySpec { allow_downgrade, ..spec.with_package_rules(rules).expect("rules") };
    let tx = server.store.tenant(server.tenant).await;
    let tx = tx.expect("a transaction");
    let policy = policies::create(&tx, &spec, NOON).await.expect("a policy");
    tx.commit().await.expect("committed");
    let scope = Scope::Instance(node.instance);
    server.assign(scope, policy.id, None, None).await;
    server.window(node.host, 10, 60).await;
    node
}

#[tokio::test]
async fn a_node_gets_the_rules_of_its_policy() {
    let server = TestServer::new().await;
    let rules = PackageRules {
        suites: vec!["bookworm-security".into()],
        exclude: vec!["linux-*".into()],
        allow_removals: true,
        reboot: RebootRule::Never,
        services: ServiceRule::Restart,
        download_bytes_per_second: 1 << 20,
        min_age_days: 7,
        unused_packages: UnusedPackagesRule::RemoveAll,
        minimal_steps: true,
    };
    let node = node_with_rules(&server, rules, true).await;
    let packages = packages_to_fetch(server.poll(&node).await);
    assert!(packages.aged_versions.is_empty(), "nothing was ever seen");
    let expected = wire::PackageRules {
        suites: vec!["bookworm-security".into()],
        exclude: vec!["linux-*".into()],
        allow_removals: true,
        allow_downgrades: true,
        reboot: wire::RebootRule::Never.into(),
        services: wire::ServiceRule::Restart.into(),
        download_bytes_per_second: 1 << 20,
        min_age_days: 7,
        unused_packages: wire::UnusedPackagesRule::RemoveAll.into(),
        minimal_steps: true,
    };
    assert_eq!(packages.rules, Some(expected));
}

#[tokio::test]
async fn the_default_rules_let_the_node_decide() {
    let server = TestServer::new().await;
    let node = node_with_rules(&server, PackageRules::default(), false).await;
    let packages = packages_to_fetch(server.poll(&node).await);
    let usual = wire::PackageRules {
        reboot: wire::RebootRule::IfRequired.into(),
        services: wire::ServiceRule::KeepRunning.into(),
        unused_packages: wire::UnusedPackagesRule::RemoveKernels.into(),
        ..wire::PackageRules::default()
    };
    assert_eq!(packages.rules, Some(usual));
}

/// A newer server wrote a policy while servers are upgraded. A staged update of it neither begins nor
/// is cancelled.
#[tokio::test]
async fn a_policy_that_cannot_be_read_lets_only_its_own_nodes_wait() {
    let server = TestServer::new().await;
    let (node, policy) = server.node_with_staged_attempt().await;
    let other = server.nth_node(2).await;
    let readable = server.policy(&other, "demo-hello=1.1").await;
    server.window(other.host, 10, 20).await;
    server.advance_minutes(12);
    drop_check_constraints(&server.store).await;
    let sql = format!(
        "BEGIN; SET LOCAL evenkeel.tenant = '*'; \
         UPDATE update_policies SET mode = 'pinned' WHERE id = {}; COMMIT",
        policy.bits().cast_signed()
    );
    server.store.execute_unprepared(&sql).await.expect("written");

    let answer = server.poll_with_attempt(&node, 1).await;
    assert_eq!(act(&answer), "continue");
    let expected = format!(
        "a newer release wrote the policy {policy}, and this server cannot read it; upgrade the server"
    );
    assert_eq!(reason(&answer), expected);
    assert!(matches!(server.begin(&node, 1, policy, 2).await, Answer::Refused(_)));
    assert_eq!(server.runs(&node).await[0].state.name(), "staged");

    assert_eq!(act(&server.poll(&other).await), "apply");
    let events = [(1, downloading()), (2, downloaded())];
    server.report(&other, 2, readable, &events).await;
    assert!(matches!(server.begin(&other, 2, readable, 2).await, Answer::Granted(_)));
}

/// A newer server gave the open run a state that this one does not know. The node keeps its attempt
/// and waits; nothing is started or recorded for it.
#[tokio::test]
async fn an_open_run_in_an_unknown_state_lets_its_node_wait() {
    let server = TestServer::new().await;
    let (node, policy) = server.node_with_staged_attempt().await;
    server.advance_minutes(12);
    drop_check_constraints(&server.store).await;
    let hold =
        "BEGIN; SET LOCAL evenkeel.tenant = '*'; UPDATE update_runs SET state = 'held'; COMMIT";
    server.store.execute_unprepared(hold).await.expect("written");

    // With its attempt, and as after the loss of its journal.
    for answer in [server.poll_with_attempt(&node, 1).await, server.poll(&node).await] {
        assert_eq!(act(&answer), "idle");
        let why = reason(&answer);
        assert!(why.starts_with("a newer release wrote the run osupdaterun-"), "{why}");
    }
    let Answer::Refused(refused) = server.begin(&node, 1, policy, 2).await else {
        panic!("nothing may start");
    };
    assert!(refused.reason.starts_with("a newer release wrote the run"), "{}", refused.reason);
    // Neither an event of the attempt nor a new attempt is recorded; the node repeats both.
    for attempt in [1, 2] {
        let request = report_request(attempt, policy, &[(3, began())]);
        let answer = server.manager.report(with_credential(&node.credential, request)).await;
        assert_eq!(answer.expect_err("not recorded").code(), Code::Unavailable, "{attempt}");
    }
    assert_eq!(server.reap_runs().await, 0);

    let resume =
        "BEGIN; SET LOCAL evenkeel.tenant = '*'; UPDATE update_runs SET state = 'staged'; COMMIT";
    server.store.execute_unprepared(resume).await.expect("written");
    assert_eq!(act(&server.poll_with_attempt(&node, 1).await), "apply");
    assert!(matches!(server.begin(&node, 1, policy, 2).await, Answer::Granted(_)));
}

/// EIM's agent repeats a sample that it got no answer to, and keeps its schedules.
#[tokio::test]
async fn an_open_run_in_an_unknown_state_gives_an_agent_of_eim_no_window() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    server.policy(&node.as_node(), "curl").await;
    server.window(node.host, 10, 60).await;
    server.send_status(&node, sample(S::UpToDate)).await;
    server.advance_minutes(12);
    server.send_status(&node, sample(S::Started)).await;
    drop_check_constraints(&server.store).await;
    let hold =
        "BEGIN; SET LOCAL evenkeel.tenant = '*'; UPDATE update_runs SET state = 'held'; COMMIT";
    server.store.execute_unprepared(hold).await.expect("written");
    let answer = server.send_status_to(&server.manager, &node.guid, sample(S::Updated)).await;
    assert_eq!(answer.expect_err("not recorded").code(), Code::Unavailable);
    let answer = server.send_status(&node, sample(S::Unspecified)).await;
    assert_eq!(window(&answer), None);
    assert_eq!(server.runs(&node.as_node()).await.len(), 0, "the only run cannot be read");
}
