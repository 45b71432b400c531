//! Lists: pages, complete lists, filters and orders.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use evenkeel_domain::location::{Metadata, RegionSpec};
use evenkeel_domain::text::Name;
use evenkeel_inventory::Settings;
use evenkeel_store::testing::counting_store;
use evenkeel_store::{Tx, regions};
use serde_json::{Value, json};

use crate::test_server::{Caller, TestServer, noon, read_json, resource_id};

async fn register_hosts(server: &TestServer, count: usize) {
    for n in 0..count {
        let body = json!({"name": format!("edge-{n}"), "serialNumber": format!("SERIAL{n:04}")});
        server.post("compute/hosts/register", body).await;
    }
}

/// Creates many regions in one transaction.
pub async fn create_regions(server: &TestServer, count: usize) {
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    for n in 0..count {
        let spec = RegionSpec {
            name: Name::parse("name", &format!("r{n:04}")).expect("a name"),
            parent: None,
            metadata: Metadata::default(),
        };
        let created = regions::create(&tx, &spec, noon()).await;
        created.expect("a region");
    }
    tx.commit().await.expect("committed");
}

/// A text encoded for a query.
pub fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a string");
        }
    }
    encoded
}

fn shape(answer: &Value) -> (usize, i64, bool) {
    (
        answer["hosts"].as_array().map_or(0, Vec::len),
        answer["totalElements"].as_i64().expect("a total"),
        answer["hasNext"].as_bool().expect("a boolean"),
    )
}

/// A member of each item of a list.
fn member_values(answer: &Value, key: &str, member: &str) -> Vec<String> {
    let items = answer[key].as_array().expect("a list").iter();
    items.map(|item| item[member].as_str().expect("a text").to_owned()).collect()
}

#[tokio::test]
async fn a_list_is_returned_in_pages_or_completely() {
    let server = TestServer::new().await;
    let empty = server.get("compute/hosts").await;
    let expected = json!({"hosts": [], "totalElements": 0, "hasNext": false, "nextPageToken": ""});
    assert_eq!(empty, expected);
    register_hosts(&server, 25).await;
    for (query, expected) in [
        ("", (25, 25, false)),
        ("?pageSize=10", (10, 25, true)),
        ("?pageSize=10&offset=10", (10, 25, true)),
        ("?pageSize=10&offset=20", (5, 25, false)),
        ("?pageSize=25", (25, 25, false)),
        ("?offset=24", (1, 25, false)),
        ("?offset=20000", (0, 25, false)),
        ("?pageSize=1&offset=4294967295", (0, 25, false)),
    ] {
        let answer = server.get(&format!("compute/hosts{query}")).await;
        assert_eq!(shape(&answer), expected, "{query}");
        let has_token = answer["nextPageToken"] != "";
        assert_eq!(has_token, expected.2, "{query}");
    }
}

#[tokio::test]
async fn pages_neither_repeat_nor_omit_items() {
    let server = TestServer::new().await;
    register_hosts(&server, 12).await;
    let ids = |answer: &Value| member_values(answer, "hosts", "resourceId");
    let all_ids = ids(&server.get("compute/hosts").await);
    let mut sorted = all_ids.clone();
    sorted.sort();
    assert_eq!(all_ids, sorted, "by id");

    let mut by_offset = Vec::new();
    for offset in [0, 5, 10] {
        let list = format!("GET compute/hosts?pageSize=5&offset={offset}");
        by_offset.extend(ids(&server.expect_ok(&list, None).await));
    }
    assert_eq!(by_offset, all_ids);

    for order in ["", "&orderBy=name%20desc"] {
        let all_ids = ids(&server.get(&format!("compute/hosts?offset=0{order}")).await);
        let (mut by_token, mut token) = (Vec::new(), String::new());
        loop {
            let list = format!("GET compute/hosts?pageSize=5{order}{token}");
            let page = server.expect_ok(&list, None).await;
            assert_eq!(page["totalElements"], 12);
            by_token.extend(ids(&page));
            if page["hasNext"] == false {
                break;
            }
            let next = page["nextPageToken"].as_str().expect("a token");
            token = format!("&pageToken={next}");
        }
        assert_eq!(by_token, all_ids, "{order}");
    }
}

#[tokio::test]
async fn a_page_token_belongs_to_its_list() {
    let server = TestServer::new().await;
    register_hosts(&server, 3).await;
    let page = server.get("compute/hosts?pageSize=1").await;
    let token = page["nextPageToken"].as_str().expect("a token");
    for query in [
        format!("compute/hosts?pageSize=1&orderBy=name&pageToken={token}"),
        format!("compute/hosts?pageSize=1&filter=name%3D%22x%22&pageToken={token}"),
        format!("sites?pageSize=1&pageToken={token}"),
        format!("pauses?pageSize=1&pageToken={token}"),
        format!("compute/schedules?pageSize=1&pageToken={token}"),
        format!("compute/hosts?pageToken={token}"),
        format!("compute/hosts?pageSize=1&offset=1&pageToken={token}"),
        "compute/hosts?pageSize=1&pageToken=abc".to_owned(),
        "compute/hosts?pageSize=1&pageToken=from-1".to_owned(),
    ] {
        server
            .expect_problem(&format!("GET {query}"), None, 400, json!({"parameter": "pageToken"}))
            .await;
    }
}

#[tokio::test]
async fn short_lists_are_paged_as_well() {
    let server = TestServer::new().await;
    for name in ["a", "b", "c"] {
        server.post("join-tokens", json!({"name": name})).await;
    }
    let first = server.get("join-tokens?pageSize=2").await;
    assert_eq!((&first["totalElements"], &first["hasNext"]), (&json!(3), &json!(true)));
    let token = first["nextPageToken"].as_str().expect("a token");
    let list = format!("GET join-tokens?pageSize=2&pageToken={token}");
    let second = server.expect_ok(&list, None).await;
    assert_eq!((&second["hasNext"], &second["nextPageToken"]), (&json!(false), &json!("")));
    let mut names = member_values(&first, "joinTokens", "name");
    names.extend(member_values(&second, "joinTokens", "name"));
    names.sort();
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_long_list_is_returned_completely() {
    let server = TestServer::new().await;
    create_regions(&server, 600).await;
    let full_list = server.get("regions?orderBy=name").await;
    let expected: Vec<_> = (0..600).map(|n| format!("r{n:04}")).collect();
    assert_eq!(member_values(&full_list, "regions", "name"), expected);
    assert_eq!((&full_list["totalElements"], &full_list["hasNext"]), (&json!(600), &json!(false)));
    assert_eq!(full_list["nextPageToken"], "");
    for (offset, count) in [(100, 500), (349, 251), (350, 250), (351, 249), (600, 0)] {
        let list = format!("GET regions?orderBy=name&offset={offset}");
        let rest = server.expect_ok(&list, None).await;
        assert_eq!(member_values(&rest, "regions", "name"), expected[600 - count..], "{offset}");
        assert_eq!(rest["totalElements"], 600);
    }
}

#[tokio::test]
async fn the_number_of_concurrent_long_lists_is_limited() {
    let server =
        TestServer::with_settings(Settings { max_streamed_lists: 1, ..Settings::default() }).await;
    create_regions(&server, 600).await;
    let token = server.token(Caller::Writer).expect("a token");
    let request = Request::get("/v1/projects/ours/regions")
        .header("authorization", format!("Bearer {token}"))
        .body(Body::empty());
    let slow = server.send(request.expect("a request")).await;
    assert_eq!(slow.status(), StatusCode::OK);
    assert_eq!(slow.headers()["content-type"], "application/json");

    server.expect_problem("GET regions", None, 503, json!({"code": "Unavailable"})).await;
    // Short lists and pages never wait for the readers of long lists.
    server.get("regions?pageSize=100").await;
    server.get("regions?offset=500").await;

    let (_, full_list) = read_json(slow).await;
    assert_eq!(full_list["regions"].as_array().map(Vec::len), Some(600));
    server.get("regions").await;
}

#[tokio::test]
async fn a_list_that_fits_into_one_chunk_is_never_limited() {
    let server =
        TestServer::with_settings(Settings { max_streamed_lists: 0, ..Settings::default() }).await;
    create_regions(&server, 251).await;
    let resources = server.seed_resources().await;
    register_hosts(&server, 100).await;
    let bare = percent_encode("NOT has(instance)");
    let bare = format!("GET compute/hosts?filter={bare}&pageSize=20");
    for host in member_values(&server.expect_ok(&bare, None).await, "hosts", "resourceId") {
        let instance = json!({"hostID": host, "osID": resources.os});
        let instance = server.post("compute/instances", instance).await;
        server.create_run(&resource_id(&instance), &resources.policy).await;
    }
    for (list, key, total, piece) in [
        ("regions", "regions", 252, 250),
        ("compute/hosts", "hosts", 101, 100),
        ("os-update-runs", "osUpdateRuns", 21, 20),
    ] {
        let fits = format!("GET {list}?offset={}", total - piece);
        let fetched = server.expect_ok(&fits, None).await;
        assert_eq!(fetched[key].as_array().map(Vec::len), Some(piece), "{list}");
        assert_eq!(fetched["totalElements"], total, "{list}");
        let longer = format!("GET {list}?offset={}", total - piece - 1);
        server.expect_problem(&longer, None, 503, json!({})).await;
    }
}

#[tokio::test]
async fn a_rejected_list_is_not_read() {
    let mut server = TestServer::new().await;
    create_regions(&server, 600).await;
    let (store, sent) = counting_store(&server.store);
    server.use_store(store, Settings { max_streamed_lists: 0, ..Settings::default() });
    let mut costs = Vec::new();
    for (list, expected) in [
        ("GET regions", StatusCode::SERVICE_UNAVAILABLE),
        ("GET regions?offset=600", StatusCode::OK),
    ] {
        let before = sent.statements.load(Ordering::Relaxed);
        let (status, answer) = server.request(list, None).await;
        assert_eq!(status, expected, "{list}: {answer}");
        costs.push(sent.statements.load(Ordering::Relaxed) - before);
    }
    // Both requests take the count. The accepted one also declares a cursor and fetches from it.
    assert_eq!(costs[0] + 2, costs[1]);
}

/// How long a transaction may be idle, in milliseconds.
async fn idle_timeout_millis(tx: Tx) -> u64 {
    let name = "idle_in_transaction_session_timeout";
    let setting = tx.setting(name).await.expect("an answer");
    tx.commit().await.expect("committed");
    let setting = setting.expect("a setting of Postgres");
    setting.parse().expect("a number")
}

#[tokio::test]
async fn a_client_of_a_long_list_may_pause_until_the_timeout() {
    let server = TestServer::new().await;
    let snapshot = server.store.snapshot(server.ours).await;
    let millis = idle_timeout_millis(snapshot.expect("a snapshot")).await;
    assert!(millis > 120_000, "{millis}");
    // A writer would block others, so the longer timeout applies only to the snapshot.
    let transaction = server.store.tenant(server.ours).await;
    assert_eq!(idle_timeout_millis(transaction.expect("a transaction")).await, 3_000);
}

#[tokio::test]
async fn a_list_is_filtered_and_ordered() {
    let server = TestServer::new().await;
    register_hosts(&server, 12).await;
    for (filter, expected) in [
        (r#"name = "EDGE-1""#, 3),
        (r#"name == "edge-1""#, 1),
        (r#"serialNumber='SERIAL0007' AND name="edge""#, 1),
        ("has(site)", 0),
        ("NOT has(site)", 12),
        (r#"name="edge-1" OR name="edge-2" AND name="edge-11""#, 1),
    ] {
        for page in ["", "&pageSize=100"] {
            let path = format!("GET compute/hosts?filter={}{page}", percent_encode(filter));
            let answer = server.expect_ok(&path, None).await;
            let count = answer["hosts"].as_array().map(Vec::len);
            assert_eq!(count, Some(expected), "{filter}");
            assert_eq!(answer["totalElements"], expected, "{filter}");
        }
    }
    let list = "GET compute/hosts?pageSize=2&orderBy=name%20desc";
    let answer = server.expect_ok(list, None).await;
    assert_eq!(member_values(&answer, "hosts", "name"), ["edge-9", "edge-8"]);
}

#[tokio::test]
async fn an_invalid_filter_reports_its_position_and_a_hint() {
    let server = TestServer::new().await;
    let filter = percent_encode(r#"uuid = "1" AND nam = "x""#);
    let problem = server
        .expect_problem(&format!("GET compute/hosts?filter={filter}"), None, 400, json!({}))
        .await;
    for (member, expected) in [
        ("code", json!("InvalidArgument")),
        ("type", json!("urn:evenkeel:problem:invalid-argument")),
        ("field", json!("filter")),
        ("parameter", json!("filter")),
        ("position", json!(15)),
        ("hint", json!("name")),
    ] {
        assert_eq!(problem[member], expected, "{problem}");
    }
    assert_eq!(problem.get("pointer"), None);

    let expected = json!({"parameter": "orderBy"});
    server.expect_problem("GET compute/hosts?orderBy=site.name", None, 400, expected).await;
}

#[tokio::test]
async fn a_parameter_that_would_change_the_answer_is_understood_or_rejected() {
    let server = TestServer::new().await;
    for (query, field) in [
        ("compute/hosts?pageSize=0", "pageSize"),
        ("compute/hosts?pageSize=101", "pageSize"),
        ("compute/hosts?pageSize=ten", "pageSize"),
        ("compute/hosts?offset=-1", "offset"),
        ("compute/hosts?offset=4294967296", "offset"),
        ("compute/hosts?filter=", "filter"),
        ("compute/hosts?filter=name%3D%22%00%22", "filter"),
        ("compute/hosts?orderBy=nothing", "orderBy"),
        ("compute/hosts?pageSize=5&pageSize=6", "pageSize"),
        ("os-update-runs?filter=nothing%3D%22x%22", "filter"),
        ("compute/schedules?hostId=x", "hostId"),
        ("compute/schedules?unixEpoch=-1", "unixEpoch"),
        ("schedules/repeated?siteId=site-00000001&regionId=region-00000001", "regionId"),
        ("regions?showTotalSites=maybe", "showTotalSites"),
        ("assignments?pageSize=0", "pageSize"),
        ("pauses?filter=scope%3Dproject", "filter"),
        ("join-tokens?orderBy=name", "orderBy"),
    ] {
        let expected = json!({"code": "InvalidArgument", "field": field, "parameter": field});
        server.expect_problem(&format!("GET {query}"), None, 400, expected).await;
    }
}

#[tokio::test]
async fn runs_are_filtered_by_their_instance() {
    let (server, resources) = TestServer::with_resources().await;
    let list = |instance: &str| {
        let filter = percent_encode(&format!("instance.resourceId=\"{instance}\""));
        format!("GET os-update-runs?filter={filter}&orderBy=startTime%20desc&pageSize=10")
    };
    let of_it = server.expect_ok(&list(&resources.instance), None).await;
    assert_eq!(of_it["osUpdateRuns"][0]["resourceId"], resources.run.as_str());
    assert_eq!(of_it["osUpdateRuns"][0]["events"], json!([]));
    let of_none = server.expect_ok(&list("inst-00000000"), None).await;
    assert_eq!(of_none["totalElements"], 0);
}
