//! Nothing of one project is seen or touched from another, whichever way it is tried.

mod attempts;
mod bodies;
mod dice;
mod filters;
mod mistaken;
mod secrets;
mod side;
mod world;

use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use evenkeel_store::testing::rows_of;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::house::{House, Things, Who, legacy, names_a_thing, nightly, os_body, read};
use crate::statuses::{body, operations, query};
use attempts::attempt;
use dice::Dice;
use side::Side;
use world::World;

/// How often somebody of each project tries to get at the other one.
const TRIES: usize = 5_200;

/// The seed of this time: another one each time, unless `ISOLATION_SEED` says which.
#[expect(clippy::disallowed_methods, reason = "a test has no configuration")]
fn seed() -> u64 {
    match std::env::var("ISOLATION_SEED") {
        Ok(seed) => seed.parse().expect("ISOLATION_SEED is a number"),
        Err(_) => Uuid::new_v4().as_u64_pair().1,
    }
}

#[tokio::test]
async fn whatever_is_tried_nothing_of_another_project_is_told_or_changed() {
    let seed = seed();
    println!("ISOLATION_SEED={seed}");
    let house = House::new().await;
    let walruses = Side::settle(&house, Who::Writer).await;
    let penguins = Side::settle(&house, Who::Foreigner).await;
    let mut dice = Dice::new(seed);
    for (attacker, victim) in [(&walruses, &penguins), (&penguins, &walruses)] {
        let world = World::new(&house, attacker, victim).await;
        let before = rows_of(&house.store, victim.tenant).await;
        let attempts: Vec<_> = (0..TRIES).map(|_| attempt(&mut dice, &world)).collect();
        let wrong = world.try_all(&attempts).await;
        let some: Vec<_> = wrong.iter().take(5).collect();
        let count = wrong.len();
        assert!(
            wrong.is_empty(),
            "seed {seed}: {count} are wrong: {some:#?}"
        );
        let compared = world.compared.load(Ordering::Relaxed);
        assert!(compared > TRIES / 20, "only {compared} were compared");
        let after = rows_of(&house.store, victim.tenant).await;
        let changed: Vec<_> = after.iter().filter(|row| !before.contains(row)).collect();
        assert!(changed.is_empty(), "seed {seed}: {changed:#?}");
        assert_eq!(after.len(), before.len(), "seed {seed}: something is gone");
        println!(
            "{TRIES} tries of {}, {compared} compared with nothing",
            attacker.name
        );
    }
}

#[tokio::test]
async fn a_foreigner_gets_nothing_through_any_path() {
    let house = House::new().await;
    let things = house.furnish().await;
    house.want(&things).await;
    let before = rows_of(&house.store, house.ours).await;
    let mut tried = 0;
    for (method, path, operation) in operations() {
        if !path.contains("{projectName}") {
            continue;
        }
        let body = || body(&operation, &things, &house);
        let query = query(&operation);
        // By the name of the project that the things are in.
        let what = format!("{method} {}{query}", things.fill(&path, "ours"));
        let (status, answer) = house.ask(Who::Foreigner, &what, body()).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{what}: {answer}");
        // By the foreigner's own project, with the ids of the things.
        if names_a_thing(&path) {
            let what = format!("{method} {}{query}", things.fill(&path, "theirs"));
            let (status, answer) = house.ask(Who::Foreigner, &what, body()).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{what}: {answer}");
        }
        tried += 1;
    }
    assert!(tried > 90, "only {tried} operations were tried");
    let after = rows_of(&house.store, house.ours).await;
    assert_eq!(after, before, "something was changed");
}

#[tokio::test]
async fn what_no_project_can_be_called_is_an_unknown_project() {
    let house = House::new().await;
    for name in ["%00", "ours%00", "%FF", "Ours", "nobodys"] {
        for path in ["", "/compute/hosts", "/os-update-runs"] {
            let what = format!("GET /v1/projects/{name}{path}");
            for who in [Who::Foreigner, Who::Writer, Who::Administrator] {
                let (status, answer) = house.ask(who, &what, None).await;
                assert_eq!(status, StatusCode::FORBIDDEN, "{what}: {answer}");
            }
        }
    }
    let bodies = [("PUT", Some(json!({"description": "x"}))), ("DELETE", None)];
    for (method, body) in bodies {
        let what = format!("{method} /v1/projects/%00");
        let (status, answer) = house.ask(Who::Foreigner, &what, body.clone()).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{what}: {answer}");
        let (status, answer) = house.ask(Who::Administrator, &what, body).await;
        let wanted = match method {
            "PUT" => StatusCode::BAD_REQUEST,
            _ => StatusCode::NOT_FOUND,
        };
        assert_eq!(status, wanted, "{what}: {answer}");
    }
}

#[tokio::test]
async fn the_legacy_form_is_no_way_around() {
    let house = House::new().await;
    let things = house.furnish().await;
    house.want(&things).await;
    let token = house.token(Who::Foreigner);
    for (method, path, operation) in operations() {
        if !path.starts_with("/v1/projects/{projectName}/") {
            continue;
        }
        let uri = legacy(&things.fill(&path, "ours"));
        let what = format!("{method} {uri}{}", query(&operation));
        for (project, wanted) in [
            (house.ours, StatusCode::FORBIDDEN),
            (house.theirs, StatusCode::NOT_FOUND),
        ] {
            if wanted == StatusCode::NOT_FOUND && !names_a_thing(&path) {
                continue;
            }
            let (project, body) = (project.to_string(), body(&operation, &things, &house));
            let answer = house
                .ask_with(token.as_deref(), Some(&project), &what, body)
                .await;
            let (status, answer) = read(answer).await;
            assert_eq!(status, wanted, "{what}: {answer}");
            let is_about_the_path = answer["type"] == "urn:evenkeel:problem:no-such-path";
            assert!(!is_about_the_path, "{what}: {answer}");
        }
    }
}

/// Asks as the foreigner in their own project.
async fn theirs(house: &House, what: &str, body: Value) -> (StatusCode, Value) {
    let (method, path) = what.split_once(' ').expect("a method and a path");
    let what = format!("{method} /v1/projects/theirs/{path}");
    house.ask(Who::Foreigner, &what, Some(body)).await
}

/// The id of what the foreigner makes in their own project.
async fn made(house: &House, path: &str, body: Value) -> String {
    let (status, answer) = theirs(house, &format!("POST {path}"), body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer["resourceId"].as_str().expect("an id").to_owned()
}

/// Bodies that name things of another project: what to ask, the body, and the field that names the thing.
fn naming(ours: &Things, start: i64) -> Vec<(&'static str, Value, &'static str)> {
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
        (
            "PATCH compute/instances/{instance}",
            link,
            "osUpdatePolicyID",
        ),
        ("POST os-update-policies", policy, "targetOsId"),
        (new_single, single("targetHostId", host), "targetHostId"),
        (new_single, single("targetSiteId", site), "targetSiteId"),
        (
            new_single,
            single("targetRegionId", region),
            "targetRegionId",
        ),
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
async fn ids_of_another_project_in_a_body_mean_nothing() {
    let house = House::new().await;
    let ours = house.furnish().await;
    let register = "compute/hosts/register";
    let host = made(&house, register, json!({"serialNumber": "THEIRS1"})).await;
    let second = made(&house, register, json!({"serialNumber": "THEIRS2"})).await;
    let os = made(&house, "compute/os", os_body("Debian 12")).await;
    let both = json!({"hostID": host, "osID": os});
    let instance = made(&house, "compute/instances", both).await;
    let on_ours = json!({"hostID": ours.host, "osID": os});
    let with_ours = json!({"hostID": second, "osID": ours.os});
    let mut cases = naming(&ours, house.seconds(60));
    cases.push(("POST compute/instances", on_ours, "hostID"));
    cases.push(("POST compute/instances", with_ours, "osID"));
    for (what, body, field) in cases {
        let what = what
            .replace("{instance}", &instance)
            .replace("{host}", &host);
        let (status, problem) = theirs(&house, &what, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
        assert_eq!(problem["code"], "FailedPrecondition", "{what}: {problem}");
        assert_eq!(problem["field"], field, "{what}: {problem}");
    }
}

#[tokio::test]
async fn filters_by_ids_of_another_project_find_nothing() {
    let house = House::new().await;
    let ours = house.furnish().await;
    let by_instance = format!("instance.resourceId%3D%22{}%22", ours.instance);
    for list in [
        format!(
            "GET /v1/projects/theirs/compute/schedules?hostId={}",
            ours.host
        ),
        format!(
            "GET /v1/projects/theirs/compute/schedules?siteId={}",
            ours.site
        ),
        format!(
            "GET /v1/projects/theirs/schedules/repeated?regionId={}",
            ours.region
        ),
        format!("GET /v1/projects/theirs/os-update-runs?filter={by_instance}"),
    ] {
        let (status, answer) = house.ask(Who::Foreigner, &list, None).await;
        assert_eq!(
            (status, &answer["totalElements"]),
            (StatusCode::OK, &json!(0)),
            "{list}"
        );
    }
}
