//! What each resource allows and rejects.

use serde_json::{Value, json};

use crate::test_server::{Caller, TestServer, UUID};

#[tokio::test]
async fn a_host_is_registered_once() {
    let server = TestServer::new().await;
    let body = |uuid: &str, serial: &str| Some(json!({"uuid": uuid, "serialNumber": serial}));
    server.expect_ok("POST compute/hosts/register", body(&UUID.to_uppercase(), "")).await;
    let expected = json!({"code": "FailedPrecondition", "field": "uuid"});
    server.expect_problem("POST compute/hosts/register", body(UUID, ""), 400, expected).await;

    server.expect_ok("POST compute/hosts/register", body("", "ABC12345")).await;
    let expected = json!({"field": "serialNumber"});
    server.expect_problem("POST compute/hosts/register", body("", "ABC12345"), 400, expected).await;

    // Another project may have a host with the same UUID, and must not learn of ours.
    let theirs = "POST /v1/projects/theirs/compute/hosts/register";
    server.client_of(Caller::Foreigner).expect_ok(theirs, body(UUID, "")).await;
}

#[tokio::test]
async fn a_resource_in_use_cannot_be_deleted() {
    let (server, resources) = TestServer::with_resources().await;
    for used in [
        format!("DELETE compute/hosts/{}", resources.host),
        format!("DELETE compute/os/{}", resources.os),
        format!("DELETE os-update-policies/{}", resources.policy),
    ] {
        server.expect_problem(&used, None, 400, json!({"code": "FailedPrecondition"})).await;
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
        server.expect_problem(&order, None, 404, json!({"code": "NotFound"})).await;
    }
}

#[tokio::test]
async fn the_secret_of_a_join_token_is_shown_once_and_the_token_can_be_revoked() {
    let server = TestServer::new().await;
    let body = json!({"lifetimeSeconds": 60, "oneTime": true, "mayCreateHosts": false});
    let created = server.post("join-tokens", body).await;
    let token = created["token"].as_str().expect("the token itself");
    assert!(token.starts_with(&format!("ekj1.{}.", "ab".repeat(32))), "{token}");
    assert_eq!(created["expiresAt"], "2026-03-01T12:01:00Z");
    assert_eq!(created["usable"], true);

    let path = format!("join-tokens/{}", created["resourceId"].as_str().expect("an id"));
    let fetched = server.get(&path).await;
    assert_eq!(fetched["token"], Value::Null);
    assert_eq!(fetched["mayCreateHosts"], false);

    server.clock.advance(chrono::TimeDelta::seconds(61));
    assert_eq!(server.get(&path).await["usable"], false);
    assert_eq!(server.expect_ok(&format!("PUT {path}/revoke"), None).await, json!({}));
    let revoked = server.get("join-tokens").await;
    assert_eq!(revoked["joinTokens"][0]["revokedAt"], "2026-03-01T12:01:01Z");
}

#[tokio::test]
async fn projects_are_created_by_administrators_and_seen_by_their_members() {
    let server = TestServer::new().await;
    let body = || Some(json!({"description": "ours alone"}));
    let put = "PUT /v1/projects/lab";
    let administrator = server.client_of(Caller::Administrator);
    server.expect_problem(put, body(), 403, json!({})).await;
    let created = administrator.expect_ok(put, body()).await;
    assert_eq!(created["spec"]["description"], "ours alone");

    let used = json!({"code": "FailedPrecondition"});
    administrator.expect_problem(put, body(), 400, used.clone()).await;
    let again = "/v1/projects/lab?update_if_exists=true";
    let described = administrator.put(again, json!({"description": "all"})).await;
    assert_eq!(described["spec"]["description"], "all");
    assert_eq!(
        described["status"]["projectStatus"]["uID"],
        created["status"]["projectStatus"]["uID"]
    );

    let names = |answer: &Value| {
        let list = answer.as_array().expect("an array").iter();
        list.map(|project| project["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&administrator.get("/v1/projects").await), ["lab", "ours", "theirs"]);
    let reader = server.client_of(Caller::Reader);
    assert_eq!(names(&reader.get("/v1/projects").await), ["ours"]);
    server.client_of(Caller::Node).expect_problem("GET /v1/projects", None, 401, json!({})).await;
    assert_eq!(reader.get("").await["name"], "ours");

    server.seed_resources().await;
    administrator.expect_problem("DELETE /v1/projects/ours", None, 400, used).await;
    administrator.delete("/v1/projects/lab").await;
}
