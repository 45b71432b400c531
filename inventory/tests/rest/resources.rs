//! What each resource allows and rejects.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::test_server::{Caller, TestServer, UUID};

#[tokio::test]
async fn a_host_is_registered_once() {
    let server = TestServer::new().await;
    let body = |uuid: &str, serial: &str| Some(json!({"uuid": uuid, "serialNumber": serial}));
    server.expect_ok("POST compute/hosts/register", body(&UUID.to_uppercase(), "")).await;
    let (status, problem) =
        server.request_as_writer("POST compute/hosts/register", body(UUID, "")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(problem["code"], "FailedPrecondition");
    assert_eq!(problem["field"], "uuid");

    server.expect_ok("POST compute/hosts/register", body("", "ABC12345")).await;
    let (status, problem) =
        server.request_as_writer("POST compute/hosts/register", body("", "ABC12345")).await;
    assert_eq!((status, &problem["field"]), (StatusCode::BAD_REQUEST, &json!("serialNumber")));

    // Another project may have a host with the same UUID, and must not learn of ours.
    let theirs = "POST /v1/projects/theirs/compute/hosts/register";
    let (status, _) = server.request_as(Caller::Foreigner, theirs, body(UUID, "")).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_resource_in_use_cannot_be_deleted() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
    for used in [
        format!("DELETE compute/hosts/{}", resources.host),
        format!("DELETE compute/os/{}", resources.os),
        format!("DELETE os-update-policies/{}", resources.policy),
    ] {
        let (status, problem) = server.request_as_writer(&used, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{used}");
        assert_eq!(problem["code"], "FailedPrecondition", "{used}");
    }
    for order in [
        format!("DELETE os-update-runs/{}", resources.run),
        format!("DELETE compute/instances/{}", resources.instance),
        format!("DELETE schedules/single/{}", resources.schedule),
        format!("DELETE compute/hosts/{}", resources.host),
        format!("DELETE os-update-policies/{}", resources.policy),
        format!("DELETE compute/os/{}", resources.os),
    ] {
        assert_eq!(server.expect_ok(&order, None).await, json!({}), "{order}");
        let (status, problem) = server.request_as_writer(&order, None).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::NOT_FOUND, &json!("NotFound")),
            "{order}"
        );
    }
}

#[tokio::test]
async fn the_secret_of_a_join_token_is_shown_once_and_the_token_can_be_revoked() {
    let server = TestServer::new().await;
    let body = json!({"lifetimeSeconds": 60, "oneTime": true, "mayCreateHosts": false});
    let created = server.expect_ok("POST join-tokens", Some(body)).await;
    let token = created["token"].as_str().expect("the token itself");
    assert!(token.starts_with(&format!("ekj1.{}.", "ab".repeat(32))), "{token}");
    assert_eq!(created["expiresAt"], "2026-03-01T12:01:00Z");
    assert_eq!(created["usable"], true);

    let path = format!("join-tokens/{}", created["resourceId"].as_str().expect("an id"));
    let fetched = server.expect_ok(&format!("GET {path}"), None).await;
    assert_eq!(fetched["token"], Value::Null);
    assert_eq!(fetched["mayCreateHosts"], false);

    server.clock.advance(chrono::TimeDelta::seconds(61));
    assert_eq!(server.expect_ok(&format!("GET {path}"), None).await["usable"], false);
    assert_eq!(server.expect_ok(&format!("PUT {path}/revoke"), None).await, json!({}));
    let revoked = server.expect_ok("GET join-tokens", None).await;
    assert_eq!(revoked["joinTokens"][0]["revokedAt"], "2026-03-01T12:01:01Z");
}

#[tokio::test]
async fn projects_are_created_by_administrators_and_seen_by_their_members() {
    let server = TestServer::new().await;
    let body = || Some(json!({"description": "ours alone"}));
    let put = "PUT /v1/projects/lab";
    let (status, _) = server.request_as(Caller::Writer, put, body()).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, created) = server.request_as(Caller::Administrator, put, body()).await;
    assert_eq!((status, &created["spec"]["description"]), (StatusCode::OK, &json!("ours alone")));

    let (status, problem) = server.request_as(Caller::Administrator, put, body()).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("FailedPrecondition")));
    let again = "PUT /v1/projects/lab?update_if_exists=true";
    let (status, described) =
        server.request_as(Caller::Administrator, again, Some(json!({"description": "all"}))).await;
    assert_eq!((status, &described["spec"]["description"]), (StatusCode::OK, &json!("all")));
    assert_eq!(
        described["status"]["projectStatus"]["uID"],
        created["status"]["projectStatus"]["uID"]
    );

    let names = |answer: &Value| {
        let list = answer.as_array().expect("an array").iter();
        list.map(|project| project["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let (_, all) = server.request_as(Caller::Administrator, "GET /v1/projects", None).await;
    assert_eq!(names(&all), ["lab", "ours", "theirs"]);
    let (_, mine) = server.request_as(Caller::Reader, "GET /v1/projects", None).await;
    assert_eq!(names(&mine), ["ours"]);
    let (status, _) = server.request_as(Caller::Node, "GET /v1/projects", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let (status, fetched) = server.request_as(Caller::Reader, "GET /v1/projects/ours", None).await;
    assert_eq!((status, &fetched["name"]), (StatusCode::OK, &json!("ours")));

    server.seed_resources().await;
    let (status, problem) =
        server.request_as(Caller::Administrator, "DELETE /v1/projects/ours", None).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("FailedPrecondition")));
    let (status, _) =
        server.request_as(Caller::Administrator, "DELETE /v1/projects/lab", None).await;
    assert_eq!(status, StatusCode::OK);
}
