//! Limits of a caller and a project, so that others are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use chrono::TimeDelta;
use evenkeel_auth::{Authority, ExternalIssuer, Keys, Role};
use evenkeel_inventory::{AuthenticationHook, ConnectionLimit, Settings};
use evenkeel_store::testing::query_text;
use evenkeel_store::{ConnectionShare, ShareSizes, StoreOptions};
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::time::timeout;

use crate::lists::create_regions;
use crate::test_server::{Caller, TestServer};

const LONG: Duration = Duration::from_hours(1);

/// The hour would pass without the cancellation.
const DEADLINE: Duration = Duration::from_mins(1);

fn request(server: &TestServer, caller: Caller, what: &str, body: Body) -> Request<Body> {
    let (method, path) = what.split_once(' ').expect("a method and a path");
    let token = server.token(caller).expect("a token");
    let request = Request::builder()
        .method(method)
        .uri(format!("/v1/projects/ours/{path}"))
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header(header::CONTENT_TYPE, "application/json");
    request.body(body).expect("a request")
}

#[tokio::test]
async fn the_statement_of_a_dropped_request_disappears() {
    let options =
        StoreOptions { lock_timeout: LONG, statement_timeout: LONG, ..StoreOptions::default() };
    let server = TestServer::with_options(options, Settings::default()).await;
    let lock = server.store.tenant(server.ours).await.expect("a transaction");
    // On a busy machine, the database would end it otherwise.
    lock.set("idle_in_transaction_session_timeout", "0").await.expect("set");
    lock.lock_for_change().await.expect("a lock");
    let is_waiting = async || {
        let sql = "SELECT count(*)::text FROM pg_stat_activity \
                   WHERE wait_event_type = 'Lock' AND datname = current_database()";
        query_text(&server.store, sql).await != "0"
    };
    let body = Body::from(json!({"revision": "1.0.0"}).to_string());
    let what = "PATCH os-catalogue/settings";
    tokio::select! {
        answer = server.send(request(&server, Caller::Writer, what, body)) => {
            panic!("another transaction has the lock: {answer:?}")
        }
        () = async { while !is_waiting().await {} } => {}
    }
    let ended = async { while is_waiting().await {} };
    timeout(DEADLINE, ended).await.expect("the statement is cancelled");
    drop(lock);
    server.get("regions").await;
}

#[tokio::test]
async fn a_caller_without_a_role_takes_no_connection() {
    let options = StoreOptions {
        max_connections: 1,
        acquire_timeout: Duration::from_secs(1),
        ..StoreOptions::default()
    };
    let server = TestServer::with_options(options, Settings::default()).await;
    let connection = server.store.tenant(server.ours).await.expect("the only connection");
    for caller in [Caller::Guest, Caller::Node] {
        for what in ["GET regions", "DELETE regions/region-00000001"] {
            let answer = server.send(request(&server, caller, what, Body::empty())).await;
            assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{caller:?} {what}");
        }
    }
    // The UUID of the project shows that the caller has no role in it.
    let token = server.token(Caller::Foreigner);
    let legacy = server.client(token.as_deref(), Some(&server.ours.to_string()));
    let (status, _) = legacy.request("GET /edge-infra.orchestrator.apis/v2/regions", None).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let answer = server.send(request(&server, Caller::Reader, "GET regions", Body::empty())).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "a reader needs the connection");
    drop(connection);
}

#[tokio::test]
async fn a_project_that_uses_its_part_of_the_reads_is_refused_with_the_reason() {
    let options = StoreOptions {
        max_connections: 10,
        shares: Some(ShareSizes { nodes: 5, rest_reads: 2, rest_writes: 2, logins: 1 }),
        acquire_timeout: Duration::from_secs(1),
        ..StoreOptions::default()
    };
    let server = TestServer::with_options(options, Settings::default()).await;
    // The limit counts the name and the UUID of a project together, as soon as both were used.
    server.get("regions").await;
    let reads = server.store.with_share(ConnectionShare::RestReads, None);
    let all_of_ours = reads.tenant(server.ours).await.expect("a connection");
    let answer = server.send(request(&server, Caller::Reader, "GET regions", Body::empty())).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
    let text = answer.into_body().collect().await.expect("a body").to_bytes();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("too many requests in this project"), "{text}");
    // Writes and other projects are not affected.
    server.post("regions", json!({"name": "south"})).await;
    let theirs = server.token(Caller::Foreigner);
    let theirs = server.client(theirs.as_deref(), None);
    theirs.expect_ok("GET /v1/projects/theirs/regions", None).await;
    drop(all_of_ours);
    server.get("regions").await;
}

#[tokio::test]
async fn users_of_two_issuers_with_the_same_name_have_limits_of_their_own() {
    const ISSUER: &str = "https://login.example";
    let options = StoreOptions {
        max_connections: 10,
        shares: Some(ShareSizes { nodes: 5, rest_reads: 2, rest_writes: 2, logins: 1 }),
        acquire_timeout: Duration::from_secs(1),
        ..StoreOptions::default()
    };
    let mut server = TestServer::with_options(options, Settings::default()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let keys = |name| Keys::open(&folder.path().join(name)).expect("keys");
    let settings =
        evenkeel_auth::Settings { issuer: ISSUER.to_owned(), ..evenkeel_auth::Settings::default() };
    let login = Authority::new(keys("theirs"), settings);
    let jwks = folder.path().join("jwks.json");
    std::fs::write(&jwks, login.jwks().to_string()).expect("written");
    let issuer = ExternalIssuer::open(ISSUER, None, &jwks).expect("an issuer");
    let own = Authority::new(keys("ours"), evenkeel_auth::Settings::default());
    server.use_authority(Arc::new(own.accept(issuer)));

    // The token of the caller has the subject `reader`.
    let reads = server.store.with_share(ConnectionShare::RestReads, Some("reader"));
    let connection = reads.tenant(server.theirs).await.expect("a connection");
    let answer = server.send(request(&server, Caller::Reader, "GET regions", Body::empty())).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "our reader uses its part");
    let roles = [Role::Read(server.ours.uuid())];
    let token = login.issue_operator("reader", &roles, TimeDelta::hours(1), server.now());
    let token = token.expect("a token").token;
    let other = server.client(Some(token.reveal()), None);
    other.expect_ok("GET /v1/projects/ours/regions", None).await;
    drop(connection);
}

#[tokio::test]
async fn a_client_that_does_not_read_its_list_is_disconnected() {
    let settings = Settings {
        max_streamed_lists: 1,
        min_stream_rate: u64::MAX,
        stream_grace_period: Duration::from_millis(10),
        ..Settings::default()
    };
    let server = TestServer::with_settings(settings).await;
    create_regions(&server, 800).await;
    let list = || server.send(request(&server, Caller::Writer, "GET regions", Body::empty()));
    let slow = list().await;
    assert_eq!(slow.status(), StatusCode::OK);
    let next = async { while list().await.status() != StatusCode::OK {} };
    timeout(DEADLINE, next).await.expect("the permit of the slow client is free");
    assert!(slow.into_body().collect().await.is_err(), "the list is not complete");
}

#[tokio::test]
async fn lists_with_an_expensive_filter_need_a_permit() {
    let settings = Settings { max_expensive_lists: 0, ..Settings::default() };
    let server = TestServer::with_settings(settings).await;
    let labels: Vec<String> = (0..5).map(|n| format!("metadata.k{n}=x")).collect();
    let filter = |parts: &[String]| parts.join("%20OR%20");
    for (parts, page, expected) in [
        (&labels[..4], "", StatusCode::SERVICE_UNAVAILABLE),
        (&labels[..4], "&pageSize=1", StatusCode::SERVICE_UNAVAILABLE),
        (&labels[..3], "", StatusCode::OK),
        (&labels[..3], "&pageSize=1", StatusCode::OK),
    ] {
        let what = format!("GET regions?filter={}{page}", filter(parts));
        let answer = server.send(request(&server, Caller::Reader, &what, Body::empty())).await;
        assert_eq!(answer.status(), expected, "{what}");
    }
    for (query, expected) in [
        (format!("?filter={}", filter(&labels[..])), StatusCode::SERVICE_UNAVAILABLE),
        (String::new(), StatusCode::OK),
    ] {
        let what = format!("GET compute/hosts/summary{query}");
        let answer = server.send(request(&server, Caller::Reader, &what, Body::empty())).await;
        assert_eq!(answer.status(), expected, "{what}");
    }
    let what = format!("GET regions?filter={}", filter(&labels[..4]));
    let answer = server.send(request(&server, Caller::Reader, &what, Body::empty())).await;
    let text = answer.into_body().collect().await.expect("a problem").to_bytes();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("rest.max_expensive_lists") && !text.contains("try again"), "{text}");
}

#[tokio::test]
async fn only_a_request_with_a_valid_token_authenticates_its_connection() {
    let server = TestServer::new().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let hook = AuthenticationHook::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let send = async |mut sent: Request<Body>| {
        sent.extensions_mut().insert(hook.clone());
        server.send(sent).await.status()
    };
    let public = Request::get("/openapi.json").body(Body::empty()).expect("a request");
    assert_eq!(send(public).await, StatusCode::OK);
    let forged = Request::get("/v1/projects/ours/regions")
        .header(header::AUTHORIZATION, "Bearer forged")
        .body(Body::empty());
    assert_eq!(send(forged.expect("a request")).await, StatusCode::UNAUTHORIZED);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let valid = request(&server, Caller::Reader, "GET regions", Body::empty());
    assert_eq!(send(valid).await, StatusCode::OK);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_request_beyond_a_limit_of_connections_is_refused_with_the_reason() {
    let server = TestServer::new().await;
    for (limit, reason) in [
        (ConnectionLimit::PerUser, "this user has too many open connections"),
        (ConnectionLimit::PerProject, "this project has too many open connections"),
        (ConnectionLimit::PerAddress, "this address has too many open connections"),
    ] {
        let mut sent = request(&server, Caller::Reader, "GET regions", Body::empty());
        sent.extensions_mut().insert(AuthenticationHook::new(move |_| Err(limit)));
        let answer = server.send(sent).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
        let text = answer.into_body().collect().await.expect("a body").to_bytes();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains(reason), "{text}");
    }
}
