//! The file of an image from a server into a slot, without any double: client, spool, decoders and slot. The unit tests
//! of the client check the meaning of each single response.

mod unpacking;

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta};
use evenkeel_kit::{Clock, Secret, TestClock};
use evenkeel_update_agent::link::TimeFloor;
use evenkeel_update_agent::model::{Failure, FailureKind, ImageSpec, Sha256};
use evenkeel_update_agent::modules::image::device::{SlotDevice, read_back};
use evenkeel_update_agent::modules::image::spool::{Spool, SpoolProgress, SpooledImage};
use evenkeel_update_agent::modules::image::unpack::unpack;
use evenkeel_update_agent::modules::image::web::{WebClient, WebSettings};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::support::file_server::{AfterBody, TestFileServer, TestReply, TestRequest};
use crate::support::image_files::{TestAuthority, image_spec, noise, zstandard};

/// Long enough for work that does not wait.
const LONG_SLICE: Duration = Duration::from_secs(20);

/// Too short for data that is still to come.
const SHORT_SLICE: Duration = Duration::from_millis(50);

/// A strong entity tag.
const ETAG: &str = "\"one\"";

/// A node with its own clock, on which agents start and end.
struct DownloadNode {
    folder: TempDir,
    clock: TestClock,
    web: WebClient,
}

impl DownloadNode {
    /// A node that also accepts image servers without TLS.
    fn new() -> Self {
        Self::with_settings(WebSettings { plain_http: true, ..WebSettings::default() })
    }

    fn with_settings(settings: WebSettings) -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            clock: TestClock::new(DateTime::UNIX_EPOCH + TimeDelta::days(20_000)),
            web: WebClient::new(settings, None, Arc::new(TimeFloor::unset()), None)
                .expect("settings"),
        }
    }

    fn images_path(&self) -> PathBuf {
        self.folder.path().join("images")
    }

    /// The spool of an agent that has just started.
    fn open_spool(&self) -> Spool {
        let clock = Arc::new(self.clock.clone());
        Spool::new(self.images_path(), self.web.clone(), clock)
    }

    /// Fetches until the file is complete. Advances the clock if the spool defers the download.
    async fn fetch_all(&self, spool: &Spool, spec: &ImageSpec) -> Result<SpooledImage, Failure> {
        for _ in 0..200 {
            match spool.fetch(spec, LONG_SLICE).await? {
                SpoolProgress::Complete(spooled) => return Ok(spooled),
                SpoolProgress::Partial { .. } => {}
                SpoolProgress::Deferred(_) => self.clock.advance(TimeDelta::hours(2)),
            }
        }
        panic!("the download never ends");
    }

    /// Fetches in short slices until at least `bytes` are stored; returns how many are.
    async fn fetch_until(&self, spool: &Spool, spec: &ImageSpec, bytes: u64) -> u64 {
        for _ in 0..1_000 {
            match spool.fetch(spec, SHORT_SLICE).await {
                Ok(SpoolProgress::Partial { bytes: sure }) if sure >= bytes => return sure,
                Ok(SpoolProgress::Partial { .. }) => {}
                other => panic!("the download does not continue: {other:?}"),
            }
        }
        panic!("the download does not reach {bytes} bytes");
    }

    /// The files in the folder of images.
    fn image_files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.images_path()).expect("a folder");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The content of a slot of `room` bytes after the image was unpacked and read back.
    fn unpack_to_slot(&self, spooled: &SpooledImage, room: usize) -> Result<Vec<u8>, Failure> {
        let (slot, stop) = (self.folder.path().join("slot"), CancellationToken::new());
        fs::write(&slot, vec![0xee; room]).expect("a slot");
        let written = unpack(spooled, SlotDevice::open(&slot)?, &stop);
        let mut content = fs::read(&slot).expect("a slot");
        assert_eq!(content.len(), room, "a slot does not grow");
        let raw = written?;
        read_back(&slot, &raw, &stop)?;
        content.truncate(usize::try_from(raw.bytes).expect("few"));
        Ok(content)
    }
}

fn deferral(got: SpoolProgress) -> String {
    match got {
        SpoolProgress::Deferred(why) => why,
        other => panic!("the download is not deferred: {other:?}"),
    }
}

/// A redirect to `to`.
fn redirect_to(to: &str) -> TestReply {
    TestReply::status("307 Temporary Redirect", &[&format!("location: {to}")])
}

#[tokio::test]
async fn the_token_is_not_sent_to_another_host_after_a_redirect() {
    let content = noise(100_000, 1);
    let (body, authority) = (content.clone(), TestAuthority::new());
    let tls = authority.server_config_for("localhost");
    let other = TestFileServer::start_with_tls(tls, move |before, request| {
        let reply = TestReply::file(&body, ETAG, request);
        if before == 0 { reply.cut(50_000) } else { reply }
    });
    let to = format!("https://localhost:{}/there?key=x", other.address.port());
    let tls = authority.server_config_for("127.0.0.1");
    let home = TestFileServer::start_with_tls(tls, move |_, _| redirect_to(&to));
    let node = |hosts: &[&str]| {
        let node = DownloadNode::with_settings(WebSettings {
            roots: vec![authority.ca_file()],
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            own_server: home.address.to_string(),
            ..WebSettings::default()
        });
        node.web.set_credential(&Secret::new("token"));
        node
    };
    let spec = image_spec(format!("https://{}/here", home.address), &content);

    let strict = node(&["other.example"]);
    let failure = strict.open_spool().fetch(&spec, LONG_SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    let why = failure.reason;
    assert!(why.contains("not listed in image.web.hosts"), "{why}");
    assert!(other.requests().is_empty(), "the other server gets no request");

    // The connection breaks. The next agent follows the redirect again and requests the rest there.
    let permitting = node(&["localhost"]);
    deferral(permitting.open_spool().fetch(&spec, LONG_SLICE).await.unwrap());
    let spooled = permitting.fetch_all(&permitting.open_spool(), &spec).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    let token = |request: &TestRequest| request.header("authorization").map(str::to_owned);
    let tokens: Vec<_> = home.requests().iter().map(token).collect();
    assert_eq!(tokens, vec![Some("Bearer token".to_owned()); 3]);
    let there = other.requests();
    assert!(there.iter().all(|request| request.client_certificate.is_none()));
    let requests: Vec<_> =
        there.iter().map(|received| (token(received), received.range_start())).collect();
    assert_eq!(requests, [(None, None), (None, Some(50_000))]);
    assert_eq!(there[1].path(), "/there?key=x");
}

#[tokio::test]
async fn a_tls_server_cannot_redirect_to_plain_http() {
    let plain = TestFileServer::start(|_, request| TestReply::file(b"image", ETAG, request));
    let (to, authority) = (plain.url("/there"), TestAuthority::new());
    let tls = authority.server_config_for("127.0.0.1");
    let home = TestFileServer::start_with_tls(tls, move |_, _| redirect_to(&to));
    // The most permissive settings.
    let node = DownloadNode::with_settings(WebSettings {
        roots: vec![authority.ca_file()],
        hosts: vec!["127.0.0.1".to_owned()],
        plain_http: true,
        ..WebSettings::default()
    });
    let spec = image_spec(format!("https://{}/here", home.address), b"image");
    let failure = node.open_spool().fetch(&spec, LONG_SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("TLS"), "{failure}");
    assert!(plain.requests().is_empty(), "the plain server gets no request");
}

#[tokio::test]
async fn a_stalled_body_ends_its_slice_and_the_next_agent_resumes_there() {
    let content = noise(100_000, 2);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| {
        let reply = TestReply::file(&body, ETAG, request);
        match before {
            0 => reply.cut(50_000).followed_by(AfterBody::Stall),
            _ => reply,
        }
    });
    let (node, spec) = (DownloadNode::new(), image_spec(server.url("/a"), &content));
    let spool = node.open_spool();
    assert_eq!(node.fetch_until(&spool, &spec, 50_000).await, 50_000);
    let half = SpoolProgress::Partial { bytes: 50_000 };
    assert_eq!(spool.fetch(&spec, SHORT_SLICE).await.unwrap(), half);

    // The idle timeout is one minute over several slices. The paused clock lets it pass at once.
    tokio::time::pause();
    let mut slices = 0;
    let why = loop {
        match spool.fetch(&spec, LONG_SLICE).await.unwrap() {
            SpoolProgress::Partial { .. } => slices += 1,
            other => break deferral(other),
        }
        assert!(slices < 10, "the idle timeout never ends");
    };
    tokio::time::resume();
    assert!(slices > 0, "a slice is shorter than a minute");
    for part in ["no data arrived for 60 s", "attempt 1 of 5"] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(server.requests().len(), 1, "all slices use one connection");

    drop(spool);
    let spooled = node.fetch_all(&node.open_spool(), &spec).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].range_start(), Some(50_000));
    assert_eq!(requests[1].header("if-range"), Some(ETAG));
}

#[tokio::test]
async fn an_endless_stream_ends_its_slices_and_stops_at_the_limit_of_the_policy() {
    let mut chunk = b"10000\r\n".to_vec();
    chunk.extend(noise(0x1_0000, 3));
    chunk.extend(b"\r\n");
    let authority = TestAuthority::new();
    let server =
        TestFileServer::start_with_tls(authority.server_config_for("127.0.0.1"), move |_, _| {
            TestReply {
                head: "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n".to_owned(),
                body: Vec::new(),
                after_body: AfterBody::Endless(chunk.clone()),
            }
        });
    let node = DownloadNode::with_settings(WebSettings {
        roots: vec![authority.ca_file()],
        ..WebSettings::default()
    });
    let mut spec = image_spec(format!("https://{}/a", server.address), b"x");
    let spool = node.open_spool();
    let first = node.fetch_until(&spool, &spec, 1).await;
    let second = node.fetch_until(&spool, &spec, first + 1).await;
    assert_eq!(server.requests().len(), 1, "both slices read the same stream");

    spec.rules.max_bytes = second + 1_000_000;
    let failure = node.fetch_all(&spool, &spec).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    let most = spec.rules.max_bytes.to_string();
    assert!(failure.reason.contains(&most), "{failure}");
    assert_eq!(server.requests().len(), 1);
    assert!(node.image_files().is_empty(), "the partial file is discarded");
}

#[tokio::test]
async fn a_server_without_ranges_restarts_as_often_as_the_policy_allows() {
    let content = noise(100_000, 4);
    let packed = zstandard(&content);
    let cut_at_first = |times: usize| {
        let body = packed.clone();
        TestFileServer::start(move |before, _| {
            let reply = TestReply::whole_file(&body, ETAG);
            if before < times { reply.cut(50_000) } else { reply }
        })
    };
    let server = cut_at_first(1);
    let (node, mut first) = (DownloadNode::new(), image_spec(server.url("/a"), &packed));
    first.rules.attempts = 2;
    let why = deferral(node.open_spool().fetch(&first, LONG_SLICE).await.unwrap());
    assert!(why.contains("attempt 1 of 2"), "{why}");
    let spooled = node.fetch_all(&node.open_spool(), &first).await.unwrap();
    assert_eq!(server.requests()[1].range_start(), Some(50_000), "the agent requested the rest");
    assert_eq!(node.unpack_to_slot(&spooled, 1 << 20).unwrap(), content);

    let server = cut_at_first(usize::MAX);
    let (node, mut second) = (DownloadNode::new(), image_spec(server.url("/a"), &packed));
    second.rules.attempts = 2;
    let failure = node.fetch_all(&node.open_spool(), &second).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Download);
    assert!(failure.reason.contains("in 2 attempts"), "{failure}");
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn a_file_that_changes_at_its_url_is_reported_with_both_digests_and_discarded() {
    const WEAK_ETAG: &str = "W/\"one\"";
    let old = noise(100_000, 5);
    let half = Some(50_000);
    // The tag before and after, the size after, and the range starts of the requests until the change is certain.
    let cases: [(&str, &str, usize, &[Option<usize>]); 4] = [
        // The server sees the change by the tag and sends the whole new file.
        (ETAG, "\"two\"", 100_000, &[None, half, None]),
        // A weak tag proves nothing: the rest of the new file follows the half of the old one.
        (WEAK_ETAG, WEAK_ETAG, 100_000, &[None, half, None]),
        // The rest belongs to a file of another size.
        (WEAK_ETAG, WEAK_ETAG, 90_000, &[None, half, None, None]),
        // The new file is shorter than the stored part: 416.
        (WEAK_ETAG, WEAK_ETAG, 10_000, &[None, half, None, None]),
    ];
    for (before, after, size, expected) in cases {
        let new = noise(size, 6);
        let (first, second) = (old.clone(), new.clone());
        let server = TestFileServer::start(move |count, request| match count {
            0 => TestReply::whole_file(&first, before).cut(50_000),
            _ => TestReply::file(&second, after, request),
        });
        let (node, spec) = (DownloadNode::new(), image_spec(server.url("/a"), &old));
        let failure = node.fetch_all(&node.open_spool(), &spec).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Download);
        for digest in [Sha256::hash(&old), Sha256::hash(&new)] {
            let is_named = failure.reason.contains(&digest.to_string());
            assert!(is_named, "{after}, {size}: {failure}");
        }
        let ranges: Vec<_> = server.requests().iter().map(TestRequest::range_start).collect();
        assert_eq!(ranges, expected, "{after}, {size}");
        assert!(node.image_files().is_empty(), "{after}, {size}");
    }
}

#[tokio::test]
async fn a_new_digest_at_the_next_poll_is_another_file_and_reuses_nothing() {
    let (old, new) = (noise(100_000, 7), noise(100_000, 8));
    let (sender, receiver) = mpsc::channel();
    let (mut receiver, first, second) = (Some(receiver), old.clone(), new.clone());
    let server = TestFileServer::start(move |_, request| match receiver.take() {
        Some(more) => {
            let reply = TestReply::file(&first, ETAG, request).cut(50_000);
            reply.followed_by(AfterBody::More(more))
        }
        None => TestReply::file(&second, ETAG, request),
    });
    let (node, before) = (DownloadNode::new(), image_spec(server.url("/latest"), &old));
    let spool = node.open_spool();
    node.fetch_until(&spool, &before, 50_000).await;

    // A new release is published at the same address while the first response is still open.
    sender.send(old[50_000..].to_vec()).unwrap();
    let after = image_spec(server.url("/latest"), &new);
    let spooled = node.fetch_all(&spool, &after).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), new);
    let ranges: Vec<_> = server.requests().iter().map(TestRequest::range_start).collect();
    assert_eq!(ranges, [None, None]);
    let mut left = vec![Sha256::hash(&new).to_string(), "spool.json".to_owned()];
    left.sort();
    assert_eq!(node.image_files(), left);
}

#[tokio::test]
async fn a_download_respects_the_rate_limit_of_the_policy() {
    let content = noise(1_000_000, 11);
    let body = content.clone();
    let server = TestFileServer::start(move |_, request| TestReply::file(&body, ETAG, request));
    let (node, mut spec) = (DownloadNode::new(), image_spec(server.url("/a"), &content));
    spec.rules.download_bytes_per_second = 500_000;
    let started = Instant::now();
    let spooled = node.fetch_all(&node.open_spool(), &spec).await.unwrap();
    // Two seconds, of which the first is free, minus the last 64 KiB, which are taken at once.
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(800), "{took:?}");
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_busy_server_gets_no_request_before_its_retry_time() {
    let content = noise(1_000, 12);
    let dated = |node: &DownloadNode| {
        let at = node.clock.now() + TimeDelta::seconds(600);
        at.format("%a, %d %b %Y %H:%M:%S GMT").to_string()
    };
    for (status, is_dated) in [
        ("429 Too Many Requests", true),
        ("503 Service Unavailable", true),
        ("503 Service Unavailable", false),
    ] {
        let node = DownloadNode::new();
        let again = if is_dated { dated(&node) } else { "600".to_owned() };
        let body = content.clone();
        let server = TestFileServer::start(move |before, request| match before {
            0 => TestReply::status(status, &[&format!("retry-after: {again}")]),
            _ => TestReply::file(&body, ETAG, request),
        });
        let mut spec = image_spec(server.url("/a"), &content);
        spec.rules.attempts = 1;
        let spool = node.open_spool();
        let why = deferral(spool.fetch(&spec, LONG_SLICE).await.unwrap());
        assert!(why.contains(status), "{why}");
        node.clock.advance(TimeDelta::seconds(599));
        let same = deferral(spool.fetch(&spec, LONG_SLICE).await.unwrap());
        assert_eq!(why, same);
        assert_eq!(server.requests().len(), 1, "no request before the retry time");

        // Jitter spreads the nodes: up to a fifth of the time.
        node.clock.advance(TimeDelta::seconds(122));
        let got = spool.fetch(&spec, LONG_SLICE).await.unwrap();
        assert!(matches!(got, SpoolProgress::Complete(_)), "{got:?}");
        assert_eq!(server.requests().len(), 2);
    }
}
