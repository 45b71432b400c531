//! Hosts: creation, registration, desired states, summary and hardware.

mod facts;
mod hardware;

use evenkeel_domain::status::{Indication, Status};
use evenkeel_kit::Clock;
use evenkeel_store::hosts;
use evenkeel_test_support::redact;
use serde_json::{Value, json};

use crate::test_server::{TestServer, UUID};

fn labels(pairs: &[(&str, &str)]) -> Value {
    let item = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
    pairs.iter().map(item).collect()
}

fn id(answer: &Value) -> String {
    answer["resourceId"].as_str().expect("an id").to_owned()
}

async fn register_host(server: &TestServer, serial: &str) -> String {
    let body = json!({"serialNumber": serial});
    id(&server.post("compute/hosts/register", body).await)
}

/// Sets the status of a host as if its machine had connected.
async fn mark_host_running(server: &TestServer, host: &str) {
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    let running = Status::new("Running", Indication::Idle, server.clock.now());
    let host = host.parse().expect("an id");
    hosts::set_status(&tx, host, &running).await.expect("written");
    tx.commit().await.expect("committed");
}

#[tokio::test]
async fn a_host_is_created_without_registration() {
    let server = TestServer::new().await;
    let region = json!({"name": "south", "metadata": labels(&[("country", "de"), ("rack", "1")])});
    let region = id(&server.post("regions", region).await);
    let site = json!({"name": "ulm", "regionId": region});
    let site = id(&server.post("sites", site).await);
    let body = json!({
        "name": "a name of more than twenty", "uuid": UUID.to_uppercase(), "siteId": site,
        "metadata": labels(&[("rack", "7")]), "hostname": "ignored",
    });
    let host = server.post("compute/hosts", body.clone()).await;
    insta::assert_json_snapshot!(redact(&host));
    assert_eq!(host["currentState"], "HOST_STATE_UNSPECIFIED");
    let read = server.get(&format!("compute/hosts/{}", id(&host))).await;
    assert_eq!(read, host);

    let expected = json!({"code": "FailedPrecondition", "field": "uuid"});
    server.expect_problem("POST compute/hosts", Some(body), 400, expected).await;
    let empty = Some(json!({"name": ""}));
    let nameless = server.expect_ok("POST compute/hosts", empty).await;
    assert_eq!((&nameless["name"], &nameless["uuid"]), (&json!(""), &json!("")));
    assert_eq!(server.get("compute/hosts").await["totalElements"], 2);
}

#[tokio::test]
async fn a_bad_host_is_not_created() {
    let server = TestServer::new().await;
    let (upper, twice) = (labels(&[("A", "1")]), labels(&[("a", "1"), ("a", "2")]));
    for (field, value) in [
        ("name", Value::Null),
        ("name", json!("a;b")),
        ("name", json!("a".repeat(51))),
        ("uuid", json!("x")),
        ("siteId", json!("site-1")),
        ("siteId", json!("site-00000001")),
        ("metadata", upper),
        ("metadata", twice),
        ("desiredPowerState", json!("POWER_STATE_ON")),
        ("serial", json!("ABC12345")),
    ] {
        let mut body = json!({"name": "edge-01"});
        body[field] = value;
        server.expect_problem("POST compute/hosts", Some(body), 400, json!({"field": field})).await;
    }
    let size = json!({"serialNumber": "ABC12345", "userLvmSize": 2_147_483_648_u32});
    let expected = json!({"field": "userLvmSize"});
    server.expect_problem("POST compute/hosts/register", Some(size), 400, expected).await;
    assert_eq!(server.get("compute/hosts").await["totalElements"], 0);
}

#[tokio::test]
async fn the_labels_of_a_host_are_changed_and_replaced() {
    let server = TestServer::new().await;
    let host = register_host(&server, "ABC12345").await;
    let both = labels(&[("rack", "7"), ("example.com/tier", "gold")]);
    for (what, body, expected) in [
        ("PATCH", json!({"metadata": both}), both.clone()),
        ("PATCH", json!({"name": "edge-01"}), both.clone()),
        ("PATCH ?fieldMask=metadata", json!({"name": "edge-02"}), json!([])),
        (
            "PUT",
            json!({"name": "edge-01", "metadata": both, "uuid": UUID, "currentPowerState": "POWER_STATE_ON"}),
            both.clone(),
        ),
        ("PUT", json!({"name": "edge-01"}), json!([])),
        ("PATCH", json!({"metadata": both}), both.clone()),
        ("PATCH", json!({"metadata": null}), json!([])),
    ] {
        let (method, query) = what.split_once(' ').unwrap_or((what, ""));
        let path = format!("{method} compute/hosts/{host}{query}");
        let answer = server.expect_ok(&path, Some(body)).await;
        assert_eq!(answer["metadata"], expected, "{what}");
        assert_eq!(answer["uuid"], "", "{what}");
        let read = server.get(&format!("compute/hosts/{host}")).await;
        assert_eq!(read, answer, "{what}");
    }
    assert_ne!(server.get(&format!("compute/hosts/{host}")).await["name"], "edge-02");
}

#[tokio::test]
async fn the_registration_of_a_host_can_be_changed() {
    let server = TestServer::new().await;
    let body = json!({"serialNumber": "ABC12345", "name": "edge-01", "userLvmSize": 60});
    let host = server.post("compute/hosts/register", body).await;
    assert_eq!(host["userLvmSize"], 60);
    let path = format!("PATCH compute/hosts/{}/register", id(&host));
    let shape = |host: &Value| json!([host["name"], host["desiredState"], host["userLvmSize"]]);
    for (body, expected) in [
        (
            json!({"name": "edge-02", "autoOnboard": true, "serialNumber": "XYZ98765"}),
            json!(["edge-02", "HOST_STATE_ONBOARDED", 60]),
        ),
        (json!({"name": "edge-03"}), json!(["edge-03", "HOST_STATE_ONBOARDED", 60])),
        (
            json!({"autoOnboard": false, "userLvmSize": 7}),
            json!(["edge-03", "HOST_STATE_REGISTERED", 60]),
        ),
        (json!({}), json!(["edge-03", "HOST_STATE_REGISTERED", 60])),
    ] {
        let answer = server.expect_ok(&path, Some(body)).await;
        assert_eq!(shape(&answer), expected);
        assert_eq!(answer["serialNumber"], "ABC12345");
    }
    let long = json!({"name": "a".repeat(21), "autoOnboard": true});
    server.expect_problem(&path, Some(long), 400, json!({"field": "name"})).await;
    let read = server.get(&format!("compute/hosts/{}", id(&host))).await;
    assert_eq!(read["desiredState"], "HOST_STATE_REGISTERED");
}

#[tokio::test]
async fn a_desired_state_is_accepted_only_if_the_host_can_reach_it() {
    let server = TestServer::new().await;
    let host = register_host(&server, "ABC12345").await;
    let of = |what: &str| {
        let (method, path) = what.split_once(' ').expect("a method and a path");
        format!("{method} compute/hosts/{host}/{path}")
    };
    let refused = async |what: &str, body: Option<Value>| {
        server.expect_problem(&of(what), body, 400, json!({"code": "FailedPrecondition"})).await;
    };
    let read = async || server.get(&format!("compute/hosts/{host}")).await;
    assert_eq!(server.expect_ok(&of("PATCH onboard"), None).await, json!({}));
    let fetched = read().await;
    assert_eq!(fetched["desiredState"], "HOST_STATE_ONBOARDED");
    assert_eq!(fetched["currentState"], "HOST_STATE_REGISTERED");

    mark_host_running(&server, &host).await;
    let back = || Some(json!({"name": "no", "autoOnboard": false}));
    refused("PATCH register", back()).await;
    assert_eq!(read().await["name"], "", "a part of the change was written");
    let invalidate = of("PUT invalidate?note=stolen%20%E2%80%93%20again");
    assert_eq!(server.expect_ok(&invalidate, None).await, json!({}));
    let fetched = read().await;
    assert_eq!(fetched["desiredState"], "HOST_STATE_UNTRUSTED");
    assert_eq!(fetched["currentState"], "HOST_STATE_UNTRUSTED");
    assert_eq!(fetched["note"], "stolen – again");
    assert_eq!(fetched["hostStatus"], "Invalidated");
    assert_eq!(fetched["hostStatusIndicator"], "STATUS_INDICATION_IDLE");

    refused("PATCH onboard", None).await;
    refused("PATCH register", back()).await;
    assert_eq!(server.expect_ok(&of("PUT invalidate"), None).await, json!({}));
    assert_eq!(read().await["note"], "");
    let delete = format!("DELETE compute/hosts/{host}");
    assert_eq!(server.expect_ok(&delete, None).await, json!({}));
    for what in ["PATCH onboard", "PUT invalidate"] {
        server
            .expect_problem(&of(what), None, 404, json!({"message": "host_resource not found"}))
            .await;
    }
}

#[tokio::test]
async fn a_host_that_was_only_registered_can_be_invalidated() {
    let server = TestServer::new().await;
    let host = register_host(&server, "ABC12345").await;
    server.expect_ok(&format!("PUT compute/hosts/{host}/invalidate?note=lost"), None).await;
    let fetched = server.get(&format!("compute/hosts/{host}")).await;
    assert_eq!(
        (&fetched["currentState"], &fetched["note"]),
        (&json!("HOST_STATE_UNTRUSTED"), &json!("lost"))
    );
}

#[tokio::test]
async fn a_uuid_is_returned_as_it_was_given_and_matched_in_any_case() {
    let server = TestServer::new().await;
    let (upper, lower) = (UUID.to_uppercase(), UUID.to_lowercase());
    assert_ne!(upper, lower);
    let host = server.post("compute/hosts/register", json!({"uuid": upper})).await;
    assert_eq!(host["uuid"], upper.as_str());
    assert_eq!(server.get(&format!("compute/hosts/{}", id(&host))).await["uuid"], upper.as_str());
    for filter in ["uuid%3D%22{}%22", "uuid%3D%3D%22{}%22", "NOT%20uuid!%3D%22{}%22"] {
        for uuid in [&upper, &lower] {
            let listed =
                server.get(&format!("compute/hosts?filter={}", filter.replace("{}", uuid))).await;
            assert_eq!(listed["hosts"][0]["uuid"], upper.as_str(), "{filter} {uuid}");
        }
    }
    let again = Some(json!({"uuid": lower}));
    let expected = json!({"code": "FailedPrecondition", "field": "uuid"});
    server.expect_problem("POST compute/hosts/register", again, 400, expected).await;
}

#[tokio::test]
async fn a_note_is_one_line() {
    let server = TestServer::new().await;
    let host = register_host(&server, "ABC12345").await;
    mark_host_running(&server, &host).await;
    for note in ["", "two%0Alines", &"a".repeat(513)] {
        let path = format!("PUT compute/hosts/{host}/invalidate?note={note}");
        server.expect_problem(&path, None, 400, json!({"parameter": "note"})).await;
    }
    let read = server.get(&format!("compute/hosts/{host}")).await;
    assert_eq!(read["currentState"], "HOST_STATE_ONBOARDED");
}

#[tokio::test]
async fn hosts_are_counted_with_and_without_a_filter() {
    let (server, resources) = TestServer::with_resources().await;
    register_host(&server, "XYZ98765").await;
    let shape = |answer: &Value| {
        json!([answer["total"], answer["error"], answer["running"], answer["unallocated"]])
    };
    for (query, expected) in [
        ("", json!([2, 0, 0, 1])),
        ("?filter=has(site)", json!([1, 0, 0, 0])),
        ("?filter=name%3D%22nobody%22%20OR%20has(site)", json!([1, 0, 0, 0])),
        ("?filter=name%3D%22nobody%22", json!([0, 0, 0, 0])),
    ] {
        for path in ["compute/hosts/summary", "compute/hosts_summary"] {
            let answer = server.get(&format!("{path}{query}")).await;
            assert_eq!(shape(&answer), expected, "{path}{query}");
        }
    }
    let by_site =
        format!("GET compute/hosts/summary?filter=site.resourceId%3D'{}'", resources.site);
    assert_eq!(shape(&server.expect_ok(&by_site, None).await), json!([1, 0, 0, 0]));
    for filter in ["name%3D", "colour%3D1", "name%3D%22a%22%20b"] {
        let path = format!("GET compute/hosts/summary?filter={filter}");
        let problem = server.expect_problem(&path, None, 400, json!({"parameter": "filter"})).await;
        assert!(problem["position"].is_u64(), "{filter}: {problem}");
    }
}

#[tokio::test]
async fn a_host_without_a_site_has_all_its_fields() {
    let server = TestServer::new().await;
    let host = register_host(&server, "ABC12345").await;
    let fetched = server.get(&format!("compute/hosts/{host}")).await;
    insta::assert_json_snapshot!(redact(&fetched));
}
