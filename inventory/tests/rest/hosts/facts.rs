//! What the node of a host reported: its JSON and its filters.

use chrono::TimeDelta;
use evenkeel_domain::hardware::{Address, Hardware, Nic};
use evenkeel_domain::instance::FactsSummary;
use evenkeel_kit::Clock;
use evenkeel_store::contacts::{self, Contact};
use evenkeel_store::hardware;
use serde_json::{Value, json};

use super::register_host;
use crate::lists::percent_encode;
use crate::test_server::{ResourceIds, TestServer};

/// A server with a host whose node has reported facts.
async fn server_with_facts() -> (TestServer, ResourceIds) {
    let (server, resources) = TestServer::with_resources().await;
    let now = server.clock.now();
    server
        .edit_node(&resources.host, |node| {
            node.agent_version = "0.1.0".into();
            node.facts_summary = FactsSummary {
                kernel_release: Some("6.1.0-40-amd64".to_owned()),
                reboot_required: Some(true),
                reboot_required_by: Some(vec!["libc6".to_owned()]),
                boot_time: Some(now - TimeDelta::days(9)),
                ..FactsSummary::default()
            };
        })
        .await;
    let instance = resources.instance.parse().expect("an id");
    let tx = server.store.fleet().await.expect("a transaction");
    let contact = Contact { tenant: server.ours, instance, at: now, due: None };
    contacts::record_contacts(&tx, vec![contact], now).await.expect("recorded");
    tx.commit().await.expect("committed");
    let address = |address: &str| Address { address: address.to_owned(), ..Address::default() };
    let nic = |name: &str, addresses: Vec<Address>| Nic {
        device_name: name.to_owned(),
        ipaddresses: addresses,
        ..Nic::default()
    };
    let reported = Hardware {
        product_vendor: "Dell Inc.".to_owned(),
        nics: vec![
            nic("eth0", vec![address("192.0.2.7/24"), address("2001:db8::7/64")]),
            nic("eth1", Vec::new()),
            nic("eth2", vec![address("10.0.0.7/8")]),
        ],
        ..Hardware::default()
    };
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    let host = resources.host.parse().expect("an id");
    hardware::store_if_changed(&tx, host, reported, &[1; 32], now).await.expect("stored");
    tx.commit().await.expect("committed");
    (server, resources)
}

#[tokio::test]
async fn a_host_shows_what_its_node_reported_and_unknown_facts_are_null() {
    let (server, resources) = server_with_facts().await;
    let bare = register_host(&server, "XYZ98765").await;
    let shown = server.get(&format!("compute/hosts/{}", resources.host)).await;
    for (field, value) in [
        ("lastContact", json!("2026-03-01T12:00:00Z")),
        ("agentVersion", json!("0.1.0")),
        ("kernelRelease", json!("6.1.0-40-amd64")),
        ("bootTime", json!("2026-02-20T12:00:00Z")),
        ("rebootRequired", json!(true)),
        ("rebootRequiredBy", json!(["libc6"])),
        ("productVendor", json!("Dell Inc.")),
        ("ipAddresses", json!(["192.0.2.7/24", "2001:db8::7/64", "10.0.0.7/8"])),
    ] {
        assert_eq!(shown[field], value, "{field}");
    }
    let unknown = server.get(&format!("compute/hosts/{bare}")).await;
    for field in ["lastContact", "bootTime", "rebootRequired"] {
        assert_eq!(unknown[field], Value::Null, "{field}");
    }
    for field in ["agentVersion", "kernelRelease", "productVendor"] {
        assert_eq!(unknown[field], "", "{field}");
    }
    for field in ["rebootRequiredBy", "ipAddresses"] {
        assert_eq!(unknown[field], json!([]), "{field}");
    }
    let list = server.get("compute/hosts").await;
    let list = list["hosts"].as_array().expect("hosts");
    assert!(list.contains(&shown) && list.contains(&unknown));
    let instance = server.get(&format!("compute/instances/{}", resources.instance)).await;
    assert_eq!(instance["host"]["lastContact"], Value::Null, "a part of another resource");
}

#[tokio::test]
async fn hosts_are_found_and_sorted_by_the_facts_of_their_nodes() {
    let (server, resources) = server_with_facts().await;
    let bare = register_host(&server, "XYZ98765").await;
    let found = async |query: &str| {
        let list = server.get(&format!("compute/hosts?{query}")).await;
        let hosts = list["hosts"].as_array().expect("hosts").clone();
        hosts.iter().map(|host| host["resourceId"].clone()).collect::<Vec<_>>()
    };
    let (known, bare) = (json!(resources.host), json!(bare));
    for (filter, expected) in [
        ("lastContact < \"2026-03-01T12:00:01Z\"", vec![&known]),
        ("lastContact < \"2026-03-01T12:00:00Z\"", vec![]),
        ("lastContact = null", vec![&bare]),
        ("agentVersion != \"0.2.0\"", vec![&known]),
        ("agentVersion < \"0.10\"", vec![&known]),
        ("agentVersion < \"0.1.0\"", vec![]),
        ("agentVersion = null", vec![&bare]),
        ("agentVersion == \"0.1.0\"", vec![&known]),
        ("kernelRelease = \"6.1.0\"", vec![&known]),
        ("bootTime < \"2026-02-21T00:00:00Z\"", vec![&known]),
        ("rebootRequired = true", vec![&known]),
        ("rebootRequired = null", vec![&bare]),
        ("productVendor = \"dell\"", vec![&known]),
        ("hostNics.ipaddresses.address = \"10.0.0.7\"", vec![&known]),
    ] {
        let query = format!("filter={}", percent_encode(filter));
        assert_eq!(found(&query).await.iter().collect::<Vec<_>>(), expected, "{filter}");
    }
    let sorted = found(&format!("orderBy={}", percent_encode("agentVersion desc"))).await;
    assert_eq!(sorted, [known, bare]);
}

#[tokio::test]
async fn the_facts_of_a_node_in_a_body_are_ignored() {
    let (server, resources) = server_with_facts().await;
    let path = format!("compute/hosts/{}", resources.host);
    let mut shown = server.get(&path).await;
    shown["name"] = json!("renamed");
    shown["agentVersion"] = json!("9.9.9");
    shown["ipAddresses"] = json!(["198.51.100.1/24"]);
    let changed = server.expect_ok(&format!("PATCH {path}"), Some(shown)).await;
    assert_eq!(changed["name"], "renamed");
    assert_eq!(changed["agentVersion"], "0.1.0");
    assert_eq!(changed["ipAddresses"][0], "192.0.2.7/24");
    let only = Some(json!({"agentVersion": "9.9.9"}));
    let expected = json!({"code": "InvalidArgument", "field": "agentVersion"});
    server.expect_problem(&format!("PATCH {path}"), only, 400, expected).await;
}
