//! Who gets files, which ranges, and how many at once.

use axum::http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_NONE_MATCH, IF_RANGE, RANGE,
    WWW_AUTHENTICATE,
};
use evenkeel_domain::host::InvalidationNote;
use evenkeel_store::hosts;

use super::*;

#[tokio::test]
async fn a_node_gets_an_image_by_digest_and_by_path() {
    let fixture = FileFixture::new().await;
    let edge = content(1);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let files = fixture.open();
    let digest = Digest::compute(&edge);
    for path in [
        digest_path(&edge),
        format!("{}/edge-1.0.raw", digest_path(&edge)),
        "/images/edge-1.0.raw".to_owned(),
    ] {
        let response = fixture.get(&files, &path, &[]).await;
        assert_eq!(response.status, StatusCode::OK, "{path}: {}", response.text());
        assert_eq!(response.header(ETAG), format!("\"{digest}\""));
        assert_eq!(response.header(CONTENT_LENGTH), CONTENT_BYTES.to_string());
        assert_eq!(response.header(ACCEPT_RANGES), "bytes");
        assert!(response.body == edge, "{path}");
    }
    assert_eq!(fixture.server.registry.count_requests("GET /v2/"), 1, "it is downloaded once");
    assert_eq!(fixture.cached_files("sha256"), [(digest.hex(), CONTENT_BYTES as u64)]);
    assert!(fixture.cached_files("partial").is_empty());
}

#[tokio::test]
async fn an_image_can_be_outside_the_registry_and_of_unknown_size() {
    let fixture = FileFixture::new().await;
    let edge = content(2);
    fixture.server.registry.put_file("/beside/edge.raw", edge.clone());
    let location = format!("web:{}", fixture.server.registry.file_url("/beside/edge.raw"));
    let (tenant, digest) = (fixture.server.tenant, Digest::compute(&edge));
    fixture.offer_image(tenant, "1.0", &digest, (&location, None)).await;
    let response = fixture.get(&fixture.open(), &digest_path(&edge), &[]).await;
    assert!(response.status == StatusCode::OK && response.body == edge, "{}", response.status);
}

#[tokio::test]
async fn every_range_returns_exactly_its_bytes() {
    let fixture = FileFixture::new().await;
    let edge = content(3);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let files = fixture.open();
    let (path, last) = (digest_path(&edge), CONTENT_BYTES - 1);
    for (range, from, to) in [
        ("bytes=0-0".to_owned(), 0, 1),
        ("bytes=0-".to_owned(), 0, CONTENT_BYTES),
        (format!("bytes={last}-"), last, CONTENT_BYTES),
        ("bytes=131071-131072".to_owned(), 131_071, 131_073),
        ("bytes=1000-262999".to_owned(), 1_000, 263_000),
        ("bytes=-1".to_owned(), last, CONTENT_BYTES),
        (format!("bytes=-{}", CONTENT_BYTES * 2), 0, CONTENT_BYTES),
    ] {
        let response = fixture.get(&files, &path, &[(RANGE, &range)]).await;
        assert_eq!(response.status, StatusCode::PARTIAL_CONTENT, "{range}");
        let expected = format!("bytes {from}-{}/{CONTENT_BYTES}", to - 1);
        assert_eq!(response.header(CONTENT_RANGE), expected);
        assert!(response.body == edge[from..to], "{range}");
    }
    for range in ["bytes=0-1,5-6", "lines=1-2", "bytes=9-1"] {
        let response = fixture.get(&files, &path, &[(RANGE, range)]).await;
        assert!(response.status == StatusCode::OK && response.body == edge, "{range}");
    }
    let behind = format!("bytes={CONTENT_BYTES}-");
    let response = fixture.get(&files, &path, &[(RANGE, &behind)]).await;
    assert_eq!(response.status, StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(response.header(CONTENT_RANGE), format!("bytes */{CONTENT_BYTES}"));
}

#[tokio::test]
async fn conditional_requests_return_the_rest_or_nothing() {
    let fixture = FileFixture::new().await;
    let edge = content(4);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let files = fixture.open();
    let (path, etag) = (digest_path(&edge), format!("\"{}\"", Digest::compute(&edge)));
    let rest = (RANGE, "bytes=100-");
    let same = fixture.get(&files, &path, &[rest.clone(), (IF_RANGE, &etag)]).await;
    assert!(same.status == StatusCode::PARTIAL_CONTENT && same.body == edge[100..]);
    let other = format!("\"{}\"", Digest::compute(b"other"));
    let full = fixture.get(&files, &path, &[rest, (IF_RANGE, &other)]).await;
    assert!(full.status == StatusCode::OK && full.body == edge);
    let not_modified = fixture.get(&files, &path, &[(IF_NONE_MATCH, &etag)]).await;
    assert_eq!(not_modified.status, StatusCode::NOT_MODIFIED);
    assert_eq!(not_modified.header(ETAG), etag);
    assert!(not_modified.body.is_empty());

    let token = fixture.node_token(0);
    let range = [(RANGE, "bytes=0-9")];
    let head = send_request(&files.router(), Method::HEAD, &path, Some(&token), &range).await;
    let head = read_response(head).await;
    assert_eq!(head.status, StatusCode::OK, "ranges are for GET");
    assert_eq!(head.header(CONTENT_LENGTH), CONTENT_BYTES.to_string());
    assert!(head.body.is_empty());
    let put = send_request(&files.router(), Method::PUT, &path, Some(&token), &[]).await;
    assert_eq!(put.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(put.headers()[ALLOW], "GET, HEAD");
}

#[tokio::test]
async fn a_caller_gets_only_files_that_profiles_of_its_projects_name() {
    let fixture = FileFixture::new().await;
    let other = fixture.server.create_project("other").await;
    let (edge, foreign) = (content(5), content(6));
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    fixture.offer_blob(other, "2.0", &foreign).await;
    fixture.server.registry.put_blob(FILES_REPOSITORY, content(7));
    let files = fixture.open();
    let (tenant, other) = (fixture.server.tenant.uuid(), other.uuid());
    let reader = fixture.server.token("somebody", &[Role::Read(other)]);
    let administrator = fixture.server.token("somebody", &[Role::Administrator]);
    let no_roles = fixture.server.token("somebody", &[]);
    let both = fixture.server.token("somebody", &[Role::Read(other), Role::Write(tenant)]);
    let node = fixture.node_token(0);
    // Access does not depend on whether a file is cached.
    for (who, what, status) in [
        (Some(&reader), &foreign, StatusCode::OK),
        (Some(&node), &foreign, StatusCode::NOT_FOUND),
        (Some(&node), &edge, StatusCode::OK),
        (Some(&reader), &edge, StatusCode::NOT_FOUND),
        (Some(&both), &edge, StatusCode::OK),
        (Some(&both), &foreign, StatusCode::OK),
        (Some(&administrator), &edge, StatusCode::OK),
        (Some(&administrator), &content(7), StatusCode::NOT_FOUND),
        (Some(&no_roles), &edge, StatusCode::FORBIDDEN),
        (None, &edge, StatusCode::UNAUTHORIZED),
    ] {
        let path = digest_path(what);
        let token = who.map(String::as_str);
        let response = send_request(&files.router(), Method::GET, &path, token, &[]).await;
        assert_eq!(response.status(), status, "{who:?} {path}");
    }
    for path in
        ["/images/edge-2.0.raw", "/images", "/", "/../keys/signing.pem", "/files/sha256/../../lock"]
    {
        let response = fixture.get(&files, path, &[]).await;
        assert_eq!(response.status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn an_invalidated_host_gets_no_files() {
    let fixture = FileFixture::new().await;
    let edge = content(8);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let files = fixture.open();
    let path = digest_path(&edge);
    assert_eq!(fixture.get(&files, &path, &[]).await.status, StatusCode::OK);
    let tx = fixture.server.store.tenant(fixture.server.tenant).await.expect("a transaction");
    let note = InvalidationNote::parse("stolen").expect("a note");
    let now = fixture.server.clock.now();
    let invalidated = hosts::invalidate(&tx, fixture.nodes[0], &note, now).await;
    invalidated.expect("invalidated");
    tx.commit().await.expect("committed");
    let response = fixture.get(&files, &path, &[]).await;
    assert_eq!(response.status, StatusCode::UNAUTHORIZED);
    assert_eq!(response.header(WWW_AUTHENTICATE), "Bearer");
    let neighbour = fixture.node_token(1);
    let response = send_request(&files.router(), Method::GET, &path, Some(&neighbour), &[]).await;
    assert_eq!(response.status(), StatusCode::OK);
}

/// Requests a path over a connection with a client certificate.
async fn get_with_certificate(
    files: &FileServer,
    path: &str,
    certificate: NodeCertificate,
) -> FileResponse {
    let request = Request::builder().uri(path).extension(Arc::new(certificate));
    let request = request.body(Body::empty()).expect("a request");
    read_response(files.router().oneshot(request).await.expect("an answer")).await
}

#[tokio::test]
async fn a_node_gets_files_with_its_client_certificate() {
    let mut fixture = FileFixture::new().await;
    fixture.settings.bearer_credentials = false;
    let edge = content(13);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let files = fixture.open();
    let path = digest_path(&edge);
    let certificate = fixture.node_certificate(0);
    let response = get_with_certificate(&files, &path, certificate.clone()).await;
    assert!(response.status == StatusCode::OK && response.body == edge, "{}", response.status);

    let expired = NodeCertificate { expires_at: fixture.server.clock.now(), ..certificate.clone() };
    let other_key =
        NodeCertificate { key: KeyFingerprint::from_public_key(b"other"), ..certificate };
    for (certificate, why) in [
        (expired, "the certificate expired at"),
        (other_key, "the host was enrolled again with another key"),
    ] {
        let response = get_with_certificate(&files, &path, certificate).await;
        assert_eq!(response.status, StatusCode::UNAUTHORIZED);
        assert!(response.text().contains(why), "{}", response.text());
    }
    // The fixture sends the credential of the node.
    let response = fixture.get(&files, &path, &[]).await;
    assert_eq!(response.status, StatusCode::UNAUTHORIZED);
    assert!(response.text().contains("bearer_credentials"), "{}", response.text());
}

#[tokio::test]
async fn a_token_without_a_key_is_not_accepted_for_a_node_of_ours() {
    let fixture = FileFixture::new().await;
    let edge = content(14);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let role = Role::Node(fixture.server.tenant.uuid());
    let token = fixture.server.token(&fixture.nodes[0].to_string(), &[role]);
    let router = fixture.open().router();
    let path = digest_path(&edge);
    let response = send_request(&router, Method::GET, &path, Some(&token), &[]).await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn files_are_public_only_if_admission_is_open() {
    let mut fixture = FileFixture::new().await;
    fixture.settings.admission = Admission::Open;
    let edge = content(9);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let files = fixture.open();
    for token in [None, Some("nonsense")] {
        let path = "/images/edge-1.0.raw";
        let response = send_request(&files.router(), Method::GET, path, token, &[]).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
    let unknown = digest_path(b"unknown");
    let response = send_request(&files.router(), Method::GET, &unknown, None, &[]).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_ambiguous_path_needs_the_digest() {
    let fixture = FileFixture::new().await;
    let other = fixture.server.create_project("other").await;
    let (one, two) = (content(10), content(11));
    fixture.offer_blob(fixture.server.tenant, "1.0", &one).await;
    fixture.offer_blob(other, "1.0", &two).await;
    let files = fixture.open();
    let path = "/images/edge-1.0.raw";
    let own = fixture.get(&files, path, &[]).await;
    assert!(own.body == one, "{}", own.status);
    let token = fixture.server.token("somebody", &[Role::Administrator]);
    let both = send_request(&files.router(), Method::GET, path, Some(&token), &[]).await;
    assert_eq!(both.status(), StatusCode::CONFLICT);
    for content in [one, two] {
        let path = digest_path(&content);
        let response = send_request(&files.router(), Method::GET, &path, Some(&token), &[]).await;
        assert!(read_response(response).await.body == content);
    }
}

#[tokio::test]
async fn concurrent_transfers_are_limited() {
    let mut fixture = FileFixture::new().await;
    (fixture.settings.max_transfers, fixture.settings.max_transfers_per_node) = (3, 1);
    let edge = content(12);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let other = fixture.server.create_project("other").await;
    fixture.offer_blob(other, "1.0", &edge).await;
    let router = fixture.open().router();
    let path = digest_path(&edge);
    let nodes = [0, 1, 2].map(|which| fixture.node_token(which));
    let get = |which: usize| send_request(&router, Method::GET, &path, Some(&nodes[which]), &[]);

    let first = get(0).await;
    assert_eq!(first.status(), StatusCode::OK);
    let again = read_response(get(0).await).await;
    assert_eq!(again.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(!again.header(RETRY_AFTER).is_empty());
    let second = get(1).await;
    assert_eq!(second.status(), StatusCode::OK);
    let third = read_response(get(2).await).await;
    assert!(third.is_retryable(), "the project uses its part: {}", third.status);
    let reader = fixture.server.token("reader", &[Role::Read(other.uuid())]);
    let of_other = send_request(&router, Method::GET, &path, Some(&reader), &[]).await;
    assert_eq!(of_other.status(), StatusCode::OK);

    assert!(read_response(of_other).await.body == edge);
    assert!(read_response(first).await.body == edge, "a running transfer continues");
    assert_eq!(get(2).await.status(), StatusCode::OK);
    drop(second);
    assert_eq!(get(0).await.status(), StatusCode::OK);
}
