//! Deletion of projects.

use axum::http::StatusCode;
use serde_json::json;

use crate::test_server::{Caller, TestServer};

const DELETE: &str = "DELETE /v1/projects/ours";

#[tokio::test]
async fn a_project_with_hosts_is_deleted_only_with_force() {
    let (server, resources) = TestServer::with_resources().await;
    server.seed_update_controls(&resources).await;
    let administrator = server.client_of(Caller::Administrator);
    let why = "project is in use by hosts; delete it with force to delete the hosts as well";
    for query in ["", "?force=false"] {
        let expected = json!({"code": "FailedPrecondition", "message": why});
        administrator.expect_problem(&format!("{DELETE}{query}"), None, 400, expected).await;
    }
    server.get(&format!("compute/hosts/{}", resources.host)).await;

    let what = format!("{DELETE}?force=true");
    assert_eq!(administrator.expect_ok(&what, None).await, json!({}));
    administrator.expect_problem(&what, None, 404, json!({})).await;
    server.expect_problem("GET compute/hosts", None, 403, json!({})).await;

    administrator.put("", json!({})).await;
    for list in ["compute/hosts", "regions", "os-update-runs"] {
        assert_eq!(administrator.get(list).await["totalElements"], 0, "{list}");
    }
}

#[tokio::test]
async fn a_project_without_hosts_is_deleted_with_its_contents() {
    let server = TestServer::new().await;
    let region = server.post("regions", json!({"name": "south"})).await;
    let site = json!({"name": "ulm", "regionId": region["resourceId"]});
    server.post("sites", site).await;
    let policy = json!({"name": "all", "updatePolicy": "UPDATE_POLICY_LATEST"});
    server.post("os-update-policies", policy).await;
    server.client_of(Caller::Administrator).delete("").await;
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
        let (status, problem) = server.client_of(caller).request(&force, None).await;
        assert_eq!(status, expected, "{caller:?}: {problem}");
    }
    for query in ["?force=yes", "?force="] {
        let (what, expected) = (format!("{DELETE}{query}"), json!({"field": "force"}));
        server.client_of(Caller::Administrator).expect_problem(&what, None, 400, expected).await;
    }
    server.get("regions").await;
}

#[tokio::test]
async fn a_refused_change_names_the_missing_role() {
    let server = TestServer::new().await;
    let expected = json!({
        "type": evenkeel_api::Problem::MISSING_ROLE_TYPE,
        "message": "you may read in project ours, not write: this needs the role operator@ours",
    });
    let (reader, stranger) =
        (server.client_of(Caller::Reader), server.client_of(Caller::Foreigner));
    let body = || Some(json!({"name": "south"}));
    reader.expect_problem("POST regions", body(), 403, expected).await;
    let expected = json!({
        "type": "urn:evenkeel:problem:permission-denied",
        "message": "no such project, or no role in it for this",
    });
    stranger.expect_problem("POST regions", body(), 403, expected).await;
}
