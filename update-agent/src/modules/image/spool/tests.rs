mod answers;
mod attempts;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;

use chrono::{DateTime, TimeDelta};
use evenkeel_fetch::StallLimits;
use evenkeel_kit::TestClock;
use tempfile::TempDir;

use super::*;
use crate::link::TimeFloor;
use crate::model::ImageRules;
use crate::modules::image::web::WebSettings;
use crate::modules::image::web::testing::{AfterBody, TestFileServer, TestReply, TestRequest};

/// Longer than any operation without a delay takes.
const SLICE: Duration = Duration::from_secs(20);

/// Limits of the tests. A test of a limit sets a shorter one.
const TEST_LIMITS: DownloadLimits = DownloadLimits {
    open_timeout: Duration::from_secs(10),
    stall_limits: StallLimits {
        idle_timeout: Duration::from_secs(10),
        rate_window: Duration::from_mins(10),
        min_bytes: 1,
    },
    sync_bytes: 64 << 10,
    sync_interval: Duration::from_secs(5),
    free_margin: |_| 0,
};

/// A spool that can be opened again, as after a restart of the agent.
struct SpoolBench {
    folder: TempDir,
    clock: TestClock,
    web: WebClient,
    limits: DownloadLimits,
}

impl SpoolBench {
    fn new() -> Self {
        let settings = WebSettings { plain_http: true, ..WebSettings::default() };
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            clock: TestClock::new(DateTime::UNIX_EPOCH + TimeDelta::days(20_000)),
            web: WebClient::new(settings, None, Arc::new(TimeFloor::unset()), None)
                .expect("settings"),
            limits: TEST_LIMITS,
        }
    }

    fn images(&self) -> PathBuf {
        self.folder.path().join("images")
    }

    fn spool(&self) -> Spool {
        let clock = Arc::new(self.clock.clone());
        Spool::with_limits(self.images(), self.web.clone(), clock, self.limits)
    }

    /// Fetches until the file is complete, however often it must wait.
    async fn finish(&self, spool: &Spool, spec: &ImageSpec) -> Result<SpooledImage, Failure> {
        for _ in 0..200 {
            match spool.fetch(spec, SLICE).await? {
                SpoolProgress::Complete(spooled) => return Ok(spooled),
                SpoolProgress::Partial { .. } => {}
                SpoolProgress::Deferred(_) => self.clock.advance(TimeDelta::hours(2)),
            }
        }
        panic!("it never ends");
    }

    fn file(&self, content: &[u8]) -> PathBuf {
        self.images().join(Sha256::hash(content).to_string())
    }

    fn record(&self) -> SpoolRecord {
        let record = SpoolRecord::read(&self.images()).expect("it can be read");
        record.expect("a record")
    }

    /// Creates the state after a power cut: a file and a record with the number of synced bytes.
    fn write_interrupted(&self, content: &[u8], file: &[u8], synced: usize) {
        fs::create_dir_all(self.images()).expect("a folder");
        fs::write(self.file(content), file).expect("a file");
        let record = SpoolRecord {
            synced: synced as u64,
            total: Some(content.len() as u64),
            etag: Some(ETAG.to_owned()),
            ..SpoolRecord::new(Sha256::hash(content))
        };
        record.save(&self.images()).expect("a record");
    }
}

const ETAG: &str = "\"one\"";

/// Incompressible bytes, the same for each seed.
fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(next).take(length).collect();
    for (byte, magic) in bytes.iter_mut().zip(b"image") {
        *byte = *magic;
    }
    bytes
}

fn image_spec(url: String, content: &[u8]) -> ImageSpec {
    ImageSpec {
        os_id: "os-1".to_owned(),
        name: "Demo 1.1".to_owned(),
        profile_name: "demo".to_owned(),
        image_id: "1.1".to_owned(),
        architecture: "x86_64".to_owned(),
        url,
        sha256: Sha256::hash(content),
        signatures: Vec::new(),
        rules: ImageRules::default(),
        allow_retry: false,
    }
}

fn deferral_reason(progress: SpoolProgress) -> String {
    match progress {
        SpoolProgress::Deferred(why) => why,
        other => panic!("it does not wait: {other:?}"),
    }
}

fn file_names(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_file_is_downloaded_verified_and_readable_only_by_its_owner() {
    let content = noise(300_000, 1);
    let body = content.clone();
    let server = TestFileServer::start(move |_, request| TestReply::file(&body, ETAG, request));
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a.raw?key=1"), &content);

    let progress = bench.spool().fetch(&spec, SLICE).await.unwrap();

    let spooled = SpooledImage {
        path: bench.file(&content),
        bytes: 300_000,
        format: ImageFormat::Raw,
        sha256: Sha256::hash(&content),
    };
    assert_eq!(progress, SpoolProgress::Complete(spooled.clone()));
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    let mode = fs::metadata(&spooled.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].path(), "/a.raw?key=1");
    assert_eq!(requests[0].header("range"), None);

    // A complete file is verified again but not downloaded again, even by another agent.
    let again = bench.spool().fetch(&spec, SLICE).await.unwrap();
    assert_eq!(again, SpoolProgress::Complete(spooled));
    assert_eq!(bench.spool().size(&spec).await.unwrap(), Some(300_000));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_download_resumes_at_the_byte_where_it_broke_off() {
    let content = noise(100_000, 2);
    for cut in [0, 1, 4_095, 4_096, 65_535, 65_536, 65_537, 99_999] {
        let body = content.clone();
        let server = TestFileServer::start(move |before, request| {
            let reply = TestReply::file(&body, ETAG, request);
            if before == 0 { reply.cut(cut) } else { reply }
        });
        let bench = SpoolBench::new();
        let spec = image_spec(server.url("/a"), &content);
        let why = deferral_reason(bench.spool().fetch(&spec, SLICE).await.unwrap());
        assert!(why.contains("attempt 1 of 5"), "{cut}: {why}");
        assert_eq!(bench.record().synced, cut as u64);

        // Another agent knows only the files on the disk.
        bench.clock.advance(TimeDelta::hours(1));
        let spool = bench.spool();
        let SpoolProgress::Complete(spooled) = spool.fetch(&spec, SLICE).await.unwrap() else {
            panic!("{cut}: it is not done");
        };
        assert_eq!(fs::read(&spooled.path).unwrap(), content, "{cut}");
        let requests = server.requests();
        assert_eq!(requests.len(), 2, "{cut}");
        let range_start = Some(cut).filter(|cut| *cut > 0);
        assert_eq!(requests[1].range_start(), range_start);
        assert_eq!(requests[1].header("if-range"), range_start.map(|_| ETAG));
    }
}

#[tokio::test]
async fn missing_disk_space_is_reported_before_anything_is_written() {
    let content = noise(100_000, 13);
    let body = content.clone();
    let server = TestFileServer::start(move |_, request| TestReply::file(&body, ETAG, request));
    let mut bench = SpoolBench::new();
    bench.limits.free_margin = |_| 1 << 60;
    let spec = image_spec(server.url("/a"), &content);
    let failure = bench.spool().fetch(&spec, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    for expected in ["no room", "state_dir", "MiB are needed"] {
        assert!(failure.reason.contains(expected), "{failure}");
    }
    assert_eq!(fs::metadata(bench.file(&content)).unwrap().len(), 0);

    // It continues once there is space.
    bench.limits.free_margin = |_| 0;
    bench.finish(&bench.spool(), &spec).await.unwrap();
}

#[tokio::test]
async fn a_disk_filled_by_others_retains_the_downloaded_bytes() {
    let content = noise(200_000, 14);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| {
        let reply = TestReply::file(&body, ETAG, request);
        if before == 0 { reply.cut(150_000) } else { reply }
    });
    let mut bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &content);
    deferral_reason(bench.spool().fetch(&spec, SLICE).await.unwrap());
    bench.limits.free_margin = |_| 1 << 60;
    let failure = bench.spool().fetch(&spec, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert_eq!(bench.record().synced, 150_000);
    bench.limits.free_margin = |_| 0;
    bench.finish(&bench.spool(), &spec).await.unwrap();
    let last = server.requests().pop().unwrap();
    assert_eq!(last.range_start(), Some(150_000));
}

#[tokio::test]
async fn a_slice_ends_in_time_and_the_next_one_continues_the_same_response() {
    let content = noise(100_000, 16);
    let (sender, receiver) = mpsc::channel();
    let (mut receiver, body) = (Some(receiver), content.clone());
    let server = TestFileServer::start(move |_, request| {
        let reply = TestReply::file(&body, ETAG, request).cut(50_000);
        let more = receiver.take().expect("one request");
        reply.followed_by(AfterBody::More(more))
    });
    let mut bench = SpoolBench::new();
    bench.limits.stall_limits.idle_timeout = SLICE;
    let spec = image_spec(server.url("/a"), &content);
    let spool = bench.spool();
    let half = SpoolProgress::Partial { bytes: 50_000 };
    let slice = Duration::from_millis(50);
    while spool.fetch(&spec, slice).await.unwrap() != half {}
    assert_eq!(bench.record().synced, 50_000, "reported bytes are synced");
    assert_eq!(spool.fetch(&spec, slice).await.unwrap(), half);

    sender.send(content[50_000..].to_vec()).unwrap();
    drop(sender);
    bench.finish(&spool, &spec).await.unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn after_a_power_cut_only_synced_bytes_are_retained() {
    let content = noise(100_000, 21);
    let mut longer = content[..70_000].to_vec();
    longer[50_000..].fill(0);
    // The content of the file, the number of synced bytes, and the range that is requested.
    for (file, synced, range_start) in [
        (longer, 50_000, Some(50_000)),
        (content[..50_000].to_vec(), 50_000, Some(50_000)),
        (content[..49_999].to_vec(), 50_000, None),
        (Vec::new(), 50_000, None),
        (content[..50_000].to_vec(), 0, None),
    ] {
        let body = content.clone();
        let server = TestFileServer::start(move |_, request| TestReply::file(&body, ETAG, request));
        let bench = SpoolBench::new();
        bench.write_interrupted(&content, &file, synced);
        let spec = image_spec(server.url("/a"), &content);
        let spooled = bench.finish(&bench.spool(), &spec).await.unwrap();
        assert_eq!(fs::read(&spooled.path).unwrap(), content);
        let requests = server.requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].range_start(), range_start, "{} of {synced}", file.len());
    }
}

#[tokio::test]
async fn a_torn_or_missing_record_costs_only_the_download() {
    let content = noise(100_000, 22);
    for torn in [Some(""), Some("{\"file\":"), Some("null"), None] {
        let body = content.clone();
        let server = TestFileServer::start(move |_, request| TestReply::file(&body, ETAG, request));
        let bench = SpoolBench::new();
        bench.write_interrupted(&content, &content[..50_000], 50_000);
        let record = bench.images().join(record::FILE_NAME);
        match torn {
            Some(text) => fs::write(record, text).unwrap(),
            None => fs::remove_file(record).unwrap(),
        }
        let spec = image_spec(server.url("/a"), &content);
        bench.finish(&bench.spool(), &spec).await.unwrap();
        assert_eq!(server.requests()[0].range_start(), None, "{torn:?}");
    }
}

#[tokio::test]
async fn bytes_lost_by_the_disk_are_detected() {
    let content = noise(100_000, 23);
    let mut lost = content.clone();
    lost[40_000..44_096].fill(0);
    for synced in [50_000, 100_000] {
        let body = content.clone();
        let server = TestFileServer::start(move |_, request| TestReply::file(&body, ETAG, request));
        let bench = SpoolBench::new();
        bench.write_interrupted(&content, &lost[..synced], synced);
        let spec = image_spec(server.url("/a"), &content);
        let spooled = bench.finish(&bench.spool(), &spec).await.unwrap();
        assert_eq!(fs::read(&spooled.path).unwrap(), content);
    }
}

#[tokio::test]
async fn the_download_rate_is_limited_by_the_policy() {
    let content = noise(400_000, 24);
    let body = content.clone();
    let server = TestFileServer::start(move |_, request| TestReply::file(&body, ETAG, request));
    let bench = SpoolBench::new();
    let mut spec = image_spec(server.url("/a"), &content);
    // The bytes of one second are free, the rest takes a day.
    spec.rules.download_bytes_per_second = 3;
    let spool = bench.spool();
    let slice = Duration::from_millis(50);
    for _ in 0..3 {
        let SpoolProgress::Partial { bytes } = spool.fetch(&spec, slice).await.unwrap() else {
            panic!("the download was too fast");
        };
        assert!(bytes < 400_000, "{bytes}");
    }
    spec.rules.download_bytes_per_second = 0;
    bench.finish(&spool, &spec).await.unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn an_abandoned_download_resumes_at_its_synced_bytes() {
    let content = noise(100_000, 25);
    let body = content.clone();
    let server = TestFileServer::start(move |before, request| {
        let reply = TestReply::file(&body, ETAG, request);
        match before {
            0 => reply.cut(50_000).followed_by(AfterBody::Stall),
            _ => reply,
        }
    });
    let mut bench = SpoolBench::new();
    bench.limits.stall_limits.idle_timeout = SLICE;
    let spec = image_spec(server.url("/a"), &content);
    let spool = bench.spool();
    {
        let fetching = spool.fetch(&spec, SLICE);
        tokio::pin!(fetching);
        let waited = tokio::time::timeout(Duration::from_millis(100), &mut fetching);
        assert!(waited.await.is_err(), "the server sends no more");
        // The file cannot be removed during the download.
        let failure = spool.discard_except(None).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
    }
    let spooled = bench.finish(&spool, &spec).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
}

#[tokio::test]
async fn concurrent_fetches_take_turns() {
    let content = noise(300_000, 26);
    let body = content.clone();
    let server = TestFileServer::start(move |_, request| TestReply::file(&body, ETAG, request));
    let bench = SpoolBench::new();
    let spec = image_spec(server.url("/a"), &content);
    let spool = bench.spool();
    let (one, two) = tokio::join!(spool.fetch(&spec, SLICE), spool.fetch(&spec, SLICE));
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn another_image_replaces_the_first() {
    let (old, new) = (noise(100_000, 27), noise(100_000, 28));
    let (first, second) = (old.clone(), new.clone());
    let server = TestFileServer::start(move |_, request: &TestRequest| match request.path() {
        "/old" => TestReply::file(&first, ETAG, request).cut(50_000),
        _ => TestReply::file(&second, ETAG, request),
    });
    let bench = SpoolBench::new();
    let spool = bench.spool();
    let before = image_spec(server.url("/old"), &old);
    deferral_reason(spool.fetch(&before, SLICE).await.unwrap());
    fs::write(bench.images().join("notes"), "of a person").unwrap();

    // The delay of the first image does not apply to the second.
    let after = image_spec(server.url("/new"), &new);
    let progress = spool.fetch(&after, SLICE).await.unwrap();
    assert!(matches!(progress, SpoolProgress::Complete(_)), "{progress:?}");
    let mut left =
        vec!["notes".to_owned(), "spool.json".to_owned(), Sha256::hash(&new).to_string()];
    left.sort();
    assert_eq!(file_names(&bench.images()), left);

    spool.discard_except(Some(&after.sha256)).unwrap();
    assert_eq!(file_names(&bench.images()), left);
    spool.discard_except(None).unwrap();
    assert_eq!(file_names(&bench.images()), ["notes"]);
    spool.discard_except(None).unwrap();
}

#[tokio::test]
async fn discarding_from_a_missing_folder_succeeds() {
    SpoolBench::new().spool().discard_except(None).unwrap();
}
