//! Disks of nodes: made from a node's root, written to by a virtual machine, and looked into afterwards.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use super::boot::skipped;
use super::machine::{as_root, command, script, succeed, told};

/// What this is done with, and where Debian has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mke2fs", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("depmod", "kmod"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("zstd", "zstd"),
    ("strip", "binutils"),
];

/// Disks are kept in memory where so much of it is free, in MiB.
const ROOM: u64 = 4096;

/// An emulated machine that runs one script on a disk, and a folder for its disks.
#[derive(Debug)]
pub struct Emulator {
    kernel: PathBuf,
    folder: TempDir,
}

impl Emulator {
    /// Gets everything ready. Where that cannot be, says so in one line and returns nothing, or fails if tests of this
    /// kind are required.
    pub fn open() -> Option<Self> {
        match prepare() {
            Ok(emulator) => Some(emulator),
            Err(why) => skipped(&why),
        }
    }

    /// A path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `/srv/task` of a disk without any network, and records in a log what the disk was told.
    /// Returns what the machine printed.
    #[track_caller]
    pub fn record(&self, disk: &Disk, log: &Path) -> String {
        let console = self.path("console");
        succeed(
            command(script("record-writes"))
                .arg(&self.kernel)
                .arg(disk.image())
                .arg(log)
                .arg(&console),
        );
        std::fs::read_to_string(console).unwrap_or_default()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // What was done on the disks was done by root.
        let _gone = as_root("rm", &[])
            .arg("-rf")
            .arg(self.folder.path())
            .status();
    }
}

/// A disk with one file system, as an image.
#[derive(Debug)]
pub struct Disk {
    image: PathBuf,
    work: PathBuf,
}

impl Disk {
    /// A disk with everything that a node has: the root below it, and what it wrote in its folder.
    #[track_caller]
    pub fn make(base: &Path, node: &Path, image: PathBuf) -> Self {
        let mut making = as_root(script("make-disk"), &[]);
        succeed(making.arg(base).arg(node).arg(&image).arg("1G"));
        Self::at(image)
    }

    fn at(image: PathBuf) -> Self {
        let work = image.with_extension("mounted");
        Self { image, work }
    }

    /// The image.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// A copy that goes its own way.
    #[must_use]
    #[track_caller]
    pub fn copy(&self, image: PathBuf) -> Self {
        let mut copying = command("cp");
        succeed(copying.arg("--sparse=always").arg(&self.image).arg(&image));
        Self::at(image)
    }

    /// Mounts it, which repairs what a journal of the file system repairs, and runs a command in it as root: where there
    /// is no network at all, or where there is that of this machine.
    pub fn run(&self, words: &[&str], has_network: bool) -> Output {
        let network = if has_network { "host" } else { "no" };
        let mut entering = as_root(script("in-root"), &[("NET", network)]);
        entering.arg(&self.image).arg(&self.work).args(words);
        entering.output().expect("the command starts")
    }

    /// What is wrong with its file system after it was mounted; empty if nothing is.
    pub fn faults(&self) -> String {
        let mut checking = as_root(script("check-disk"), &[]);
        let output = checking.arg(&self.image).output();
        let output = output.expect("the check starts");
        if output.status.success() {
            return String::new();
        }
        told(&output)
    }

    /// Throws it away.
    pub fn discard(self) {
        discard(&[&self.image, &self.work]);
    }
}

/// A copy of a program without what only a debugger reads.
#[track_caller]
pub fn stripped(program: &Path, copy: PathBuf) -> PathBuf {
    succeed(command("strip").arg("-o").arg(&copy).arg(program));
    copy
}

/// Removes files and folders that may belong to root.
pub fn discard(paths: &[&Path]) {
    let _gone = as_root("rm", &[]).arg("-rf").args(paths).status();
}

#[expect(clippy::disallowed_methods, reason = "where the cache is")]
fn prepare() -> Result<Emulator, String> {
    let architecture = words_of(command("dpkg").arg("--print-architecture"))?;
    if architecture != "amd64" {
        return Err(format!(
            "the machine that is emulated is none of {architecture}"
        ));
    }
    for (program, package) in PROGRAMS {
        let mut looking = command("sh");
        looking.args(["-c", "PATH=$PATH:/usr/sbin:/sbin; command -v \"$1\"", "sh"]);
        words_of(looking.arg(program))
            .map_err(|_| format!("{program} is not there; install {package}"))?;
    }
    words_of(as_root("losetup", &[]).arg("--find"))
        .map_err(|why| format!("no image of a disk can be mounted here: {why}"))?;
    let cache = std::env::var("EVENKEEL_LAB_CACHE").unwrap_or_default();
    let variables = [("EVENKEEL_LAB_CACHE", cache.as_str())];
    let kernel = words_of(as_root(script("make-guest-kernel"), &variables).arg("-"))?;
    let mut folder = tempfile::Builder::new();
    folder.prefix("evenkeel-disks.");
    let memory = Path::new("/dev/shm");
    let folder = if free(memory) >= ROOM {
        folder.tempdir_in(memory)
    } else {
        folder.tempdir()
    };
    Ok(Emulator {
        kernel: PathBuf::from(kernel),
        folder: folder.map_err(|error| error.to_string())?,
    })
}

/// How many MiB are free in a folder; 0 if it is not there.
fn free(folder: &Path) -> u64 {
    let mut asking = command("df");
    let words = words_of(
        asking
            .args(["--output=avail", "--block-size=1M"])
            .arg(folder),
    );
    let last = words.ok().and_then(|words| {
        let last = words.lines().last()?;
        last.trim().parse().ok()
    });
    last.unwrap_or(0)
}

/// What a command printed, or why it failed.
pub(super) fn words_of(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        let words = String::from_utf8_lossy(&output.stdout);
        return Ok(words.trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().last().unwrap_or("it said nothing").to_owned())
}
