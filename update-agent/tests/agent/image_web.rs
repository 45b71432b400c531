//! The file of an image on its way from a server into a slot, with nothing in between replaced: the client, the spool
//! with the patience of a node, the decoders and the slot. What a single answer means is tried beside the code that
//! judges it.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta};
use evenkeel_kit::{Clock, Secret, TestClock};
use evenkeel_update_agent::link::Floor;
use evenkeel_update_agent::model::{Failure, FailureKind, ImageWish, Sha256};
use evenkeel_update_agent::modules::image::device::{Device, read_back};
use evenkeel_update_agent::modules::image::spool::{Got, Spool, Spooled};
use evenkeel_update_agent::modules::image::unpack::unpack;
use evenkeel_update_agent::modules::image::web::{Web, WebSettings};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::support::file_server::{Reply, Request, TestServer, Then};
use crate::support::image_files::{
    Authority, XZ_ZEROS, gzip, noise, wish, with_a_wide_window, zstandard,
};

/// Long enough for everything that is done at once.
const SLICE: Duration = Duration::from_secs(20);

/// Too short for anything that is not there yet.
const SHORT: Duration = Duration::from_millis(50);

/// A strong tag.
const TAG: &str = "\"one\"";

/// A node whose agents come and go; the clock is its own.
struct Node {
    folder: TempDir,
    clock: TestClock,
    web: Web,
}

impl Node {
    /// One that takes images also without TLS.
    fn new() -> Self {
        Self::with(WebSettings {
            plain_http: true,
            ..WebSettings::default()
        })
    }

    fn with(settings: WebSettings) -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            clock: TestClock::new(DateTime::UNIX_EPOCH + TimeDelta::days(20_000)),
            web: Web::new(settings, None, Arc::new(Floor::none())).expect("settings"),
        }
    }

    fn images(&self) -> PathBuf {
        self.folder.path().join("images")
    }

    /// That of an agent that just started.
    fn spool(&self) -> Spool {
        let clock = Arc::new(self.clock.clone());
        Spool::new(self.images(), self.web.clone(), clock)
    }

    /// Works on until it is done, however often it must wait.
    async fn finish(&self, spool: &Spool, wish: &ImageWish) -> Result<Spooled, Failure> {
        for _ in 0..200 {
            match spool.fetch(wish, SLICE).await? {
                Got::All(spooled) => return Ok(spooled),
                Got::Part { .. } => {}
                Got::Later(_) => self.clock.advance(TimeDelta::hours(2)),
            }
        }
        panic!("it never ends");
    }

    /// Works in short slices until so many bytes are sure; says how many are.
    async fn reach(&self, spool: &Spool, wish: &ImageWish, bytes: u64) -> u64 {
        for _ in 0..1_000 {
            match spool.fetch(wish, SHORT).await {
                Ok(Got::Part { bytes: sure }) if sure >= bytes => return sure,
                Ok(Got::Part { .. }) => {}
                other => panic!("it does not go on: {other:?}"),
            }
        }
        panic!("it never gets so far");
    }

    /// What lies in the folder of images.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.images()).expect("a folder");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// What a slot of so many bytes holds of an image once it is unpacked and read back.
    fn unpacked(&self, spooled: &Spooled, room: usize) -> Result<Vec<u8>, Failure> {
        let (slot, stop) = (self.folder.path().join("slot"), CancellationToken::new());
        fs::write(&slot, vec![0xee; room]).expect("a slot");
        let written = unpack(spooled, Device::open(&slot)?, &stop);
        let mut content = fs::read(&slot).expect("a slot");
        assert_eq!(content.len(), room, "a slot does not grow");
        let raw = written?;
        read_back(&slot, &raw, &stop)?;
        content.truncate(usize::try_from(raw.bytes).expect("few"));
        Ok(content)
    }
}

/// What comes of a file into a slot of so many bytes, if it is what the release names.
async fn through(file: &[u8], room: usize) -> Result<Vec<u8>, Failure> {
    let shown = file.to_vec();
    let server = TestServer::start(move |_, request| Reply::file(&shown, TAG, request));
    let node = Node::new();
    let wish = wish(server.url("/a"), file);
    let spooled = node.finish(&node.spool(), &wish).await;
    node.unpacked(&spooled.expect("it is what the release names"), room)
}

fn later(got: Got) -> String {
    match got {
        Got::Later(why) => why,
        other => panic!("it does not wait: {other:?}"),
    }
}

/// A redirect.
fn elsewhere(to: &str) -> Reply {
    Reply::status("307 Temporary Redirect", &[&format!("location: {to}")])
}

#[tokio::test]
async fn the_token_stays_at_home_when_the_server_sends_the_node_on_to_a_host_that_is_named() {
    let content = noise(100_000, 1);
    let (shown, authority) = (content.clone(), Authority::new());
    let tls = authority.vouch_for("localhost");
    let other = TestServer::start_with_tls(tls, move |before, request| {
        let reply = Reply::file(&shown, TAG, request);
        if before == 0 {
            reply.cut(50_000)
        } else {
            reply
        }
    });
    let to = format!("https://localhost:{}/there?key=x", other.address.port());
    let tls = authority.vouch_for("127.0.0.1");
    let home = TestServer::start_with_tls(tls, move |_, _| elsewhere(&to));
    let node = |hosts: &[&str]| {
        let node = Node::with(WebSettings {
            roots: vec![authority.file()],
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            home: home.address.to_string(),
            ..WebSettings::default()
        });
        node.web.renew(&Secret::new("token"));
        node
    };
    let wish = wish(format!("https://{}/here", home.address), &content);

    let strict = node(&["other.example"]);
    let failure = strict.spool().fetch(&wish, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    let why = failure.reason;
    assert!(why.contains("not among image.web.hosts"), "{why}");
    assert!(other.requests().is_empty(), "it was not even asked");

    // The line breaks on the way. The next agent is sent on again, and asks there for the rest.
    let named = node(&["localhost"]);
    later(named.spool().fetch(&wish, SLICE).await.unwrap());
    let spooled = named.finish(&named.spool(), &wish).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    let token = |request: &Request| request.header("authorization").map(str::to_owned);
    let shown: Vec<_> = home.requests().iter().map(token).collect();
    assert_eq!(shown, vec![Some("Bearer token".to_owned()); 3]);
    let there = other.requests();
    let asked: Vec<_> = there.iter().map(|one| (token(one), one.from())).collect();
    assert_eq!(asked, [(None, None), (None, Some(50_000))]);
    assert_eq!(there[1].path(), "/there?key=x");
}

#[tokio::test]
async fn a_server_with_tls_cannot_send_the_node_to_one_without() {
    let plain = TestServer::start(|_, request| Reply::file(b"image", TAG, request));
    let (to, authority) = (plain.url("/there"), Authority::new());
    let tls = authority.vouch_for("127.0.0.1");
    let home = TestServer::start_with_tls(tls, move |_, _| elsewhere(&to));
    // All that a careless owner may allow.
    let node = Node::with(WebSettings {
        roots: vec![authority.file()],
        hosts: vec!["127.0.0.1".to_owned()],
        plain_http: true,
        ..WebSettings::default()
    });
    let wish = wish(format!("https://{}/here", home.address), b"image");
    let failure = node.spool().fetch(&wish, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("TLS"), "{failure}");
    assert!(plain.requests().is_empty(), "it was not even asked");
}

#[tokio::test]
async fn a_body_that_stalls_ends_its_slice_and_the_next_agent_asks_from_that_byte_on() {
    let content = noise(100_000, 2);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| {
        let reply = Reply::file(&shown, TAG, request);
        match before {
            0 => reply.cut(50_000).then(Then::Stall),
            _ => reply,
        }
    });
    let (node, wish) = (Node::new(), wish(server.url("/a"), &content));
    let spool = node.spool();
    assert_eq!(node.reach(&spool, &wish, 50_000).await, 50_000);
    let half = Got::Part { bytes: 50_000 };
    assert_eq!(spool.fetch(&wish, SHORT).await.unwrap(), half);

    // A node listens for a minute in all, over several slices. Here it passes at once.
    tokio::time::pause();
    let mut slices = 0;
    let why = loop {
        match spool.fetch(&wish, SLICE).await.unwrap() {
            Got::Part { .. } => slices += 1,
            other => break later(other),
        }
        assert!(slices < 10, "it is listened to for ever");
    };
    tokio::time::resume();
    assert!(slices > 0, "a slice is shorter than a minute");
    for word in ["nothing came for 60 s", "attempt 1 of 5"] {
        assert!(why.contains(word), "{why}");
    }
    assert_eq!(server.requests().len(), 1, "all that on one line");

    drop(spool);
    let spooled = node.finish(&node.spool(), &wish).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].from(), Some(50_000));
    assert_eq!(requests[1].header("if-range"), Some(TAG));
}

#[tokio::test]
async fn a_stream_without_an_end_ends_its_slices_and_then_at_what_the_policy_allows() {
    let mut chunk = b"10000\r\n".to_vec();
    chunk.extend(noise(0x1_0000, 3));
    chunk.extend(b"\r\n");
    let authority = Authority::new();
    let server = TestServer::start_with_tls(authority.vouch_for("127.0.0.1"), move |_, _| Reply {
        head: "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n".to_owned(),
        body: Vec::new(),
        then: Then::Endless(chunk.clone()),
    });
    let node = Node::with(WebSettings {
        roots: vec![authority.file()],
        ..WebSettings::default()
    });
    let mut wish = wish(format!("https://{}/a", server.address), b"x");
    let spool = node.spool();
    let first = node.reach(&spool, &wish, 1).await;
    let second = node.reach(&spool, &wish, first + 1).await;
    assert_eq!(server.requests().len(), 1, "the same stream all the time");

    wish.rules.max_bytes = second + 1_000_000;
    let failure = node.finish(&spool, &wish).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    let most = wish.rules.max_bytes.to_string();
    assert!(failure.reason.contains(&most), "{failure}");
    assert_eq!(server.requests().len(), 1);
    assert!(node.left().is_empty(), "nothing of it is kept");
}

#[tokio::test]
async fn a_server_without_ranges_sends_all_again_as_often_as_the_policy_lets_it_fail() {
    let content = noise(100_000, 4);
    let packed = zstandard(&content);
    let cut_at_first = |times: usize| {
        let shown = packed.clone();
        TestServer::start(move |before, _| {
            let reply = Reply::whole(&shown, TAG);
            if before < times {
                reply.cut(50_000)
            } else {
                reply
            }
        })
    };
    let server = cut_at_first(1);
    let (node, mut first) = (Node::new(), wish(server.url("/a"), &packed));
    first.rules.attempts = 2;
    let why = later(node.spool().fetch(&first, SLICE).await.unwrap());
    assert!(why.contains("attempt 1 of 2"), "{why}");
    let spooled = node.finish(&node.spool(), &first).await.unwrap();
    assert_eq!(server.requests()[1].from(), Some(50_000), "it was asked");
    assert_eq!(node.unpacked(&spooled, 1 << 20).unwrap(), content);

    let server = cut_at_first(usize::MAX);
    let (node, mut second) = (Node::new(), wish(server.url("/a"), &packed));
    second.rules.attempts = 2;
    let failure = node.finish(&node.spool(), &second).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("in 2 attempts"), "{failure}");
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn what_changes_under_its_address_is_told_with_both_digests_and_not_kept() {
    const WEAK: &str = "W/\"one\"";
    let old = noise(100_000, 5);
    let half = Some(50_000);
    // Its tag before and after, its size after, and what is asked for until that is certain.
    let cases: [(&str, &str, usize, &[Option<usize>]); 4] = [
        // By its tag the server sees that it is another, and sends all of it.
        (TAG, "\"two\"", 100_000, &[None, half, None]),
        // A weak tag says nothing: the rest of the new one comes behind the half of the old one.
        (WEAK, WEAK, 100_000, &[None, half, None]),
        // The rest would be one of a file of another size.
        (WEAK, WEAK, 90_000, &[None, half, None, None]),
        // It ends before that: 416.
        (WEAK, WEAK, 10_000, &[None, half, None, None]),
    ];
    for (before, after, size, expected) in cases {
        let new = noise(size, 6);
        let (first, second) = (old.clone(), new.clone());
        let server = TestServer::start(move |count, request| match count {
            0 => Reply::whole(&first, before).cut(50_000),
            _ => Reply::file(&second, after, request),
        });
        let (node, wish) = (Node::new(), wish(server.url("/a"), &old));
        let failure = node.finish(&node.spool(), &wish).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Download);
        for digest in [Sha256::of(&old), Sha256::of(&new)] {
            let named = failure.reason.contains(&digest.to_string());
            assert!(named, "{after}, {size}: {failure}");
        }
        let asked: Vec<_> = server.requests().iter().map(Request::from).collect();
        assert_eq!(asked, expected, "{after}, {size}");
        assert!(node.left().is_empty(), "{after}, {size}");
    }
}

#[tokio::test]
async fn another_digest_at_the_next_poll_is_another_file_and_takes_nothing_of_the_first() {
    let (old, new) = (noise(100_000, 7), noise(100_000, 8));
    let (say, heard) = mpsc::channel();
    let (mut heard, first, second) = (Some(heard), old.clone(), new.clone());
    let server = TestServer::start(move |_, request| match heard.take() {
        Some(more) => {
            let reply = Reply::file(&first, TAG, request).cut(50_000);
            reply.then(Then::More(more))
        }
        None => Reply::file(&second, TAG, request),
    });
    let (node, before) = (Node::new(), wish(server.url("/latest"), &old));
    let spool = node.spool();
    node.reach(&spool, &before, 50_000).await;

    // The release is published anew at the same address, and the first answer still goes on.
    say.send(old[50_000..].to_vec()).unwrap();
    let after = wish(server.url("/latest"), &new);
    let spooled = node.finish(&spool, &after).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), new);
    let asked: Vec<_> = server.requests().iter().map(Request::from).collect();
    assert_eq!(asked, [None, None]);
    let mut left = vec![Sha256::of(&new).to_string(), "spool.json".to_owned()];
    left.sort();
    assert_eq!(node.left(), left);
}

#[tokio::test]
async fn a_window_of_64_mib_is_refused_before_the_file_is_whole_and_with_what_to_do() {
    // A large one, of which not all comes, is fetched once more: it might not have been the image.
    for (size, requests) in [(1_000_000, 2), (1_000, 1)] {
        let packed = with_a_wide_window(&noise(size, 9));
        let shown = packed.clone();
        let server = TestServer::start(move |_, request| {
            let reply = Reply::file(&shown, TAG, request);
            reply.cut(300_000).then(Then::Stall)
        });
        let (node, wish) = (Node::new(), wish(server.url("/a"), &packed));
        let failure = node.spool().fetch(&wish, SLICE).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported);
        for word in ["a window of more than 8 MiB", "publish it packed with"] {
            assert!(failure.reason.contains(word), "{size}: {failure}");
        }
        assert_eq!(server.requests().len(), requests, "{size}");
        assert!(node.left().is_empty(), "{size}");
    }
}

#[tokio::test]
async fn a_bomb_stops_at_the_size_of_its_slot() {
    const ROOM: usize = 4 << 20;
    let zeros = vec![0; 1 << 20];
    // The last one becomes 64 MiB, the others 1 GiB.
    let bombs = [gzip(&zeros), zstandard(&zeros), XZ_ZEROS.to_vec()].map(|one| one.repeat(1_024));
    for bomb in bombs {
        assert!(bomb.len() < ROOM, "by its size it would fit");
        let failure = through(&bomb, ROOM).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        let room = format!("larger than the {ROOM} bytes");
        for word in ["the image does not fit", room.as_str()] {
            assert!(failure.reason.contains(word), "{failure}");
        }
    }
}

#[tokio::test]
async fn an_image_that_was_published_cut_short_is_told_from_one_that_is_whole() {
    const ROOM: usize = 1 << 20;
    let content = noise(100_000, 10);
    for (whole, expected) in [
        (gzip(&content), content.clone()),
        (zstandard(&content), content),
        (XZ_ZEROS.to_vec(), vec![0; 64 << 10]),
    ] {
        assert_eq!(through(&whole, ROOM).await.unwrap(), expected);
        for length in [whole.len() / 2, whole.len() - 1] {
            let failure = through(&whole[..length], ROOM).await.unwrap_err();
            assert_eq!(failure.kind, FailureKind::Unsupported);
            let why = failure.reason;
            assert!(why.starts_with("the image cannot be unpacked"), "{why}");
        }
    }
}

#[tokio::test]
async fn a_whole_download_takes_as_long_as_the_rate_of_the_policy_says() {
    let content = noise(1_000_000, 11);
    let shown = content.clone();
    let server = TestServer::start(move |_, request| Reply::file(&shown, TAG, request));
    let (node, mut wish) = (Node::new(), wish(server.url("/a"), &content));
    wish.rules.download_bytes_per_second = 500_000;
    let begun = Instant::now();
    let spooled = node.finish(&node.spool(), &wish).await.unwrap();
    // Two seconds, of which the first is free, but for the last 64 KiB that were taken at once.
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(800), "{took:?}");
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_busy_server_is_not_asked_before_the_instant_that_it_names_and_nothing_has_failed() {
    let content = noise(1_000, 12);
    let dated = |node: &Node| {
        let at = node.clock.now() + TimeDelta::seconds(600);
        at.format("%a, %d %b %Y %H:%M:%S GMT").to_string()
    };
    for (status, is_dated) in [
        ("429 Too Many Requests", true),
        ("503 Service Unavailable", true),
        ("503 Service Unavailable", false),
    ] {
        let node = Node::new();
        let again = if is_dated {
            dated(&node)
        } else {
            "600".to_owned()
        };
        let shown = content.clone();
        let server = TestServer::start(move |before, request| match before {
            0 => Reply::status(status, &[&format!("retry-after: {again}")]),
            _ => Reply::file(&shown, TAG, request),
        });
        let mut wish = wish(server.url("/a"), &content);
        wish.rules.attempts = 1;
        let spool = node.spool();
        let why = later(spool.fetch(&wish, SLICE).await.unwrap());
        assert!(why.contains(status), "{why}");
        node.clock.advance(TimeDelta::seconds(599));
        let same = later(spool.fetch(&wish, SLICE).await.unwrap());
        assert_eq!(why, same);
        assert_eq!(server.requests().len(), 1, "it was not asked too early");

        // Not all nodes come at once: up to a fifth of the time is chance.
        node.clock.advance(TimeDelta::seconds(122));
        let got = spool.fetch(&wish, SLICE).await.unwrap();
        assert!(matches!(got, Got::All(_)), "{got:?}");
        assert_eq!(server.requests().len(), 2);
    }
}
