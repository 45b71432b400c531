//! An image on its way from a server into a slot, by a process of its own whose memory is measured; and slots that are
//! devices, not files.
//!
//! `EVENKEEL_IMAGE_STREAM_MIB` is the size of the image (128 if unset). It is made and served here, over TLS.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_kit::SystemClock;
use evenkeel_update_agent::link::Floor;
use evenkeel_update_agent::model::{Failure, FailureKind, ImageWish, Sha256};
use evenkeel_update_agent::modules::image::device::{Device, read_back};
use evenkeel_update_agent::modules::image::slots::Raw;
use evenkeel_update_agent::modules::image::spool::{Got, Spool, Spooled};
use evenkeel_update_agent::modules::image::unpack::{Form, unpack};
use evenkeel_update_agent::modules::image::web::{Web, WebSettings};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::support::file_server::{Reply, TestServer};
use crate::support::image_files::{Authority, noise, wish, zstandard};
use crate::support::os::{Loop, program, say, skip, words_of};

/// So much memory may a process have at most that streams an image, in KiB.
const MOST_MEMORY: u64 = 32 << 10;

/// So much of an image is noise, as far as there is room for it.
const NOISE_MIB: u64 = 64;

/// Names the file with the errand to the process that is measured.
const ERRAND: &str = "EVENKEEL_IMAGE_STREAM_ERRAND";

const MIB: usize = 1 << 20;

/// What the process that is measured is to do.
#[derive(Serialize, Deserialize)]
struct Errand {
    wish: ImageWish,
    authority: PathBuf,
    folder: PathBuf,
}

/// What it tells.
#[derive(Serialize, Deserialize)]
struct Told {
    raw: Raw,
    fetched: Duration,
    unpacked: Duration,
    read: Duration,
    /// The most memory that it had before it began, in KiB.
    before: u64,
    /// The same at its end.
    peak: u64,
}

/// A published image.
struct Published {
    folder: TempDir,
    authority: Authority,
    _server: TestServer,
    wish: ImageWish,
    file_bytes: usize,
    raw: Raw,
}

impl Published {
    /// One of so many MiB, of which each `every`th is noise.
    fn new(form: Form, mib: u64, every: u64) -> Self {
        let (file, raw) = packed(form, mib, every);
        let authority = Authority::new();
        let wish = wish(String::new(), &file);
        let file_bytes = file.len();
        let tls = authority.vouch_for("127.0.0.1");
        let server = TestServer::start_with_tls(tls, move |_, request| {
            Reply::file(&file, "\"one\"", request)
        });
        let url = format!("https://{}/image", server.address);
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            authority,
            _server: server,
            wish: ImageWish { url, ..wish },
            file_bytes,
            raw,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Lets a process of its own bring it into a slot, and looks at both.
    fn stream(&self) -> Told {
        let slot = File::create(self.path("slot")).expect("a slot");
        slot.set_len(self.raw.bytes).expect("a slot");
        let errand = Errand {
            wish: self.wish.clone(),
            authority: self.authority.file(),
            folder: self.folder.path().to_owned(),
        };
        let errand = serde_json::to_vec(&errand).expect("plain data");
        fs::write(self.path("errand.json"), errand).expect("a file");
        let mut child = program(std::env::current_exe().expect("this program"));
        child.args(["--ignored", "--exact", "--nocapture", "--test-threads=1"]);
        child.arg("image_stream::the_process_that_is_measured");
        let output = child.env(ERRAND, self.path("errand.json")).output();
        let output = output.expect("this program starts");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{}: {said}", output.status);
        let told = fs::read(self.path("told.json")).expect("what it tells");
        let told: Told = serde_json::from_slice(&told).expect("what it tells");
        assert_eq!(told.raw, self.raw, "it wrote what was published");
        assert_eq!(found(&self.path("slot")), self.raw, "and there it is");
        let (peak, before) = (in_mib(told.peak), in_mib(told.before));
        assert!(
            told.peak <= MOST_MEMORY,
            "{peak} MiB of memory at most, {before} before it began"
        );
        told
    }

    /// How long it takes with two programs that everybody has: until they end, and until what they wrote is flushed.
    fn by_hand(&self) -> Option<(Duration, Duration)> {
        for name in ["curl", "zstd"] {
            if let Err(why) = words_of(program(name).arg("--version")) {
                skip(&why);
                return None;
            }
        }
        let script = r#"curl -sSf --noproxy '*' --cacert "$1" "$2" | zstd -dqc > "$3""#;
        let to = self.path("by-hand");
        let mut piping = program("sh");
        piping.args(["-c", script, "sh"]).arg(self.authority.file());
        piping.arg(&self.wish.url).arg(&to);
        let begun = Instant::now();
        words_of(&mut piping).expect("curl and zstd");
        let piped = begun.elapsed();
        let file = File::open(&to).expect("what they wrote");
        file.sync_all().expect("a disk");
        let flushed = begun.elapsed();
        assert_eq!(found(&to), self.raw, "they wrote what was published");
        fs::remove_file(&to).expect("what they wrote");
        Some((piped, flushed))
    }
}

/// Writes an image: each `every`th MiB is noise, the others are zeros.
fn image(mib: u64, every: u64, into: &mut dyn Write) -> Raw {
    let zeros = vec![0; MIB];
    let mut hash = sha2::Sha256::new();
    for number in 0..mib {
        let random = number.is_multiple_of(every);
        let random = random.then(|| noise(MIB, number + 1));
        let bytes = random.as_ref().unwrap_or(&zeros);
        hash.update(bytes);
        into.write_all(bytes).expect("room for an image");
    }
    let sha256: [u8; 32] = hash.finalize().into();
    Raw {
        sha256: Sha256::from(sha256),
        bytes: mib << 20,
    }
}

/// An image as it is published, with as wide a window as is taken, and what it holds.
fn packed(form: Form, mib: u64, every: u64) -> (Vec<u8>, Raw) {
    match form {
        Form::Raw => {
            let mut file = Vec::new();
            let raw = image(mib, every, &mut file);
            (file, raw)
        }
        Form::Gzip => {
            let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
            let raw = image(mib, every, &mut packer);
            (packer.finish().expect("memory"), raw)
        }
        Form::Zstd => {
            let mut packer = zstd::Encoder::new(Vec::new(), 3).expect("memory");
            packer.window_log(23).expect("8 MiB");
            let raw = image(mib, every, &mut packer);
            (packer.finish().expect("memory"), raw)
        }
        Form::Xz => {
            let mut file = tempfile::tempfile().expect("a file");
            let mut packer = program("xz");
            packer.args(["--stdout", "--threads=1", "--lzma2=preset=0,dict=8MiB"]);
            packer.stdin(Stdio::piped());
            packer.stdout(file.try_clone().expect("a file"));
            let mut packer = packer.spawn().expect("xz starts");
            let mut into = packer.stdin.take().expect("it reads");
            let raw = image(mib, every, &mut into);
            drop(into);
            assert!(packer.wait().expect("it ends").success(), "xz");
            let mut small = Vec::new();
            file.rewind().expect("a file");
            file.read_to_end(&mut small).expect("a file");
            (small, raw)
        }
    }
}

/// What a file holds.
fn found(path: &Path) -> Raw {
    let mut file = File::open(path).expect("a file");
    let (mut hash, mut chunk, mut bytes) = (sha2::Sha256::new(), vec![0; MIB], 0);
    loop {
        let count = file.read(&mut chunk).expect("a disk");
        if count == 0 {
            break;
        }
        hash.update(&chunk[..count]);
        bytes += count as u64;
    }
    let sha256: [u8; 32] = hash.finalize().into();
    Raw {
        sha256: Sha256::from(sha256),
        bytes,
    }
}

/// The most memory that this process had so far, in KiB (`proc_pid_status(5)`).
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.expect("a line").parse().expect("a number")
}

/// KiB in MiB, for a person.
fn in_mib(kib: u64) -> String {
    format!("{}.{}", kib / 1_024, kib % 1_024 * 10 / 1_024)
}

/// A time, and how many MiB a second that makes of an image, for a person.
fn pace(raw: &Raw, time: Duration) -> String {
    let millis = u64::try_from(time.as_millis()).expect("less than an age");
    let rate = (raw.bytes >> 20) * 1_000 / millis.max(1);
    format!("{:.1} s ({rate} MiB/s)", time.as_secs_f64())
}

#[expect(clippy::disallowed_methods, reason = "the one switch of this test")]
fn size() -> u64 {
    let given = std::env::var("EVENKEEL_IMAGE_STREAM_MIB");
    given.map_or(128, |text| text.parse().expect("a number of MiB"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "what the process that measures tells the one that is measured"
)]
fn errand() -> Option<Errand> {
    let file = std::env::var_os(ERRAND)?;
    let errand = fs::read(file).expect("an errand");
    Some(serde_json::from_slice(&errand).expect("an errand"))
}

#[tokio::test]
#[ignore = "the tests below start it, with an errand"]
async fn the_process_that_is_measured() {
    let Some(errand) = errand() else { return };
    let before = peak();
    let settings = WebSettings {
        roots: vec![errand.authority],
        ..WebSettings::default()
    };
    let web = Web::new(settings, None, Arc::new(Floor::none())).unwrap();
    let images = errand.folder.join("images");
    let spool = Spool::new(images, web, Arc::new(SystemClock));
    let begun = Instant::now();
    let spooled = loop {
        let slice = Duration::from_secs(30);
        match spool.fetch(&errand.wish, slice).await.unwrap() {
            Got::All(spooled) => break spooled,
            Got::Part { .. } => {}
            Got::Later(why) => panic!("{why}"),
        }
    };
    let fetched = begun.elapsed();
    let slot = errand.folder.join("slot");
    let told = tokio::task::spawn_blocking(move || {
        let stop = CancellationToken::new();
        let raw = unpack(&spooled, Device::open(&slot).unwrap(), &stop).unwrap();
        let unpacked = begun.elapsed().saturating_sub(fetched);
        read_back(&slot, &raw, &stop).unwrap();
        Told {
            raw,
            fetched,
            unpacked,
            read: begun.elapsed().saturating_sub(fetched + unpacked),
            before,
            peak: peak(),
        }
    });
    let told = serde_json::to_vec(&told.await.unwrap()).unwrap();
    fs::write(errand.folder.join("told.json"), told).unwrap();
}

#[test]
fn an_image_of_any_size_goes_into_its_slot_with_little_memory() {
    let mib = size();
    let image = Published::new(Form::Zstd, mib, (mib / NOISE_MIB).max(1));
    let by_hand = image.by_hand();
    let told = image.stream();
    let raw = &image.raw;
    let packed = in_mib((image.file_bytes as u64) >> 10);
    say(&format!(
        "image_stream: {mib} MiB in {packed} MiB of zstd: {} MiB of memory at most, {} of them at first",
        in_mib(told.peak),
        in_mib(told.before)
    ));
    say(&format!(
        "image_stream: the agent {}: fetched {}, unpacked {}, read back {}",
        pace(raw, told.fetched + told.unpacked + told.read),
        pace(raw, told.fetched),
        pace(raw, told.unpacked),
        pace(raw, told.read)
    ));
    if let Some((piped, flushed)) = by_hand {
        say(&format!(
            "image_stream: curl | zstd -d > file {}, and flushed {}",
            pace(raw, piped),
            pace(raw, flushed)
        ));
    }
}

#[test]
fn every_form_of_an_image_needs_as_little_memory() {
    for form in [Form::Raw, Form::Gzip, Form::Xz] {
        let told = Published::new(form, 12, 6).stream();
        let (peak, before) = (in_mib(told.peak), in_mib(told.before));
        say(&format!(
            "image_stream: {form}: {peak} MiB of memory at most, {before} of them at first"
        ));
    }
}

/// The block of the devices here.
const BLOCK: usize = 4_096;

/// The size of the devices here.
const SLOT: usize = 4 * MIB;

/// A file that a device may be made of, every byte 0xee.
fn disk(folder: &TempDir, bytes: usize) -> PathBuf {
    let file = folder.path().join("disk");
    fs::write(&file, vec![0xee; bytes]).expect("a file");
    file
}

/// Writes an image onto a device on which every byte is 0xee before.
fn put(slot: &Loop, folder: &TempDir, form: Form, content: &[u8]) -> Result<Raw, Failure> {
    let mut fresh = OpenOptions::new().write(true).open(slot.path()).unwrap();
    fresh.write_all(&vec![0xee; SLOT]).unwrap();
    fresh.sync_all().unwrap();
    drop(fresh);
    let file = match form {
        Form::Zstd => zstandard(content),
        _ => content.to_vec(),
    };
    let path = folder.path().join("image");
    fs::write(&path, &file).unwrap();
    let spooled = Spooled {
        path,
        bytes: file.len() as u64,
        form,
        sha256: Sha256::of(&file),
    };
    let stop = CancellationToken::new();
    let raw = unpack(&spooled, Device::open(slot.path())?, &stop)?;
    read_back(slot.path(), &raw, &stop)?;
    Ok(raw)
}

#[test]
fn a_device_with_blocks_of_4096_bytes_takes_images_of_every_length() {
    let folder = tempfile::tempdir().unwrap();
    let disk = disk(&folder, SLOT);
    let Some(slot) = Loop::of(&disk, 4_096) else {
        return;
    };
    assert_eq!(Device::open(slot.path()).unwrap().bytes(), SLOT as u64);
    for form in [Form::Raw, Form::Zstd] {
        for length in [1, 512, BLOCK, BLOCK + 512, 3 * MIB + 700, SLOT] {
            let content = noise(length, 1);
            let raw = put(&slot, &folder, form, &content).unwrap();
            assert_eq!(raw.sha256, Sha256::of(&content), "{form}, {length}");
            // Through the file below: what the device itself holds.
            let written = fs::read(&disk).unwrap();
            let end = length.next_multiple_of(BLOCK);
            assert!(written[..length] == content, "{form}, {length}");
            let padding = &written[length..end];
            assert!(padding.iter().all(|byte| *byte == 0), "{form}, {length}");
            let behind = &written[end..];
            assert!(behind.iter().all(|byte| *byte == 0xee), "{form}, {length}");
        }
        let failure = put(&slot, &folder, form, &noise(SLOT + 1, 1)).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        assert!(failure.reason.contains("does not fit"), "{failure}");
    }
}

#[test]
fn a_device_that_is_mounted_is_not_opened_for_writing_and_who_has_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let disk = disk(&folder, 16 * MIB);
    let Some(slot) = Loop::of(&disk, 4_096) else {
        return;
    };
    let mut making = program("mkfs.ext4");
    words_of(making.args(["-q", "-F", "-b", "4096"]).arg(slot.path())).unwrap();
    let place = folder.path().join("mounted");
    fs::create_dir(&place).unwrap();
    let Some(mount) = slot.mount(&place) else {
        return;
    };
    let failure = Device::open(slot.path()).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    let (device, place) = (slot.path().display(), place.display());
    let expected = format!("{device} is in use and stayed so for 10 s: it is mounted on {place}");
    assert_eq!(failure.reason, expected);

    drop(mount);
    Device::open(slot.path()).unwrap();
}
