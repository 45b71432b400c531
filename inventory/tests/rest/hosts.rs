//! Hosts: how they are made, announced, wanted, counted, and what they are made of.

use axum::http::StatusCode;
use chrono::TimeDelta;
use evenkeel_api::host::HostResource;
use evenkeel_domain::hardware::{
    Address, Capacity, ConfigMethod, Controller, Gpu, Hardware, Link, LinkState, Nic, Storage, Usb,
};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_kit::Clock;
use evenkeel_store::{hardware, hosts};
use serde_json::{Value, json};

use crate::house::{House, UUID, Who, noon, text_of};

fn labels(pairs: &[(&str, &str)]) -> Value {
    let item = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
    pairs.iter().map(item).collect()
}

fn id(answer: &Value) -> String {
    answer["resourceId"].as_str().expect("an id").to_owned()
}

async fn announced(house: &House, serial: &str) -> String {
    let body = json!({"serialNumber": serial});
    id(&house.ok("POST compute/hosts/register", Some(body)).await)
}

/// The machine of a host has come.
async fn came(house: &House, host: &str) {
    let tx = house.store.tenant(house.ours).await.expect("a transaction");
    let running = Status::new("Running", Indication::Idle, house.clock.now());
    let host = host.parse().expect("an id");
    hosts::set_status(&tx, host, &running).await.expect("noted");
    tx.commit().await.expect("committed");
}

#[tokio::test]
async fn a_host_is_made_without_being_announced() {
    let house = House::new().await;
    let region = json!({"name": "south", "metadata": labels(&[("country", "de"), ("rack", "1")])});
    let region = id(&house.ok("POST regions", Some(region)).await);
    let site = json!({"name": "ulm", "regionId": region});
    let site = id(&house.ok("POST sites", Some(site)).await);
    let body = json!({
        "name": "a name of more than twenty", "uuid": UUID.to_uppercase(), "siteId": site,
        "metadata": labels(&[("rack", "7")]), "hostname": "ignored",
    });
    let host = house.ok("POST compute/hosts", Some(body.clone())).await;
    assert_eq!(host["desiredState"], "HOST_STATE_ONBOARDED");
    assert_eq!(host["currentState"], "HOST_STATE_REGISTERED");
    assert_eq!(host["uuid"], UUID);
    assert_eq!(
        (&host["hostname"], &host["serialNumber"]),
        (&json!(""), &json!(""))
    );
    assert_eq!(host["site"]["name"], "ulm");
    assert_eq!(host["metadata"], labels(&[("rack", "7")]));
    assert_eq!(host["inheritedMetadata"], labels(&[("country", "de")]));
    let read = house
        .ok(&format!("GET compute/hosts/{}", id(&host)), None)
        .await;
    assert_eq!(read, host);

    let (status, problem) = house.ours("POST compute/hosts", Some(body)).await;
    assert_eq!(
        (status, &problem["code"], &problem["field"]),
        (
            StatusCode::BAD_REQUEST,
            &json!("FailedPrecondition"),
            &json!("uuid")
        )
    );
    let empty = Some(json!({"name": ""}));
    let nameless = house.ok("POST compute/hosts", empty).await;
    assert_eq!(
        (&nameless["name"], &nameless["uuid"]),
        (&json!(""), &json!(""))
    );
    assert_eq!(
        house.ok("GET compute/hosts", None).await["totalElements"],
        2
    );
}

#[tokio::test]
async fn a_bad_host_is_not_made() {
    let house = House::new().await;
    let (upper, twice) = (labels(&[("A", "1")]), labels(&[("a", "1"), ("a", "2")]));
    for (field, value) in [
        ("name", Value::Null),
        ("name", json!("a;b")),
        ("name", json!("a".repeat(51))),
        ("uuid", json!("x")),
        ("siteId", json!("site-1")),
        ("siteId", json!("site-00000001")),
        ("metadata", upper),
        ("metadata", twice),
        ("desiredPowerState", json!("POWER_STATE_ON")),
        ("serial", json!("ABC12345")),
    ] {
        let mut body = json!({"name": "edge-01"});
        body[field] = value;
        let shown = body.to_string();
        let (status, problem) = house.ours("POST compute/hosts", Some(body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{shown}: {problem}");
        assert_eq!(problem["field"], field, "{shown}: {problem}");
    }
    let size = json!({"serialNumber": "ABC12345", "userLvmSize": 2_147_483_648_u32});
    let (status, problem) = house.ours("POST compute/hosts/register", Some(size)).await;
    assert_eq!(
        (status, &problem["field"]),
        (StatusCode::BAD_REQUEST, &json!("userLvmSize"))
    );
    assert_eq!(
        house.ok("GET compute/hosts", None).await["totalElements"],
        0
    );
}

#[tokio::test]
async fn the_labels_of_a_host_are_changed_and_replaced() {
    let house = House::new().await;
    let host = announced(&house, "ABC12345").await;
    let both = labels(&[("rack", "7"), ("example.com/tier", "gold")]);
    for (what, body, wanted) in [
        ("PATCH", json!({"metadata": both}), both.clone()),
        ("PATCH", json!({"name": "edge-01"}), both.clone()),
        (
            "PATCH ?fieldMask=metadata",
            json!({"name": "edge-02"}),
            json!([]),
        ),
        (
            "PUT",
            json!({"name": "edge-01", "metadata": both, "uuid": UUID, "currentPowerState": "POWER_STATE_ON"}),
            both.clone(),
        ),
        ("PUT", json!({"name": "edge-01"}), json!([])),
        ("PATCH", json!({"metadata": both}), both.clone()),
        ("PATCH", json!({"metadata": null}), json!([])),
    ] {
        let (method, query) = what.split_once(' ').unwrap_or((what, ""));
        let path = format!("{method} compute/hosts/{host}{query}");
        let answer = house.ok(&path, Some(body)).await;
        assert_eq!(answer["metadata"], wanted, "{what}");
        assert_eq!(answer["uuid"], "", "{what}");
        let read = house.ok(&format!("GET compute/hosts/{host}"), None).await;
        assert_eq!(read, answer, "{what}");
    }
    assert_ne!(
        house.ok(&format!("GET compute/hosts/{host}"), None).await["name"],
        "edge-02"
    );
}

#[tokio::test]
async fn a_machine_that_was_announced_is_announced_otherwise() {
    let house = House::new().await;
    let body = json!({"serialNumber": "ABC12345", "name": "edge-01", "userLvmSize": 60});
    let host = house.ok("POST compute/hosts/register", Some(body)).await;
    assert_eq!(host["userLvmSize"], 60);
    let path = format!("PATCH compute/hosts/{}/register", id(&host));
    let shape = |host: &Value| json!([host["name"], host["desiredState"], host["userLvmSize"]]);
    for (body, wanted) in [
        (
            json!({"name": "edge-02", "autoOnboard": true, "serialNumber": "XYZ98765"}),
            json!(["edge-02", "HOST_STATE_ONBOARDED", 60]),
        ),
        (
            json!({"name": "edge-03"}),
            json!(["edge-03", "HOST_STATE_ONBOARDED", 60]),
        ),
        (
            json!({"autoOnboard": false, "userLvmSize": 7}),
            json!(["edge-03", "HOST_STATE_REGISTERED", 60]),
        ),
        (json!({}), json!(["edge-03", "HOST_STATE_REGISTERED", 60])),
    ] {
        let answer = house.ok(&path, Some(body)).await;
        assert_eq!(shape(&answer), wanted);
        assert_eq!(answer["serialNumber"], "ABC12345");
    }
    let long = json!({"name": "a".repeat(21), "autoOnboard": true});
    let (status, problem) = house.ours(&path, Some(long)).await;
    assert_eq!(
        (status, &problem["field"]),
        (StatusCode::BAD_REQUEST, &json!("name"))
    );
    let read = house
        .ok(&format!("GET compute/hosts/{}", id(&host)), None)
        .await;
    assert_eq!(read["desiredState"], "HOST_STATE_REGISTERED");
}

#[tokio::test]
async fn a_host_is_wanted_only_where_it_can_come_to_stand() {
    let house = House::new().await;
    let host = announced(&house, "ABC12345").await;
    let of = |what: &str| {
        let (method, path) = what.split_once(' ').expect("a method and a path");
        format!("{method} compute/hosts/{host}/{path}")
    };
    let refused = async |what: &str, body: Option<Value>| {
        let (status, problem) = house.ours(&of(what), body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
        assert_eq!(problem["code"], "FailedPrecondition", "{what}");
    };
    let read = async || house.ok(&format!("GET compute/hosts/{host}"), None).await;
    refused("PUT invalidate", None).await;
    assert_eq!(house.ok(&of("PATCH onboard"), None).await, json!({}));
    let shown = read().await;
    assert_eq!(shown["desiredState"], "HOST_STATE_ONBOARDED");
    assert_eq!(shown["currentState"], "HOST_STATE_REGISTERED");

    came(&house, &host).await;
    let back = || Some(json!({"name": "no", "autoOnboard": false}));
    refused("PATCH register", back()).await;
    assert_eq!(read().await["name"], "", "half of it was written");
    let invalidate = of("PUT invalidate?note=stolen%20%E2%80%93%20again");
    assert_eq!(house.ok(&invalidate, None).await, json!({}));
    let shown = read().await;
    assert_eq!(shown["desiredState"], "HOST_STATE_UNTRUSTED");
    assert_eq!(shown["currentState"], "HOST_STATE_UNTRUSTED");
    assert_eq!(shown["note"], "stolen – again");
    assert_eq!(shown["hostStatus"], "Invalidated");
    assert_eq!(shown["hostStatusIndicator"], "STATUS_INDICATION_IDLE");

    refused("PATCH onboard", None).await;
    refused("PATCH register", back()).await;
    assert_eq!(house.ok(&of("PUT invalidate"), None).await, json!({}));
    assert_eq!(read().await["note"], "");
    let delete = format!("DELETE compute/hosts/{host}");
    assert_eq!(house.ok(&delete, None).await, json!({}));
    for what in ["PATCH onboard", "PUT invalidate"] {
        let (status, problem) = house.ours(&of(what), None).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{what}: {problem}");
        assert_eq!(problem["message"], "host_resource not found");
    }
}

#[tokio::test]
async fn a_note_is_one_line() {
    let house = House::new().await;
    let host = announced(&house, "ABC12345").await;
    came(&house, &host).await;
    for note in ["", "two%0Alines", &"a".repeat(513)] {
        let path = format!("PUT compute/hosts/{host}/invalidate?note={note}");
        let (status, problem) = house.ours(&path, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{note}: {problem}");
        assert_eq!(problem["parameter"], "note", "{note}: {problem}");
    }
    let read = house.ok(&format!("GET compute/hosts/{host}"), None).await;
    assert_eq!(read["currentState"], "HOST_STATE_ONBOARDED");
}

#[tokio::test]
async fn hosts_are_counted_as_a_whole_and_by_a_filter() {
    let house = House::new().await;
    let things = house.furnish().await;
    announced(&house, "XYZ98765").await;
    let shape = |answer: &Value| {
        json!([
            answer["total"],
            answer["error"],
            answer["running"],
            answer["unallocated"]
        ])
    };
    for (query, wanted) in [
        ("", json!([2, 0, 0, 1])),
        ("?filter=has(site)", json!([1, 0, 0, 0])),
        (
            "?filter=name%3D%22nobody%22%20OR%20has(site)",
            json!([1, 0, 0, 0]),
        ),
        ("?filter=name%3D%22nobody%22", json!([0, 0, 0, 0])),
    ] {
        for path in ["compute/hosts/summary", "compute/hosts_summary"] {
            let answer = house.ok(&format!("GET {path}{query}"), None).await;
            assert_eq!(shape(&answer), wanted, "{path}{query}");
        }
    }
    let by_site = format!(
        "GET compute/hosts/summary?filter=site.resourceId%3D'{}'",
        things.site
    );
    assert_eq!(shape(&house.ok(&by_site, None).await), json!([1, 0, 0, 0]));
    for filter in ["name%3D", "colour%3D1", "name%3D%22a%22%20b"] {
        let path = format!("GET compute/hosts/summary?filter={filter}");
        let (status, problem) = house.ours(&path, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{filter}: {problem}");
        assert_eq!(problem["parameter"], "filter", "{filter}: {problem}");
        assert!(problem["position"].is_u64(), "{filter}: {problem}");
    }
}

fn machine() -> Hardware {
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
            link_state: LinkState {
                kind: Link::Up,
                timestamps: None,
            },
            ipaddresses: vec![address],
            ..Nic::default()
        }],
        usbs: vec![Usb {
            class: "Hub".to_owned(),
            ..Usb::default()
        }],
        gpus: vec![Gpu {
            pci_id: "00:02.0".to_owned(),
            capabilities: vec!["VGA".to_owned()],
            ..Gpu::default()
        }],
        ..Hardware::default()
    }
}

#[tokio::test]
async fn what_hosts_are_made_of_is_shown_and_found() {
    let house = House::new().await;
    let things = house.furnish().await;
    let other = announced(&house, "XYZ98765").await;
    let tx = house.store.tenant(house.ours).await.expect("a transaction");
    let host = things.host.parse().expect("an id");
    hardware::keep(&tx, host, machine(), &[1; 32], house.clock.now())
        .await
        .expect("kept");
    tx.commit().await.expect("committed");

    let shown = house
        .ok(&format!("GET compute/hosts/{}", things.host), None)
        .await;
    assert_eq!(shown["memoryBytes"], "4294967296");
    assert_eq!(
        json!([shown["cpuModel"], shown["cpuCores"], shown["cpuThreads"]]),
        json!(["Xeon", 8, 16])
    );
    assert_eq!(shown["bmcKind"], "BAREMETAL_CONTROLLER_KIND_IPMI");
    assert_eq!(shown["serialNumber"], "ABC12345");
    let [nic] = shown["hostNics"].as_array().expect("interfaces").as_slice() else {
        panic!("{shown}");
    };
    assert_eq!(nic["linkState"]["type"], "NETWORK_INTERFACE_LINK_STATE_UP");
    assert!(nic["timestamps"]["createdAt"].is_string());
    let address = &nic["ipaddresses"][0];
    assert!(id(address).starts_with("ipaddr-"));
    assert_eq!(address["address"], "10.0.0.1/24");
    assert_eq!(address["status"], "IP_ADDRESS_STATUS_CONFIGURED");
    assert_eq!(address["configMethod"], "IP_ADDRESS_CONFIG_METHOD_DYNAMIC");
    assert_eq!(shown["hostStorages"][0]["capacityBytes"], "549755813888");
    assert_eq!(shown["hostUsbs"][0]["class"], "Hub");
    assert_eq!(shown["hostGpus"][0]["capabilities"], json!(["VGA"]));
    let bare = house.ok(&format!("GET compute/hosts/{other}"), None).await;
    assert_eq!(
        (&bare["memoryBytes"], &bare["hostNics"]),
        (&json!("0"), &json!([]))
    );

    let list = house.ok("GET compute/hosts", None).await;
    let list = list["hosts"].as_array().expect("hosts");
    assert!(list.contains(&shown) && list.contains(&bare));
    for filter in [
        "hostNics.macAddr%20%3D%20%22cc:dd%22",
        "hostNics.ipaddresses.address%20%3D%20%2210.0.0.1%22",
        "hostNics.linkState%20%3D%20NETWORK_INTERFACE_LINK_STATE_UP",
        "memoryBytes%20%3D%204294967296",
        "has(hostGpus)",
        "cpuCores%20%3E%204",
    ] {
        let found = house
            .ok(&format!("GET compute/hosts?filter={filter}"), None)
            .await;
        assert_eq!(found["totalElements"], 1, "{filter}");
        assert_eq!(found["hosts"], json!([shown]), "{filter}");
    }
}

#[tokio::test]
async fn parts_are_told_letter_by_letter_as_the_types_of_the_api_write_them() {
    let house = House::new().await;
    let host = announced(&house, "ABC12345").await;
    let said = |link: Link| {
        let mut said = machine();
        said.storages[0].model = "\"fast\" \\ große\n\u{1f} \u{7f}".to_owned();
        said.storages[0].capacity_bytes = Capacity(u64::MAX);
        said.gpus[0].capabilities.push("a, b".to_owned());
        said.gpus.push(Gpu::default());
        said.usbs.clear();
        said.nics[0].link_state.kind = link;
        said.nics.push(Nic {
            device_name: "eth1".to_owned(),
            ..Nic::default()
        });
        said
    };
    // Instants are kept as they are and told to the millisecond.
    for (number, link, pause) in [(1, Link::Up, 123_456_789), (2, Link::Down, 876_999_999)] {
        house.clock.advance(TimeDelta::nanoseconds(pause));
        let tx = house.store.tenant(house.ours).await.expect("a transaction");
        let id = host.parse().expect("an id");
        hardware::keep(&tx, id, said(link), &[number; 32], house.clock.now())
            .await
            .expect("kept");
        tx.commit().await.expect("committed");
    }
    let token = house.token(Who::Writer);
    let path = format!("GET /v1/projects/ours/compute/hosts/{host}");
    let answer = house.ask_with(token.as_deref(), None, &path, None).await;
    let (status, text) = text_of(answer).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let read: HostResource = serde_json::from_str(&text).expect("a host");
    assert_eq!(serde_json::to_string(&read).expect("JSON"), text);
    let [first, second] = &*read.host_nics else {
        panic!("{text}");
    };
    let times = first.timestamps.as_ref().expect("times");
    let after = |millis| noon() + TimeDelta::milliseconds(millis);
    assert_eq!(
        (times.created_at, times.updated_at),
        (after(123), after(1_000))
    );
    assert_eq!((first.mtu, second.mtu), (1_500, 0));
    assert!(first.ipaddresses[0].resource_id.starts_with("ipaddr-"));
    assert_eq!(read.host_storages[0].capacity_bytes.0, u64::MAX);
    assert_eq!(read.host_gpus[0].capabilities, ["VGA", "a, b"]);
    assert_eq!((read.host_gpus.len(), read.host_usbs.len()), (2, 0));
}

#[tokio::test]
async fn a_host_that_stands_nowhere_has_all_its_fields() {
    let house = House::new().await;
    let host = announced(&house, "ABC12345").await;
    let shown = house.ok(&format!("GET compute/hosts/{host}"), None).await;
    for field in ["site", "instance", "provider"] {
        assert_eq!(shown[field], Value::Null, "{field}");
    }
    for field in [
        "metadata",
        "inheritedMetadata",
        "hostStorages",
        "hostUsbs",
        "hostGpus",
    ] {
        assert_eq!(shown[field], json!([]), "{field}");
    }
    assert_eq!(shown["desiredPowerState"], "POWER_STATE_UNSPECIFIED");
    assert_eq!(shown["hostStatus"], "Not Connected");
    assert!(shown["timestamps"]["updatedAt"].is_string());
}
