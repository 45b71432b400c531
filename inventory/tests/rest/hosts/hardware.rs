//! The hardware of hosts: its JSON and its filters.

use axum::http::StatusCode;
use chrono::TimeDelta;
use evenkeel_api::host::HostResource;
use evenkeel_domain::hardware::{
    Address, Capacity, ConfigMethod, Controller, Gpu, Hardware, Link, LinkState, Nic, Storage, Usb,
};
use evenkeel_kit::Clock;
use evenkeel_store::hardware;
use evenkeel_test_support::{Answer, redact};
use serde_json::json;

use super::register_host;
use crate::test_server::{Caller, TestServer, noon};

fn sample_hardware() -> Hardware {
    let address = Address {
        address: "10.0.0.1/24".to_owned(),
        config_method: ConfigMethod::Dynamic,
        ..Address::default()
    };
    Hardware {
        memory_bytes: u64::from(u32::MAX) + 1,
        cpu_model: "Xeon".to_owned(),
        cpu_cores: 8,
        cpu_threads: 16,
        controller: Some(Controller::Ipmi),
        storages: vec![Storage {
            device_name: "sda".to_owned(),
            capacity_bytes: Capacity(512 << 30),
            ..Storage::default()
        }],
        nics: vec![Nic {
            device_name: "eth0".to_owned(),
            mac_addr: "aa:bb:cc:dd:ee:ff".to_owned(),
            mtu: 1_500,
            link_state: LinkState { kind: Link::Up, timestamps: None },
            ipaddresses: vec![address],
            ..Nic::default()
        }],
        usbs: vec![Usb { class: "Hub".to_owned(), ..Usb::default() }],
        gpus: vec![Gpu {
            pci_id: "00:02.0".to_owned(),
            capabilities: vec!["VGA".to_owned()],
            ..Gpu::default()
        }],
        ..Hardware::default()
    }
}

#[tokio::test]
async fn the_hardware_of_hosts_is_returned_and_can_be_filtered() {
    let (server, resources) = TestServer::with_resources().await;
    let other = register_host(&server, "XYZ98765").await;
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    let host = resources.host.parse().expect("an id");
    hardware::store_if_changed(&tx, host, sample_hardware(), &[1; 32], server.clock.now())
        .await
        .expect("stored");
    tx.commit().await.expect("committed");

    let fetched = server.get(&format!("compute/hosts/{}", resources.host)).await;
    insta::assert_json_snapshot!(redact(&fetched));
    let bare = server.get(&format!("compute/hosts/{other}")).await;
    assert_eq!((&bare["memoryBytes"], &bare["hostNics"]), (&json!("0"), &json!([])));

    let list = server.get("compute/hosts").await;
    let list = list["hosts"].as_array().expect("hosts");
    assert!(list.contains(&fetched) && list.contains(&bare));
    for filter in [
        "hostNics.macAddr%20%3D%20%22cc:dd%22",
        "hostNics.ipaddresses.address%20%3D%20%2210.0.0.1%22",
        "hostNics.linkState%20%3D%20NETWORK_INTERFACE_LINK_STATE_UP",
        "memoryBytes%20%3D%204294967296",
        "has(hostGpus)",
        "cpuCores%20%3E%204",
    ] {
        let answer = server.get(&format!("compute/hosts?filter={filter}")).await;
        assert_eq!(answer["totalElements"], 1, "{filter}");
        assert_eq!(answer["hosts"], json!([fetched]), "{filter}");
    }
}

#[tokio::test]
async fn hardware_has_exactly_the_json_of_the_api_types() {
    let server = TestServer::new().await;
    let host = register_host(&server, "ABC12345").await;
    let hardware_with_link = |link: Link| {
        let mut hardware = sample_hardware();
        hardware.storages[0].model = "\"fast\" \\ große\n\u{1f} \u{7f}".to_owned();
        hardware.storages[0].capacity_bytes = Capacity(u64::MAX);
        hardware.gpus[0].capabilities.push("a, b".to_owned());
        hardware.gpus.push(Gpu::default());
        hardware.usbs.clear();
        hardware.nics[0].link_state.kind = link;
        hardware.nics.push(Nic { device_name: "eth1".to_owned(), ..Nic::default() });
        hardware
    };
    // Times are stored with full precision and returned in milliseconds.
    for (number, link, pause) in [(1, Link::Up, 123_456_789), (2, Link::Down, 876_999_999)] {
        server.clock.advance(TimeDelta::nanoseconds(pause));
        let tx = server.store.tenant(server.ours).await.expect("a transaction");
        let id = host.parse().expect("an id");
        hardware::store_if_changed(
            &tx,
            id,
            hardware_with_link(link),
            &[number; 32],
            server.clock.now(),
        )
        .await
        .expect("stored");
        tx.commit().await.expect("committed");
    }
    let path = format!("GET compute/hosts/{host}");
    let Answer { status, text, .. } = server.client_of(Caller::Writer).call(&path, None).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let read: HostResource = serde_json::from_str(&text).expect("a host");
    assert_eq!(serde_json::to_string(&read).expect("JSON"), text);
    let [first, second] = &*read.host_nics else {
        panic!("{text}");
    };
    let times = first.timestamps.as_ref().expect("times");
    let after = |millis| noon() + TimeDelta::milliseconds(millis);
    assert_eq!((times.created_at, times.updated_at), (after(123), after(1_000)));
    assert_eq!((first.mtu, second.mtu), (1_500, 0));
    assert!(first.ipaddresses[0].resource_id.starts_with("ipaddr-"));
    assert_eq!(read.host_storages[0].capacity_bytes.0, u64::MAX);
    assert_eq!(read.host_gpus[0].capabilities, ["VGA", "a, b"]);
    assert_eq!((read.host_gpus.len(), read.host_usbs.len()), (2, 0));
}
