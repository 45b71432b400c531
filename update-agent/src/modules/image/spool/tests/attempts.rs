//! Failed attempts, their limits, and what is retained after them.

use std::os::unix::fs::MetadataExt;

use super::*;

#[tokio::test]
async fn a_stalled_response_is_aborted() {
    let content = noise(100_000, 15);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| {
        let reply = TestReply::file(&body, ETAG, request);
        match before {
            0 => reply.cut(50_000).followed_by(AfterBody::Stall),
            _ => reply,
        }
    });
    let mut bench = SpoolBench::new();
    bench.limits.stall_limits.idle_timeout = Duration::from_millis(300);
    let spec = image_spec(server.url("/a"), &content);
    let spool = bench.spool();
    // Slices that are shorter than the idle timeout neither extend it nor send another request.
    let mut parts = 0;
    let why = loop {
        match spool.fetch(&spec, Duration::from_millis(20)).await.unwrap() {
            SpoolProgress::Partial { .. } => parts += 1,
            other => break deferral_reason(other),
        }
        assert!(parts < 1_000, "the idle timeout never ends");
    };
    assert!(why.contains("no data arrived for 300 ms"), "{why}");
    assert!(parts > 0, "the idle timeout is longer than a slice");
    assert_eq!(server.requests().len(), 1);
    bench.finish(&spool, &spec).await.unwrap();
    assert!(server.requests()[1].range_start().is_some(), "received bytes are retained");
}

#[tokio::test]
async fn a_slow_response_is_aborted() {
    let content = noise(100_000, 34);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| match before {
        // One byte at a time, without an end.
        0 => TestReply {
            head: "HTTP/1.1 200 OK\r\n".to_owned(),
            body: Vec::new(),
            after_body: AfterBody::Endless(vec![7]),
        },
        _ => TestReply::file(&body, ETAG, request),
    });
    let mut bench = SpoolBench::new();
    bench.limits.stall_limits.rate_window = Duration::from_millis(50);
    bench.limits.stall_limits.min_bytes = u64::MAX;
    let spec = image_spec(server.url("/a"), &content);
    let why = deferral_reason(bench.spool().fetch(&spec, SLICE).await.unwrap());
    for expected in ["only", "bytes arrived in 50 ms", "attempt 1 of 5"] {
        assert!(why.contains(expected), "{why}");
    }
}

#[tokio::test]
async fn a_retry_time_of_the_server_is_respected() {
    let content = noise(1_000, 17);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| match before {
        0..10 => TestReply::status("429 Too Many Requests", &["retry-after: 120"]),
        _ => TestReply::file(&body, ETAG, request),
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &content);
    let spool = bench.spool();
    let why = deferral_reason(spool.fetch(&spec, SLICE).await.unwrap());
    assert!(why.contains("429"), "{why}");
    bench.clock.advance(TimeDelta::seconds(119));
    let same = deferral_reason(spool.fetch(&spec, SLICE).await.unwrap());
    assert_eq!(why, same);
    assert_eq!(server.requests().len(), 1, "it was not requested too early");
    bench.clock.advance(TimeDelta::seconds(60));
    deferral_reason(spool.fetch(&spec, SLICE).await.unwrap());
    assert_eq!(server.requests().len(), 2);

    // A retry time is not a failed attempt.
    bench.finish(&spool, &spec).await.unwrap();
    assert_eq!(server.requests().len(), 11);
}

#[tokio::test]
async fn too_many_failed_attempts_are_a_failure_and_the_next_fetch_has_all_attempts_again() {
    let content = noise(100_000, 18);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| match before {
        0 => TestReply::file(&body, ETAG, request).cut(60_000),
        1..6 => TestReply::status("503 Service Unavailable", &[]),
        _ => TestReply::file(&body, ETAG, request),
    });
    let bench = SpoolBench::new();
    let mut spec = image_spec(server.url("/a"), &content);
    spec.rules.attempts = 3;
    let failure = bench.finish(&bench.spool(), &spec).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    for expected in ["3 attempts", "503", "60000 bytes are kept"] {
        assert!(failure.reason.contains(expected), "{failure}");
    }
    assert_eq!(server.requests().len(), 3);

    spec.rules.attempts = 0;
    bench.finish(&bench.spool(), &spec).await.unwrap();
    let last = server.requests().pop().unwrap();
    assert_eq!(last.range_start(), Some(60_000));
}

#[tokio::test]
async fn a_server_that_defers_the_agent_forever_is_given_up() {
    let server = TestFileServer::start(|_, _| {
        TestReply::status("503 Service Unavailable", &["retry-after: 60"])
    });
    let bench = SpoolBench::new();
    let mut spec = image_spec(server.url("/a"), b"x");
    spec.rules.attempts = 2;
    // A new agent each time: only the record has the count.
    let mut waits = 0;
    let failure = loop {
        let why = match bench.spool().fetch(&spec, SLICE).await {
            Ok(progress) => deferral_reason(progress),
            Err(failure) => break failure,
        };
        assert!(why.contains("503"), "{why}");
        waits += 1;
        assert!(waits < 100, "it waits forever");
    };
    assert_eq!(server.requests().len(), 40);
    for expected in ["2 attempts", "503"] {
        assert!(failure.reason.contains(expected), "{failure}");
    }
}

#[tokio::test]
async fn an_unchanged_record_is_not_rewritten() {
    let content = noise(100_000, 35);
    let body = content.clone();
    let server = TestFileServer::start(move |_, request| {
        let reply = TestReply::file(&body, ETAG, request);
        reply.cut(50_000).followed_by(AfterBody::Stall)
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &content);
    let spool = bench.spool();
    let half = SpoolProgress::Partial { bytes: 50_000 };
    let slice = Duration::from_millis(20);
    while spool.fetch(&spec, slice).await.unwrap() != half {}
    // A replaced file has another inode.
    let path = bench.images().join(record::FILE_NAME);
    let before = (fs::metadata(&path).unwrap().ino(), bench.record());
    bench.clock.advance(TimeDelta::hours(1));
    assert_eq!(spool.fetch(&spec, slice).await.unwrap(), half);
    let after = (fs::metadata(&path).unwrap().ino(), bench.record());
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_connection_that_breaks_often_still_delivers_the_whole_file() {
    const PART_BYTES: usize = 900 << 10;
    let content = noise(10 * PART_BYTES, 36);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| {
        // It had to restart after most of the file had come.
        if before == 1 {
            return TestReply::status("416 Range Not Satisfiable", &["content-range: bytes */7"]);
        }
        let reply = TestReply::file(&body, ETAG, request);
        reply.cut(if before == 0 { 9 * PART_BYTES } else { PART_BYTES })
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &content);
    let spooled = bench.finish(&bench.spool(), &spec).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    assert_eq!(server.requests().len(), 12);
}

#[tokio::test]
async fn a_download_that_restarts_forever_is_given_up() {
    let content = noise(3 << 20, 37);
    let body = content.clone();
    // Each round brings enough bytes to reset the failures, and then another file.
    let server = TestFileServer::start(move |_, request| match request.range_start() {
        None => TestReply::whole_file(&body, ETAG).cut(1_000),
        Some(1_000) => TestReply::part(&body, 1_000, ETAG).cut(1 << 20),
        Some(from) => TestReply::part(&body, from, "\"two\""),
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &content);
    let failure = bench.finish(&bench.spool(), &spec).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("restarted 10 times"), "{failure}");
}

#[tokio::test]
async fn the_same_image_at_another_address_is_requested_there_at_once() {
    let content = noise(100_000, 38);
    let body = content.clone();
    let server = TestFileServer::start(move |_, request| match request.path() {
        "/old" => TestReply::status("503 Service Unavailable", &["retry-after: 3600"]),
        "/stalled" => {
            let reply = TestReply::file(&body, ETAG, request);
            reply.cut(50_000).followed_by(AfterBody::Stall)
        }
        _ => TestReply::file(&body, ETAG, request),
    });
    let bench = SpoolBench::new();
    let spool = bench.spool();
    let busy = image_spec(server.url("/old"), &content);
    deferral_reason(spool.fetch(&busy, SLICE).await.unwrap());
    let stalled = image_spec(server.url("/stalled"), &content);
    let (half, slice) = (SpoolProgress::Partial { bytes: 50_000 }, Duration::from_millis(20));
    while spool.fetch(&stalled, slice).await.unwrap() != half {}

    let moved = image_spec(server.url("/new"), &content);
    let progress = spool.fetch(&moved, SLICE).await.unwrap();
    assert!(matches!(progress, SpoolProgress::Complete(_)), "{progress:?}");
    let requests = server.requests();
    let ranges = requests.iter().map(|one| (one.path(), one.range_start()));
    let expected = [("/old", None), ("/stalled", None), ("/new", Some(50_000))];
    assert_eq!(ranges.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_partial_download_outlives_its_attempt_but_expires_after_a_month() {
    let content = noise(100_000, 39);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| {
        let reply = TestReply::file(&body, ETAG, request);
        if before < 5 { reply.cut(10_000) } else { reply }
    });
    let bench = SpoolBench::new();
    let first = image_spec(server.url("/a"), &content);
    let failure = bench.finish(&bench.spool(), &first).await.unwrap_err();
    assert!(failure.reason.contains("50000 bytes are kept"), "{failure}");

    let keep = Some(&first.sha256);
    let both = [Sha256::hash(&content).to_string(), record::FILE_NAME.to_owned()];
    let spool = bench.spool();
    spool.discard_except(keep).unwrap();
    bench.clock.advance(TimeDelta::days(29));
    spool.discard_except(keep).unwrap();
    assert_eq!(file_names(&bench.images()), both);
    bench.clock.advance(TimeDelta::days(2));
    spool.discard_except(keep).unwrap();
    assert!(file_names(&bench.images()).is_empty(), "it is a month old");

    bench.finish(&bench.spool(), &first).await.unwrap();
    assert_eq!(server.requests().pop().unwrap().range_start(), None);
    let other = Sha256::hash(b"another image");
    spool.discard_except(Some(&other)).unwrap();
    assert!(file_names(&bench.images()).is_empty(), "another image is desired");
}

#[tokio::test]
async fn a_clock_jump_neither_deletes_a_download_nor_retains_it_forever() {
    let content = noise(100_000, 40);
    let bench = SpoolBench::new();
    bench.write_interrupted(&content, &content[..50_000], 50_000);
    let (spool, keep) = (bench.spool(), Sha256::hash(&content));
    for jump in [0, -15_000, 15_000] {
        bench.clock.advance(TimeDelta::days(jump));
        spool.discard_except(Some(&keep)).unwrap();
        assert_eq!(bench.record().at, Some(bench.clock.now()), "{jump} days");
        assert_eq!(bench.record().synced, 50_000);
    }
    bench.clock.advance(TimeDelta::days(31));
    spool.discard_except(Some(&keep)).unwrap();
    assert!(file_names(&bench.images()).is_empty());
}

#[tokio::test]
async fn bytes_of_a_server_that_was_wrong_before_are_discarded() {
    let (right, wrong) = (noise(100_000, 41), noise(100_000, 42));
    let server = TestFileServer::start(move |before, _| match before {
        0 => TestReply::whole_file(&wrong, ETAG),
        _ => TestReply::whole_file(&right, ETAG).cut(50_000),
    });
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &noise(100_000, 41));
    let failure = bench.finish(&bench.spool(), &spec).await.unwrap_err();
    assert!(failure.reason.contains("5 attempts"), "{failure}");
    assert!(!failure.reason.contains("kept"), "{failure}");
    assert!(file_names(&bench.images()).is_empty());
}
