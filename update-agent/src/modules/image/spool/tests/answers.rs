//! What a server may answer, and what becomes of it.

use super::*;

/// What a server gives for a file and for another one that is longer.
type Answer = fn(&[u8], &[u8]) -> Reply;

#[tokio::test]
async fn a_file_that_changed_meanwhile_is_fetched_from_its_first_byte() {
    let (old, new) = (noise(100_000, 3), noise(90_000, 4));
    let shown = new.clone();
    let server = TestServer::start(move |before, request| match before {
        0 => Reply::whole(&old, "\"old\"").cut(50_000),
        _ => Reply::file(&shown, "\"new\"", request),
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &new);
    let spooled = bench.finish(&bench.spool(), &wish).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), new);
    assert_eq!(server.requests().len(), 2, "the second answer was used");
}

#[tokio::test]
async fn a_file_that_changed_behind_a_weak_tag_is_found_out_by_its_digest() {
    let (old, new) = (noise(100_000, 5), noise(100_000, 6));
    let shown = new.clone();
    let server = TestServer::start(move |before, request| match before {
        0 => Reply::whole(&old, "W/\"x\"").cut(50_000),
        _ => Reply::file(&shown, "W/\"x\"", request),
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &new);
    let spooled = bench.finish(&bench.spool(), &wish).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), new);
    let requests = server.requests();
    assert_eq!(requests[1].from(), Some(50_000));
    assert_eq!(requests[1].header("if-range"), None, "no weak tag");
    assert_eq!(requests[2].from(), None);
}

#[tokio::test]
async fn a_server_without_ranges_may_send_the_whole_again_but_not_for_ever() {
    let content = noise(100_000, 7);
    let shown = content.clone();
    let good = TestServer::start(move |before, _| {
        let reply = Reply::whole(&shown, TAG);
        if before == 0 {
            reply.cut(50_000)
        } else {
            reply
        }
    });
    let bench = Bench::new();
    let first = wish(good.url("/a"), &content);
    bench.finish(&bench.spool(), &first).await.unwrap();
    assert_eq!(good.requests()[1].from(), Some(50_000));

    let shown = content.clone();
    let bad = TestServer::start(move |_, _| Reply::whole(&shown, TAG).cut(50_000));
    let bench = Bench::new();
    let second = wish(bad.url("/a"), &content);
    let failure = bench.finish(&bench.spool(), &second).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("5 attempts"), "{failure}");
    assert!(bad.requests().len() <= 5, "{}", bad.requests().len());
}

#[tokio::test]
async fn a_part_that_is_not_what_was_asked_for_is_not_put_behind_what_is_there() {
    let content = noise(100_000, 8);
    let longer = noise(100_001, 8);
    let wrong: [Answer; 3] = [
        |content, _| Reply::part(content, 10, TAG),
        |_, longer| Reply::part(longer, 50_000, TAG),
        |content, _| Reply::part(content, 50_000, "\"two\""),
    ];
    for wrong in wrong {
        let (shown, longer) = (content.clone(), longer.clone());
        let server = TestServer::start(move |before, request| match before {
            0 => Reply::whole(&shown, TAG).cut(50_000),
            1 => wrong(&shown, &longer),
            _ => Reply::file(&shown, TAG, request),
        });
        let bench = Bench::new();
        let wish = wish(server.url("/a"), &content);
        let spooled = bench.finish(&bench.spool(), &wish).await.unwrap();
        assert_eq!(fs::read(&spooled.path).unwrap(), content);
        let requests = server.requests();
        assert_eq!(requests[1].from(), Some(50_000));
        assert_eq!(requests[2].from(), None, "it is asked without a range");
        assert_eq!(requests.len(), 3);
    }
}

#[tokio::test]
async fn what_the_server_does_not_have_any_more_is_discarded_once() {
    let content = noise(100_000, 9);
    let past = || Reply::status("416 Range Not Satisfiable", &["content-range: bytes */7"]);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| match before {
        0 => Reply::whole(&shown, TAG).cut(50_000),
        1 => past(),
        _ => Reply::file(&shown, TAG, request),
    });
    let bench = Bench::new();
    let first = wish(server.url("/a"), &content);
    bench.finish(&bench.spool(), &first).await.unwrap();

    let shown = content.clone();
    let server = TestServer::start(move |_, request| match request.from() {
        None => Reply::whole(&shown, TAG).cut(50_000),
        Some(_) => past(),
    });
    let bench = Bench::new();
    let second = wish(server.url("/a"), &content);
    let failure = bench.finish(&bench.spool(), &second).await.unwrap_err();
    assert!(failure.reason.contains("twice"), "{failure}");
    assert_eq!(server.requests().len(), 4);
    assert!(names(&bench.images()).is_empty());
}

/// A body without a length and without an end.
fn endless(head: &str) -> Reply {
    let mut chunk = b"10000\r\n".to_vec();
    chunk.extend(noise(0x1_0000, 10));
    chunk.extend(b"\r\n");
    Reply {
        head: format!("{head}transfer-encoding: chunked\r\n"),
        body: Vec::new(),
        then: Then::Endless(chunk),
    }
}

#[tokio::test]
async fn a_body_without_an_end_is_read_up_to_what_the_policy_allows() {
    let server = TestServer::start(|_, _| endless("HTTP/1.1 200 OK\r\n"));
    let bench = Bench::new();
    let mut wish = wish(server.url("/a"), b"x");
    wish.rules.max_bytes = 1_000_000;
    let failure = bench.spool().fetch(&wish, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("1000000"), "{failure}");
    assert!(!failure.reason.contains("disk"), "{failure}");
    assert!(names(&bench.images()).is_empty(), "nothing of it is kept");
}

#[tokio::test]
async fn a_body_without_a_length_that_ends_early_is_gone_on_with() {
    let content = noise(100_000, 30);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| match before {
        0 => Reply {
            head: format!("HTTP/1.1 200 OK\r\netag: {TAG}\r\n"),
            ..Reply::whole(&shown, TAG).cut(50_000)
        },
        _ => Reply::file(&shown, TAG, request),
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &content);
    let why = later(bench.spool().fetch(&wish, SLICE).await.unwrap());
    for word in ["does not say how long", "50000 bytes", "attempt 1 of 5"] {
        assert!(why.contains(word), "{why}");
    }
    assert!(!bench.record().was_wrong);

    let spooled = bench.finish(&bench.spool(), &wish).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    let requests = server.requests();
    assert_eq!(requests[1].from(), Some(50_000));
    assert_eq!(requests.len(), 2);
}

#[tokio::test]
async fn a_body_without_a_length_that_is_always_wrong_ends_after_all_attempts() {
    let shown = noise(100_000, 31);
    let server = TestServer::start(move |_, _| Reply {
        head: "HTTP/1.1 200 OK\r\n".to_owned(),
        ..Reply::whole(&shown, TAG)
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), b"another");
    let failure = bench.finish(&bench.spool(), &wish).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("5 attempts"), "{failure}");
    assert_eq!(server.requests().len(), 5);
}

#[tokio::test]
async fn more_than_the_server_said_there_is_is_none_of_the_file() {
    let content = noise(100_000, 11);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| match before {
        0 => Reply::whole(&shown, TAG).cut(50_000),
        1 => endless("HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 50000-99999/100000\r\n"),
        _ => Reply::file(&shown, TAG, request),
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &content);
    let spooled = bench.finish(&bench.spool(), &wish).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
}

#[tokio::test]
async fn an_image_that_is_too_large_is_refused_before_it_is_fetched() {
    let content = noise(100_000, 12);
    let shown = content.clone();
    let server = TestServer::start(move |_, _| Reply::whole(&shown, TAG));
    let bench = Bench::new();
    let mut wish = wish(server.url("/a"), &content);
    wish.rules.max_bytes = 99_999;
    let spool = bench.spool();
    for failure in [
        spool.size(&wish).await.unwrap_err(),
        spool.fetch(&wish, SLICE).await.unwrap_err(),
    ] {
        assert_eq!(failure.kind, FailureKind::Download);
        assert!(failure.reason.contains("100000 bytes"), "{failure}");
    }
    wish.rules.max_bytes = 100_000;
    assert_eq!(spool.size(&wish).await.unwrap(), Some(100_000));
    bench.finish(&spool, &wish).await.unwrap();
    let asked = server.requests().len();

    // Less is allowed by now: what is there is not taken, and nobody is asked.
    wish.rules.max_bytes = 99_999;
    let failure = bench.spool().fetch(&wish, SLICE).await.unwrap_err();
    assert!(failure.reason.contains("100000 bytes"), "{failure}");
    assert_eq!(server.requests().len(), asked);
}

#[tokio::test]
async fn a_file_that_is_gone_fails_at_once() {
    let server = TestServer::start(|_, _| Reply::status("404 Not Found", &[]));
    let bench = Bench::new();
    let wish = wish(server.url("/a"), b"x");
    let failure = bench.spool().fetch(&wish, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_wrong_file_is_fetched_once_more_and_then_refused() {
    let (right, wrong) = (noise(100_000, 19), noise(100_000, 20));
    let (shown, other) = (right.clone(), wrong.clone());
    let server = TestServer::start(move |before, request| {
        let content = if before == 0 { &other } else { &shown };
        Reply::file(content, TAG, request)
    });
    let bench = Bench::new();
    let first = wish(server.url("/a"), &right);
    let Got::All(spooled) = bench.spool().fetch(&first, SLICE).await.unwrap() else {
        panic!("the second time it was right");
    };
    assert_eq!(fs::read(&spooled.path).unwrap(), right);
    assert_eq!(server.requests()[1].from(), None);

    let other = wrong.clone();
    let server = TestServer::start(move |_, request| Reply::file(&other, TAG, request));
    let bench = Bench::new();
    let second = wish(server.url("/a"), &right);
    let failure = bench.spool().fetch(&second, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    for digest in [Sha256::of(&right), Sha256::of(&wrong)] {
        let named = failure.reason.contains(&digest.to_string());
        assert!(named, "{failure}");
    }
    assert_eq!(server.requests().len(), 2);
    assert!(names(&bench.images()).is_empty(), "nothing of it is kept");
}

/// The beginning of a zstd frame with a window of 2 GiB (RFC 8878, 3.1.1.1.2): exponent 21, mantissa 0.
fn too_wide(seed: u32) -> Vec<u8> {
    let mut content = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3];
    content.extend(noise(1_000_000, seed));
    content
}

#[tokio::test]
async fn an_image_that_could_not_be_unpacked_is_refused_from_its_beginning() {
    let content = too_wide(29);
    let shown = content.clone();
    let server = TestServer::start(move |_, request| {
        let reply = Reply::file(&shown, TAG, request);
        reply.cut(400_000).then(Then::Stall)
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &content);
    let failure = bench.spool().fetch(&wish, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    let asked: Vec<_> = server.requests().iter().map(Request::from).collect();
    assert_eq!(asked, [None, None], "it was fetched once more");
    assert!(names(&bench.images()).is_empty(), "nothing of it is kept");
}

#[tokio::test]
async fn what_could_not_be_unpacked_and_is_not_the_image_does_no_harm() {
    let (content, other) = (noise(1_000_000, 32), too_wide(33));
    let shown = content.clone();
    let server = TestServer::start(move |before, request| match before {
        0 => Reply::whole(&other, TAG),
        _ => Reply::file(&shown, TAG, request),
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &content);
    let spooled = bench.finish(&bench.spool(), &wish).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    assert_eq!(server.requests().len(), 2);
}
