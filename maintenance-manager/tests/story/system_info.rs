//! The hardware that EIM's agents report.

use evenkeel_domain::hardware::Hardware;
use evenkeel_domain::host::InvalidationNote;
use evenkeel_domain::id::HostId;
use evenkeel_proto::hostmgr::hostmgr_server::Hostmgr;
use evenkeel_proto::hostmgr::{
    BiosInfo, HwInfo, IpAddress, Storage, SystemCpu, SystemDisk, SystemInfo, SystemMemory,
    SystemNetwork, UpdateHostSystemInfoByGuidRequest,
};
use evenkeel_store::{changes, hardware, hosts};
use tonic::{Code, Status};

use crate::test_server::{TestServer, with_credential};

/// The system info of a machine with this address.
pub fn machine(address: &str) -> SystemInfo {
    let hw = HwInfo {
        serial_num: "SN0012345".into(),
        product_name: "Edge Box".into(),
        cpu: Some(SystemCpu {
            arch: "x86_64".into(),
            model: "Xeon".into(),
            cores: 8,
            features: vec!["sse".into(), "avx".into()],
            ..SystemCpu::default()
        }),
        memory: Some(SystemMemory { size: 16 << 30 }),
        storage: Some(Storage {
            disk: vec![SystemDisk { name: "sda".into(), size: 512 << 30, ..SystemDisk::default() }],
        }),
        network: vec![SystemNetwork {
            name: "eth0".into(),
            link_state: true,
            ip_addresses: vec![IpAddress {
                ip_address: address.into(),
                network_prefix_bits: 24,
                config_mode: 2,
            }],
            ..SystemNetwork::default()
        }],
        ..HwInfo::default()
    };
    SystemInfo {
        hw_info: Some(hw),
        bios_info: Some(BiosInfo { version: "1.2.3".into(), ..BiosInfo::default() }),
        ..SystemInfo::default()
    }
}

impl TestServer {
    /// Sends the system info of an EIM node.
    pub async fn send_system_info(&self, guid: &str, info: SystemInfo) -> Result<(), Status> {
        let request = UpdateHostSystemInfoByGuidRequest {
            host_guid: guid.to_owned(),
            system_info: Some(info),
        };
        let request = with_credential(&self.eim_token(), request);
        self.read_changes().await;
        let answer = self.manager.update_host_system_info_by_guid(request).await;
        answer.map(drop)
    }

    pub async fn hardware(&self, host: HostId) -> Option<Hardware> {
        let tx = self.tx().await;
        let mut by_host = hardware::find_by_hosts(&tx, &[host]).await.expect("read");
        by_host.remove(&host)
    }

    /// The number of hardware writes in the change log.
    pub async fn hardware_changes(&self, host: HostId) -> usize {
        let tx = self.tx().await;
        let logged = changes::list_for_resource(&tx, "host_hardware", host.bits()).await;
        logged.expect("changes").len()
    }
}

#[tokio::test]
async fn hardware_is_stored_and_written_only_when_it_changes() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    let shout = node.guid.to_uppercase();
    server.send_system_info(&shout, machine("10.0.0.1")).await.expect("heard");
    assert_eq!(server.host_status(node.host).await, "Running");
    let stored = server.hardware(node.host).await.expect("it was reported");
    assert_eq!(stored.memory_bytes, 16 << 30);
    assert_eq!(stored.cpu_capabilities, "sse,avx");
    assert_eq!(stored.bios_version, "1.2.3");
    assert_eq!(stored.nics[0].ipaddresses[0].address, "10.0.0.1/24");
    let tx = server.tx().await;
    let host = hosts::find(&tx, node.host).await.expect("a host");
    assert_eq!(host.serial.expect("its own").as_str(), "SN0012345");
    drop(tx);

    for _ in 0..3 {
        server.advance_minutes(1);
        server.send_system_info(&node.guid, machine("10.0.0.1")).await.expect("heard");
    }
    assert_eq!(server.hardware_changes(node.host).await, 1);
    server.send_system_info(&node.guid, machine("10.0.0.2")).await.expect("heard");
    assert_eq!(server.hardware_changes(node.host).await, 2);
    // Some agents send only a secret; this removes nothing.
    server.send_system_info(&node.guid, SystemInfo::default()).await.expect("heard");
    let stored = server.hardware(node.host).await.expect("still there");
    assert_eq!(stored.nics[0].ipaddresses[0].address, "10.0.0.2/24");
    assert_eq!(server.hardware_changes(node.host).await, 2);
}

#[tokio::test]
async fn a_host_with_invalid_hardware_is_still_alive() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    let mut strange = machine("nowhere");
    if let Some(hw) = &mut strange.hw_info {
        hw.product_name = "\0".repeat(100_000);
        hw.network = vec![hw.network[0].clone(); 1_000];
        hw.memory = Some(SystemMemory { size: u64::MAX });
    }
    server.send_system_info(&node.guid, strange).await.expect("heard");
    assert_eq!(server.host_status(node.host).await, "Running");
    let stored = server.hardware(node.host).await.expect("it was reported");
    assert_eq!(stored.nics.len(), Hardware::MAX_PARTS);
    assert!(stored.nics[0].ipaddresses.is_empty());
    assert!(stored.product_name.len() <= 128);
}

#[tokio::test]
async fn system_info_of_an_untrusted_host_is_refused() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    server.send_heartbeat(&node.guid).await.expect("heard");
    let tx = server.tx().await;
    hosts::invalidate(&tx, node.host, &InvalidationNote::default(), server.now())
        .await
        .expect("invalidated");
    tx.commit().await.expect("committed");
    let refused = async |guid: &str| {
        let answer = server.send_system_info(guid, machine("10.0.0.1")).await;
        answer.expect_err("refused").code()
    };
    assert_eq!(refused(&node.guid).await, Code::Unauthenticated);
    let unknown = "a1b2c3d4-0000-4000-8000-000000000000";
    assert_eq!(refused(unknown).await, Code::NotFound);
    assert_eq!(refused("").await, Code::InvalidArgument);
    assert_eq!(server.hardware(node.host).await, None);
    assert_eq!(server.host_status(node.host).await, "Invalidated");
}

#[tokio::test]
async fn system_info_is_accepted_next_to_an_own_agent() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let guid = uuid::Uuid::from_u128(1).to_string();
    server.send_system_info(&guid, machine("10.0.0.1")).await.expect("heard");
    assert!(server.hardware(node.host).await.is_some());
}
