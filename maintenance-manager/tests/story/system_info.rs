//! What the ancestor's agents say that their machine is made of.

use evenkeel_domain::hardware::Hardware;
use evenkeel_domain::host::Note;
use evenkeel_domain::id::HostId;
use evenkeel_proto::hostmgr::hostmgr_server::Hostmgr;
use evenkeel_proto::hostmgr::{
    BiosInfo, HwInfo, IpAddress, Storage, SystemCpu, SystemDisk, SystemInfo, SystemMemory,
    SystemNetwork, UpdateHostSystemInfoByGuidRequest,
};
use evenkeel_store::{changes, hardware, hosts};
use tonic::{Code, Status};

use crate::house::{House, with};

/// What a machine with this address says that it is made of.
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
            disk: vec![SystemDisk {
                name: "sda".into(),
                size: 512 << 30,
                ..SystemDisk::default()
            }],
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
        bios_info: Some(BiosInfo {
            version: "1.2.3".into(),
            ..BiosInfo::default()
        }),
        ..SystemInfo::default()
    }
}

impl House {
    /// One of the ancestor's agents says what its machine is made of.
    pub async fn describe(&self, guid: &str, info: SystemInfo) -> Result<(), Status> {
        let request = UpdateHostSystemInfoByGuidRequest {
            host_guid: guid.to_owned(),
            system_info: Some(info),
        };
        let request = with(&self.old_token(), request);
        self.caught_up().await;
        let answer = self.manager.update_host_system_info_by_guid(request).await;
        answer.map(drop)
    }

    pub async fn made_of(&self, host: HostId) -> Option<Hardware> {
        let tx = self.tx().await;
        let mut known = hardware::of_hosts(&tx, &[host]).await.expect("read");
        known.remove(&host)
    }

    /// How often something of it was written.
    async fn written(&self, host: HostId) -> usize {
        let tx = self.tx().await;
        let noted = changes::of(&tx, "host_hardware", host.bits()).await;
        noted.expect("changes").len()
    }
}

#[tokio::test]
async fn what_a_machine_is_made_of_is_kept_and_written_when_it_changes() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    let shout = node.guid.to_uppercase();
    house
        .describe(&shout, machine("10.0.0.1"))
        .await
        .expect("heard");
    assert_eq!(house.host_status(node.host).await, "Running");
    let known = house.made_of(node.host).await.expect("it was said");
    assert_eq!(known.memory_bytes, 16 << 30);
    assert_eq!(known.cpu_capabilities, "sse,avx");
    assert_eq!(known.bios_version, "1.2.3");
    assert_eq!(known.nics[0].ipaddresses[0].address, "10.0.0.1/24");
    let tx = house.tx().await;
    let host = hosts::find(&tx, node.host).await.expect("a host");
    assert_eq!(host.serial.expect("its own").as_str(), "SN0012345");
    drop(tx);

    for _ in 0..3 {
        house.pass(1);
        house
            .describe(&node.guid, machine("10.0.0.1"))
            .await
            .expect("heard");
    }
    assert_eq!(house.written(node.host).await, 1);
    house
        .describe(&node.guid, machine("10.0.0.2"))
        .await
        .expect("heard");
    assert_eq!(house.written(node.host).await, 2);
    // Some agents send nothing but a secret; that takes nothing back.
    house
        .describe(&node.guid, SystemInfo::default())
        .await
        .expect("heard");
    let known = house.made_of(node.host).await.expect("still there");
    assert_eq!(known.nics[0].ipaddresses[0].address, "10.0.0.2/24");
    assert_eq!(house.written(node.host).await, 2);
}

#[tokio::test]
async fn however_strange_a_machine_is_it_lives() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    let mut strange = machine("nowhere");
    if let Some(hw) = &mut strange.hw_info {
        hw.product_name = "\0".repeat(100_000);
        hw.network = vec![hw.network[0].clone(); 1_000];
        hw.memory = Some(SystemMemory { size: u64::MAX });
    }
    house.describe(&node.guid, strange).await.expect("heard");
    assert_eq!(house.host_status(node.host).await, "Running");
    let known = house.made_of(node.host).await.expect("it was said");
    assert_eq!(known.nics.len(), Hardware::MAX_PARTS);
    assert!(known.nics[0].ipaddresses.is_empty());
    assert!(known.product_name.len() <= 128);
}

#[tokio::test]
async fn who_is_not_believed_says_nothing_of_its_machine() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    house.beat(&node.guid).await.expect("heard");
    let tx = house.tx().await;
    hosts::invalidate(&tx, node.host, &Note::default(), house.time())
        .await
        .expect("invalidated");
    tx.commit().await.expect("committed");
    let refused = async |guid: &str| {
        let answer = house.describe(guid, machine("10.0.0.1")).await;
        answer.expect_err("refused").code()
    };
    assert_eq!(refused(&node.guid).await, Code::Unauthenticated);
    let stranger = "a1b2c3d4-0000-4000-8000-000000000000";
    assert_eq!(refused(stranger).await, Code::NotFound);
    assert_eq!(refused("").await, Code::InvalidArgument);
    assert_eq!(house.made_of(node.host).await, None);
    assert_eq!(house.host_status(node.host).await, "Invalidated");
}

#[tokio::test]
async fn beside_our_own_agent_the_machine_is_still_described() {
    let house = House::new().await;
    let node = house.node().await;
    let guid = uuid::Uuid::from_u128(1).to_string();
    house
        .describe(&guid, machine("10.0.0.1"))
        .await
        .expect("heard");
    assert!(house.made_of(node.host).await.is_some());
}
