//! What each resource allows and refuses.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::house::{House, UUID, Who};

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
