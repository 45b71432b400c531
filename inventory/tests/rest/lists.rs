//! Lists: pages, whole lists, filters and orders.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use evenkeel_domain::place::{Metadata, RegionSpec};
use evenkeel_domain::text::Name;
use evenkeel_inventory::{Inventory, Settings, router};
use evenkeel_store::testing::counting;
use evenkeel_store::{Tx, regions};
use serde_json::{Value, json};

use crate::house::{House, Who, id_of, noon, read};

async fn register(house: &House, count: usize) {
    for n in 0..count {
        let body = json!({"name": format!("edge-{n}"), "serialNumber": format!("SERIAL{n:04}")});
        house.ok("POST compute/hosts/register", Some(body)).await;
    }
}

/// Makes many regions at once.
async fn many_regions(house: &House, count: usize) {
    let tx = house.store.tenant(house.ours).await.expect("a transaction");
    for n in 0..count {
        let spec = RegionSpec {
            name: Name::parse("name", &format!("r{n:04}")).expect("a name"),
            parent: None,
            metadata: Metadata::default(),
        };
        let made = regions::create(&tx, &spec, noon()).await;
        made.expect("a region");
    }
    tx.commit().await.expect("committed");
}

/// A text as it stands behind a question mark.
pub fn encoded(text: &str) -> String {
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
        answer["hasNext"].as_bool().expect("a truth"),
    )
}

/// A member of each thing of a list.
fn each(answer: &Value, key: &str, member: &str) -> Vec<String> {
    let items = answer[key].as_array().expect("a list").iter();
    items
        .map(|item| item[member].as_str().expect("a text").to_owned())
        .collect()
}

#[tokio::test]
async fn a_list_is_paged_or_whole() {
    let house = House::new().await;
    let empty = house.ok("GET compute/hosts", None).await;
    let wanted = json!({"hosts": [], "totalElements": 0, "hasNext": false, "nextPageToken": ""});
    assert_eq!(empty, wanted);
    register(&house, 25).await;
    for (query, wanted) in [
        ("", (25, 25, false)),
        ("?pageSize=10", (10, 25, true)),
        ("?pageSize=10&offset=10", (10, 25, true)),
        ("?pageSize=10&offset=20", (5, 25, false)),
        ("?pageSize=25", (25, 25, false)),
        ("?offset=24", (1, 25, false)),
        ("?offset=20000", (0, 25, false)),
        ("?pageSize=1&offset=4294967295", (0, 25, false)),
    ] {
        let answer = house.ok(&format!("GET compute/hosts{query}"), None).await;
        assert_eq!(shape(&answer), wanted, "{query}");
        let has_token = answer["nextPageToken"] != "";
        assert_eq!(has_token, wanted.2, "{query}");
    }
}

#[tokio::test]
async fn pages_neither_repeat_nor_leave_out() {
    let house = House::new().await;
    register(&house, 12).await;
    let ids = |answer: &Value| each(answer, "hosts", "resourceId");
    let whole = ids(&house.ok("GET compute/hosts", None).await);
    let mut sorted = whole.clone();
    sorted.sort();
    assert_eq!(whole, sorted, "by id");

    let mut by_offset = Vec::new();
    for offset in [0, 5, 10] {
        let list = format!("GET compute/hosts?pageSize=5&offset={offset}");
        by_offset.extend(ids(&house.ok(&list, None).await));
    }
    assert_eq!(by_offset, whole);

    for order in ["", "&orderBy=name%20desc"] {
        let whole = ids(&house
            .ok(&format!("GET compute/hosts?offset=0{order}"), None)
            .await);
        let (mut by_token, mut token) = (Vec::new(), String::new());
        loop {
            let list = format!("GET compute/hosts?pageSize=5{order}{token}");
            let page = house.ok(&list, None).await;
            assert_eq!(page["totalElements"], 12);
            by_token.extend(ids(&page));
            if page["hasNext"] == false {
                break;
            }
            let next = page["nextPageToken"].as_str().expect("a token");
            token = format!("&pageToken={next}");
        }
        assert_eq!(by_token, whole, "{order}");
    }
}

#[tokio::test]
async fn a_token_is_of_the_list_that_gave_it() {
    let house = House::new().await;
    register(&house, 3).await;
    let page = house.ok("GET compute/hosts?pageSize=1", None).await;
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
        let (status, problem) = house.ours(&format!("GET {query}"), None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}: {problem}");
        assert_eq!(problem["parameter"], "pageToken", "{query}: {problem}");
    }
}

#[tokio::test]
async fn what_is_always_few_is_paged_as_well() {
    let house = House::new().await;
    for name in ["a", "b", "c"] {
        house
            .ok("POST join-tokens", Some(json!({"name": name})))
            .await;
    }
    let first = house.ok("GET join-tokens?pageSize=2", None).await;
    assert_eq!(
        (&first["totalElements"], &first["hasNext"]),
        (&json!(3), &json!(true))
    );
    let token = first["nextPageToken"].as_str().expect("a token");
    let list = format!("GET join-tokens?pageSize=2&pageToken={token}");
    let second = house.ok(&list, None).await;
    assert_eq!(
        (&second["hasNext"], &second["nextPageToken"]),
        (&json!(false), &json!(""))
    );
    let mut names = each(&first, "joinTokens", "name");
    names.extend(each(&second, "joinTokens", "name"));
    names.sort();
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_long_list_is_told_whole() {
    let house = House::new().await;
    many_regions(&house, 600).await;
    let whole = house.ok("GET regions?orderBy=name", None).await;
    let wanted: Vec<_> = (0..600).map(|n| format!("r{n:04}")).collect();
    assert_eq!(each(&whole, "regions", "name"), wanted);
    assert_eq!(
        (&whole["totalElements"], &whole["hasNext"]),
        (&json!(600), &json!(false))
    );
    assert_eq!(whole["nextPageToken"], "");
    for (offset, told) in [(100, 500), (349, 251), (350, 250), (351, 249), (600, 0)] {
        let list = format!("GET regions?orderBy=name&offset={offset}");
        let rest = house.ok(&list, None).await;
        assert_eq!(
            each(&rest, "regions", "name"),
            wanted[600 - told..],
            "{offset}"
        );
        assert_eq!(rest["totalElements"], 600);
    }
}

#[tokio::test]
async fn only_so_many_long_lists_are_told_at_once() {
    let house = House::with(Settings {
        streams: 1,
        ..Settings::default()
    })
    .await;
    many_regions(&house, 600).await;
    let token = house.token(Who::Writer).expect("a token");
    let request = Request::get("/v1/projects/ours/regions")
        .header("authorization", format!("Bearer {token}"))
        .body(Body::empty());
    let slow = house.send(request.expect("a request")).await;
    assert_eq!(slow.status(), StatusCode::OK);
    assert_eq!(slow.headers()["content-type"], "application/json");

    let (status, problem) = house.ours("GET regions", None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(problem["code"], "Unavailable");
    // What is short or in pages never waits for those that read long lists.
    house.ok("GET regions?pageSize=100", None).await;
    house.ok("GET regions?offset=500", None).await;

    let (_, whole) = read(slow).await;
    assert_eq!(whole["regions"].as_array().map(Vec::len), Some(600));
    house.ok("GET regions", None).await;
}

#[tokio::test]
async fn what_fits_into_one_piece_is_told_whatever_else_is_told() {
    let house = House::with(Settings {
        streams: 0,
        ..Settings::default()
    })
    .await;
    many_regions(&house, 251).await;
    let things = house.furnish().await;
    register(&house, 100).await;
    let bare = encoded("NOT has(instance)");
    let bare = format!("GET compute/hosts?filter={bare}&pageSize=20");
    for host in each(&house.ok(&bare, None).await, "hosts", "resourceId") {
        let instance = json!({"hostID": host, "osID": things.os});
        let instance = house.ok("POST compute/instances", Some(instance)).await;
        house.run_of(&id_of(&instance), &things.policy).await;
    }
    for (list, key, total, piece) in [
        ("regions", "regions", 252, 250),
        ("compute/hosts", "hosts", 101, 100),
        ("os-update-runs", "osUpdateRuns", 21, 20),
    ] {
        let fits = format!("GET {list}?offset={}", total - piece);
        let told = house.ok(&fits, None).await;
        assert_eq!(told[key].as_array().map(Vec::len), Some(piece), "{list}");
        assert_eq!(told["totalElements"], total, "{list}");
        let longer = format!("GET {list}?offset={}", total - piece - 1);
        let (status, _) = house.ours(&longer, None).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{list}");
    }
}

#[tokio::test]
async fn nothing_is_read_for_a_list_that_is_not_told() {
    let mut house = House::new().await;
    many_regions(&house, 600).await;
    let (store, sent) = counting(&house.store);
    house.router = router(Inventory {
        store,
        clock: Arc::new(house.clock.clone()),
        authority: Arc::clone(&house.authority),
        ca_digest: None,
        settings: Settings {
            streams: 0,
            ..Settings::default()
        },
    });
    let mut costs = Vec::new();
    for (list, wanted) in [
        ("GET regions", StatusCode::SERVICE_UNAVAILABLE),
        ("GET regions?offset=600", StatusCode::OK),
    ] {
        let before = sent.statements.load(Ordering::Relaxed);
        let (status, answer) = house.ours(list, None).await;
        assert_eq!(status, wanted, "{list}: {answer}");
        costs.push(sent.statements.load(Ordering::Relaxed) - before);
    }
    // An empty list takes a cursor and one look at it, and is counted as well.
    assert_eq!(costs[0] + 2, costs[1]);
}

/// How long a transaction may wait for the program, in milliseconds.
async fn patience(tx: Tx) -> u64 {
    let name = "idle_in_transaction_session_timeout";
    let setting = tx.setting(name).await.expect("an answer");
    tx.commit().await.expect("committed");
    let setting = setting.expect("a setting of Postgres");
    setting.parse().expect("a number")
}

#[tokio::test]
async fn a_client_of_a_long_list_may_pause_until_it_is_hung_up_on() {
    let house = House::new().await;
    let snapshot = house.store.snapshot(house.ours).await;
    let told = patience(snapshot.expect("a snapshot")).await;
    assert!(told > 120_000, "{told}");
    // Whoever writes would hold up others: the longer limit ends with the snapshot.
    let usual = house.store.tenant(house.ours).await;
    assert_eq!(patience(usual.expect("a transaction")).await, 3_000);
}

#[tokio::test]
async fn a_list_is_filtered_and_ordered() {
    let house = House::new().await;
    register(&house, 12).await;
    for (filter, wanted) in [
        (r#"name = "EDGE-1""#, 3),
        (r#"name == "edge-1""#, 1),
        (r#"serialNumber='SERIAL0007' AND name="edge""#, 1),
        ("has(site)", 0),
        ("NOT has(site)", 12),
        (r#"name="edge-1" OR name="edge-2" AND name="edge-11""#, 1),
    ] {
        for page in ["", "&pageSize=100"] {
            let path = format!("GET compute/hosts?filter={}{page}", encoded(filter));
            let answer = house.ok(&path, None).await;
            let told = answer["hosts"].as_array().map(Vec::len);
            assert_eq!(told, Some(wanted), "{filter}");
            assert_eq!(answer["totalElements"], wanted, "{filter}");
        }
    }
    let list = "GET compute/hosts?pageSize=2&orderBy=name%20desc";
    let answer = house.ok(list, None).await;
    assert_eq!(each(&answer, "hosts", "name"), ["edge-9", "edge-8"]);
}

#[tokio::test]
async fn a_filter_that_is_not_understood_says_where_and_what_was_meant() {
    let house = House::new().await;
    let filter = encoded(r#"uuid = "1" AND nam = "x""#);
    let (status, problem) = house
        .ours(&format!("GET compute/hosts?filter={filter}"), None)
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    for (member, wanted) in [
        ("code", json!("InvalidArgument")),
        ("type", json!("urn:evenkeel:problem:invalid-argument")),
        ("field", json!("filter")),
        ("parameter", json!("filter")),
        ("position", json!(15)),
        ("hint", json!("name")),
    ] {
        assert_eq!(problem[member], wanted, "{problem}");
    }
    assert_eq!(problem.get("pointer"), None);

    let (status, problem) = house
        .ours("GET compute/hosts?orderBy=site.name", None)
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(problem["parameter"], "orderBy", "{problem}");
}

#[tokio::test]
async fn a_parameter_that_would_change_the_answer_is_understood_or_refused() {
    let house = House::new().await;
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
        (
            "schedules/repeated?siteId=site-00000001&regionId=region-00000001",
            "regionId",
        ),
        ("regions?showTotalSites=maybe", "showTotalSites"),
        ("assignments?pageSize=0", "pageSize"),
        ("pauses?filter=scope%3Dproject", "filter"),
        ("join-tokens?orderBy=name", "orderBy"),
    ] {
        let (status, problem) = house.ours(&format!("GET {query}"), None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
        assert_eq!(problem["code"], "InvalidArgument", "{query}");
        assert_eq!(problem["field"], field, "{query}");
        assert_eq!(problem["parameter"], field, "{query}");
    }
}

#[tokio::test]
async fn runs_are_filtered_by_their_instance() {
    let house = House::new().await;
    let things = house.furnish().await;
    let list = |instance: &str| {
        let filter = encoded(&format!("instance.resourceId=\"{instance}\""));
        format!("GET os-update-runs?filter={filter}&orderBy=startTime%20desc&pageSize=10")
    };
    let of_it = house.ok(&list(&things.instance), None).await;
    assert_eq!(of_it["osUpdateRuns"][0]["resourceId"], things.run.as_str());
    assert_eq!(of_it["osUpdateRuns"][0]["events"], json!([]));
    let of_none = house.ok(&list("inst-00000000"), None).await;
    assert_eq!(of_none["totalElements"], 0);
}
