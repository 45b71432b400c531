//! Stored data of nodes: images, packages, boots, conditions, and offline grants.

use evenkeel_domain::condition::ConditionKind;
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec};
use evenkeel_kit::Clock as _;
use evenkeel_maintenance_manager::{MaintenanceManager, OutdatedListsWatch};
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::target::Spec as TargetUpdate;
use evenkeel_proto::agent::{
    AvailablePackage, BootedImage, Facts, ForeignChange, HeldBackCause, HeldBackPackage,
    PackageLists, PollRequest, PollResponse, StaleService,
};
use evenkeel_proto::maintmgr::UpdateStatus;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::{contents, policies};
use prost_types::Timestamp;
use sha2::Digest as _;

use crate::fleet::{image, sample, sample_with_image, window};
use crate::test_server::{
    TestNode, TestServer, act, downloaded, downloading, facts, finished, reason, with_credential,
};

fn sha256(text: &str) -> [u8; 32] {
    sha2::Sha256::digest(text).into()
}

pub fn facts_with_packages(text: &str) -> Facts {
    Facts { packages_digest: sha256(text).to_vec(), ..facts() }
}

#[tokio::test]
async fn a_cut_detail_of_an_eim_update_is_a_condition_until_the_next_update() {
    let server = TestServer::new().await;
    let eim = server.eim_node(1).await;
    let policy = server.policy(&eim.as_node(), "demo-hello=1.1").await;
    let long = UpdateStatus { status_detail: "x".repeat(200_000), ..sample(S::Failed) };
    for status in [sample(S::UpToDate), sample(S::Started), long] {
        server.send_status(&eim, status).await;
    }
    let cut = [ConditionKind::DetailCut];
    assert_eq!(server.conditions(eim.instance).await, cut);
    let node = server.take_over(&eim).await;
    for _ in 0..2 {
        server.advance_minutes(1);
        server.report_facts(&node, facts()).await;
        assert_eq!(server.conditions(eim.instance).await, cut);
    }
    server.advance_minutes(1);
    let events = [(1, downloading()), (2, finished())];
    server.report(&node, 1, policy, &events).await;
    server.report_facts(&node, facts()).await;
    assert_eq!(server.conditions(eim.instance).await, []);
}

pub const PACKAGE_LIST: &str =
    r#"{"repo":[{"name":"apt","version":"2.6.1","architecture":"amd64"}]}"#;

#[tokio::test]
async fn a_package_list_is_requested_once_and_stored_once_for_all_nodes() {
    let server = TestServer::new().await;
    let (one, two) = (server.nth_node(1).await, server.nth_node(2).await);
    assert!(server.report_facts(&one, facts_with_packages(PACKAGE_LIST)).await.packages_required);
    assert!(server.poll(&one).await.packages_required, "until it is there");
    let list = |text: &str| PollRequest { packages: text.into(), ..PollRequest::default() };
    assert!(server.send_poll(&one, list("{\"repo\":[]}")).await.packages_required, "another list");
    assert!(!server.send_poll(&one, list(PACKAGE_LIST)).await.packages_required);
    assert!(!server.poll(&one).await.packages_required);
    let answer = server.report_facts(&two, facts_with_packages(PACKAGE_LIST)).await;
    assert!(!answer.packages_required, "the other node has sent it");
    assert_eq!(server.node_state(&two).await.packages_digest, Some(sha256(PACKAGE_LIST)));
    let tx = server.tx().await;
    let stored = contents::get(&tx, &sha256(PACKAGE_LIST)).await.expect("an answer");
    assert_eq!(stored.as_deref(), Some(PACKAGE_LIST));
    drop(tx);

    let newer = PACKAGE_LIST.replace("2.6.1", "2.6.2");
    assert!(server.report_facts(&one, facts_with_packages(&newer)).await.packages_required);
    assert_eq!(
        server.node_state(&one).await.packages_digest,
        Some(sha256(PACKAGE_LIST)),
        "the stored list stays until the new one arrives"
    );
}

#[tokio::test]
async fn other_update_programs_are_a_condition_and_packages_changed_by_others_are_stored() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let change = ForeignChange {
        changed_at: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 }),
        count: 30,
        packages: vec!["curl:amd64 1.0 -> 1.1\0".into(); 30],
    };
    let reported = Facts {
        other_updaters: vec![
            "unattended-upgrades installs updates by itself".into(),
            "snapd refreshes snaps by itself".into(),
        ],
        foreign_change: Some(change),
        ..facts()
    };
    server.report_facts(&node, reported).await;
    let state = server.node_state(&node).await;
    assert_eq!(state.conditions[0].kind, ConditionKind::OtherUpdaters);
    assert_eq!(
        state.conditions[0].text,
        "unattended-upgrades installs updates by itself; snapd refreshes snaps by itself"
    );
    let stored = &state.facts["foreignChange"];
    assert_eq!(stored["count"], 30);
    assert_eq!(stored["changedAt"], "2027-01-15T08:00:00Z");
    assert_eq!(stored["packages"].as_array().expect("a list").len(), 20, "{stored}");
    assert_eq!(state.facts["otherUpdaters"][1], "snapd refreshes snaps by itself");

    server.report_facts(&node, facts()).await;
    let state = server.node_state(&node).await;
    assert!(state.conditions.is_empty(), "{:?}", state.conditions);
    assert!(state.facts["foreignChange"].is_null());
}

#[tokio::test]
async fn withheld_packages_and_reboot_reasons_are_stored() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let reported = Facts {
        reboot_required: true,
        reboot_reasons: vec!["the kernel 6.1.0-30 is installed and 6.1.0-29 runs".into()],
        held_back: vec![HeldBackPackage {
            name: "docker.io".into(),
            cause: HeldBackCause::Hold.into(),
            ..HeldBackPackage::default()
        }],
        stale_services: vec![StaleService {
            name: "ssh.service".into(),
            files: vec!["/usr/lib/x86_64-linux-gnu/libcrypto.so.3".into()],
        }],
        ..facts()
    };
    server.report_facts(&node, reported).await;
    let stored = server.node_state(&node).await.facts;
    assert_eq!(stored["rebootReasons"][0], "the kernel 6.1.0-30 is installed and 6.1.0-29 runs");
    assert_eq!(stored["heldBack"][0]["cause"], "hold");
    assert_eq!(stored["staleServices"][0]["name"], "ssh.service");
}

#[tokio::test]
async fn the_state_of_package_lists_is_stored_and_outdated_lists_are_a_condition() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let reported = |refreshed_at: Option<i64>, error: &str| Facts {
        kernel_release: "6.1.0-40-amd64".into(),
        reboot_required: true,
        available: vec![AvailablePackage {
            name: "openssl".into(),
            available_version: "3.0.17".into(),
            origins: vec!["Debian-Security".into()],
            ..AvailablePackage::default()
        }],
        package_lists: Some(PackageLists {
            refreshed_at: refreshed_at.map(|seconds| Timestamp { seconds, nanos: 0 }),
            error: error.into(),
        }),
        ..facts()
    };
    let conditions = async || {
        let kinds = server.conditions(node.instance).await;
        kinds.iter().map(|kind| kind.name().to_owned()).collect::<Vec<_>>()
    };
    let now = server.clock.now();

    server.report_facts(&node, reported(Some(now.timestamp()), "")).await;
    let stored = server.node_state(&node).await;
    let summary = &stored.facts_summary;
    assert_eq!(summary.kernel_release.as_deref(), Some("6.1.0-40-amd64"));
    assert_eq!((summary.reboot_required, summary.security_updates), (Some(true), Some(1)));
    let refreshed_at = summary.package_lists_refreshed_at.expect("a time");
    assert_eq!(refreshed_at.timestamp(), now.timestamp());
    assert!(stored.os_update_available.contains(r#""origins":["Debian-Security"]"#));
    assert_eq!(conditions().await, [""; 0]);

    server.report_facts(&node, reported(Some(now.timestamp()), "no route to host")).await;
    assert_eq!(conditions().await, ["package_lists_outdated"]);
    let failed = server.node_state(&node).await;
    assert_eq!(failed.facts_summary.package_lists_error.as_deref(), Some("no route to host"));
    assert_eq!(failed.facts_summary.security_updates, Some(1), "as of the last refresh");
    assert_eq!(failed.facts, stored.facts, "the long facts are not written again");

    let never_fetched = Facts { available: Vec::new(), ..reported(None, "") };
    server.report_facts(&node, never_fetched).await;
    assert_eq!(conditions().await, ["package_lists_outdated"]);
    let unknown = server.node_state(&node).await.facts_summary;
    assert_eq!(unknown.security_updates, None, "unknown is not none");

    server.report_facts(&node, reported(Some(now.timestamp()), "")).await;
    assert_eq!(conditions().await, [""; 0]);
}

#[tokio::test]
async fn the_updates_of_a_node_that_has_only_enrolled_are_unknown() {
    let server = TestServer::new().await;
    let token = server.join_token(false, true).await;
    let answer = server.enroll(&token, 1, 1).await;
    let node = TestNode::from_enrolment(answer.expect("enrolled"));
    let error = async || server.node_state(&node).await.facts_summary.package_lists_error;
    assert_eq!(error().await.as_deref(), Some("the node has not reported yet"));

    server.report_facts(&node, facts()).await;
    assert_eq!(error().await, None, "its agent reports no state of the lists");
    let again = server.enroll(&token, 1, 1).await;
    again.expect("enrolled again");
    assert_eq!(error().await, None, "its facts are still stored");
}

#[tokio::test]
async fn facts_that_an_older_release_stored_are_requested_again() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let reported = Facts { reboot_required: true, ..facts() };
    server.report_facts(&node, reported.clone()).await;
    assert!(!server.poll(&node).await.facts_required);
    let older = "UPDATE node_states SET facts_version = 0, reboot_required = NULL";
    server.execute_sql(older).await;
    assert!(server.poll(&node).await.facts_required, "the digest is the same");
    assert!(server.poll(&node).await.facts_required, "until they are there");
    assert!(!server.report_facts(&node, reported).await.facts_required);
    assert!(!server.poll(&node).await.facts_required);
    let summary = server.node_state(&node).await.facts_summary;
    assert_eq!(summary.reboot_required, Some(true));
    // A server of a newer release has summarized the facts: this one does not replace its summary.
    server.execute_sql("UPDATE node_states SET facts_version = 1000").await;
    assert!(!server.poll(&node).await.facts_required);
}

#[tokio::test]
async fn package_lists_that_age_without_new_facts_are_a_condition() {
    let server = TestServer::new().await;
    let (current, failing) = (server.nth_node(1).await, server.nth_node(2).await);
    let refreshed_at = Timestamp { seconds: server.clock.now().timestamp(), nanos: 0 };
    let reported = |error: &str| Facts {
        package_lists: Some(PackageLists { refreshed_at: Some(refreshed_at), error: error.into() }),
        ..facts()
    };
    server.report_facts(&current, reported("")).await;
    server.report_facts(&failing, reported("no route to host")).await;
    let watch = OutdatedListsWatch::new(server.store.clone(), server.shared_clock());
    server.advance_minutes(3 * 24 * 60);
    assert_eq!(watch.pass().await.expect("a pass"), 0, "three days are not too old");
    server.advance_minutes(1);
    assert_eq!(watch.pass().await.expect("a pass"), 1, "the other node has the condition");
    assert_eq!(watch.pass().await.expect("a pass"), 0, "once");
    let stored = server.node_state(&current).await.conditions;
    assert_eq!(stored.len(), 1, "{stored:?}");
    assert_eq!(stored[0].kind, ConditionKind::PackageListsOutdated);
    assert_eq!(stored[0].since, server.clock.now());

    // Facts of the same state keep the condition and its time, and refreshed lists end it.
    server.advance_minutes(1);
    server.report_facts(&current, Facts { limits: "none".into(), ..reported("") }).await;
    assert_eq!(server.node_state(&current).await.conditions, stored);
    let now = Timestamp { seconds: server.clock.now().timestamp(), nanos: 0 };
    let lists = PackageLists { refreshed_at: Some(now), error: String::new() };
    server.report_facts(&current, Facts { package_lists: Some(lists), ..facts() }).await;
    assert_eq!(server.conditions(current.instance).await, []);
}

/// Two machines with a copy of one disk report their boot ids in turn.
#[tokio::test]
async fn two_machines_with_one_identity_are_a_condition() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let boots = async |boot: &str| {
        let boot_id = boot.to_owned();
        let reported = Facts { boot_id, ..facts() };
        server.report_facts(&node, reported).await;
        let kinds = server.conditions(node.instance).await;
        kinds.iter().any(|kind| kind.name() == "two_machines")
    };
    assert!(!boots("boot-1").await);
    assert!(!boots("boot-2").await, "a reboot");
    assert!(!boots("boot-2").await);
    assert!(boots("boot-1").await, "no machine goes back to a boot");
    assert!(boots("boot-2").await);
    server.advance_minutes(61);
    assert!(!boots("boot-3").await, "a reboot ends the suspicion");
    assert!(boots("boot-2").await, "until the next proof");
}

/// Two copies of a container report one boot; only the processes of their agents differ. Each calls another replica.
#[tokio::test]
async fn two_copies_that_share_a_boot_are_a_condition_of_their_instance() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let (replica, _) = server.replica().await;
    let poll_at = async |manager: &MaintenanceManager, session: &str| {
        let reported = Facts { agent_session: session.to_owned(), ..facts() };
        let request = PollRequest { facts: Some(reported), ..PollRequest::default() };
        manager.poll(with_credential(&node.credential, request)).await.expect("an answer");
        server.conditions(node.instance).await.contains(&ConditionKind::TwoMachines)
    };
    assert!(!poll_at(&server.manager, "original").await);
    assert!(!poll_at(&replica, "copy").await, "a start of the agent");
    assert!(poll_at(&server.manager, "original").await);
    assert!(poll_at(&replica, "copy").await);
    assert_eq!(server.node_state(&node).await.boot_id, "boot-1");
    // The copy was enrolled as another host, and the agent of the original starts again.
    server.advance_minutes(61);
    assert!(!poll_at(&server.manager, "original, started again").await);
    assert!(!poll_at(&replica, "original, started again").await);
}

#[tokio::test]
async fn the_condition_of_many_copies_stays_until_one_machine_is_left() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let report = async |session: &str| {
        let reported = Facts { agent_session: session.to_owned(), ..facts() };
        server.report_facts(&node, reported).await;
        server.conditions(node.instance).await.contains(&ConditionKind::TwoMachines)
    };
    let mut shown = Vec::new();
    for turn in 0..30 {
        server.advance_minutes(1);
        shown.push(report(&format!("copy {}", turn % 10)).await);
    }
    let first = shown.iter().position(|shown| *shown).expect("the copies are recognized");
    assert!(shown[first..].iter().all(|shown| *shown), "{shown:?}");
    // The copies were enrolled as other hosts.
    server.advance_minutes(61);
    assert!(!report("started again").await);
}

#[tokio::test]
async fn offline_grants_are_given_for_uncounted_updates() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 60, 120).await;
    server.window(node.host, 30 * 24 * 60, 30 * 24 * 60 + 60).await;
    let grant = |answer: PollResponse| answer.decision.and_then(|decision| decision.offline_grant);
    let offline_grant = grant(server.poll(&node).await).expect("an offline grant");
    assert_eq!(offline_grant.target_digest, policy.to_string());
    assert_eq!(offline_grant.windows.len(), 1, "a window after more than a week is not granted");
    let seconds = |time: Option<prost_types::Timestamp>| time.map_or(0, |time| time.seconds);
    let now = crate::test_server::NOON.timestamp();
    assert_eq!(seconds(offline_grant.windows[0].start), now + 3_600);
    assert_eq!(seconds(offline_grant.expires_at), now + 7 * 86_400);
    let fetched = [(1, downloading()), (2, downloaded())];
    server.report(&node, 1, policy, &fetched).await;
    assert!(grant(server.poll_with_attempt(&node, 1).await).is_some());

    // Limited updates get no offline grant, and neither do those whose policy requires the server.
    let scope = evenkeel_domain::assignment::Scope::Instance(node.instance);
    server.assign(scope, policy, Some(1), None).await;
    assert!(grant(server.poll_with_attempt(&node, 1).await).is_none());
    let other = server.nth_node(2).await;
    server.window(other.host, 60, 120).await;
    let spec = PolicySpec::parse("online", "", DesiredUpdate::Latest).expect("a policy");
    let spec = spec.with_offline_days(0).expect("never offline");
    let tx = server.tx().await;
    let online = policies::create(&tx, &spec, crate::test_server::NOON).await.expect("a policy");
    tx.commit().await.expect("committed");
    server.assign_to(other.instance, online.id).await;
    let answer = server.poll(&other).await;
    assert_eq!(act(&answer), "fetch");
    assert!(grant(answer).is_none());
}

#[tokio::test]
async fn an_image_node_gets_the_newest_image_and_moves_when_it_proves_it() {
    let server = TestServer::new().await;
    let (old, new) =
        (server.add_image("3.0.20250717.0732").await, server.add_image("3.0.20250717.2200").await);
    let node = server.eim_node_with_os(1, old).await;
    let policy = server.create_policy_for(DesiredUpdate::Latest).await;
    server.assign_to(node.instance, policy).await;
    server.window(node.host, 1, 600).await;
    let answer = server.send_status(&node, sample(S::UpToDate)).await;
    assert_eq!(image(&answer), "3.0.20250717.2200");
    let available = server.state(node.instance).await.os_update_available;
    assert_eq!(available, "edge 3.0.20250717.2200");
    server.advance_minutes(2);
    for kind in [S::Downloading, S::Downloaded] {
        server.send_status(&node, sample(kind)).await;
    }
    // Another image is added meanwhile: the one that was begun is sent until the end.
    let newest = server.add_image("3.0.20250718.0100").await;
    let answer = server.send_status(&node, sample(S::Started)).await;
    assert_eq!(image(&answer), "3.0.20250717.2200");
    server.send_status(&node, sample_with_image(S::Updated, "edge", "3.0.20250717.2200")).await;
    let state = server.state(node.instance).await;
    assert_eq!(state.os, new);
    assert_eq!(state.os_update_available, "edge 3.0.20250718.0100");
    assert_ne!(state.os, newest);
    let run = &server.runs(&node.as_node()).await[0];
    assert_eq!((run.state.name(), run.origin.policy_id()), ("succeeded", Some(policy)));
}

#[tokio::test]
async fn an_echo_of_another_image_changes_nothing_and_is_a_condition() {
    let server = TestServer::new().await;
    let old = server.add_image("3.0.1").await;
    let (_, other) = (server.add_image("3.0.2").await, server.add_image("3.0.0").await);
    let node = server.eim_node_with_os(1, old).await;
    let policy = server.create_policy_for(DesiredUpdate::Latest).await;
    server.assign_to(node.instance, policy).await;
    server.window(node.host, 0, 600).await;
    for kind in [S::UpToDate, S::Started] {
        server.send_status(&node, sample(kind)).await;
    }
    server.send_status(&node, sample_with_image(S::Updated, "edge", "3.0.0")).await;
    let state = server.state(node.instance).await;
    assert_eq!(state.os, old);
    assert_ne!(state.os, other);
    assert_eq!(state.conditions[0].kind.name(), "other_image");
    assert_eq!(server.runs(&node.as_node()).await[0].state.name(), "succeeded");
}

#[tokio::test]
async fn an_image_that_is_not_newer_is_a_condition() {
    let server = TestServer::new().await;
    let (old, new) = (server.add_image("3.0.1").await, server.add_image("3.0.2").await);
    let node = server.eim_node_with_os(1, new).await;
    let policy = server.image_policy(old).await;
    server.assign_to(node.instance, policy).await;
    server.window(node.host, 0, 600).await;
    for _ in 0..2 {
        let answer = server.send_status(&node, sample(S::UpToDate)).await;
        assert_eq!((image(&answer), window(&answer)), ("", None));
        server.advance_minutes(1);
    }
    let conditions = server.state(node.instance).await.conditions;
    assert_eq!(conditions[0].kind.name(), "not_newer");
    assert_eq!(conditions[0].since, crate::test_server::NOON, "since the first evaluation");
    let newer = server.add_image("3.0.3").await;
    let policy = server.image_policy(newer).await;
    server.assign_to(node.instance, policy).await;
    server.send_status(&node, sample(S::UpToDate)).await;
    assert!(server.conditions(node.instance).await.is_empty());
}

/// An own agent with an image module: the target on the wire, and the booted image in the facts.
#[tokio::test]
async fn own_agents_get_image_targets_and_report_the_booted_image() {
    let server = TestServer::new().await;
    let (old, new) = (server.add_image("3.0.1").await, server.add_image("3.0.2").await);
    let registered = server.eim_node_with_os(1, old).await;
    let node = server.take_over(&registered).await;
    let policy = server.create_policy_for(DesiredUpdate::Latest).await;
    server.assign_to(node.instance, policy).await;
    server.window(node.host, 0, 600).await;
    let answer = server.report_facts(&node, facts()).await;
    assert_eq!(reason(&answer), "the node's agent has no module `image`");
    let kinds = server.conditions(node.instance).await;
    assert_eq!(kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>(), ["agent_lacks"]);

    let booted = |image_id: &str| Facts {
        modules: vec!["image".into()],
        booted_image: Some(BootedImage { profile_name: "edge".into(), image_id: image_id.into() }),
        ..facts()
    };
    let answer = server.report_facts(&node, booted("3.0.1")).await;
    let Some(Act::Apply(apply)) = answer.decision.and_then(|decision| decision.act) else {
        panic!("a window is open");
    };
    let target = apply.target.expect("a target");
    assert_eq!(target.digest, format!("{policy}/{new}"));
    let Some(TargetUpdate::Image(image)) = target.spec else {
        panic!("an image");
    };
    assert_eq!((image.image_id.as_str(), image.url.as_str()), ("3.0.2", "files/edge-3.0.2.raw.gz"));

    server.report_for(&node, 1, &target.digest, &[(1, downloading()), (2, finished())]).await;
    assert_eq!(server.node_state(&node).await.os, old, "reported as finished, and not booted yet");
    server.report_facts(&node, booted("3.0.2")).await;
    let state = server.node_state(&node).await;
    assert_eq!((state.os, state.os_update_available.as_str()), (new, ""));
    server.report_facts(&node, booted("9.9.9")).await;
    let state = server.node_state(&node).await;
    assert_eq!(state.os, new);
    assert_eq!(state.conditions[0].kind.name(), "unknown_image");
    let run = &server.runs(&node).await[0];
    let digest = run.origin.target.as_ref().map(evenkeel_domain::decide::Target::digest);
    assert_eq!(digest, Some(target.digest), "frozen");
}
