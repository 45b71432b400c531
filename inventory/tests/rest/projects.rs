//! Deletion of projects.

use axum::http::StatusCode;
use serde_json::json;

use crate::test_server::{Caller, TestServer};

const DELETE: &str = "DELETE /v1/projects/ours";

#[tokio::test]
async fn a_project_with_hosts_is_deleted_only_with_force() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
    server.seed_update_controls(&resources).await;
    for query in ["", "?force=false"] {
        let what = format!("{DELETE}{query}");
        let (status, problem) = server.request_as(Caller::Administrator, &what, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
        assert_eq!(problem["code"], "FailedPrecondition", "{what}: {problem}");
        let why = "project is in use by hosts; delete it with force to delete the hosts as well";
        assert_eq!(problem["message"], why, "{what}");
    }
    server.expect_ok(&format!("GET compute/hosts/{}", resources.host), None).await;

    let what = format!("{DELETE}?force=true");
    let (status, answer) = server.request_as(Caller::Administrator, &what, None).await;
    assert_eq!((status, answer), (StatusCode::OK, json!({})));
    let (status, _) = server.request_as(Caller::Administrator, &what, None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = server.request_as_writer("GET compute/hosts", None).await;
    assert_eq!(status, StatusCode::FORBIDDEN);

    let put = "PUT /v1/projects/ours";
    let (status, _) = server.request_as(Caller::Administrator, put, Some(json!({}))).await;
    assert_eq!(status, StatusCode::OK, "the name is free again");
    for list in ["compute/hosts", "regions", "os-update-runs"] {
        let what = format!("GET /v1/projects/ours/{list}");
        let (status, answer) = server.request_as(Caller::Administrator, &what, None).await;
        assert_eq!((status, &answer["totalElements"]), (StatusCode::OK, &json!(0)), "{list}");
    }
}

#[tokio::test]
async fn a_project_without_hosts_is_deleted_with_its_contents() {
    let server = TestServer::new().await;
    let region = server.expect_ok("POST regions", Some(json!({"name": "south"}))).await;
    let site = json!({"name": "ulm", "regionId": region["resourceId"]});
    server.expect_ok("POST sites", Some(site)).await;
    let policy = json!({"name": "all", "updatePolicy": "UPDATE_POLICY_LATEST"});
    server.expect_ok("POST os-update-policies", Some(policy)).await;
    let (status, answer) = server.request_as(Caller::Administrator, DELETE, None).await;
    assert_eq!((status, answer), (StatusCode::OK, json!({})));
}

#[tokio::test]
async fn only_administrators_delete_projects_and_force_must_be_true_or_false() {
    let server = TestServer::new().await;
    let force = format!("{DELETE}?force=true");
    for (caller, expected) in [
        (Caller::Anonymous, StatusCode::UNAUTHORIZED),
        (Caller::Node, StatusCode::FORBIDDEN),
        (Caller::Reader, StatusCode::FORBIDDEN),
        (Caller::Writer, StatusCode::FORBIDDEN),
        (Caller::Foreigner, StatusCode::FORBIDDEN),
    ] {
        let (status, problem) = server.request_as(caller, &force, None).await;
        assert_eq!(status, expected, "{caller:?}: {problem}");
    }
    for query in ["?force=yes", "?force="] {
        let what = format!("{DELETE}{query}");
        let (status, problem) = server.request_as(Caller::Administrator, &what, None).await;
        assert_eq!(
            (status, &problem["field"]),
            (StatusCode::BAD_REQUEST, &json!("force")),
            "{what}"
        );
    }
    server.expect_ok("GET regions", None).await;
}
