//! Operating systems: what can be changed, and which references prevent deletion.

use chrono::TimeDelta;
use evenkeel_test_support::redact;
use serde_json::{Value, json};

use crate::test_server::{TestServer, cve_list, os_body, package_list, resource_id};

const LABELS: &str = r#"{"ring":"1"}"#;

#[tokio::test]
async fn only_the_architecture_and_the_labels_of_an_operating_system_change() {
    let server = TestServer::new().await;
    let mut body = os_body("Debian 12");
    body["imageUrl"] = json!("https://example.org/a.img");
    let created = server.post("compute/os", body).await;
    let id = created["resourceId"].as_str().expect("an id");
    let path = format!("compute/os/{id}");
    assert_eq!(created["osResourceID"], created["resourceId"]);

    // A client may write back what it read; other values of the read-only fields are ignored.
    let mut changed = created.clone();
    changed["architecture"] = json!("x86_64");
    changed["metadata"] = json!(LABELS);
    changed["imageUrl"] = json!("https://example.org/b.img");
    changed["sha256"] = json!("no digest");
    server.clock.advance(TimeDelta::minutes(1));
    let mut expected = created.clone();
    expected["architecture"] = json!("x86_64");
    expected["metadata"] = json!(LABELS);
    expected["timestamps"]["updatedAt"] = json!("2026-03-01T12:01:00Z");
    let put = server.put(&path, changed).await;
    assert_eq!(put, expected);
    assert_eq!(server.get(&path).await, expected);

    // Without a name it keeps its own; other omitted fields are cleared.
    let put = server.put(&path, json!({"metadata": LABELS})).await;
    assert_eq!(
        (&put["name"], &put["architecture"], &put["metadata"]),
        (&json!("Debian 12"), &json!(""), &json!(LABELS))
    );
    let patched = server
        .patch(&path, json!({"architecture": "aarch64", "name": "", "sha256": "0".repeat(64)}))
        .await;
    assert_eq!(
        (&patched["name"], &patched["architecture"], &patched["metadata"]),
        (&json!("Debian 12"), &json!("aarch64"), &json!(LABELS))
    );
    let masked = server
        .patch(&format!("{path}?fieldMask=metadata,sha256"), json!({"architecture": "not meant"}))
        .await;
    assert_eq!((&masked["architecture"], &masked["metadata"]), (&json!("aarch64"), &json!("")));
}

#[tokio::test]
async fn an_impossible_change_of_an_operating_system_is_rejected_with_its_field() {
    let server = TestServer::new().await;
    let created = server.post("compute/os", os_body("Debian 12")).await;
    let id = created["resourceId"].as_str().expect("an id");
    for (body, field) in [
        (json!({"name": "Debian 13"}), "name"),
        (json!({"metadata": "[]"}), "metadata"),
        (json!({"metadata": {"ring": "1"}}), "metadata"),
        (json!({"architecture": "x".repeat(21)}), "architecture"),
        (json!({"colour": "red"}), "colour"),
    ] {
        for method in ["PUT", "PATCH"] {
            let what = format!("{method} compute/os/{id}");
            let expected = json!({"code": "InvalidArgument", "field": field});
            server.expect_problem(&what, Some(body.clone()), 400, expected).await;
        }
    }
    let masked = format!("PATCH compute/os/{id}?fieldMask=colour");
    server.expect_problem(&masked, Some(json!({})), 400, json!({"field": "fieldMask"})).await;
    assert_eq!(server.get(&format!("compute/os/{id}")).await, created);
    let missing = "PUT compute/os/os-00000000";
    let expected = json!({"message": "operating_system_resource not found"});
    server.expect_problem(missing, Some(json!({})), 404, expected).await;
}

#[tokio::test]
async fn names_and_images_in_the_catalogue_are_unique() {
    let server = TestServer::new().await;
    server.post("compute/os", os_body("Debian 12")).await;
    let mut same_name = os_body("Debian 12");
    same_name["profileName"] = json!("another");
    let mut same_image = os_body("Debian 12");
    same_image["name"] = json!("another");
    for (body, message) in [
        (same_name, "operating_system_resource with this name exists already"),
        (same_image, "operating_system_resource with this profileName and imageId exists already"),
    ] {
        let expected = json!({"code": "FailedPrecondition", "message": message});
        server.expect_problem("POST compute/os", Some(body), 400, expected).await;
    }
}

#[tokio::test]
async fn an_operating_system_in_use_cannot_be_deleted() {
    let (server, resources) = TestServer::with_resources().await;
    let mut image = os_body("Edge 3");
    image["osType"] = json!("OS_TYPE_IMMUTABLE");
    let image = server.post("compute/os", image).await;
    let image = image["resourceId"].as_str().expect("an id");
    let policy =
        json!({"name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image});
    server.post("os-update-policies", policy).await;
    for (os, by) in [(resources.os.as_str(), "an instance"), (image, "an update policy")] {
        let what = format!("DELETE compute/os/{os}");
        let expected = json!({"code": "FailedPrecondition"});
        let problem = server.expect_problem(&what, None, 400, expected).await;
        let message = format!("operating_system_resource is in use by {by}");
        assert_eq!(problem["message"], message);
    }
}

#[tokio::test]
async fn operating_systems_are_listed_under_the_key_of_eim() {
    let server = TestServer::new().await;
    for name in ["Debian 12", "Debian 13", "Edge 3"] {
        server.post("compute/os", os_body(name)).await;
    }
    let query = "filter=name%3D%22debian%22&orderBy=name%20desc&pageSize=1";
    let list = server.get(&format!("compute/os?{query}")).await;
    let names: Vec<_> = list["OperatingSystemResources"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|os| &os["name"])
        .collect();
    assert_eq!(names, [&json!("Debian 13")]);
    assert_eq!((&list["totalElements"], &list["hasNext"]), (&json!(2), &json!(true)));
    assert!(list["nextPageToken"].is_string());
    let all = server.get("compute/os").await;
    assert_eq!((&all["totalElements"], &all["nextPageToken"]), (&json!(3), &Value::from("")));
}

#[tokio::test]
async fn an_operating_system_from_a_registry_is_shown_with_its_contents() {
    let server = TestServer::new().await;
    let os = server.create_synced_os(server.ours, "walrus").await.to_string();
    let path = format!("compute/os/{os}");
    let fetched = server.get(&path).await;
    insta::assert_json_snapshot!(redact(&fetched));
    let list = server.get("compute/os").await;
    assert_eq!(list["OperatingSystemResources"], json!([fetched]));

    // Writing back what was read changes none of these fields.
    let mut expected = fetched.clone();
    expected["metadata"] = json!(LABELS);
    for method in ["PUT", "PATCH"] {
        let what = format!("{method} {path}");
        let mut updated = server.expect_ok(&what, Some(expected.clone())).await;
        updated["timestamps"] = expected["timestamps"].clone();
        assert_eq!(updated, expected, "{method}");
    }
}

#[tokio::test]
async fn nested_operating_systems_omit_their_contents() {
    let server = TestServer::new().await;
    let os = server.create_synced_os(server.ours, "walrus").await.to_string();
    let host = json!({"serialNumber": "ABC12345"});
    let host = resource_id(&server.post("compute/hosts/register", host).await);
    let instance = json!({"hostID": host, "osID": os});
    let instance = resource_id(&server.post("compute/instances", instance).await);
    let fetched = server.get(&format!("compute/instances/{instance}")).await;
    // An instance shows the vulnerabilities of its operating system.
    assert_eq!(fetched["existingCves"], cve_list("walrus", "open"));
    assert_eq!(fetched["os"]["resourceId"], os);
    for field in ["installedPackages", "existingCves", "registry"] {
        assert_eq!(fetched["os"][field], "", "{field}");
    }
    let list = server.get("compute/instances").await;
    assert_eq!(list["instances"][0]["existingCves"], "");
}

#[tokio::test]
async fn a_list_omits_package_lists_above_the_limit() {
    let server = TestServer::new().await;
    let list = package_list("walrus");
    let list_of = |bytes: usize| format!("{list}{}", " ".repeat(bytes - list.len()));
    let (long, longer) = (list_of(500_000), list_of(500_001));
    for (version, packages) in [("1.0", &long), ("2.0", &longer)] {
        let os = server.create_synced_os_with(server.ours, "walrus", version, packages).await;
        let fetched = server.get(&format!("compute/os/{os}")).await;
        assert_eq!(fetched["installedPackages"], packages.as_str(), "{version}");
    }
    let list = server.get("compute/os?orderBy=imageId").await;
    let listed = &list["OperatingSystemResources"];
    assert_eq!(listed[0]["installedPackages"], long.as_str());
    assert_eq!(listed[1]["installedPackages"], "");
    assert_eq!(listed[1]["existingCves"], cve_list("walrus", "open"));
}

#[tokio::test]
async fn a_long_page_divides_its_limit_among_its_items() {
    let server = TestServer::new().await;
    let list = package_list("walrus");
    let list_of = |bytes: usize| format!("{list}{}", " ".repeat(bytes - list.len()));
    // Twelve items share five million bytes.
    let (long, longer) = (list_of(416_666), list_of(416_667));
    for n in 0..12 {
        let packages = if n % 2 == 0 { &long } else { &longer };
        let version = format!("1.{n:02}");
        server.create_synced_os_with(server.ours, "walrus", &version, packages).await;
    }
    let package_list_lengths = async |query: &str| -> Vec<usize> {
        let list = server.get(&format!("compute/os?orderBy=imageId{query}")).await;
        let listed = list["OperatingSystemResources"].as_array();
        let lengths = listed.expect("a list").iter();
        let length = |os: &Value| os["installedPackages"].as_str().map(str::len);
        lengths.filter_map(length).collect()
    };
    let in_turn = |even: usize, odd: usize| [even, odd].repeat(6);
    assert_eq!(package_list_lengths("&pageSize=100").await, in_turn(416_666, 0));
    assert_eq!(package_list_lengths("&pageSize=12").await, in_turn(416_666, 0));
    // Ten items have room for the full length, and a complete list is written in chunks of ten.
    let all_lengths = in_turn(416_666, 416_667);
    assert_eq!(package_list_lengths("&pageSize=10").await, all_lengths[..10]);
    assert_eq!(package_list_lengths("").await, all_lengths);
}
