//! No caller of one project reads or changes anything of another, on any path.

mod attack_context;
mod attempts;
mod bodies;
mod filters;
pub mod rng;
mod secrets;
mod swapped_scopes;
mod test_project;

use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use evenkeel_store::testing::tenant_rows;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::statuses::{operations, request_body, required_query};
use crate::test_server::{
    Caller, ResourceIds, TestServer, has_id_placeholder, legacy_path, nightly, os_body,
};
use attack_context::AttackContext;
use attempts::random_attempt;
use rng::Rng;
use test_project::TestProject;

/// Attempts of each project to reach the other one: a sample, or as many as
/// `EVENKEEL_ISOLATION_ATTEMPTS` says.
#[expect(clippy::disallowed_methods, reason = "a test has no configuration")]
fn attempts_per_project() -> usize {
    match std::env::var("EVENKEEL_ISOLATION_ATTEMPTS") {
        Ok(attempts) => attempts.parse().expect("EVENKEEL_ISOLATION_ATTEMPTS is a number"),
        Err(_) => 1_000,
    }
}

/// The seed of the random attempts: `ISOLATION_SEED` if it is set, otherwise a new one each time.
#[expect(clippy::disallowed_methods, reason = "a test has no configuration")]
fn rng_seed() -> u64 {
    match std::env::var("ISOLATION_SEED") {
        Ok(seed) => seed.parse().expect("ISOLATION_SEED is a number"),
        Err(_) => Uuid::new_v4().as_u64_pair().1,
    }
}

#[tokio::test]
async fn no_attempt_reads_or_changes_another_project() {
    let (seed, count) = (rng_seed(), attempts_per_project());
    println!("ISOLATION_SEED={seed}");
    let server = TestServer::new().await;
    let walruses = TestProject::set_up(&server, Caller::Writer).await;
    let penguins = TestProject::set_up(&server, Caller::Foreigner).await;
    let mut rng = Rng::new(seed);
    for (attacker, victim) in [(&walruses, &penguins), (&penguins, &walruses)] {
        let context = AttackContext::new(&server, attacker, victim).await;
        let before = tenant_rows(&server.store, victim.tenant).await;
        let attempts: Vec<_> = (0..count).map(|_| random_attempt(&mut rng, &context)).collect();
        let failures = context.try_all(&attempts).await;
        let sample: Vec<_> = failures.iter().take(5).collect();
        let wrong = failures.len();
        assert!(failures.is_empty(), "seed {seed}: {wrong} are wrong: {sample:#?}");
        let compared = context.compared.load(Ordering::Relaxed);
        assert!(compared > count / 20, "only {compared} were compared");
        let after = tenant_rows(&server.store, victim.tenant).await;
        let changed: Vec<_> = after.iter().filter(|row| !before.contains(row)).collect();
        assert!(changed.is_empty(), "seed {seed}: {changed:#?}");
        assert_eq!(after.len(), before.len(), "seed {seed}: rows are gone");
        println!("{count} attempts of {}, {compared} compared with unused ids", attacker.name);
    }
}

#[tokio::test]
async fn a_foreigner_gets_nothing_through_any_path() {
    let (server, resources) = TestServer::with_resources().await;
    server.seed_update_controls(&resources).await;
    let before = tenant_rows(&server.store, server.ours).await;
    let mut tried = 0;
    for (method, path, operation) in operations() {
        if !path.contains("{projectName}") {
            continue;
        }
        let body = || request_body(&operation, &resources, &server);
        let query = required_query(&operation);
        // With the name of the project that owns the resources.
        let what = format!("{method} {}{query}", resources.fill(&path, "ours"));
        server.client_of(Caller::Foreigner).expect_problem(&what, body(), 403, json!({})).await;
        // With the name of the foreigner's own project and the ids of the resources.
        if has_id_placeholder(&path) {
            let what = format!("{method} {}{query}", resources.fill(&path, "theirs"));
            server.client_of(Caller::Foreigner).expect_problem(&what, body(), 404, json!({})).await;
        }
        tried += 1;
    }
    assert!(tried > 90, "only {tried} operations were tried");
    let after = tenant_rows(&server.store, server.ours).await;
    assert_eq!(after, before, "something was changed");
}

#[tokio::test]
async fn an_impossible_project_name_is_an_unknown_project() {
    let server = TestServer::new().await;
    for name in ["%00", "ours%00", "%FF", "Ours", "nobodys"] {
        for path in ["", "/compute/hosts", "/os-update-runs"] {
            let what = format!("GET /v1/projects/{name}{path}");
            for caller in [Caller::Foreigner, Caller::Writer, Caller::Administrator] {
                server.client_of(caller).expect_problem(&what, None, 403, json!({})).await;
            }
        }
    }
    let bodies = [("PUT", Some(json!({"description": "x"}))), ("DELETE", None)];
    for (method, body) in bodies {
        let what = format!("{method} /v1/projects/%00");
        server
            .client_of(Caller::Foreigner)
            .expect_problem(&what, body.clone(), 403, json!({}))
            .await;
        let (status, answer) = server.client_of(Caller::Administrator).request(&what, body).await;
        let expected = match method {
            "PUT" => StatusCode::BAD_REQUEST,
            _ => StatusCode::NOT_FOUND,
        };
        assert_eq!(status, expected, "{what}: {answer}");
    }
}

#[tokio::test]
async fn the_legacy_form_does_not_bypass_isolation() {
    let (server, resources) = TestServer::with_resources().await;
    server.seed_update_controls(&resources).await;
    let token = server.token(Caller::Foreigner);
    for (method, path, operation) in operations() {
        if !path.starts_with("/v1/projects/{projectName}/") {
            continue;
        }
        let uri = legacy_path(&resources.fill(&path, "ours"));
        let what = format!("{method} {uri}{}", required_query(&operation));
        for (project, expected) in
            [(server.ours, StatusCode::FORBIDDEN), (server.theirs, StatusCode::NOT_FOUND)]
        {
            if expected == StatusCode::NOT_FOUND && !has_id_placeholder(&path) {
                continue;
            }
            let (project, body) =
                (project.to_string(), request_body(&operation, &resources, &server));
            let client = server.client(token.as_deref(), Some(&project));
            let (status, answer) = client.request(&what, body).await;
            assert_eq!(status, expected, "{what}: {answer}");
            let is_about_the_path = answer["type"] == "urn:evenkeel:problem:no-such-path";
            assert!(!is_about_the_path, "{what}: {answer}");
        }
    }
}

/// Sends a request of the foreigner in their own project.
async fn request_as_foreigner(server: &TestServer, what: &str, body: Value) -> (StatusCode, Value) {
    let (method, path) = what.split_once(' ').expect("a method and a path");
    let what = format!("{method} /v1/projects/theirs/{path}");
    server.client_of(Caller::Foreigner).request(&what, Some(body)).await
}

/// Creates a resource as the foreigner in their own project, and returns its id.
async fn create_as_foreigner(server: &TestServer, path: &str, body: Value) -> String {
    let (status, answer) = request_as_foreigner(server, &format!("POST {path}"), body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer["resourceId"].as_str().expect("an id").to_owned()
}

/// Bodies that refer to resources of another project: request, body, and the referring field.
fn foreign_references(ours: &ResourceIds, start: i64) -> Vec<(&'static str, Value, &'static str)> {
    let policy =
        json!({"name": "p", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": ours.os});
    let single = |field: &str, id: &str| {
        let mut body =
            json!({"scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": start});
        body[field] = json!(id);
        body
    };
    let at = json!({"name": "edge", "siteId": ours.site});
    let register = json!({"serialNumber": "THEIRS3", "siteId": ours.site});
    let link = json!({"osUpdatePolicyID": ours.policy});
    let assign = json!({"osUpdatePolicyId": ours.policy});
    let (host, site, region) = (&ours.host, &ours.site, &ours.region);
    let (new_single, new_repeated) = ("POST schedules/single", "POST schedules/repeated");
    vec![
        ("PATCH compute/instances/{instance}", link, "osUpdatePolicyID"),
        ("POST os-update-policies", policy, "targetOsId"),
        (new_single, single("targetHostId", host), "targetHostId"),
        (new_single, single("targetSiteId", site), "targetSiteId"),
        (new_single, single("targetRegionId", region), "targetRegionId"),
        (new_repeated, nightly(site), "targetSiteId"),
        ("POST regions", json!({"parentId": region}), "parentId"),
        ("POST sites", json!({"regionId": region}), "regionId"),
        ("PATCH compute/hosts/{host}", at.clone(), "siteId"),
        ("PUT compute/hosts/{host}", at, "siteId"),
        ("POST compute/hosts/register", register, "siteId"),
        ("PUT assignments/{host}", assign.clone(), "osUpdatePolicyId"),
        ("PUT assignments/project", assign, "osUpdatePolicyId"),
    ]
}

#[tokio::test]
async fn ids_of_another_project_in_a_body_are_unknown() {
    let server = TestServer::new().await;
    let ours = server.seed_resources().await;
    let register = "compute/hosts/register";
    let host = create_as_foreigner(&server, register, json!({"serialNumber": "THEIRS1"})).await;
    let second = create_as_foreigner(&server, register, json!({"serialNumber": "THEIRS2"})).await;
    let os = create_as_foreigner(&server, "compute/os", os_body("Debian 12")).await;
    let both = json!({"hostID": host, "osID": os});
    let instance = create_as_foreigner(&server, "compute/instances", both).await;
    let on_ours = json!({"hostID": ours.host, "osID": os});
    let with_ours = json!({"hostID": second, "osID": ours.os});
    let mut cases = foreign_references(&ours, server.seconds(60));
    cases.push(("POST compute/instances", on_ours, "hostID"));
    cases.push(("POST compute/instances", with_ours, "osID"));
    for (what, body, field) in cases {
        let what = what.replace("{instance}", &instance).replace("{host}", &host);
        let (status, problem) = request_as_foreigner(&server, &what, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
        assert_eq!(problem["code"], "FailedPrecondition", "{what}: {problem}");
        assert_eq!(problem["field"], field, "{what}: {problem}");
    }
}

#[tokio::test]
async fn filters_by_ids_of_another_project_find_nothing() {
    let server = TestServer::new().await;
    let ours = server.seed_resources().await;
    let by_instance = format!("instance.resourceId%3D%22{}%22", ours.instance);
    for list in [
        format!("GET /v1/projects/theirs/compute/schedules?hostId={}", ours.host),
        format!("GET /v1/projects/theirs/compute/schedules?siteId={}", ours.site),
        format!("GET /v1/projects/theirs/schedules/repeated?regionId={}", ours.region),
        format!("GET /v1/projects/theirs/os-update-runs?filter={by_instance}"),
    ] {
        let (status, answer) = server.client_of(Caller::Foreigner).request(&list, None).await;
        assert_eq!((status, &answer["totalElements"]), (StatusCode::OK, &json!(0)), "{list}");
    }
}
