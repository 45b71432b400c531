//! The largest messages that nodes may send are stored, whatever is in them.

use evenkeel_domain::hardware::Hardware;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{
    AvailablePackage, BadImage, Downloading, Facts, Finished, HeldBackPackage, PackageChange,
    PackageResult, Plan, PollRequest,
};
use evenkeel_proto::hostmgr::{
    HwInfo, IpAddress, Storage, SystemDisk, SystemInfo, SystemNetwork, SystemUsb,
};
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use sha2::{Digest as _, Sha256};

use crate::fleet::sample;
use crate::test_server::{TestServer, began, facts};

/// The number of packages in each list. A search for each planned package through all results would take minutes.
const PACKAGES: usize = 50_000;

fn planned(n: usize) -> PackageChange {
    PackageChange { name: format!("planned-{n}"), after: "1".into(), ..PackageChange::default() }
}

fn results(name: &str, version: &str) -> Kind {
    let result = |n: usize| PackageResult {
        name: format!("{name}-{n}"),
        version: version.to_owned(),
        state: "installed".into(),
        ..PackageResult::default()
    };
    Kind::Finished(Finished { results: (0..PACKAGES).map(result).collect(), ..Finished::default() })
}

#[tokio::test]
async fn a_report_of_many_results_for_many_planned_packages_is_stored() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let plan = Plan { changes: (0..PACKAGES).map(planned).collect(), ..Plan::default() };
    let events = [
        (1, Kind::Downloading(Downloading { plan: Some(plan) })),
        (2, began()),
        (3, results("unplanned", "1")),
        (4, results("planned", "1")),
    ];
    assert_eq!(server.report(&node, 1, policy, &events).await.acknowledged, 4);
    let run = &server.runs(&node).await[0];
    assert_eq!(run.packages.len(), PACKAGES);
    assert!(run.packages.iter().all(evenkeel_domain::package::PackageChange::is_done));
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
    server.report_facts(&node, report("first")).await;
    let first = server.node_state(&node).await.bad_images;
    server.advance_minutes(1);
    server.report_facts(&node, report("second")).await;
    let state = server.node_state(&node).await;
    assert_eq!(state.facts["heldBack"].as_array().map(Vec::len), Some(PACKAGES));
    assert!(first.len() > 200 && state.bad_images == first, "{} images", first.len());
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
    server.send_poll(&node, PollRequest { packages, ..PollRequest::default() }).await;
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
        server.send_sample(&eim.guid, S::Updated, &detail).await.expect("an answer");
    }
    let runs = server.runs(&eim.as_node()).await;
    assert_eq!(runs.len(), 1);
    assert_eq!((runs[0].state.name(), runs[0].packages.len()), ("succeeded", 10_000));
    let conditions = server.node_state(&eim.as_node()).await.conditions;
    assert_eq!(conditions[0].kind.name(), "detail_cut");
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
    server.send_system_info(&eim.guid, machine("first")).await.expect("stored");
    let first = server.hardware(eim.host).await.expect("hardware");
    assert_eq!(first.storages.len(), Hardware::MAX_PARTS);
    server.advance_minutes(1);
    server.send_system_info(&eim.guid, machine("second")).await.expect("stored");
    let second = server.hardware(eim.host).await.expect("hardware");
    assert_eq!(second.serial_number, "second");
    assert_eq!(Hardware { serial_number: first.serial_number.clone(), ..second }, first);
}
