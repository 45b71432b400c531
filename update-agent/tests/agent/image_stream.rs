//! Streams an image from a server into a slot, in a separate process whose memory is measured; and slots that are block
//! devices instead of files.
//!
//! `EVENKEEL_IMAGE_STREAM_MIB` is the size of the image (default 128). The test creates and serves it over TLS.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_kit::SystemClock;
use evenkeel_update_agent::link::TimeFloor;
use evenkeel_update_agent::model::{Failure, FailureKind, ImageSpec, Sha256};
use evenkeel_update_agent::modules::image::device::{SlotDevice, read_back};
use evenkeel_update_agent::modules::image::slots::RawImage;
use evenkeel_update_agent::modules::image::spool::{Spool, SpoolProgress, SpooledImage};
use evenkeel_update_agent::modules::image::unpack::{ImageFormat, unpack};
use evenkeel_update_agent::modules::image::web::{WebClient, WebSettings};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::support::file_server::{TestFileServer, TestReply};
use crate::support::image_files::{TestAuthority, image_spec, noise, zstandard};
use crate::support::os::{LoopDevice, print_line, program, run_output, skip_test};

/// Maximum memory of a process that streams an image, in KiB.
const MAX_MEMORY_KIB: u64 = 32 << 10;

/// Amount of noise in an image; a smaller image is noise only.
const NOISE_MIB: u64 = 64;

/// Environment variable with the path of the task file for the measured process.
const TASK_FILE_VARIABLE: &str = "EVENKEEL_IMAGE_STREAM_TASK";

const MIB: usize = 1 << 20;

/// The task of the measured process.
#[derive(Serialize, Deserialize)]
struct StreamTask {
    spec: ImageSpec,
    authority: PathBuf,
    folder: PathBuf,
}

/// The report of the measured process.
#[derive(Serialize, Deserialize)]
struct StreamReport {
    raw: RawImage,
    fetch_time: Duration,
    unpack_time: Duration,
    read_back_time: Duration,
    /// Peak memory before the download started, in KiB.
    initial_memory_kib: u64,
    /// Peak memory at the end, in KiB.
    peak_memory_kib: u64,
}

struct PublishedImage {
    folder: TempDir,
    authority: TestAuthority,
    _server: TestFileServer,
    spec: ImageSpec,
    file_bytes: usize,
    raw: RawImage,
}

impl PublishedImage {
    /// An image of `mib` MiB, in which each `every`th MiB is noise.
    fn new(form: ImageFormat, mib: u64, every: u64) -> Self {
        let (file, raw) = pack_image(form, mib, every);
        let authority = TestAuthority::new();
        let spec = image_spec(String::new(), &file);
        let file_bytes = file.len();
        let tls = authority.server_config_for("127.0.0.1");
        let server = TestFileServer::start_with_tls(tls, move |_, request| {
            TestReply::file(&file, "\"one\"", request)
        });
        let url = format!("https://{}/image", server.address);
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            authority,
            _server: server,
            spec: ImageSpec { url, ..spec },
            file_bytes,
            raw,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Lets a separate process write the image into a slot, and checks the slot and the memory.
    fn stream(&self) -> StreamReport {
        let slot = File::create(self.path("slot")).expect("a slot");
        slot.set_len(self.raw.bytes).expect("a slot");
        let task = StreamTask {
            spec: self.spec.clone(),
            authority: self.authority.ca_file(),
            folder: self.folder.path().to_owned(),
        };
        let task = serde_json::to_vec(&task).expect("plain data");
        fs::write(self.path("task.json"), task).expect("a file");
        let mut child = program(std::env::current_exe().expect("this program"));
        child.args(["--ignored", "--exact", "--nocapture", "--test-threads=1"]);
        child.arg("image_stream::the_process_that_is_measured");
        let output = child.env(TASK_FILE_VARIABLE, self.path("task.json")).output();
        let output = output.expect("this program starts");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(output.status.success(), "{}: {text}", output.status);
        let report = fs::read(self.path("report.json")).expect("a report");
        let report: StreamReport = serde_json::from_slice(&report).expect("a report");
        assert_eq!(report.raw, self.raw, "the process reports another content");
        assert_eq!(hash_file(&self.path("slot")), self.raw, "the slot has another content");
        let (peak, before) =
            (format_mib(report.peak_memory_kib), format_mib(report.initial_memory_kib));
        assert!(
            report.peak_memory_kib <= MAX_MEMORY_KIB,
            "{peak} MiB of memory at most, {before} MiB before the download"
        );
        report
    }

    /// Times for the same work with curl and zstd: until both end, and until their output is flushed.
    fn stream_with_curl(&self) -> Option<(Duration, Duration)> {
        for name in ["curl", "zstd"] {
            if let Err(why) = run_output(program(name).arg("--version")) {
                skip_test(&why);
                return None;
            }
        }
        let script = r#"curl -sSf --noproxy '*' --cacert "$1" "$2" | zstd -dqc > "$3""#;
        let to = self.path("by-hand");
        let mut piping = program("sh");
        piping.args(["-c", script, "sh"]).arg(self.authority.ca_file());
        piping.arg(&self.spec.url).arg(&to);
        let started = Instant::now();
        run_output(&mut piping).expect("curl and zstd");
        let piped = started.elapsed();
        let file = File::open(&to).expect("the output of zstd");
        file.sync_all().expect("a disk");
        let flushed = started.elapsed();
        assert_eq!(hash_file(&to), self.raw, "zstd wrote another content");
        fs::remove_file(&to).expect("the output of zstd");
        Some((piped, flushed))
    }
}

/// Writes an image: each `every`th MiB is noise, the others are zeros. Returns the digest and size.
fn write_image(mib: u64, every: u64, into: &mut dyn Write) -> RawImage {
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
    RawImage { sha256: Sha256::from(sha256), bytes: mib << 20 }
}

/// A packed image with the largest window that the agent accepts, and the digest and size of its content.
fn pack_image(form: ImageFormat, mib: u64, every: u64) -> (Vec<u8>, RawImage) {
    match form {
        ImageFormat::Raw => {
            let mut file = Vec::new();
            let raw = write_image(mib, every, &mut file);
            (file, raw)
        }
        ImageFormat::Gzip => {
            let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
            let raw = write_image(mib, every, &mut packer);
            (packer.finish().expect("memory"), raw)
        }
        ImageFormat::Zstd => {
            let mut packer = zstd::Encoder::new(Vec::new(), 3).expect("memory");
            packer.window_log(23).expect("8 MiB");
            let raw = write_image(mib, every, &mut packer);
            (packer.finish().expect("memory"), raw)
        }
        ImageFormat::Xz => {
            let mut file = tempfile::tempfile().expect("a file");
            let mut packer = program("xz");
            packer.args(["--stdout", "--threads=1", "--lzma2=preset=0,dict=8MiB"]);
            packer.stdin(Stdio::piped());
            packer.stdout(file.try_clone().expect("a file"));
            let mut packer = packer.spawn().expect("xz starts");
            let mut into = packer.stdin.take().expect("a standard input");
            let raw = write_image(mib, every, &mut into);
            drop(into);
            assert!(packer.wait().expect("xz ends").success(), "xz");
            let mut small = Vec::new();
            file.rewind().expect("a file");
            file.read_to_end(&mut small).expect("a file");
            (small, raw)
        }
    }
}

/// Digest and size of a file.
fn hash_file(path: &Path) -> RawImage {
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
    RawImage { sha256: Sha256::from(sha256), bytes }
}

/// Peak memory of this process so far, in KiB (`proc_pid_status(5)`).
fn peak_memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.expect("a line").parse().expect("a number")
}

/// Formats KiB as MiB.
fn format_mib(kib: u64) -> String {
    format!("{}.{}", kib / 1_024, kib % 1_024 * 10 / 1_024)
}

/// Formats a time and the resulting MiB per second of an image.
fn format_rate(raw: &RawImage, time: Duration) -> String {
    let millis = u64::try_from(time.as_millis()).expect("a short time");
    let rate = (raw.bytes >> 20) * 1_000 / millis.max(1);
    format!("{:.1} s ({rate} MiB/s)", time.as_secs_f64())
}

#[expect(clippy::disallowed_methods, reason = "the only setting of this test")]
fn image_size_mib() -> u64 {
    let setting = std::env::var("EVENKEEL_IMAGE_STREAM_MIB");
    setting.map_or(128, |text| text.parse().expect("a number of MiB"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "passes the task from the measuring process to the measured one"
)]
fn read_task() -> Option<StreamTask> {
    let file = std::env::var_os(TASK_FILE_VARIABLE)?;
    let task = fs::read(file).expect("a task");
    Some(serde_json::from_slice(&task).expect("a task"))
}

#[tokio::test]
#[ignore = "the tests below start it with a task"]
async fn the_process_that_is_measured() {
    let Some(task) = read_task() else { return };
    let before = peak_memory_kib();
    let settings = WebSettings { roots: vec![task.authority], ..WebSettings::default() };
    let web = WebClient::new(settings, None, Arc::new(TimeFloor::unset()), None).unwrap();
    let images = task.folder.join("images");
    let spool = Spool::new(images, web, Arc::new(SystemClock));
    let started = Instant::now();
    let spooled = loop {
        let slice = Duration::from_secs(30);
        match spool.fetch(&task.spec, slice).await.unwrap() {
            SpoolProgress::Complete(spooled) => break spooled,
            SpoolProgress::Partial { .. } => {}
            SpoolProgress::Deferred(why) => panic!("{why}"),
        }
    };
    let fetched = started.elapsed();
    let slot = task.folder.join("slot");
    let report = tokio::task::spawn_blocking(move || {
        let stop = CancellationToken::new();
        let raw = unpack(&spooled, SlotDevice::open(&slot).unwrap(), &stop).unwrap();
        let unpacked = started.elapsed().saturating_sub(fetched);
        read_back(&slot, &raw, &stop).unwrap();
        StreamReport {
            raw,
            fetch_time: fetched,
            unpack_time: unpacked,
            read_back_time: started.elapsed().saturating_sub(fetched + unpacked),
            initial_memory_kib: before,
            peak_memory_kib: peak_memory_kib(),
        }
    });
    let report = serde_json::to_vec(&report.await.unwrap()).unwrap();
    fs::write(task.folder.join("report.json"), report).unwrap();
}

#[test]
fn an_image_of_any_size_is_written_with_little_memory() {
    let mib = image_size_mib();
    let image = PublishedImage::new(ImageFormat::Zstd, mib, (mib / NOISE_MIB).max(1));
    let by_hand = image.stream_with_curl();
    let report = image.stream();
    let raw = &image.raw;
    let packed = format_mib((image.file_bytes as u64) >> 10);
    print_line(&format!(
        "image_stream: {mib} MiB in {packed} MiB of zstd: {} MiB of memory at most, {} MiB before the download",
        format_mib(report.peak_memory_kib),
        format_mib(report.initial_memory_kib)
    ));
    print_line(&format!(
        "image_stream: the agent {}: fetched {}, unpacked {}, read back {}",
        format_rate(raw, report.fetch_time + report.unpack_time + report.read_back_time),
        format_rate(raw, report.fetch_time),
        format_rate(raw, report.unpack_time),
        format_rate(raw, report.read_back_time)
    ));
    if let Some((piped, flushed)) = by_hand {
        print_line(&format!(
            "image_stream: curl | zstd -d > file {}, and flushed {}",
            format_rate(raw, piped),
            format_rate(raw, flushed)
        ));
    }
}

#[test]
fn every_image_format_needs_as_little_memory() {
    for form in [ImageFormat::Raw, ImageFormat::Gzip, ImageFormat::Xz] {
        let report = PublishedImage::new(form, 12, 6).stream();
        let (peak, before) =
            (format_mib(report.peak_memory_kib), format_mib(report.initial_memory_kib));
        print_line(&format!(
            "image_stream: {form}: {peak} MiB of memory at most, {before} MiB before the download"
        ));
    }
}

/// Block size of the devices in these tests.
const BLOCK_BYTES: usize = 4_096;

/// Size of the devices in these tests.
const SLOT_BYTES: usize = 4 * MIB;

/// A backing file for a device; every byte is 0xee.
fn create_disk(folder: &TempDir, bytes: usize) -> PathBuf {
    let file = folder.path().join("disk");
    fs::write(&file, vec![0xee; bytes]).expect("a file");
    file
}

/// Fills a device with 0xee and writes an image onto it.
fn write_slot(
    slot: &LoopDevice,
    folder: &TempDir,
    form: ImageFormat,
    content: &[u8],
) -> Result<RawImage, Failure> {
    let mut fresh = OpenOptions::new().write(true).open(slot.path()).unwrap();
    fresh.write_all(&vec![0xee; SLOT_BYTES]).unwrap();
    fresh.sync_all().unwrap();
    drop(fresh);
    let file = match form {
        ImageFormat::Zstd => zstandard(content),
        _ => content.to_vec(),
    };
    let path = folder.path().join("image");
    fs::write(&path, &file).unwrap();
    let spooled =
        SpooledImage { path, bytes: file.len() as u64, format: form, sha256: Sha256::hash(&file) };
    let stop = CancellationToken::new();
    let raw = unpack(&spooled, SlotDevice::open(slot.path())?, &stop)?;
    read_back(slot.path(), &raw, &stop)?;
    Ok(raw)
}

#[test]
fn a_device_with_blocks_of_4096_bytes_takes_images_of_every_length() {
    let folder = tempfile::tempdir().unwrap();
    let disk = create_disk(&folder, SLOT_BYTES);
    let Some(slot) = LoopDevice::attach_or_skip(&disk, 4_096) else {
        return;
    };
    assert_eq!(SlotDevice::open(slot.path()).unwrap().bytes(), SLOT_BYTES as u64);
    for form in [ImageFormat::Raw, ImageFormat::Zstd] {
        for length in [1, 512, BLOCK_BYTES, BLOCK_BYTES + 512, 3 * MIB + 700, SLOT_BYTES] {
            let content = noise(length, 1);
            let raw = write_slot(&slot, &folder, form, &content).unwrap();
            assert_eq!(raw.sha256, Sha256::hash(&content), "{form}, {length}");
            // Read the backing file, to see the content of the device itself.
            let written = fs::read(&disk).unwrap();
            let end = length.next_multiple_of(BLOCK_BYTES);
            assert!(written[..length] == content, "{form}, {length}");
            let padding = &written[length..end];
            assert!(padding.iter().all(|byte| *byte == 0), "{form}, {length}");
            let behind = &written[end..];
            assert!(behind.iter().all(|byte| *byte == 0xee), "{form}, {length}");
        }
        let failure = write_slot(&slot, &folder, form, &noise(SLOT_BYTES + 1, 1)).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        assert!(failure.reason.contains("does not fit"), "{failure}");
    }
}

#[test]
fn a_mounted_device_is_not_opened_and_its_mount_point_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let disk = create_disk(&folder, 16 * MIB);
    let Some(slot) = LoopDevice::attach_or_skip(&disk, 4_096) else {
        return;
    };
    let mut making = program("mkfs.ext4");
    run_output(making.args(["-q", "-F", "-b", "4096"]).arg(slot.path())).unwrap();
    let mount_point = folder.path().join("mounted");
    fs::create_dir(&mount_point).unwrap();
    let Some(mount) = slot.mount_or_skip(&mount_point) else {
        return;
    };
    let failure = SlotDevice::open(slot.path()).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    let (device, mount_point) = (slot.path().display(), mount_point.display());
    let expected = format!("{device} is still in use after 10 s: it is mounted on {mount_point}");
    assert_eq!(failure.reason, expected);

    drop(mount);
    // Machines of other tests that started meanwhile have a copy of the mount until they end. Each
    // attempt waits for 10 s.
    let mut attempts = (0..30).map(|_| SlotDevice::open(slot.path()));
    let is_free = |opened: &Result<_, Failure>| {
        !opened.as_ref().is_err_and(|failure| failure.reason.contains("neither mounted here"))
    };
    attempts.find(is_free).expect("the device becomes free").unwrap();
}
