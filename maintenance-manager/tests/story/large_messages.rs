//! The largest messages that nodes may send are stored, whatever is in them.

use evenkeel_domain::hardware::Hardware;
use evenkeel_domain::lookup::count_comparisons;
use evenkeel_domain::package::PackageChange as StoredChange;
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{
    AvailablePackage, BadImage, Downloading, Facts, Failed, Finished, ForeignChange, HeldBackCount,
    HeldBackPackage, ImageSlot, Interruption, PackageChange, PackageResult, PhaseSpan, Plan,
    PollRequest, RunReport, StaleService,
};
use evenkeel_proto::hostmgr::hostmgr_server::Hostmgr as _;
use evenkeel_proto::hostmgr::{
    HostStatus, HwInfo, IpAddress, Storage, SystemDisk, SystemInfo, SystemNetwork, SystemUsb,
    UpdateHostStatusByHostGuidRequest, UpdateInstanceStateStatusByHostGuidRequest,
};
use evenkeel_proto::maintmgr::UpdateStatus;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use sha2::{Digest as _, Sha256};

use crate::fleet::sample;
use crate::test_server::{
    TestNode, TestServer, began, enroll_request, facts, finished, report_request, with_credential,
};

/// The maximum number of packages in each list of a report. A search for each planned package through
/// all results would take minutes.
const MAX_PACKAGES: usize = 100_000;

/// The number of entries in the lists of other messages.
const PACKAGES: usize = 50_000;

/// Sends a message with this number of list entries. Its lists must be compared at least as often as
/// given, so that a search that is not counted is noticed, and no more often than a sort compares.
pub async fn within_n_log_n<T>(least: usize, entries: usize, call: impl Future<Output = T>) -> T {
    let before = count_comparisons();
    let answer = call.await;
    let compared = count_comparisons() - before;
    let limit = 2 * entries * usize::try_from(entries.ilog2()).expect("a small number");
    assert!((least..=limit).contains(&compared), "{compared} comparisons of {least} to {limit}");
    answer
}

fn downloading_all() -> Kind {
    let planned = |n: usize| PackageChange {
        name: format!("planned-{n}"),
        after: "1".into(),
        ..PackageChange::default()
    };
    let plan = Plan { changes: (0..MAX_PACKAGES).map(planned).collect(), ..Plan::default() };
    Kind::Downloading(Downloading { plan: Some(plan) })
}

fn installed(name: &str, n: usize) -> PackageResult {
    PackageResult {
        name: format!("{name}-{n}"),
        version: "1".into(),
        state: "installed".into(),
        ..PackageResult::default()
    }
}

fn all_results(name: &str) -> Kind {
    let results = (0..MAX_PACKAGES).map(|n| installed(name, n)).collect();
    Kind::Finished(Finished { results, ..Finished::default() })
}

#[tokio::test]
async fn a_report_of_many_results_for_many_planned_packages_is_stored() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let events = [
        (1, downloading_all()),
        (2, began()),
        (3, all_results("unplanned")),
        (4, all_results("planned")),
    ];
    let entries = 3 * MAX_PACKAGES;
    let report = server.report(&node, 1, policy, &events);
    assert_eq!(within_n_log_n(entries, entries, report).await.acknowledged, 4);
    let run = &server.runs(&node).await[0];
    assert_eq!(run.packages.len(), MAX_PACKAGES);
    assert!(run.packages.iter().all(StoredChange::is_done));
}

/// Each event has results for some packages of a long plan. A pass through the plan for each event
/// would take a hundred million steps.
#[tokio::test]
async fn a_report_of_many_events_with_results_is_stored() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let failed = |n: usize| {
        let results = (100 * n..100 * (n + 1)).map(|n| installed("planned", n)).collect();
        Kind::Failed(Failed { results, log: "x".repeat(5_000), ..Failed::default() })
    };
    let mut events = vec![(1, downloading_all()), (2, began())];
    events.extend((3..=1_000).zip((0..).map(failed)));
    let results = 998 * 100;
    let entries = MAX_PACKAGES + results;
    let report = server.report(&node, 1, policy, &events);
    assert_eq!(within_n_log_n(entries, entries, report).await.acknowledged, 1_000);
    let run = &server.runs(&node).await[0];
    assert_eq!(run.packages.iter().filter(|change| change.is_done()).count(), results);
}

#[tokio::test]
async fn the_longest_messages_without_lists_are_answered() {
    let (server, text) = (TestServer::new().await, "x".repeat(8 << 20));
    let long = || text.clone();
    let token = server.join_token(false, true).await;
    let mut request = enroll_request(&token, 1, 1);
    request.agent_version = long();
    request.identity.get_or_insert_default().host_name = long();
    let enrolled = within_n_log_n(0, 2, server.send_enroll_request(request)).await;
    let node = TestNode::from_enrolment(enrolled.expect("enrolled"));
    let waits = PollRequest { facts: Some(facts()), waiting: long(), ..PollRequest::default() };
    within_n_log_n(0, 2, server.send_poll(&node, waits)).await;
    let begun = within_n_log_n(0, 2, server.begin_for(&node, 1, &long(), 1)).await;
    assert!(matches!(begun, Answer::Refused(_)), "{begun:?}");

    let node = server.eim_node(2).await;
    let token = server.eim_token();
    let status =
        HostStatus { details: long(), human_readable_status: long(), ..HostStatus::default() };
    let request = UpdateHostStatusByHostGuidRequest {
        host_guid: node.guid.clone(),
        host_status: Some(status),
    };
    let call = server.manager.update_host_status_by_host_guid(with_credential(&token, request));
    within_n_log_n(0, 2, call).await.expect("an answer");
    let request = UpdateInstanceStateStatusByHostGuidRequest {
        host_guid: node.guid.clone(),
        provider_status_detail: long(),
        ..UpdateInstanceStateStatusByHostGuidRequest::default()
    };
    let request = with_credential(&token, request);
    let call = server.manager.update_instance_state_status_by_host_guid(request);
    within_n_log_n(0, 2, call).await.expect("an answer");
}

#[tokio::test]
async fn facts_with_long_lists_are_stored_and_compared_with_the_earlier_ones() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let available = |n: usize| AvailablePackage {
        name: format!("available-{n}"),
        available_version: "2".into(),
        ..AvailablePackage::default()
    };
    let held_back = |n: usize| HeldBackPackage {
        name: format!("held-{n}"),
        available_version: "2".into(),
        ..HeldBackPackage::default()
    };
    let bad_image =
        |n: usize| BadImage { sha256: format!("{:064x}", n + 1), ..BadImage::default() };
    let report = |reason: &str| Facts {
        available: (0..PACKAGES).map(available).collect(),
        held_back: (0..PACKAGES).map(held_back).collect(),
        bad_images: (0..PACKAGES).map(bad_image).collect(),
        reboot_reasons: vec![reason.to_owned()],
        ..facts()
    };
    let entries = 3 * PACKAGES;
    within_n_log_n(0, entries, server.report_facts(&node, report("first"))).await;
    let first = server.node_state(&node).await.bad_images;
    server.advance_minutes(1);
    // The bad images that are stored and those that are reported again.
    let second = server.report_facts(&node, report("second"));
    within_n_log_n(2 * first.len(), entries, second).await;
    let state = server.node_state(&node).await;
    assert_eq!(state.facts["heldBack"].as_array().map(Vec::len), Some(PACKAGES));
    assert!(first.len() > 200 && state.bad_images == first, "{} images", first.len());
}

/// Lists that are stored as they are, and lists that are cut.
#[tokio::test]
async fn the_other_lists_of_facts_are_stored_or_cut() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let texts = |name: &str, count: usize| -> Vec<String> {
        (0..count).map(|n| format!("{name} {n}")).collect()
    };
    let service = |n: usize| StaleService {
        name: format!("service-{n}.service"),
        files: texts(&format!("/usr/lib/{n}"), 10),
    };
    let slot = |n: usize| ImageSlot { name: format!("slot-{n}"), ..ImageSlot::default() };
    let available = |n: usize| AvailablePackage {
        name: format!("available-{n}"),
        available_version: "2".into(),
        suites: texts("suite", 200),
        origins: texts("origin", 200),
        ..AvailablePackage::default()
    };
    let held_back = |n: usize| HeldBackPackage {
        name: format!("held-{n}"),
        available_version: "2".into(),
        suites: texts("suite", 200),
        origins: texts("origin", 200),
        ..HeldBackPackage::default()
    };
    let foreign =
        ForeignChange { packages: texts("changed", PACKAGES), ..ForeignChange::default() };
    let reported = Facts {
        stale_services: (0..10_000).map(service).collect(),
        reboot_reasons: texts("reason", 10_000),
        reboot_required_by: texts("package", MAX_PACKAGES),
        agent_errors: texts("error", PACKAGES),
        other_updaters: texts("updater", PACKAGES),
        slots: (0..PACKAGES).map(slot).collect(),
        available: (0..100).map(available).collect(),
        held_back: (0..100).map(held_back).collect(),
        foreign_change: Some(foreign),
        ..facts()
    };
    for _ in 0..2 {
        within_n_log_n(0, PACKAGES, server.report_facts(&node, reported.clone())).await;
        server.advance_minutes(1);
    }
    let stored = server.node_state(&node).await.facts;
    let count = |list: &str| stored[list].as_array().map_or(0, Vec::len);
    let whole = ["staleServices", "rebootReasons", "rebootRequiredBy"].map(count);
    assert_eq!(whole, [10_000, 10_000, MAX_PACKAGES]);
    assert_eq!(["agentErrors", "otherUpdaters", "slots"].map(count), [20, 20, 8]);
    let held_back = &stored["heldBack"][0];
    let lengths = ["suites", "origins"].map(|list| held_back[list].as_array().map(Vec::len));
    assert_eq!(lengths, [Some(20); 2]);
}

/// The outcome of an attempt is stored however long the lists of its report are.
#[tokio::test]
async fn the_lists_of_a_report_of_an_attempt_are_cut() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let texts =
        |name: &str| -> Vec<String> { (0..PACKAGES).map(|n| format!("{name} {n}")).collect() };
    let held_back = |n: usize| HeldBackPackage {
        name: format!("held-{n}"),
        suites: vec!["bookworm".into(); 10],
        ..HeldBackPackage::default()
    };
    let report = RunReport {
        phases: vec![PhaseSpan::default(); PACKAGES],
        remarks: texts("remark"),
        preserved_conffiles: texts("/etc/file"),
        restarted_services: texts("service"),
        reboot_reasons: texts("reason"),
        held_back: (0..PACKAGES).map(held_back).collect(),
        held_back_counts: vec![HeldBackCount { packages: 1, ..HeldBackCount::default() }; PACKAGES],
        interruptions: vec![Interruption::default(); PACKAGES],
        ..RunReport::default()
    };
    let events = [(1, Kind::Downloading(Downloading::default())), (2, began()), (3, finished())];
    let mut request = report_request(1, policy, &events);
    request.events[2].report = Some(report);
    let sent = server.manager.report(with_credential(&node.credential, request));
    let answer = within_n_log_n(0, PACKAGES, sent).await.expect("an answer").into_inner();
    assert_eq!(answer.acknowledged, 3);
    let run = &server.runs(&node).await[0];
    assert_eq!(run.state.name(), "succeeded");
    let stored = &run.report;
    assert_eq!((stored.phases.len(), stored.remarks.len()), (50, 100));
    assert_eq!((stored.preserved_conffiles.len(), stored.restarted_services.len()), (200, 200));
    assert_eq!((stored.held_back.len(), stored.held_back_counts.len()), (500, 50));
    assert_eq!((stored.reboot_reasons.len(), stored.interruptions.len()), (100, 100));
}

#[tokio::test]
async fn a_long_list_of_installed_packages_is_stored() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let package = |n| format!(r#"{{"name":"package-{n}","version":"1.0"}}"#);
    let packages: Vec<String> = (0..2 * PACKAGES).map(package).collect();
    let packages = format!(r#"{{"repo":[{}]}}"#, packages.join(","));
    let digest = Sha256::digest(&packages);
    let reported = Facts { packages_digest: digest.to_vec(), ..facts() };
    server.report_facts(&node, reported).await;
    let poll = server.send_poll(&node, PollRequest { packages, ..PollRequest::default() });
    within_n_log_n(0, 2 * PACKAGES, poll).await;
    let stored = server.node_state(&node).await.packages_digest;
    assert_eq!(stored.map(|stored| stored.to_vec()), Some(digest.to_vec()));
}

#[tokio::test]
async fn a_long_detail_of_an_eim_agent_is_stored_once() {
    let server = TestServer::new().await;
    let eim = server.eim_node(1).await;
    let entry =
        |n| format!(r#"{{"package_name":"package-{n}","status":"installed","version":"1"}}"#);
    let entries: Vec<String> = (0..2 * PACKAGES).map(entry).collect();
    let detail = format!(r#"{{"update_log":[{}]}}"#, entries.join(","));
    for kind in [S::UpToDate, S::Started] {
        server.send_status(&eim, sample(kind)).await;
    }
    for _ in 0..2 {
        let sent = server.send_sample(&eim.guid, S::Updated, &detail);
        within_n_log_n(0, 2 * PACKAGES, sent).await.expect("an answer");
    }
    let runs = server.runs(&eim.as_node()).await;
    assert_eq!(runs.len(), 1);
    assert_eq!((runs[0].state.name(), runs[0].packages.len()), ("succeeded", 10_000));
    let conditions = server.node_state(&eim.as_node()).await.conditions;
    assert_eq!(conditions[0].kind.name(), "detail_cut");
}

#[tokio::test]
async fn a_long_list_of_available_updates_of_an_eim_agent_is_stored_in_part() {
    let server = TestServer::new().await;
    let eim = server.eim_node(1).await;
    let package = |n| format!(r#"{{"name":"package-{n}","version":"2"}}"#);
    let packages: Vec<String> = (0..MAX_PACKAGES).map(package).collect();
    let status = UpdateStatus {
        os_update_available: format!("[{}]", packages.join(",")),
        ..sample(S::UpToDate)
    };
    for _ in 0..2 {
        let sent = server.send_status_to(&server.manager, &eim.guid, status.clone());
        within_n_log_n(0, MAX_PACKAGES, sent).await.expect("an answer");
    }
    let state = server.node_state(&eim.as_node()).await;
    assert_eq!(state.conditions[0].kind.name(), "detail_cut");
    let stored = state.os_update_available.len();
    assert!((400_000..=500_000).contains(&stored), "{stored}");
}

#[tokio::test]
async fn the_parts_of_a_large_machine_keep_their_times() {
    let server = TestServer::new().await;
    let eim = server.eim_node(1).await;
    let disk = |n| SystemDisk { name: format!("disk-{n}"), ..SystemDisk::default() };
    let usb = |n: u32| SystemUsb { bus: n / 100, addr: n % 100, ..SystemUsb::default() };
    let address = |n: usize| IpAddress {
        ip_address: format!("10.{}.{}.1", n / 250, n % 250),
        network_prefix_bits: 24,
        config_mode: 2,
    };
    let nic = |n: usize| SystemNetwork {
        name: format!("eth{n}"),
        ip_addresses: (0..100).map(|k| address(100 * n + k)).collect(),
        ..SystemNetwork::default()
    };
    let machine = |serial: &str| SystemInfo {
        hw_info: Some(HwInfo {
            serial_num: serial.to_owned(),
            storage: Some(Storage { disk: (0..PACKAGES).map(disk).collect() }),
            usb: (0..5_000).map(usb).collect(),
            network: (0..500).map(nic).collect(),
            ..HwInfo::default()
        }),
        ..SystemInfo::default()
    };
    let entries = PACKAGES + 5_000 + 500 * 100;
    let sent = server.send_system_info(&eim.guid, machine("first"));
    within_n_log_n(0, entries, sent).await.expect("stored");
    let first = server.hardware(eim.host).await.expect("hardware");
    assert_eq!(first.storages.len(), Hardware::MAX_PARTS);
    server.advance_minutes(1);
    let sent = server.send_system_info(&eim.guid, machine("second"));
    within_n_log_n(4 * Hardware::MAX_PARTS, entries, sent).await.expect("stored");
    let second = server.hardware(eim.host).await.expect("hardware");
    assert_eq!(second.serial_number, "second");
    assert_eq!(Hardware { serial_number: first.serial_number.clone(), ..second }, first);
}
