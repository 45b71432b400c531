//! Operating systems: what of them can be changed, and what keeps them.

use axum::http::StatusCode;
use chrono::TimeDelta;
use serde_json::{Value, json};

use crate::house::{House, os_body};

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
