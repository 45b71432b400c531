//! To whom, which part, and how many at once.

use axum::http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_NONE_MATCH, IF_RANGE, RANGE,
    WWW_AUTHENTICATE,
};
use evenkeel_domain::host::Note;
use evenkeel_store::hosts;

use super::*;
use crate::house::project;

#[tokio::test]
async fn a_node_gets_an_image_by_its_digest_and_by_the_path_in_its_profile() {
    let site = Site::new().await;
    let edge = content(1);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let files = site.open();
    let digest = Digest::of(&edge);
    for path in [
        by_digest(&edge),
        format!("{}/edge-1.0.raw", by_digest(&edge)),
        "/images/edge-1.0.raw".to_owned(),
    ] {
        let got = site.ask(&files, &path, &[]).await;
        assert_eq!(got.status, StatusCode::OK, "{path}: {}", got.text());
        assert_eq!(got.header(ETAG), format!("\"{digest}\""));
        assert_eq!(got.header(CONTENT_LENGTH), LENGTH.to_string());
        assert_eq!(got.header(ACCEPT_RANGES), "bytes");
        assert!(got.body == edge, "{path}");
    }
    assert_eq!(site.house.small.count("GET /v2/"), 1, "it came once");
    assert_eq!(site.lies_in("sha256"), [(digest.hex(), LENGTH as u64)]);
    assert!(site.lies_in("partial").is_empty());
}

#[tokio::test]
async fn an_image_may_lie_beside_the_registry_and_be_of_unknown_size() {
    let site = Site::new().await;
    let edge = content(2);
    site.house.small.put_file("/beside/edge.raw", edge.clone());
    let place = format!("web:{}", site.house.small.file_url("/beside/edge.raw"));
    let (tenant, digest) = (site.house.tenant, Digest::of(&edge));
    site.name(tenant, "1.0", &digest, (&place, None)).await;
    let got = site.ask(&site.open(), &by_digest(&edge), &[]).await;
    assert!(
        got.status == StatusCode::OK && got.body == edge,
        "{}",
        got.status
    );
}

#[tokio::test]
async fn every_part_of_a_file_is_that_part() {
    let site = Site::new().await;
    let edge = content(3);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let files = site.open();
    let (path, last) = (by_digest(&edge), LENGTH - 1);
    for (range, from, to) in [
        ("bytes=0-0".to_owned(), 0, 1),
        ("bytes=0-".to_owned(), 0, LENGTH),
        (format!("bytes={last}-"), last, LENGTH),
        ("bytes=131071-131072".to_owned(), 131_071, 131_073),
        ("bytes=1000-262999".to_owned(), 1_000, 263_000),
        ("bytes=-1".to_owned(), last, LENGTH),
        (format!("bytes=-{}", LENGTH * 2), 0, LENGTH),
    ] {
        let got = site.ask(&files, &path, &[(RANGE, &range)]).await;
        assert_eq!(got.status, StatusCode::PARTIAL_CONTENT, "{range}");
        let said = format!("bytes {from}-{}/{LENGTH}", to - 1);
        assert_eq!(got.header(CONTENT_RANGE), said);
        assert!(got.body == edge[from..to], "{range}");
    }
    for range in ["bytes=0-1,5-6", "lines=1-2", "bytes=9-1"] {
        let got = site.ask(&files, &path, &[(RANGE, range)]).await;
        assert!(got.status == StatusCode::OK && got.body == edge, "{range}");
    }
    let behind = format!("bytes={LENGTH}-");
    let got = site.ask(&files, &path, &[(RANGE, &behind)]).await;
    assert_eq!(got.status, StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(got.header(CONTENT_RANGE), format!("bytes */{LENGTH}"));
}

#[tokio::test]
async fn who_has_a_part_gets_the_rest_of_the_same_file_and_who_has_all_gets_nothing() {
    let site = Site::new().await;
    let edge = content(4);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let files = site.open();
    let (path, etag) = (by_digest(&edge), format!("\"{}\"", Digest::of(&edge)));
    let rest = (RANGE, "bytes=100-");
    let same = site
        .ask(&files, &path, &[rest.clone(), (IF_RANGE, &etag)])
        .await;
    assert!(same.status == StatusCode::PARTIAL_CONTENT && same.body == edge[100..]);
    let other = format!("\"{}\"", Digest::of(b"other"));
    let whole = site.ask(&files, &path, &[rest, (IF_RANGE, &other)]).await;
    assert!(whole.status == StatusCode::OK && whole.body == edge);
    let known = site.ask(&files, &path, &[(IF_NONE_MATCH, &etag)]).await;
    assert_eq!(known.status, StatusCode::NOT_MODIFIED);
    assert_eq!(known.header(ETAG), etag);
    assert!(known.body.is_empty());

    let token = site.node(0);
    let range = [(RANGE, "bytes=0-9")];
    let head = ask(&files.router(), Method::HEAD, &path, Some(&token), &range).await;
    let head = said(head).await;
    assert_eq!(head.status, StatusCode::OK, "ranges are for GET");
    assert_eq!(head.header(CONTENT_LENGTH), LENGTH.to_string());
    assert!(head.body.is_empty());
    let put = ask(&files.router(), Method::PUT, &path, Some(&token), &[]).await;
    assert_eq!(put.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(put.headers()[ALLOW], "GET, HEAD");
}

#[tokio::test]
async fn only_what_a_profile_of_the_callers_project_names_is_given() {
    let site = Site::new().await;
    let other = project(&site.house.store, "other").await;
    let (edge, foreign) = (content(5), content(6));
    site.offer(site.house.tenant, "1.0", &edge).await;
    site.offer(other, "2.0", &foreign).await;
    site.house.small.put_blob(FILES, content(7));
    let files = site.open();
    let (tenant, other) = (site.house.tenant.uuid(), other.uuid());
    let reader = site.somebody(&[Role::Read(other)]);
    let administrator = site.somebody(&[Role::Administrator]);
    let nobody = site.somebody(&[]);
    let both = site.somebody(&[Role::Read(other), Role::Write(tenant)]);
    let node = site.node(0);
    // What is kept already is no more to be had than what is not.
    for (who, what, status) in [
        (Some(&reader), &foreign, StatusCode::OK),
        (Some(&node), &foreign, StatusCode::NOT_FOUND),
        (Some(&node), &edge, StatusCode::OK),
        (Some(&reader), &edge, StatusCode::NOT_FOUND),
        (Some(&both), &edge, StatusCode::OK),
        (Some(&both), &foreign, StatusCode::OK),
        (Some(&administrator), &edge, StatusCode::OK),
        (Some(&administrator), &content(7), StatusCode::NOT_FOUND),
        (Some(&nobody), &edge, StatusCode::FORBIDDEN),
        (None, &edge, StatusCode::UNAUTHORIZED),
    ] {
        let path = by_digest(what);
        let token = who.map(String::as_str);
        let got = ask(&files.router(), Method::GET, &path, token, &[]).await;
        assert_eq!(got.status(), status, "{who:?} {path}");
    }
    for path in [
        "/images/edge-2.0.raw",
        "/images",
        "/",
        "/../keys/signing.pem",
        "/files/sha256/../../lock",
    ] {
        let got = site.ask(&files, path, &[]).await;
        assert_eq!(got.status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn a_host_that_was_invalidated_gets_nothing_any_more() {
    let site = Site::new().await;
    let edge = content(8);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let files = site.open();
    let path = by_digest(&edge);
    assert_eq!(site.ask(&files, &path, &[]).await.status, StatusCode::OK);
    let tx = site
        .house
        .store
        .tenant(site.house.tenant)
        .await
        .expect("a transaction");
    let note = Note::parse("stolen").expect("a note");
    let now = site.house.clock.now();
    let invalidated = hosts::invalidate(&tx, site.nodes[0], &note, now).await;
    invalidated.expect("invalidated");
    tx.commit().await.expect("committed");
    let got = site.ask(&files, &path, &[]).await;
    assert_eq!(got.status, StatusCode::UNAUTHORIZED);
    assert_eq!(got.header(WWW_AUTHENTICATE), "Bearer");
    let neighbour = site.node(1);
    let got = ask(&files.router(), Method::GET, &path, Some(&neighbour), &[]).await;
    assert_eq!(got.status(), StatusCode::OK);
}

#[tokio::test]
async fn everybody_gets_files_only_by_an_explicit_word() {
    let mut site = Site::new().await;
    site.settings.admission = Admission::Open;
    let edge = content(9);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let files = site.open();
    for token in [None, Some("nonsense")] {
        let path = "/images/edge-1.0.raw";
        let got = ask(&files.router(), Method::GET, path, token, &[]).await;
        assert_eq!(got.status(), StatusCode::OK);
    }
    let unknown = by_digest(b"unknown");
    let got = ask(&files.router(), Method::GET, &unknown, None, &[]).await;
    assert_eq!(got.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn profiles_that_do_not_agree_on_a_path_leave_the_digest() {
    let site = Site::new().await;
    let other = project(&site.house.store, "other").await;
    let (one, two) = (content(10), content(11));
    site.offer(site.house.tenant, "1.0", &one).await;
    site.offer(other, "1.0", &two).await;
    let files = site.open();
    let path = "/images/edge-1.0.raw";
    let own = site.ask(&files, path, &[]).await;
    assert!(own.body == one, "{}", own.status);
    let token = site.somebody(&[Role::Administrator]);
    let both = ask(&files.router(), Method::GET, path, Some(&token), &[]).await;
    assert_eq!(both.status(), StatusCode::CONFLICT);
    for content in [one, two] {
        let path = by_digest(&content);
        let got = ask(&files.router(), Method::GET, &path, Some(&token), &[]).await;
        assert!(said(got).await.body == content);
    }
}

#[tokio::test]
async fn there_is_an_end_to_how_many_files_are_read_at_once() {
    let mut site = Site::new().await;
    (site.settings.transfers, site.settings.transfers_per_node) = (2, 1);
    let edge = content(12);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let router = site.open().router();
    let path = by_digest(&edge);
    let nodes = [0, 1, 2].map(|which| site.node(which));
    let get = |which: usize| ask(&router, Method::GET, &path, Some(&nodes[which]), &[]);

    let first = get(0).await;
    assert_eq!(first.status(), StatusCode::OK);
    let again = said(get(0).await).await;
    assert_eq!(again.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(!again.header(RETRY_AFTER).is_empty());
    let second = get(1).await;
    assert_eq!(second.status(), StatusCode::OK);
    let third = said(get(2).await).await;
    assert!(third.is_for_later(), "{}", third.status);

    assert!(
        said(first).await.body == edge,
        "what was begun is not disturbed"
    );
    assert_eq!(get(2).await.status(), StatusCode::OK);
    drop(second);
    assert_eq!(get(0).await.status(), StatusCode::OK);
}
