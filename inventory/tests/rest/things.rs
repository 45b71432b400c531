//! What each resource allows and refuses.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::house::{House, UUID, Who, os_body};

#[tokio::test]
async fn a_host_is_registered_once() {
    let house = House::new().await;
    let body = |uuid: &str, serial: &str| Some(json!({"uuid": uuid, "serialNumber": serial}));
    house
        .ok(
            "POST compute/hosts/register",
            body(&UUID.to_uppercase(), ""),
        )
        .await;
    let (status, problem) = house
        .ours("POST compute/hosts/register", body(UUID, ""))
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(problem["code"], "FailedPrecondition");
    assert_eq!(problem["field"], "uuid");

    house
        .ok("POST compute/hosts/register", body("", "ABC12345"))
        .await;
    let (status, problem) = house
        .ours("POST compute/hosts/register", body("", "ABC12345"))
        .await;
    assert_eq!(
        (status, &problem["field"]),
        (StatusCode::BAD_REQUEST, &json!("serialNumber"))
    );

    // Another project may have a machine with the same UUID: nothing of ours is told there.
    let theirs = "POST /v1/projects/theirs/compute/hosts/register";
    let (status, _) = house.ask(Who::Foreigner, theirs, body(UUID, "")).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn what_is_used_cannot_be_deleted() {
    let house = House::new().await;
    let things = house.furnish().await;
    for used in [
        format!("DELETE compute/hosts/{}", things.host),
        format!("DELETE compute/os/{}", things.os),
        format!("DELETE os-update-policies/{}", things.policy),
    ] {
        let (status, problem) = house.ours(&used, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{used}");
        assert_eq!(problem["code"], "FailedPrecondition", "{used}");
    }
    for order in [
        format!("DELETE os-update-runs/{}", things.run),
        format!("DELETE compute/instances/{}", things.instance),
        format!("DELETE schedules/single/{}", things.schedule),
        format!("DELETE compute/hosts/{}", things.host),
        format!("DELETE os-update-policies/{}", things.policy),
        format!("DELETE compute/os/{}", things.os),
    ] {
        assert_eq!(house.ok(&order, None).await, json!({}), "{order}");
        let (status, problem) = house.ours(&order, None).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::NOT_FOUND, &json!("NotFound")),
            "{order}"
        );
    }
}

#[tokio::test]
async fn a_policy_must_be_meant_for_the_operating_system_it_is_assigned_to() {
    let house = House::new().await;
    let things = house.furnish().await;
    let mut image = os_body("Edge 3");
    image["osType"] = json!("OS_TYPE_IMMUTABLE");
    let image = house.ok("POST compute/os", Some(image)).await;
    let policy = json!({"name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image["resourceId"]});
    let policy = house.ok("POST os-update-policies", Some(policy)).await;
    assert_eq!(policy["targetOs"]["name"], "Edge 3");
    assert_eq!(policy["targetOsId"], "");

    let patch = format!("PATCH compute/instances/{}", things.instance);
    let body = Some(json!({"osUpdatePolicyID": policy["resourceId"]}));
    let (status, problem) = house.ours(&patch, body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(problem["field"], "osUpdatePolicyID");
    insta::assert_snapshot!(
        problem["message"].as_str().expect("a text"),
        @"osUpdatePolicyID: policy image does not fit: it wishes for an image, and the instance is updated by packages"
    );
}

#[tokio::test]
async fn what_cannot_be_changed_yet_is_refused_with_another_value_and_taken_with_its_own() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = format!("compute/instances/{}", things.instance);
    let before = house.ok(&format!("GET {path}"), None).await;
    for (query, body, field) in [
        ("", json!({"osID": "os-00000001", "name": "x"}), "osID"),
        (
            "",
            json!({"hostID": "host-00000001", "name": "x"}),
            "hostID",
        ),
        ("", json!({"hostID": null}), "hostID"),
        ("", json!({"kind": 7}), "kind"),
        ("?fieldMask=osID", json!({}), "osID"),
        (
            "",
            json!({"securityFeature": "SECURITY_FEATURE_NONE"}),
            "securityFeature",
        ),
        (
            "",
            json!({"localAccountID": "localaccount-00000001"}),
            "localAccountID",
        ),
        (
            "",
            json!({"customConfigID": ["customconfig-00000001"]}),
            "customConfigID",
        ),
    ] {
        let what = format!("PATCH {path}{query}");
        let (status, problem) = house.ours(&what, Some(body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
        assert_eq!(problem["field"], field, "{what}: {problem}");
        assert_eq!(
            problem["message"],
            format!("{field}: cannot be changed yet")
        );
    }
    assert_eq!(house.ok(&format!("GET {path}"), None).await, before);

    let mut body = before.clone();
    body["name"] = json!("renamed");
    // What is read holds no policy's id: it would take the policy away.
    let what = format!(
        "PATCH {path}?fieldMask=name,kind,hostID,osID,localAccountID,customConfigID,securityFeature"
    );
    let renamed = house.ok(&what, Some(body)).await;
    assert_eq!(renamed["name"], "renamed");
}

#[tokio::test]
async fn a_change_touches_only_what_its_mask_names() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = |query: &str| format!("PATCH compute/instances/{}{query}", things.instance);

    let renamed = house
        .ok(
            &path(""),
            Some(json!({"name": "renamed", "host": null, "hostID": things.host})),
        )
        .await;
    assert_eq!(renamed["name"], "renamed");
    assert_eq!(renamed["updatePolicy"]["name"], "security");

    let masked = house
        .ok(
            &path("?fieldMask=kind"),
            Some(json!({"name": "not meant", "hostID": "x"})),
        )
        .await;
    assert_eq!(masked["name"], "renamed");

    let cleared = house
        .ok(&path("?fieldMask=osUpdatePolicyID"), Some(json!({})))
        .await;
    assert_eq!(cleared["updatePolicy"], Value::Null);
    assert_eq!(cleared["name"], "renamed");

    let linked = house
        .ok(&path(""), Some(json!({"osUpdatePolicyID": things.policy})))
        .await;
    assert_eq!(linked["updatePolicy"]["name"], "security");
    let unlinked = house
        .ok(&path(""), Some(json!({"osUpdatePolicyID": null})))
        .await;
    assert_eq!(unlinked["updatePolicy"], Value::Null);
}

#[tokio::test]
async fn a_join_token_is_shown_once_and_taken_back() {
    let house = House::new().await;
    let body = json!({"lifetimeSeconds": 60, "oneTime": true, "mayCreateHosts": false});
    let made = house.ok("POST join-tokens", Some(body)).await;
    let token = made["token"].as_str().expect("the token itself");
    assert!(
        token.starts_with(&format!("ekj1.{}.", "ab".repeat(32))),
        "{token}"
    );
    assert_eq!(made["expiresAt"], "2026-03-01T12:01:00Z");
    assert_eq!(made["usable"], true);

    let path = format!(
        "join-tokens/{}",
        made["resourceId"].as_str().expect("an id")
    );
    let shown = house.ok(&format!("GET {path}"), None).await;
    assert_eq!(shown["token"], Value::Null);
    assert_eq!(shown["mayCreateHosts"], false);

    house.clock.advance(chrono::TimeDelta::seconds(61));
    assert_eq!(
        house.ok(&format!("GET {path}"), None).await["usable"],
        false
    );
    assert_eq!(
        house.ok(&format!("PUT {path}/revoke"), None).await,
        json!({})
    );
    let revoked = house.ok("GET join-tokens", None).await;
    assert_eq!(
        revoked["joinTokens"][0]["revokedAt"],
        "2026-03-01T12:01:01Z"
    );
}

#[tokio::test]
async fn projects_are_made_by_administrators_and_seen_by_their_members() {
    let house = House::new().await;
    let body = || Some(json!({"description": "ours alone"}));
    let put = "PUT /v1/projects/lab";
    let (status, _) = house.ask(Who::Writer, put, body()).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, made) = house.ask(Who::Administrator, put, body()).await;
    assert_eq!(
        (status, &made["spec"]["description"]),
        (StatusCode::OK, &json!("ours alone"))
    );

    let (status, problem) = house.ask(Who::Administrator, put, body()).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::BAD_REQUEST, &json!("FailedPrecondition"))
    );
    let again = "PUT /v1/projects/lab?update_if_exists=true";
    let (status, described) = house
        .ask(
            Who::Administrator,
            again,
            Some(json!({"description": "all"})),
        )
        .await;
    assert_eq!(
        (status, &described["spec"]["description"]),
        (StatusCode::OK, &json!("all"))
    );
    assert_eq!(
        described["status"]["projectStatus"]["uID"],
        made["status"]["projectStatus"]["uID"]
    );

    let names = |answer: &Value| {
        let list = answer.as_array().expect("an array").iter();
        list.map(|project| project["name"].as_str().expect("a name").to_owned())
            .collect::<Vec<_>>()
    };
    let (_, all) = house
        .ask(Who::Administrator, "GET /v1/projects", None)
        .await;
    assert_eq!(names(&all), ["lab", "ours", "theirs"]);
    let (_, mine) = house.ask(Who::Reader, "GET /v1/projects", None).await;
    assert_eq!(names(&mine), ["ours"]);
    let (status, _) = house.ask(Who::Node, "GET /v1/projects", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let (status, shown) = house.ask(Who::Reader, "GET /v1/projects/ours", None).await;
    assert_eq!((status, &shown["name"]), (StatusCode::OK, &json!("ours")));

    house.furnish().await;
    let (status, problem) = house
        .ask(Who::Administrator, "DELETE /v1/projects/ours", None)
        .await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::BAD_REQUEST, &json!("FailedPrecondition"))
    );
    let (status, _) = house
        .ask(Who::Administrator, "DELETE /v1/projects/lab", None)
        .await;
    assert_eq!(status, StatusCode::OK);
}
