//! How the spool handles the responses of a server.

use super::*;

/// Makes a reply from the file and from a longer one.
type MakeReply = fn(&[u8], &[u8]) -> TestReply;

#[tokio::test]
async fn a_changed_file_is_downloaded_from_its_first_byte() {
    let (old, new) = (noise(100_000, 3), noise(90_000, 4));
    let body = new.clone();
    let server = TestFileServer::start(move |before, request| match before {
        0 => TestReply::whole_file(&old, "\"old\"").cut(50_000),
        _ => TestReply::file(&body, "\"new\"", request),
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &new);
    let spooled = bench.finish(&bench.spool(), &spec).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), new);
    assert_eq!(server.requests().len(), 2, "the second response was used");
}

#[tokio::test]
async fn a_file_changed_behind_a_weak_etag_is_detected_by_its_digest() {
    let (old, new) = (noise(100_000, 5), noise(100_000, 6));
    let body = new.clone();
    let server = TestFileServer::start(move |before, request| match before {
        0 => TestReply::whole_file(&old, "W/\"x\"").cut(50_000),
        _ => TestReply::file(&body, "W/\"x\"", request),
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &new);
    let spooled = bench.finish(&bench.spool(), &spec).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), new);
    let requests = server.requests();
    assert_eq!(requests[1].range_start(), Some(50_000));
    assert_eq!(requests[1].header("if-range"), None, "no weak tag");
    assert_eq!(requests[2].range_start(), None);
}

#[tokio::test]
async fn a_server_without_ranges_may_resend_the_whole_file_a_limited_number_of_times() {
    let content = noise(100_000, 7);
    let body = content.clone();
    let good = TestFileServer::start(move |before, _| {
        let reply = TestReply::whole_file(&body, ETAG);
        if before == 0 { reply.cut(50_000) } else { reply }
    });
    let bench = SpoolBench::new();
    let first = image_spec(good.url("/a"), &content);
    bench.finish(&bench.spool(), &first).await.unwrap();
    assert_eq!(good.requests()[1].range_start(), Some(50_000));

    let body = content.clone();
    let bad = TestFileServer::start(move |_, _| TestReply::whole_file(&body, ETAG).cut(50_000));
    let bench = SpoolBench::new();
    let second = image_spec(bad.url("/a"), &content);
    let failure = bench.finish(&bench.spool(), &second).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("5 attempts"), "{failure}");
    assert!(bad.requests().len() <= 5, "{}", bad.requests().len());
}

#[tokio::test]
async fn a_part_that_was_not_requested_is_not_appended() {
    let content = noise(100_000, 8);
    let longer = noise(100_001, 8);
    let wrong: [MakeReply; 3] = [
        |content, _| TestReply::part(content, 10, ETAG),
        |_, longer| TestReply::part(longer, 50_000, ETAG),
        |content, _| TestReply::part(content, 50_000, "\"two\""),
    ];
    for wrong in wrong {
        let (body, longer) = (content.clone(), longer.clone());
        let server = TestFileServer::start(move |before, request| match before {
            0 => TestReply::whole_file(&body, ETAG).cut(50_000),
            1 => wrong(&body, &longer),
            _ => TestReply::file(&body, ETAG, request),
        });
        let bench = SpoolBench::new();
        let spec = image_spec(server.url("/a"), &content);
        let spooled = bench.finish(&bench.spool(), &spec).await.unwrap();
        assert_eq!(fs::read(&spooled.path).unwrap(), content);
        let requests = server.requests();
        assert_eq!(requests[1].range_start(), Some(50_000));
        assert_eq!(requests[2].range_start(), None, "it is requested without a range");
        assert_eq!(requests.len(), 3);
    }
}

#[tokio::test]
async fn a_file_that_became_shorter_is_discarded_once() {
    let content = noise(100_000, 9);
    let past = || TestReply::status("416 Range Not Satisfiable", &["content-range: bytes */7"]);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| match before {
        0 => TestReply::whole_file(&body, ETAG).cut(50_000),
        1 => past(),
        _ => TestReply::file(&body, ETAG, request),
    });
    let bench = SpoolBench::new();
    let first = image_spec(server.url("/a"), &content);
    bench.finish(&bench.spool(), &first).await.unwrap();

    let body = content.clone();
    let server = TestFileServer::start(move |_, request| match request.range_start() {
        None => TestReply::whole_file(&body, ETAG).cut(50_000),
        Some(_) => past(),
    });
    let bench = SpoolBench::new();
    let second = image_spec(server.url("/a"), &content);
    let failure = bench.finish(&bench.spool(), &second).await.unwrap_err();
    assert!(failure.reason.contains("twice"), "{failure}");
    assert_eq!(server.requests().len(), 4);
    assert!(file_names(&bench.images()).is_empty());
}

/// A body without a length and without an end.
fn endless_reply(head: &str) -> TestReply {
    let mut chunk = b"10000\r\n".to_vec();
    chunk.extend(noise(0x1_0000, 10));
    chunk.extend(b"\r\n");
    TestReply {
        head: format!("{head}transfer-encoding: chunked\r\n"),
        body: Vec::new(),
        after_body: AfterBody::Endless(chunk),
    }
}

#[tokio::test]
async fn an_endless_body_is_read_up_to_the_policy_limit() {
    let server = TestFileServer::start(|_, _| endless_reply("HTTP/1.1 200 OK\r\n"));
    let bench = SpoolBench::new();
    let mut spec = image_spec(server.url("/a"), b"x");
    spec.rules.max_bytes = 1_000_000;
    let failure = bench.spool().fetch(&spec, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("1000000"), "{failure}");
    assert!(!failure.reason.contains("disk"), "{failure}");
    assert!(file_names(&bench.images()).is_empty(), "nothing is retained");
}

#[tokio::test]
async fn a_short_body_without_a_length_is_resumed() {
    let content = noise(100_000, 30);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| match before {
        0 => TestReply {
            head: format!("HTTP/1.1 200 OK\r\netag: {ETAG}\r\n"),
            ..TestReply::whole_file(&body, ETAG).cut(50_000)
        },
        _ => TestReply::file(&body, ETAG, request),
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &content);
    let why = deferral_reason(bench.spool().fetch(&spec, SLICE).await.unwrap());
    for expected in ["does not say how long", "50000 bytes", "attempt 1 of 5"] {
        assert!(why.contains(expected), "{why}");
    }
    assert!(!bench.record().was_wrong);

    let spooled = bench.finish(&bench.spool(), &spec).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    let requests = server.requests();
    assert_eq!(requests[1].range_start(), Some(50_000));
    assert_eq!(requests.len(), 2);
}

#[tokio::test]
async fn a_wrong_body_without_a_length_fails_after_all_attempts() {
    let body = noise(100_000, 31);
    let server = TestFileServer::start(move |_, _| TestReply {
        head: "HTTP/1.1 200 OK\r\n".to_owned(),
        ..TestReply::whole_file(&body, ETAG)
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), b"another");
    let failure = bench.finish(&bench.spool(), &spec).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("5 attempts"), "{failure}");
    assert_eq!(server.requests().len(), 5);
}

#[tokio::test]
async fn bytes_beyond_the_announced_size_are_dropped() {
    let content = noise(100_000, 11);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| match before {
        0 => TestReply::whole_file(&body, ETAG).cut(50_000),
        1 => endless_reply(
            "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 50000-99999/100000\r\n",
        ),
        _ => TestReply::file(&body, ETAG, request),
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &content);
    let spooled = bench.finish(&bench.spool(), &spec).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
}

#[tokio::test]
async fn an_image_that_is_too_large_is_refused_before_the_download() {
    let content = noise(100_000, 12);
    let body = content.clone();
    let server = TestFileServer::start(move |_, _| TestReply::whole_file(&body, ETAG));
    let bench = SpoolBench::new();
    let mut spec = image_spec(server.url("/a"), &content);
    spec.rules.max_bytes = 99_999;
    let spool = bench.spool();
    for failure in
        [spool.size(&spec).await.unwrap_err(), spool.fetch(&spec, SLICE).await.unwrap_err()]
    {
        assert_eq!(failure.kind, FailureKind::Download);
        assert!(failure.reason.contains("100000 bytes"), "{failure}");
    }
    spec.rules.max_bytes = 100_000;
    assert_eq!(spool.size(&spec).await.unwrap(), Some(100_000));
    bench.finish(&spool, &spec).await.unwrap();
    let request_count = server.requests().len();

    // The limit is lower now: the downloaded file is refused without a request.
    spec.rules.max_bytes = 99_999;
    let failure = bench.spool().fetch(&spec, SLICE).await.unwrap_err();
    assert!(failure.reason.contains("100000 bytes"), "{failure}");
    assert_eq!(server.requests().len(), request_count);
}

#[tokio::test]
async fn a_missing_file_fails_at_once() {
    let server = TestFileServer::start(|_, _| TestReply::status("404 Not Found", &[]));
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), b"x");
    let failure = bench.spool().fetch(&spec, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_wrong_file_is_downloaded_once_more_and_then_refused() {
    let (right, wrong) = (noise(100_000, 19), noise(100_000, 20));
    let (body, other) = (right.clone(), wrong.clone());
    let server = TestFileServer::start(move |before, request| {
        let content = if before == 0 { &other } else { &body };
        TestReply::file(content, ETAG, request)
    });
    let bench = SpoolBench::new();
    let first = image_spec(server.url("/a"), &right);
    let SpoolProgress::Complete(spooled) = bench.spool().fetch(&first, SLICE).await.unwrap() else {
        panic!("the second time it was right");
    };
    assert_eq!(fs::read(&spooled.path).unwrap(), right);
    assert_eq!(server.requests()[1].range_start(), None);

    let other = wrong.clone();
    let server = TestFileServer::start(move |_, request| TestReply::file(&other, ETAG, request));
    let bench = SpoolBench::new();
    let second = image_spec(server.url("/a"), &right);
    let failure = bench.spool().fetch(&second, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    for digest in [Sha256::hash(&right), Sha256::hash(&wrong)] {
        let is_reported = failure.reason.contains(&digest.to_string());
        assert!(is_reported, "{failure}");
    }
    assert_eq!(server.requests().len(), 2);
    assert!(file_names(&bench.images()).is_empty(), "nothing is retained");
}

/// The beginning of a zstd frame with a window of 2 GiB (RFC 8878, 3.1.1.1.2): exponent 21, mantissa 0.
fn frame_with_wide_window(seed: u32) -> Vec<u8> {
    let mut content = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3];
    content.extend(noise(1_000_000, seed));
    content
}

#[tokio::test]
async fn an_image_that_cannot_be_unpacked_is_refused_from_its_head() {
    let content = frame_with_wide_window(29);
    let body = content.clone();
    let server = TestFileServer::start(move |_, request| {
        let reply = TestReply::file(&body, ETAG, request);
        reply.cut(400_000).followed_by(AfterBody::Stall)
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &content);
    let failure = bench.spool().fetch(&spec, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    let range_starts: Vec<_> = server.requests().iter().map(TestRequest::range_start).collect();
    assert_eq!(range_starts, [None, None], "it was fetched once more");
    assert!(file_names(&bench.images()).is_empty(), "nothing is retained");
}

#[tokio::test]
async fn a_wrong_file_that_cannot_be_unpacked_is_downloaded_again() {
    let (content, other) = (noise(1_000_000, 32), frame_with_wide_window(33));
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| match before {
        0 => TestReply::whole_file(&other, ETAG),
        _ => TestReply::file(&body, ETAG, request),
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &content);
    let spooled = bench.finish(&bench.spool(), &spec).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    assert_eq!(server.requests().len(), 2);
}
