//! What fails, how often it may, and what is kept of it.

use std::os::unix::fs::MetadataExt;

use super::*;

#[tokio::test]
async fn a_line_on_which_nothing_comes_is_given_up() {
    let content = noise(100_000, 15);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| {
        let reply = Reply::file(&shown, TAG, request);
        match before {
            0 => reply.cut(50_000).then(Then::Stall),
            _ => reply,
        }
    });
    let mut bench = Bench::new();
    bench.terms.patience.idle = Duration::from_millis(300);
    let wish = wish(server.url("/a"), &content);
    let spool = bench.spool();
    // Slices that are shorter than the patience do not make it endless, nor do they ask again.
    let mut parts = 0;
    let why = loop {
        match spool.fetch(&wish, Duration::from_millis(20)).await.unwrap() {
            Got::Part { .. } => parts += 1,
            other => break later(other),
        }
        assert!(parts < 1_000, "it is listened to for ever");
    };
    assert!(why.contains("nothing came for 300 ms"), "{why}");
    assert!(parts > 0, "the patience is longer than a slice");
    assert_eq!(server.requests().len(), 1);
    bench.finish(&spool, &wish).await.unwrap();
    assert!(server.requests()[1].from().is_some(), "what came is kept");
}

#[tokio::test]
async fn a_line_on_which_too_little_comes_is_given_up() {
    let content = noise(100_000, 34);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| match before {
        // Byte after byte, without an end.
        0 => Reply {
            head: "HTTP/1.1 200 OK\r\n".to_owned(),
            body: Vec::new(),
            then: Then::Endless(vec![7]),
        },
        _ => Reply::file(&shown, TAG, request),
    });
    let mut bench = Bench::new();
    bench.terms.patience.span = Duration::from_millis(50);
    bench.terms.patience.least = u64::MAX;
    let wish = wish(server.url("/a"), &content);
    let why = later(bench.spool().fetch(&wish, SLICE).await.unwrap());
    for word in ["only", "bytes came in 50 ms", "attempt 1 of 5"] {
        assert!(why.contains(word), "{why}");
    }
}

#[tokio::test]
async fn a_server_that_names_a_time_is_left_alone_until_then() {
    let content = noise(1_000, 17);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| match before {
        0..10 => Reply::status("429 Too Many Requests", &["retry-after: 120"]),
        _ => Reply::file(&shown, TAG, request),
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &content);
    let spool = bench.spool();
    let why = later(spool.fetch(&wish, SLICE).await.unwrap());
    assert!(why.contains("429"), "{why}");
    bench.clock.advance(TimeDelta::seconds(119));
    let same = later(spool.fetch(&wish, SLICE).await.unwrap());
    assert_eq!(why, same);
    assert_eq!(server.requests().len(), 1, "it was not asked too early");
    bench.clock.advance(TimeDelta::seconds(60));
    later(spool.fetch(&wish, SLICE).await.unwrap());
    assert_eq!(server.requests().len(), 2);

    // So often it may say so: nothing failed.
    bench.finish(&spool, &wish).await.unwrap();
    assert_eq!(server.requests().len(), 11);
}

#[tokio::test]
async fn too_many_attempts_that_fail_are_a_failure_and_the_next_time_has_all_again() {
    let content = noise(100_000, 18);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| match before {
        0 => Reply::file(&shown, TAG, request).cut(60_000),
        1..6 => Reply::status("503 Service Unavailable", &[]),
        _ => Reply::file(&shown, TAG, request),
    });
    let bench = Bench::new();
    let mut wish = wish(server.url("/a"), &content);
    wish.rules.attempts = 3;
    let failure = bench.finish(&bench.spool(), &wish).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    for word in ["3 attempts", "503", "60000 bytes are kept"] {
        assert!(failure.reason.contains(word), "{failure}");
    }
    assert_eq!(server.requests().len(), 3);

    wish.rules.attempts = 0;
    bench.finish(&bench.spool(), &wish).await.unwrap();
    let last = server.requests().pop().unwrap();
    assert_eq!(last.from(), Some(60_000));
}

#[tokio::test]
async fn a_server_that_puts_off_the_agent_for_ever_is_given_up() {
    let server =
        TestServer::start(|_, _| Reply::status("503 Service Unavailable", &["retry-after: 60"]));
    let bench = Bench::new();
    let mut wish = wish(server.url("/a"), b"x");
    wish.rules.attempts = 2;
    // Each time by another agent: the record alone knows how often.
    let mut waits = 0;
    let failure = loop {
        let why = match bench.spool().fetch(&wish, SLICE).await {
            Ok(got) => later(got),
            Err(failure) => break failure,
        };
        assert!(why.contains("503"), "{why}");
        waits += 1;
        assert!(waits < 100, "it waits for ever");
    };
    assert_eq!(server.requests().len(), 40);
    for word in ["2 attempts", "503"] {
        assert!(failure.reason.contains(word), "{failure}");
    }
}

#[tokio::test]
async fn what_has_not_changed_is_not_written_again() {
    let content = noise(100_000, 35);
    let shown = content.clone();
    let server = TestServer::start(move |_, request| {
        let reply = Reply::file(&shown, TAG, request);
        reply.cut(50_000).then(Then::Stall)
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &content);
    let spool = bench.spool();
    let half = Got::Part { bytes: 50_000 };
    let slice = Duration::from_millis(20);
    while spool.fetch(&wish, slice).await.unwrap() != half {}
    // A file that is replaced is another one.
    let path = bench.images().join(record::NAME);
    let before = (fs::metadata(&path).unwrap().ino(), bench.record());
    bench.clock.advance(TimeDelta::hours(1));
    assert_eq!(spool.fetch(&wish, slice).await.unwrap(), half);
    let after = (fs::metadata(&path).unwrap().ino(), bench.record());
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_line_that_breaks_off_every_now_and_then_brings_the_whole_file() {
    const PART: usize = 900 << 10;
    let content = noise(10 * PART, 36);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| {
        // It was far once, and had to begin anew.
        if before == 1 {
            return Reply::status("416 Range Not Satisfiable", &["content-range: bytes */7"]);
        }
        let reply = Reply::file(&shown, TAG, request);
        reply.cut(if before == 0 { 9 * PART } else { PART })
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &content);
    let spooled = bench.finish(&bench.spool(), &wish).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    assert_eq!(server.requests().len(), 12);
}

#[tokio::test]
async fn a_server_that_lets_the_agent_begin_anew_for_ever_is_given_up() {
    let content = noise(3 << 20, 37);
    let shown = content.clone();
    // Each round brings so much that failures are forgotten, and then another file.
    let server = TestServer::start(move |_, request| match request.from() {
        None => Reply::whole(&shown, TAG).cut(1_000),
        Some(1_000) => Reply::part(&shown, 1_000, TAG).cut(1 << 20),
        Some(from) => Reply::part(&shown, from, "\"two\""),
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &content);
    let failure = bench.finish(&bench.spool(), &wish).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("began anew 10 times"), "{failure}");
}

#[tokio::test]
async fn the_same_image_at_another_address_is_asked_for_there_at_once() {
    let content = noise(100_000, 38);
    let shown = content.clone();
    let server = TestServer::start(move |_, request| match request.path() {
        "/old" => Reply::status("503 Service Unavailable", &["retry-after: 3600"]),
        "/stalled" => {
            let reply = Reply::file(&shown, TAG, request);
            reply.cut(50_000).then(Then::Stall)
        }
        _ => Reply::file(&shown, TAG, request),
    });
    let bench = Bench::new();
    let spool = bench.spool();
    let busy = wish(server.url("/old"), &content);
    later(spool.fetch(&busy, SLICE).await.unwrap());
    let stalled = wish(server.url("/stalled"), &content);
    let (half, slice) = (Got::Part { bytes: 50_000 }, Duration::from_millis(20));
    while spool.fetch(&stalled, slice).await.unwrap() != half {}

    let moved = wish(server.url("/new"), &content);
    let got = spool.fetch(&moved, SLICE).await.unwrap();
    assert!(matches!(got, Got::All(_)), "{got:?}");
    let requests = server.requests();
    let asked = requests.iter().map(|one| (one.path(), one.from()));
    let expected = [("/old", None), ("/stalled", None), ("/new", Some(50_000))];
    assert_eq!(asked.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn what_is_kept_of_a_download_outlives_its_attempt_and_not_a_month() {
    let content = noise(100_000, 39);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| {
        let reply = Reply::file(&shown, TAG, request);
        if before < 5 { reply.cut(10_000) } else { reply }
    });
    let bench = Bench::new();
    let first = wish(server.url("/a"), &content);
    let failure = bench.finish(&bench.spool(), &first).await.unwrap_err();
    assert!(failure.reason.contains("50000 bytes are kept"), "{failure}");

    let keep = Some(&first.sha256);
    let both = [Sha256::of(&content).to_string(), record::NAME.to_owned()];
    let spool = bench.spool();
    spool.discard_but(keep).unwrap();
    bench.clock.advance(TimeDelta::days(29));
    spool.discard_but(keep).unwrap();
    assert_eq!(names(&bench.images()), both);
    bench.clock.advance(TimeDelta::days(2));
    spool.discard_but(keep).unwrap();
    assert!(names(&bench.images()).is_empty(), "it is a month old");

    bench.finish(&bench.spool(), &first).await.unwrap();
    assert_eq!(server.requests().pop().unwrap().from(), None);
    let other = Sha256::of(b"another image");
    spool.discard_but(Some(&other)).unwrap();
    assert!(names(&bench.images()).is_empty(), "another is wanted");
}

#[tokio::test]
async fn a_clock_that_jumps_costs_no_download_and_keeps_none_for_ever() {
    let content = noise(100_000, 40);
    let bench = Bench::new();
    bench.left(&content, &content[..50_000], 50_000);
    let (spool, keep) = (bench.spool(), Sha256::of(&content));
    for jump in [0, -15_000, 15_000] {
        bench.clock.advance(TimeDelta::days(jump));
        spool.discard_but(Some(&keep)).unwrap();
        assert_eq!(bench.record().at, Some(bench.clock.now()), "{jump} days");
        assert_eq!(bench.record().synced, 50_000);
    }
    bench.clock.advance(TimeDelta::days(31));
    spool.discard_but(Some(&keep)).unwrap();
    assert!(names(&bench.images()).is_empty());
}

#[tokio::test]
async fn what_came_of_a_server_that_was_wrong_before_is_not_kept() {
    let (right, wrong) = (noise(100_000, 41), noise(100_000, 42));
    let server = TestServer::start(move |before, _| match before {
        0 => Reply::whole(&wrong, TAG),
        _ => Reply::whole(&right, TAG).cut(50_000),
    });
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &noise(100_000, 41));
    let failure = bench.finish(&bench.spool(), &wish).await.unwrap_err();
    assert!(failure.reason.contains("5 attempts"), "{failure}");
    assert!(!failure.reason.contains("kept"), "{failure}");
    assert!(names(&bench.images()).is_empty());
}
