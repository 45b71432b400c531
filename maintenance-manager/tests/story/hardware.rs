//! The hardware that Evenkeel's agents report with their facts.

use evenkeel_domain::condition::ConditionKind;
use evenkeel_domain::hardware::{Hardware as StoredHardware, Link};
use evenkeel_proto::agent::{Disk, Facts, Firmware, Hardware, LinkState, NetworkInterface};
use prost_types::Timestamp;

use crate::system_info::machine;
use crate::test_server::{TestServer, facts};

fn hardware(address: &str) -> Hardware {
    Hardware {
        cpu_model: "Xeon D-1736".into(),
        cpu_architecture: "x86_64".into(),
        cpu_sockets: 1,
        cpu_cores: 8,
        cpu_threads: 16,
        memory_bytes: 16 << 30,
        product_name: "PowerEdge R650".into(),
        product_vendor: "Dell Inc.".into(),
        firmware: Some(Firmware { version: "1.6.5".into(), ..Firmware::default() }),
        disks: vec![Disk { name: "sda".into(), size_bytes: 512 << 30, ..Disk::default() }],
        network_interfaces: vec![NetworkInterface {
            name: "eth0".into(),
            link_state: LinkState::Up.into(),
            addresses: vec![address.into()],
            ..NetworkInterface::default()
        }],
        ..Hardware::default()
    }
}

fn facts_with(hardware: Hardware) -> Facts {
    Facts { hardware: Some(hardware), ..facts() }
}

#[tokio::test]
async fn hardware_of_our_agent_is_stored_as_that_of_eims_agents_and_only_if_it_changes() {
    let server = TestServer::new().await;
    let node = server.node().await;
    server.report_facts(&node, facts()).await;
    assert_eq!(server.hardware(node.host).await, None, "the agent reports none");

    server.report_facts(&node, facts_with(hardware("192.0.2.7/24"))).await;
    let stored = server.hardware(node.host).await.expect("it was reported");
    assert_eq!(stored.cpu_model, "Xeon D-1736");
    assert_eq!((stored.cpu_sockets, stored.cpu_cores, stored.cpu_threads), (1, 8, 16));
    assert_eq!((stored.memory_bytes, stored.bios_version.as_str()), (16 << 30, "1.6.5"));
    assert_eq!(stored.product_vendor, "Dell Inc.");
    assert_eq!(stored.storages[0].capacity_bytes.0, 512 << 30);
    assert_eq!(stored.nics[0].link_state.kind, Link::Up);
    let address = &stored.nics[0].ipaddresses[0];
    assert_eq!(address.address, "192.0.2.7/24");
    assert!(address.resource_id.is_some() && address.timestamps.is_some());

    server.advance_minutes(1);
    let same = Facts { limits: "none".into(), ..facts_with(hardware("192.0.2.7/24")) };
    server.report_facts(&node, same).await;
    assert_eq!(server.hardware_changes(node.host).await, 1, "other facts have changed");
    server.report_facts(&node, facts_with(hardware("192.0.2.8/24"))).await;
    assert_eq!(server.hardware_changes(node.host).await, 2);
    server.report_facts(&node, facts()).await;
    let stored = server.hardware(node.host).await.expect("it stays");
    assert_eq!(stored.nics[0].ipaddresses[0].address, "192.0.2.8/24");
}

#[tokio::test]
async fn hardware_that_cannot_be_stored_is_a_condition_and_the_facts_are_stored() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let mut invalid = hardware("nowhere");
    invalid.product_name = "\0".repeat(100_000);
    invalid.memory_bytes = u64::MAX;
    invalid.disks = vec![Disk::default(); 5_000];
    let reported = Facts { kernel_release: "6.12".into(), ..facts_with(invalid) };
    server.report_facts(&node, reported).await;
    let state = server.node_state(&node).await;
    assert_eq!(state.facts_summary.kernel_release.as_deref(), Some("6.12"));
    assert_eq!(state.conditions.len(), 1, "{:?}", state.conditions);
    assert_eq!(state.conditions[0].kind, ConditionKind::HardwareIncomplete);
    let text = &state.conditions[0].text;
    assert!(text.contains("memory_bytes: too large; hardware: product_name: longer"), "{text}");
    let stored = server.hardware(node.host).await.expect("the rest is stored");
    assert_eq!((stored.product_name.as_str(), stored.memory_bytes), ("", 0));
    assert_eq!((stored.storages.len(), stored.nics[0].ipaddresses.len()), (0, 0));
    assert_eq!(stored.cpu_model, "Xeon D-1736");

    server.report_facts(&node, facts_with(hardware("192.0.2.7/24"))).await;
    assert_eq!(server.conditions(node.instance).await, []);
}

#[tokio::test]
async fn the_boot_time_and_the_packages_that_require_a_reboot_are_stored() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let reported = Facts {
        boot_time: Some(Timestamp { seconds: 1_800_000_000, nanos: 0 }),
        reboot_required: true,
        reboot_required_by: vec!["libc6".into(), "linux-image-amd64".into()],
        ..facts()
    };
    server.report_facts(&node, reported).await;
    let summary = server.node_state(&node).await.facts_summary;
    assert_eq!(summary.boot_time.map(|at| at.timestamp()), Some(1_800_000_000));
    let packages = summary.reboot_required_by.expect("a list");
    assert_eq!(packages, ["libc6", "linux-image-amd64"]);
}

/// Both agents may run on a machine during a take-over.
#[tokio::test]
async fn the_last_report_of_hardware_wins() {
    let server = TestServer::new().await;
    let eim = server.eim_node(1).await;
    server.send_system_info(&eim.guid, machine("10.0.0.1")).await.expect("heard");
    let node = server.take_over(&eim).await;
    let model = async || {
        let stored: Option<StoredHardware> = server.hardware(eim.host).await;
        stored.expect("reported").product_name
    };
    assert_eq!(model().await, "Edge Box", "until our agent reports hardware");
    server.report_facts(&node, facts_with(hardware("192.0.2.7/24"))).await;
    assert_eq!(model().await, "PowerEdge R650");
    let stored = server.hardware(eim.host).await.expect("reported");
    assert_eq!(stored.cpu_capabilities, "", "nothing of the other report stays");
}
