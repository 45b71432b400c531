//! The end of projects.

use axum::http::StatusCode;
use serde_json::json;

use crate::house::{House, Who};

const DELETE: &str = "DELETE /v1/projects/ours";

#[tokio::test]
async fn a_project_that_holds_hosts_goes_only_by_force() {
    let house = House::new().await;
    let things = house.furnish().await;
    house.want(&things).await;
    for query in ["", "?force=false"] {
        let what = format!("{DELETE}{query}");
        let (status, problem) = house.ask(Who::Administrator, &what, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
        assert_eq!(problem["code"], "FailedPrecondition", "{what}: {problem}");
        let why = "project is in use by hosts, and goes with them only by force";
        assert_eq!(problem["message"], why, "{what}");
    }
    house
        .ok(&format!("GET compute/hosts/{}", things.host), None)
        .await;

    let what = format!("{DELETE}?force=true");
    let (status, answer) = house.ask(Who::Administrator, &what, None).await;
    assert_eq!((status, answer), (StatusCode::OK, json!({})));
    let (status, _) = house.ask(Who::Administrator, &what, None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = house.ours("GET compute/hosts", None).await;
    assert_eq!(status, StatusCode::FORBIDDEN);

    let put = "PUT /v1/projects/ours";
    let (status, _) = house.ask(Who::Administrator, put, Some(json!({}))).await;
    assert_eq!(status, StatusCode::OK, "the name is free again");
    for list in ["compute/hosts", "regions", "os-update-runs"] {
        let what = format!("GET /v1/projects/ours/{list}");
        let (status, answer) = house.ask(Who::Administrator, &what, None).await;
        assert_eq!(
            (status, &answer["totalElements"]),
            (StatusCode::OK, &json!(0)),
            "{list}"
        );
    }
}

#[tokio::test]
async fn a_project_without_hosts_goes_with_what_it_holds() {
    let house = House::new().await;
    let region = house
        .ok("POST regions", Some(json!({"name": "south"})))
        .await;
    let site = json!({"name": "ulm", "regionId": region["resourceId"]});
    house.ok("POST sites", Some(site)).await;
    let policy = json!({"name": "all", "updatePolicy": "UPDATE_POLICY_LATEST"});
    house.ok("POST os-update-policies", Some(policy)).await;
    let (status, answer) = house.ask(Who::Administrator, DELETE, None).await;
    assert_eq!((status, answer), (StatusCode::OK, json!({})));
}

#[tokio::test]
async fn only_administrators_delete_projects_and_only_by_a_clear_word() {
    let house = House::new().await;
    let force = format!("{DELETE}?force=true");
    for (who, wanted) in [
        (Who::Nobody, StatusCode::UNAUTHORIZED),
        (Who::Node, StatusCode::FORBIDDEN),
        (Who::Reader, StatusCode::FORBIDDEN),
        (Who::Writer, StatusCode::FORBIDDEN),
        (Who::Foreigner, StatusCode::FORBIDDEN),
    ] {
        let (status, problem) = house.ask(who, &force, None).await;
        assert_eq!(status, wanted, "{who:?}: {problem}");
    }
    for query in ["?force=yes", "?force="] {
        let what = format!("{DELETE}{query}");
        let (status, problem) = house.ask(Who::Administrator, &what, None).await;
        assert_eq!(
            (status, &problem["field"]),
            (StatusCode::BAD_REQUEST, &json!("force")),
            "{what}"
        );
    }
    house.ok("GET regions", None).await;
}
