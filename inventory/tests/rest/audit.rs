//! The list and the stream of changes.

mod event_reader;
mod fleet;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode, header};
use chrono::TimeDelta;
use evenkeel_inventory::Settings;
use evenkeel_store::testing::{drop_after_polls, query_text};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;
use uuid::Uuid;

use crate::isolation::rng::Rng;
use crate::test_server::{Caller, TestServer, legacy_path, resource_id};
use event_reader::EventReader;

/// How long a busy machine may take for what follows at once.
const DEADLINE: Duration = Duration::from_mins(1);

/// Ids of the changes of a list, newest first.
fn change_ids(list: &Value) -> Vec<String> {
    let changes = list["changes"].as_array().expect("changes").iter();
    changes.map(|change| change["changeId"].as_str().expect("an id").to_owned()).collect()
}

/// All changes that match a query, page by page.
async fn list_all(server: &TestServer, query: &str, page_size: usize) -> Vec<Value> {
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("changes?pageSize={page_size}{query}{token}")).await;
        all.extend(page["changes"].as_array().expect("changes").iter().cloned());
        if page["hasNext"] == false {
            assert_eq!(page["nextPageToken"], "");
            return all;
        }
        assert_eq!(page["changes"].as_array().map(Vec::len), Some(page_size));
        token = format!("&pageToken={}", page["nextPageToken"].as_str().expect("a token"));
    }
}

async fn pause(server: &TestServer, reason: &str) {
    server.put("pauses/project", json!({ "reason": reason })).await;
}

#[tokio::test]
async fn a_change_shows_who_made_it_with_which_request_and_from_where() {
    let server = TestServer::new().await;
    let token = server.token(Caller::Writer).expect("a token");
    for (id, address) in [("one", "192.0.2.7:1234"), ("two", "[::ffff:192.0.2.8]:1234")] {
        let request = Request::put("/v1/projects/ours/pauses/project")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, "application/json")
            .header("x-request-id", id);
        let body = Body::from(json!({ "reason": id }).to_string());
        let mut request = request.body(body).expect("a request");
        let client: SocketAddr = address.parse().expect("an address");
        request.extensions_mut().insert(ConnectInfo(client));
        assert_eq!(server.send(request).await.status(), StatusCode::OK);
    }
    let list = server.get("changes").await;
    let [second, first] = &list["changes"].as_array().expect("changes")[..] else {
        panic!("two changes: {list}");
    };
    for (change, expected) in
        [(first, ["one", "192.0.2.7", "create"]), (second, ["two", "192.0.2.8", "update"])]
    {
        let [request, address, operation] = expected;
        assert_eq!(change["actor"], "writer");
        assert_eq!(change["requestId"], request);
        assert_eq!(change["clientAddress"], address);
        assert_eq!(change["operation"], operation);
        assert_eq!((&change["kind"], &change["objectId"]), (&json!("pause"), &json!("project")));
        assert_eq!(change["after"]["reason"], request);
    }
    assert_eq!((&first["before"], &second["before"]["reason"]), (&Value::Null, &json!("one")));
    let id = second["changeId"].as_str().expect("an id");
    assert_eq!(server.get(&format!("changes/{id}")).await, *second);
    let problem = json!({"message": "change not found"});
    for unknown in ["1-1", "x", "%FF"] {
        let what = format!("GET changes/{unknown}");
        let status = if unknown == "%FF" { 400 } else { 404 };
        let expected = if status == 404 { problem.clone() } else { json!({}) };
        server.expect_problem(&what, None, status, expected).await;
    }
}

#[tokio::test]
async fn changes_are_filtered_and_read_page_by_page() {
    let (server, resources) = TestServer::with_resources().await;
    server.seed_update_controls(&resources).await;
    let all = list_all(&server, "", 100).await;
    assert!(all.len() > 10, "only {} changes", all.len());
    assert!(all.iter().all(|change| change["actor"] == "writer"), "{all:?}");
    assert_eq!(list_all(&server, "", 4).await, all);
    for (query, kind) in [("&kind=policy", "policy"), ("&kind=update_order", "update_order")] {
        let found = list_all(&server, query, 100).await;
        assert!(!found.is_empty(), "{query}");
        assert!(found.iter().all(|change| change["kind"] == kind), "{found:?}");
    }
    let site = resources.site.as_str();
    let found = list_all(&server, &format!("&object={site}"), 100).await;
    let kinds: BTreeSet<&str> = found.iter().filter_map(|change| change["kind"].as_str()).collect();
    assert_eq!(kinds, BTreeSet::from(["assignment", "pause", "site"]));
    assert!(found.iter().all(|change| change["objectId"] == site), "{found:?}");
    assert_eq!(list_all(&server, "&actor=nobody", 100).await, Vec::<Value>::new());
    // A run is opened by the server.
    assert_eq!(list_all(&server, "&kind=run", 100).await, Vec::<Value>::new());
    let runs = list_all(&server, "&kind=run&includeServer=true", 100).await;
    assert!(runs.iter().any(|change| change["objectId"] == resources.run.as_str()), "{runs:?}");
    assert!(runs.iter().all(|change| change["actor"] == "" && change["after"].is_null()));
    let time = all[3]["time"].as_str().expect("a time").replace('+', "%2B");
    let split = [format!("&since={time}"), format!("&until={time}")];
    let [after, before] = [list_all(&server, &split[0], 100), list_all(&server, &split[1], 100)];
    assert_eq!((after.await.len(), before.await.len()), (4, all.len() - 4));
    let legacy =
        server.client(server.token(Caller::Reader).as_deref(), Some(&server.ours.to_string()));
    let page = legacy.get(&legacy_path("/v1/projects/ours/changes?pageSize=1")).await;
    assert_eq!(page["changes"][0], all[0]);
}

/// The changes of a new table would be in the list, but no filter would select them.
#[tokio::test]
async fn every_kind_that_the_triggers_record_is_a_filter() {
    let server = TestServer::new().await;
    // The kind is the first argument of a trigger. A zero byte ends each argument.
    let sql = r"SELECT string_agg(DISTINCT split_part(encode(t.tgargs, 'escape'), '\000', 1), ' ') FROM pg_trigger t WHERE t.tgname = 'record_change'";
    let kinds = query_text(&server.store, sql).await;
    assert!(kinds.split(' ').count() > 20, "{kinds}");
    for kind in kinds.split(' ') {
        server.get(&format!("changes?kind={kind}&pageSize=1")).await;
    }
}

#[tokio::test]
async fn a_refused_request_of_a_reader_is_recorded_once_a_minute() {
    let server = TestServer::new().await;
    let reader = server.client_of(Caller::Reader);
    for _ in 0..3 {
        let body = Some(json!({"reason": "no"}));
        reader.expect_problem("PUT pauses/project", body, 403, json!({})).await;
    }
    // A caller without a role in the project cannot write there, not even this.
    let body = Some(json!({"reason": "no"}));
    let foreigner = server.client_of(Caller::Foreigner);
    foreigner.expect_problem("PUT pauses/project", body, 403, json!({})).await;
    let list = server.get("changes").await;
    let [refusal] = &list["changes"].as_array().expect("changes")[..] else {
        panic!("one change: {list}");
    };
    assert_eq!((&refusal["kind"], &refusal["operation"]), (&json!("refusal"), &json!("record")));
    assert_eq!((&refusal["actor"], &refusal["objectId"]), (&json!("reader"), &json!("project")));
    let route = "PUT /v1/projects/{projectName}/pauses/{scope}";
    assert_eq!(refusal["after"], json!({"request": route, "refusalsNotRecorded": 0}));
}

async fn count_refusals(server: &TestServer) -> usize {
    let changes = list_all(server, "", 100).await;
    changes.iter().filter(|change| change["kind"] == "refusal").count()
}

/// Otherwise one such request per minute would hide all others.
#[tokio::test]
async fn a_refused_request_is_recorded_although_its_client_disconnects() {
    let mut server = TestServer::new().await;
    let token = server.token(Caller::Reader).expect("a token");
    for polls in 1.. {
        // No refusal of the last minute is known.
        let store = server.store.clone();
        server.use_store(store, Settings::default());
        let before = count_refusals(&server).await;
        let request = Request::put("/v1/projects/ours/pauses/project")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(json!({"reason": "no"}).to_string()))
            .expect("a request");

        let ended = drop_after_polls(server.send(request), polls).await;

        let reader = server.client_of(Caller::Reader);
        let body = Some(json!({"reason": "no"}));
        reader.expect_problem("PUT pauses/project", body, 403, json!({})).await;
        let recorded = async { while count_refusals(&server).await == before {} };
        timeout(DEADLINE, recorded).await.expect("one of the two is recorded");
        if ended.is_some() {
            break;
        }
    }
}

#[tokio::test]
async fn an_invalid_query_is_refused_and_names_the_parameter() {
    let server = TestServer::new().await;
    pause(&server, "one").await;
    let theirs = server.client_of(Caller::Foreigner).get("/v1/projects/theirs/changes").await;
    let foreign = theirs["cursor"].as_str().expect("a cursor");
    for (query, parameter) in [
        ("kind=car", "kind"),
        ("object=host", "object"),
        ("object=host-0a1b2c3d,", "object"),
        ("since=yesterday", "since"),
        ("until=2026-03-01", "until"),
        ("includeServer=1", "includeServer"),
        ("watch=yes", "watch"),
        ("watch=true&pageSize=1", "pageSize"),
        ("watch=true&cursor=abc", "cursor"),
        ("cursor=c1-1-1-1-1-1", "cursor"),
        ("filter=kind%20%3D%20host", "filter"),
        ("offset=1", "offset"),
        (format!("pageToken={foreign}").as_str(), "pageToken"),
        (format!("object={}", ["project"; 11].join(",")).as_str(), "object"),
        (format!("actor={}", "a".repeat(1_025)).as_str(), "actor"),
    ] {
        let expected = json!({ "parameter": parameter });
        server.expect_problem(&format!("GET changes?{query}"), None, 400, expected).await;
    }
    let expected = json!({"type": "urn:evenkeel:problem:cursor-expired", "status": 410});
    for cursor in [foreign, "c1-1-1-1-1-1"] {
        let what = format!("GET changes?watch=true&cursor={cursor}");
        server.expect_problem(&what, None, 410, expected.clone()).await;
    }
    let writer = server.client_of(Caller::Writer).with_header("last-event-id", "abc");
    let expected = json!({"parameter": "Last-Event-ID"});
    writer.expect_problem("GET changes?watch=true", None, 400, expected).await;
}

#[tokio::test]
async fn a_stream_sends_changes_of_its_project_that_match() {
    let server = TestServer::new().await;
    let mut stream = EventReader::open(&server, Caller::Reader, "&kind=pause", None).await;
    server.post("regions", json!({"name": "south"})).await;
    let theirs = "PUT /v1/projects/theirs/pauses/project";
    server.client_of(Caller::Foreigner).expect_ok(theirs, Some(json!({"reason": "t"}))).await;
    pause(&server, "one").await;
    let event = stream.next_change().await;
    assert_eq!(event.data["after"]["reason"], "one");
    let listed = server.get("changes?kind=pause").await;
    assert_eq!(listed["changes"], json!([event.data]));
    server.delete("pauses/project").await;
    let event = stream.next_change().await;
    assert_eq!((&event.data["operation"], &event.data["after"]), (&json!("delete"), &Value::Null));
    let forbidden = server.client_of(Caller::Foreigner);
    forbidden.expect_problem("GET changes?watch=true", None, 403, json!({})).await;
}

#[tokio::test]
async fn a_stream_ends_with_its_token_and_with_its_project() {
    let server = TestServer::new().await;
    let mut stream = EventReader::open(&server, Caller::Reader, "", None).await;
    let administrator = server.client_of(Caller::Administrator);
    administrator.expect_ok("DELETE /v1/projects/ours", None).await;
    assert_eq!(stream.end_reason().await, "access");
    let server = TestServer::new().await;
    let mut stream = EventReader::open(&server, Caller::Reader, "", None).await;
    server.clock.advance(TimeDelta::hours(2));
    assert_eq!(stream.end_reason().await, "access");
}

#[tokio::test]
async fn a_caller_opens_a_part_of_all_streams() {
    let settings = Settings { max_watchers: 2, ..Settings::default() };
    let server = TestServer::with_settings(settings).await;
    let first = EventReader::request(&server, Caller::Reader, "", None).await;
    assert_eq!(first.status(), StatusCode::OK);
    let refused = EventReader::request(&server, Caller::Reader, "", None).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    drop(first);
    wait_for_free_stream(&server).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut() {
    let settings = Settings {
        max_watchers: 1,
        stream_grace_period: Duration::from_millis(50),
        ..Settings::default()
    };
    let server = TestServer::with_settings(settings).await;
    // Its first bytes are never read, so there is no room for the change.
    let unread = EventReader::request(&server, Caller::Reader, "", None).await;
    assert_eq!(unread.status(), StatusCode::OK);
    pause(&server, "one").await;
    wait_for_free_stream(&server).await;
    let mut unread = EventReader::new(unread);
    assert!(unread.next().await.is_none(), "no change was sent");
}

/// Waits until another stream can be opened.
async fn wait_for_free_stream(server: &TestServer) {
    let freed = async {
        loop {
            let response = EventReader::request(server, Caller::Reader, "", None).await;
            if response.status().is_success() {
                break;
            }
        }
    };
    timeout(DEADLINE, freed).await.expect("another stream ends");
}

/// Changes of the exactly-once test: a sample, or as many as `EVENKEEL_WATCHED_CHANGES` says.
#[expect(clippy::disallowed_methods, reason = "a test has no configuration")]
fn watched_changes() -> usize {
    match std::env::var("EVENKEEL_WATCHED_CHANGES") {
        Ok(changes) => changes.parse().expect("EVENKEEL_WATCHED_CHANGES is a number"),
        Err(_) => 200,
    }
}

const WRITERS: usize = 4;

/// Watches from a cursor until a pause, and connects again after a random number of events. Returns
/// the ids of the changes in the order of the events.
async fn watch_until_pause(server: &TestServer, cursor: &str, mut rng: Rng) -> Vec<String> {
    let (mut seen, mut last) = (Vec::new(), cursor.to_owned());
    loop {
        let mut stream = EventReader::open(server, Caller::Reader, "", Some(&last)).await;
        for _ in 0..=rng.below(40) {
            let event = stream.next().await.expect("the stream does not end");
            last = event.id;
            if event.name != "change" {
                continue;
            }
            seen.push(event.data["changeId"].as_str().expect("an id").to_owned());
            if event.data["kind"] == "pause" {
                return seen;
            }
        }
    }
}

/// Registers hosts one after the other, each with a request of its own.
async fn register_hosts(server: &TestServer, writer: usize, count: usize) {
    for n in 0..count {
        let name = format!("host-{writer}-{n}");
        let body = json!({"name": name, "uuid": Uuid::new_v4().to_string()});
        let host = resource_id(&server.post("compute/hosts/register", body).await);
        if n % 3 == 0 {
            server
                .patch(&format!("compute/hosts/{host}"), json!({"name": format!("{name}-b")}))
                .await;
        }
    }
}

#[tokio::test]
async fn each_stream_sees_every_change_exactly_once() {
    let seed = Uuid::new_v4().as_u64_pair().1;
    println!("seed {seed}");
    let server = TestServer::new().await;
    let first = server.get("changes").await;
    let cursor = first["cursor"].as_str().expect("a cursor").to_owned();
    let before: BTreeSet<String> = change_ids(&first).into_iter().collect();
    let count = watched_changes() / WRITERS;
    let writers = join_all((0..WRITERS).map(|writer| register_hosts(&server, writer, count)));
    let write = async {
        writers.await;
        pause(&server, "the end").await;
    };
    let watchers =
        join_all((0..3).map(|n| watch_until_pause(&server, &cursor, Rng::new(seed ^ n))));
    let (watched, ()) = tokio::join!(watchers, write);
    let mut expected: Vec<String> = list_all(&server, "", 100)
        .await
        .iter()
        .map(|change| change["changeId"].as_str().expect("an id").to_owned())
        .filter(|id| !before.contains(id))
        .collect();
    expected.reverse();
    assert!(expected.len() > count * WRITERS, "only {} changes", expected.len());
    for mut seen in watched {
        seen.retain(|id| !before.contains(id));
        assert_eq!(seen, expected, "seed {seed}");
    }
}
