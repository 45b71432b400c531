//! Operating systems: what of them can be changed, and what keeps them.

use axum::http::StatusCode;
use chrono::TimeDelta;
use serde_json::{Value, json};

use crate::house::{House, cves, id_of, os_body, packages, statement};

const LABELS: &str = r#"{"ring":"1"}"#;

#[tokio::test]
async fn only_the_architecture_and_the_labels_of_an_operating_system_change() {
    let house = House::new().await;
    let mut body = os_body("Debian 12");
    body["imageUrl"] = json!("https://example.org/a.img");
    let made = house.ok("POST compute/os", Some(body)).await;
    let id = made["resourceId"].as_str().expect("an id");
    let path = format!("compute/os/{id}");
    assert_eq!(made["osResourceID"], made["resourceId"]);

    // What was read is written back, with other values of what cannot change as well.
    let mut whole = made.clone();
    whole["architecture"] = json!("x86_64");
    whole["metadata"] = json!(LABELS);
    whole["imageUrl"] = json!("https://example.org/b.img");
    whole["sha256"] = json!("no digest");
    house.clock.advance(TimeDelta::minutes(1));
    let mut wanted = made.clone();
    wanted["architecture"] = json!("x86_64");
    wanted["metadata"] = json!(LABELS);
    wanted["timestamps"]["updatedAt"] = json!("2026-03-01T12:01:00Z");
    let put = house.ok(&format!("PUT {path}"), Some(whole)).await;
    assert_eq!(put, wanted);
    assert_eq!(house.ok(&format!("GET {path}"), None).await, wanted);

    // Without a name it keeps its own, and what is left out is emptied.
    let put = house
        .ok(&format!("PUT {path}"), Some(json!({"metadata": LABELS})))
        .await;
    assert_eq!(
        (&put["name"], &put["architecture"], &put["metadata"]),
        (&json!("Debian 12"), &json!(""), &json!(LABELS))
    );
    let patched = house
        .ok(
            &format!("PATCH {path}"),
            Some(json!({"architecture": "aarch64", "name": "", "sha256": "0".repeat(64)})),
        )
        .await;
    assert_eq!(
        (
            &patched["name"],
            &patched["architecture"],
            &patched["metadata"]
        ),
        (&json!("Debian 12"), &json!("aarch64"), &json!(LABELS))
    );
    let masked = house
        .ok(
            &format!("PATCH {path}?fieldMask=metadata,sha256"),
            Some(json!({"architecture": "not meant"})),
        )
        .await;
    assert_eq!(
        (&masked["architecture"], &masked["metadata"]),
        (&json!("aarch64"), &json!(""))
    );
}

#[tokio::test]
async fn what_an_operating_system_cannot_become_is_refused_with_its_field() {
    let house = House::new().await;
    let made = house
        .ok("POST compute/os", Some(os_body("Debian 12")))
        .await;
    let id = made["resourceId"].as_str().expect("an id");
    for (body, field) in [
        (json!({"name": "Debian 13"}), "name"),
        (json!({"metadata": "[]"}), "metadata"),
        (json!({"metadata": {"ring": "1"}}), "metadata"),
        (json!({"architecture": "x".repeat(21)}), "architecture"),
        (json!({"colour": "red"}), "colour"),
    ] {
        for method in ["PUT", "PATCH"] {
            let what = format!("{method} compute/os/{id}");
            let (status, problem) = house.ours(&what, Some(body.clone())).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
            assert_eq!(problem["code"], "InvalidArgument", "{what}: {problem}");
            assert_eq!(problem["field"], field, "{what}: {problem}");
        }
    }
    let masked = format!("PATCH compute/os/{id}?fieldMask=colour");
    let (status, problem) = house.ours(&masked, Some(json!({}))).await;
    assert_eq!(
        (status, &problem["field"]),
        (StatusCode::BAD_REQUEST, &json!("fieldMask"))
    );
    assert_eq!(house.ok(&format!("GET compute/os/{id}"), None).await, made);
    let missing = "PUT compute/os/os-00000000";
    let (status, problem) = house.ours(missing, Some(json!({}))).await;
    assert_eq!(
        (status, &problem["message"]),
        (
            StatusCode::NOT_FOUND,
            &json!("operating_system_resource not found")
        )
    );
}

#[tokio::test]
async fn an_operating_system_is_in_the_catalogue_once() {
    let house = House::new().await;
    house
        .ok("POST compute/os", Some(os_body("Debian 12")))
        .await;
    let mut same_name = os_body("Debian 12");
    same_name["profileName"] = json!("another");
    let mut same_image = os_body("Debian 12");
    same_image["name"] = json!("another");
    for (body, message) in [
        (
            same_name,
            "operating_system_resource with this name exists already",
        ),
        (
            same_image,
            "operating_system_resource with this profileName and imageId exists already",
        ),
    ] {
        let (status, problem) = house.ours("POST compute/os", Some(body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        assert_eq!(problem["code"], "FailedPrecondition");
        assert_eq!(problem["message"], message);
    }
}

#[tokio::test]
async fn what_an_instance_or_a_policy_needs_stays() {
    let house = House::new().await;
    let things = house.furnish().await;
    let mut image = os_body("Edge 3");
    image["osType"] = json!("OS_TYPE_IMMUTABLE");
    let image = house.ok("POST compute/os", Some(image)).await;
    let image = image["resourceId"].as_str().expect("an id");
    let policy =
        json!({"name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image});
    house.ok("POST os-update-policies", Some(policy)).await;
    for (os, by) in [
        (things.os.as_str(), "an instance"),
        (image, "an update policy"),
    ] {
        let (status, problem) = house.ours(&format!("DELETE compute/os/{os}"), None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        assert_eq!(problem["code"], "FailedPrecondition");
        let message = format!("operating_system_resource is in use by {by}");
        assert_eq!(problem["message"], message);
    }
}

#[tokio::test]
async fn operating_systems_are_listed_under_the_ancestors_key() {
    let house = House::new().await;
    for name in ["Debian 12", "Debian 13", "Edge 3"] {
        house.ok("POST compute/os", Some(os_body(name))).await;
    }
    let query = "filter=name%3D%22debian%22&orderBy=name%20desc&pageSize=1";
    let list = house.ok(&format!("GET compute/os?{query}"), None).await;
    let names: Vec<_> = list["OperatingSystemResources"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|os| &os["name"])
        .collect();
    assert_eq!(names, [&json!("Debian 13")]);
    assert_eq!(
        (&list["totalElements"], &list["hasNext"]),
        (&json!(2), &json!(true))
    );
    assert!(list["nextPageToken"].is_string());
    let all = house.ok("GET compute/os", None).await;
    assert_eq!(
        (&all["totalElements"], &all["nextPageToken"]),
        (&json!(3), &Value::from(""))
    );
}

#[tokio::test]
async fn what_came_from_a_registry_is_shown_with_what_is_inside_it() {
    let house = House::new().await;
    let os = house.synced(house.ours, "walrus").await.to_string();
    let path = format!("compute/os/{os}");
    let shown = house.ok(&format!("GET {path}"), None).await;
    for (field, wanted) in [
        ("profileVersion", json!("0.8.11")),
        ("revision", json!("0.8.11")),
        ("registry", json!("release")),
        (
            "artifactDigest",
            json!(format!("sha256:{}", "ef".repeat(32))),
        ),
        ("platformBundle", json!(r#"{"artifact":"walrus"}"#)),
        ("installedPackages", json!(packages("walrus"))),
        ("existingCves", json!(cves("walrus", "open"))),
        ("fixedCves", json!(cves("walrus", "mended"))),
        ("imageSignatures", json!([statement("walrus")])),
        (
            "signature",
            json!({
                "payload": "cA==", "signature": "c2ln", "key": "cd".repeat(32), "manifest": "{}",
                "profile": "name: walrus",
            }),
        ),
    ] {
        assert_eq!(shown[field], wanted, "{field}");
    }
    let list = house.ok("GET compute/os", None).await;
    assert_eq!(list["OperatingSystemResources"], json!([shown]));

    // What was read is written back; of all that, nothing is changed by it.
    let mut wanted = shown.clone();
    wanted["metadata"] = json!(LABELS);
    for method in ["PUT", "PATCH"] {
        let what = format!("{method} {path}");
        let mut told = house.ok(&what, Some(wanted.clone())).await;
        told["timestamps"] = wanted["timestamps"].clone();
        assert_eq!(told, wanted, "{method}");
    }
}

#[tokio::test]
async fn what_an_operating_system_stands_in_does_not_repeat_what_is_inside_it() {
    let house = House::new().await;
    let os = house.synced(house.ours, "walrus").await.to_string();
    let host = json!({"serialNumber": "ABC12345"});
    let host = id_of(&house.ok("POST compute/hosts/register", Some(host)).await);
    let instance = json!({"hostID": host, "osID": os});
    let instance = id_of(&house.ok("POST compute/instances", Some(instance)).await);
    let shown = house
        .ok(&format!("GET compute/instances/{instance}"), None)
        .await;
    // An instance has the vulnerabilities of what it runs.
    assert_eq!(shown["existingCves"], cves("walrus", "open"));
    assert_eq!(shown["os"]["resourceId"], os);
    for field in ["installedPackages", "existingCves", "registry"] {
        assert_eq!(shown["os"][field], "", "{field}");
    }
    let list = house.ok("GET compute/instances", None).await;
    assert_eq!(list["instances"][0]["existingCves"], "");
}

#[tokio::test]
async fn a_list_leaves_out_what_is_too_long_for_it() {
    let house = House::new().await;
    let list = packages("walrus");
    let list_of = |bytes: usize| format!("{list}{}", " ".repeat(bytes - list.len()));
    let (long, longer) = (list_of(500_000), list_of(500_001));
    for (version, packages) in [("1.0", &long), ("2.0", &longer)] {
        let os = house
            .synced_with(house.ours, "walrus", version, packages)
            .await;
        let one = house.ok(&format!("GET compute/os/{os}"), None).await;
        assert_eq!(one["installedPackages"], packages.as_str(), "{version}");
    }
    let list = house.ok("GET compute/os?orderBy=imageId", None).await;
    let listed = &list["OperatingSystemResources"];
    assert_eq!(listed[0]["installedPackages"], long.as_str());
    assert_eq!(listed[1]["installedPackages"], "");
    assert_eq!(listed[1]["existingCves"], cves("walrus", "open"));
}

#[tokio::test]
async fn a_page_of_many_leaves_out_what_is_too_long_for_its_share() {
    let house = House::new().await;
    let list = packages("walrus");
    let list_of = |bytes: usize| format!("{list}{}", " ".repeat(bytes - list.len()));
    // Five million bytes are shared by twelve.
    let (long, longer) = (list_of(416_666), list_of(416_667));
    for n in 0..12 {
        let packages = if n % 2 == 0 { &long } else { &longer };
        let version = format!("1.{n:02}");
        house
            .synced_with(house.ours, "walrus", &version, packages)
            .await;
    }
    let told = async |query: &str| -> Vec<usize> {
        let list = house
            .ok(&format!("GET compute/os?orderBy=imageId{query}"), None)
            .await;
        let listed = list["OperatingSystemResources"].as_array();
        let lengths = listed.expect("a list").iter();
        let length = |os: &Value| os["installedPackages"].as_str().map(str::len);
        lengths.filter_map(length).collect()
    };
    let in_turn = |even: usize, odd: usize| [even, odd].repeat(6);
    assert_eq!(told("&pageSize=100").await, in_turn(416_666, 0));
    assert_eq!(told("&pageSize=12").await, in_turn(416_666, 0));
    // Ten have room for all that a list takes, and a whole list is told ten at a time.
    let whole = in_turn(416_666, 416_667);
    assert_eq!(told("&pageSize=10").await, whole[..10]);
    assert_eq!(told("").await, whole);
}
