mod answers;
mod attempts;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;

use chrono::{DateTime, TimeDelta};
use evenkeel_kit::TestClock;
use tempfile::TempDir;

use super::*;
use crate::link::Floor;
use crate::model::ImageRules;
use crate::modules::image::web::testing::{Reply, Request, TestServer, Then};
use crate::modules::image::web::{Patience, WebSettings};

/// Long enough for everything that is done at once.
const SLICE: Duration = Duration::from_secs(20);

/// The terms of the tests. A test of a limit sets a shorter one.
const QUICK: Terms = Terms {
    open: Duration::from_secs(10),
    patience: Patience {
        idle: Duration::from_secs(10),
        span: Duration::from_mins(10),
        least: 1,
    },
    sync_bytes: 64 << 10,
    sync_every: Duration::from_secs(5),
    margin: |_| 0,
};

/// A spool that can be opened again, as after a restart of the agent.
struct Bench {
    folder: TempDir,
    clock: TestClock,
    web: Web,
    terms: Terms,
}

impl Bench {
    fn new() -> Self {
        let settings = WebSettings {
            plain_http: true,
            ..WebSettings::default()
        };
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            clock: TestClock::new(DateTime::UNIX_EPOCH + TimeDelta::days(20_000)),
            web: Web::new(settings, None, Arc::new(Floor::none())).expect("settings"),
            terms: QUICK,
        }
    }

    fn images(&self) -> PathBuf {
        self.folder.path().join("images")
    }

    fn spool(&self) -> Spool {
        let clock = Arc::new(self.clock.clone());
        Spool::with(self.images(), self.web.clone(), clock, self.terms)
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

    fn file(&self, content: &[u8]) -> PathBuf {
        self.images().join(Sha256::of(content).to_string())
    }

    fn record(&self) -> Record {
        let record = Record::read(&self.images()).expect("it can be read");
        record.expect("a record")
    }

    /// What a cut left behind: a file, and a record that says how much of it is sure.
    fn left(&self, content: &[u8], file: &[u8], synced: usize) {
        fs::create_dir_all(self.images()).expect("a folder");
        fs::write(self.file(content), file).expect("a file");
        let record = Record {
            synced: synced as u64,
            total: Some(content.len() as u64),
            etag: Some(TAG.to_owned()),
            ..Record::new(Sha256::of(content))
        };
        record.save(&self.images()).expect("a record");
    }
}

const TAG: &str = "\"one\"";

/// Bytes that no compressor would write, the same each time.
fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(next).take(length).collect();
    for (byte, known) in bytes.iter_mut().zip(b"image") {
        *byte = *known;
    }
    bytes
}

fn wish(url: String, content: &[u8]) -> ImageWish {
    ImageWish {
        os_id: "os-1".to_owned(),
        name: "Demo 1.1".to_owned(),
        profile_name: "demo".to_owned(),
        image_id: "1.1".to_owned(),
        architecture: "x86_64".to_owned(),
        url,
        sha256: Sha256::of(content),
        signatures: Vec::new(),
        rules: ImageRules::default(),
        again: false,
    }
}

fn later(got: Got) -> String {
    match got {
        Got::Later(why) => why,
        other => panic!("it does not wait: {other:?}"),
    }
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_file_is_fetched_checked_and_kept_for_its_owner_only() {
    let content = noise(300_000, 1);
    let shown = content.clone();
    let server = TestServer::start(move |_, request| Reply::file(&shown, TAG, request));
    let bench = Bench::new();
    let wish = wish(server.url("/a.raw?key=1"), &content);

    let got = bench.spool().fetch(&wish, SLICE).await.unwrap();

    let spooled = Spooled {
        path: bench.file(&content),
        bytes: 300_000,
        form: Form::Raw,
        sha256: Sha256::of(&content),
    };
    assert_eq!(got, Got::All(spooled.clone()));
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
    let mode = fs::metadata(&spooled.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].path(), "/a.raw?key=1");
    assert_eq!(requests[0].header("range"), None);

    // What is whole is checked again, and not fetched again: not even by another agent.
    let again = bench.spool().fetch(&wish, SLICE).await.unwrap();
    assert_eq!(again, Got::All(spooled));
    assert_eq!(bench.spool().size(&wish).await.unwrap(), Some(300_000));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_download_goes_on_at_the_byte_where_it_broke_off() {
    let content = noise(100_000, 2);
    for cut in [0, 1, 4_095, 4_096, 65_535, 65_536, 65_537, 99_999] {
        let shown = content.clone();
        let server = TestServer::start(move |before, request| {
            let reply = Reply::file(&shown, TAG, request);
            if before == 0 { reply.cut(cut) } else { reply }
        });
        let bench = Bench::new();
        let wish = wish(server.url("/a"), &content);
        let why = later(bench.spool().fetch(&wish, SLICE).await.unwrap());
        assert!(why.contains("attempt 1 of 5"), "{cut}: {why}");
        assert_eq!(bench.record().synced, cut as u64);

        // With another agent, which knows nothing but what lies on the disk.
        bench.clock.advance(TimeDelta::hours(1));
        let spool = bench.spool();
        let Got::All(spooled) = spool.fetch(&wish, SLICE).await.unwrap() else {
            panic!("{cut}: it is not done");
        };
        assert_eq!(fs::read(&spooled.path).unwrap(), content, "{cut}");
        let requests = server.requests();
        assert_eq!(requests.len(), 2, "{cut}");
        let asked = Some(cut).filter(|cut| *cut > 0);
        assert_eq!(requests[1].from(), asked);
        assert_eq!(requests[1].header("if-range"), asked.map(|_| TAG));
    }
}

#[tokio::test]
async fn a_disk_without_room_is_told_before_anything_is_written() {
    let content = noise(100_000, 13);
    let shown = content.clone();
    let server = TestServer::start(move |_, request| Reply::file(&shown, TAG, request));
    let mut bench = Bench::new();
    bench.terms.margin = |_| 1 << 60;
    let wish = wish(server.url("/a"), &content);
    let failure = bench.spool().fetch(&wish, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    for word in ["no room", "state_dir", "MiB are needed"] {
        assert!(failure.reason.contains(word), "{failure}");
    }
    assert_eq!(fs::metadata(bench.file(&content)).unwrap().len(), 0);

    // Once there is room it goes on.
    bench.terms.margin = |_| 0;
    bench.finish(&bench.spool(), &wish).await.unwrap();
}

#[tokio::test]
async fn a_disk_that_others_fill_keeps_what_was_fetched() {
    let content = noise(200_000, 14);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| {
        let reply = Reply::file(&shown, TAG, request);
        if before == 0 {
            reply.cut(150_000)
        } else {
            reply
        }
    });
    let mut bench = Bench::new();
    let wish = wish(server.url("/a"), &content);
    later(bench.spool().fetch(&wish, SLICE).await.unwrap());
    bench.terms.margin = |_| 1 << 60;
    let failure = bench.spool().fetch(&wish, SLICE).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert_eq!(bench.record().synced, 150_000);
    bench.terms.margin = |_| 0;
    bench.finish(&bench.spool(), &wish).await.unwrap();
    let last = server.requests().pop().unwrap();
    assert_eq!(last.from(), Some(150_000));
}

#[tokio::test]
async fn a_slice_ends_in_time_and_the_next_goes_on_with_the_same_answer() {
    let content = noise(100_000, 16);
    let (say, heard) = mpsc::channel();
    let (mut heard, shown) = (Some(heard), content.clone());
    let server = TestServer::start(move |_, request| {
        let reply = Reply::file(&shown, TAG, request).cut(50_000);
        let more = heard.take().expect("one request");
        reply.then(Then::More(more))
    });
    let mut bench = Bench::new();
    bench.terms.patience.idle = SLICE;
    let wish = wish(server.url("/a"), &content);
    let spool = bench.spool();
    let half = Got::Part { bytes: 50_000 };
    let slice = Duration::from_millis(50);
    while spool.fetch(&wish, slice).await.unwrap() != half {}
    assert_eq!(bench.record().synced, 50_000, "what is told is sure");
    assert_eq!(spool.fetch(&wish, slice).await.unwrap(), half);

    say.send(content[50_000..].to_vec()).unwrap();
    drop(say);
    bench.finish(&spool, &wish).await.unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn after_a_power_cut_only_what_is_sure_is_kept() {
    let content = noise(100_000, 21);
    let mut longer = content[..70_000].to_vec();
    longer[50_000..].fill(0);
    // What lies on the disk, how much of it was said to be sure, and what is asked for then.
    for (file, synced, asked) in [
        (longer, 50_000, Some(50_000)),
        (content[..50_000].to_vec(), 50_000, Some(50_000)),
        (content[..49_999].to_vec(), 50_000, None),
        (Vec::new(), 50_000, None),
        (content[..50_000].to_vec(), 0, None),
    ] {
        let shown = content.clone();
        let server = TestServer::start(move |_, request| Reply::file(&shown, TAG, request));
        let bench = Bench::new();
        bench.left(&content, &file, synced);
        let wish = wish(server.url("/a"), &content);
        let spooled = bench.finish(&bench.spool(), &wish).await.unwrap();
        assert_eq!(fs::read(&spooled.path).unwrap(), content);
        let requests = server.requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].from(), asked, "{} of {synced}", file.len());
    }
}

#[tokio::test]
async fn a_record_that_is_torn_or_gone_costs_the_download_and_nothing_else() {
    let content = noise(100_000, 22);
    for torn in [Some(""), Some("{\"file\":"), Some("null"), None] {
        let shown = content.clone();
        let server = TestServer::start(move |_, request| Reply::file(&shown, TAG, request));
        let bench = Bench::new();
        bench.left(&content, &content[..50_000], 50_000);
        let record = bench.images().join(record::NAME);
        match torn {
            Some(text) => fs::write(record, text).unwrap(),
            None => fs::remove_file(record).unwrap(),
        }
        let wish = wish(server.url("/a"), &content);
        bench.finish(&bench.spool(), &wish).await.unwrap();
        assert_eq!(server.requests()[0].from(), None, "{torn:?}");
    }
}

#[tokio::test]
async fn bytes_that_the_disk_lost_are_found_out() {
    let content = noise(100_000, 23);
    let mut lost = content.clone();
    lost[40_000..44_096].fill(0);
    for synced in [50_000, 100_000] {
        let shown = content.clone();
        let server = TestServer::start(move |_, request| Reply::file(&shown, TAG, request));
        let bench = Bench::new();
        bench.left(&content, &lost[..synced], synced);
        let wish = wish(server.url("/a"), &content);
        let spooled = bench.finish(&bench.spool(), &wish).await.unwrap();
        assert_eq!(fs::read(&spooled.path).unwrap(), content);
    }
}

#[tokio::test]
async fn bytes_come_no_faster_than_the_policy_allows() {
    let content = noise(400_000, 24);
    let shown = content.clone();
    let server = TestServer::start(move |_, request| Reply::file(&shown, TAG, request));
    let bench = Bench::new();
    let mut wish = wish(server.url("/a"), &content);
    // One second's worth is free, the rest takes a day.
    wish.rules.download_bytes_per_second = 3;
    let spool = bench.spool();
    let slice = Duration::from_millis(50);
    for _ in 0..3 {
        let Got::Part { bytes } = spool.fetch(&wish, slice).await.unwrap() else {
            panic!("it came too fast");
        };
        assert!(bytes < 400_000, "{bytes}");
    }
    wish.rules.download_bytes_per_second = 0;
    bench.finish(&spool, &wish).await.unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_download_that_nobody_waits_for_any_more_is_taken_up_where_it_is_sure() {
    let content = noise(100_000, 25);
    let shown = content.clone();
    let server = TestServer::start(move |before, request| {
        let reply = Reply::file(&shown, TAG, request);
        match before {
            0 => reply.cut(50_000).then(Then::Stall),
            _ => reply,
        }
    });
    let mut bench = Bench::new();
    bench.terms.patience.idle = SLICE;
    let wish = wish(server.url("/a"), &content);
    let spool = bench.spool();
    {
        let fetching = spool.fetch(&wish, SLICE);
        tokio::pin!(fetching);
        let waited = tokio::time::timeout(Duration::from_millis(100), &mut fetching);
        assert!(waited.await.is_err(), "the server says no more");
        // Nobody may take the file away from under it.
        let failure = spool.discard_but(None).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
    }
    let spooled = bench.finish(&spool, &wish).await.unwrap();
    assert_eq!(fs::read(&spooled.path).unwrap(), content);
}

#[tokio::test]
async fn two_that_fetch_at_once_take_turns() {
    let content = noise(300_000, 26);
    let shown = content.clone();
    let server = TestServer::start(move |_, request| Reply::file(&shown, TAG, request));
    let bench = Bench::new();
    let wish = wish(server.url("/a"), &content);
    let spool = bench.spool();
    let (one, two) = tokio::join!(spool.fetch(&wish, SLICE), spool.fetch(&wish, SLICE));
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn another_image_is_another_file_and_takes_the_place_of_the_first() {
    let (old, new) = (noise(100_000, 27), noise(100_000, 28));
    let (first, second) = (old.clone(), new.clone());
    let server = TestServer::start(move |_, request: &Request| match request.path() {
        "/old" => Reply::file(&first, TAG, request).cut(50_000),
        _ => Reply::file(&second, TAG, request),
    });
    let bench = Bench::new();
    let spool = bench.spool();
    let before = wish(server.url("/old"), &old);
    later(spool.fetch(&before, SLICE).await.unwrap());
    fs::write(bench.images().join("notes"), "of a person").unwrap();

    // What the first waits for is nothing to the second.
    let after = wish(server.url("/new"), &new);
    let got = spool.fetch(&after, SLICE).await.unwrap();
    assert!(matches!(got, Got::All(_)), "{got:?}");
    let mut left = vec![
        "notes".to_owned(),
        "spool.json".to_owned(),
        Sha256::of(&new).to_string(),
    ];
    left.sort();
    assert_eq!(names(&bench.images()), left);

    spool.discard_but(Some(&after.sha256)).unwrap();
    assert_eq!(names(&bench.images()), left);
    spool.discard_but(None).unwrap();
    assert_eq!(names(&bench.images()), ["notes"]);
    spool.discard_but(None).unwrap();
}

#[tokio::test]
async fn nothing_is_discarded_where_nothing_was_fetched() {
    Bench::new().spool().discard_but(None).unwrap();
}
