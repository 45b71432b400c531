//! Disks of nodes: created from a node's root, written to by a virtual machine, and inspected afterwards.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use super::boot::skip_test;
use super::machine::{as_root, command, describe_output, script, succeed};

/// Required programs, and their Debian packages.
const REQUIRED_PROGRAMS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mke2fs", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("depmod", "kmod"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("zstd", "zstd"),
    ("strip", "binutils"),
];

/// Free memory in MiB from which on disks are kept in memory.
const MIN_FREE_MEMORY_MIB: u64 = 4096;

/// An emulated machine that runs one script on a disk, with a folder for disks.
#[derive(Debug)]
pub struct Emulator {
    kernel: PathBuf,
    folder: TempDir,
}

impl Emulator {
    /// Prepares the emulator. If that is impossible here, prints one line and returns `None`, or fails if these tests
    /// are required.
    pub fn open() -> Option<Self> {
        match prepare() {
            Ok(emulator) => Some(emulator),
            Err(why) => skip_test(&why),
        }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `/srv/task` of a disk without network and records all writes of the disk in a log. Returns the console
    /// output.
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
        // Files on the disks may belong to root.
        let _gone = as_root("rm", &[]).arg("-rf").arg(self.folder.path()).status();
    }
}

/// A disk with one file system, as an image.
#[derive(Debug)]
pub struct Disk {
    image: PathBuf,
    work: PathBuf,
}

impl Disk {
    /// Creates a disk with all files of a node: its root, and the changes in its folder.
    #[track_caller]
    pub fn create(base: &Path, node: &Path, image: PathBuf) -> Self {
        let mut making = as_root(script("make-disk"), &[]);
        succeed(making.arg(base).arg(node).arg(&image).arg("1G"));
        Self::from_image(image)
    }

    fn from_image(image: PathBuf) -> Self {
        let work = image.with_extension("mounted");
        Self { image, work }
    }

    pub fn image(&self) -> &Path {
        &self.image
    }

    /// An independent copy.
    #[must_use]
    #[track_caller]
    pub fn copy(&self, image: PathBuf) -> Self {
        let mut copying = command("cp");
        succeed(copying.arg("--sparse=always").arg(&self.image).arg(&image));
        Self::from_image(image)
    }

    /// Mounts the disk, which replays the journal of the file system, and runs a command in it as root, with the
    /// network of this machine or without any.
    pub fn run(&self, arguments: &[&str], has_network: bool) -> Output {
        let network = if has_network { "host" } else { "no" };
        let mut entering = as_root(script("in-root"), &[("NET", network)]);
        entering.arg(&self.image).arg(&self.work).args(arguments);
        entering.output().expect("the command starts")
    }

    /// Faults of the file system after it was mounted; empty if there are none.
    pub fn faults(&self) -> String {
        let mut checking = as_root(script("check-disk"), &[]);
        let output = checking.arg(&self.image).output();
        let output = output.expect("the check starts");
        if output.status.success() {
            return String::new();
        }
        describe_output(&output)
    }

    /// Removes the disk.
    pub fn discard(self) {
        remove_as_root(&[&self.image, &self.work]);
    }
}

/// Copies a program without its debug information.
#[track_caller]
pub fn strip(program: &Path, copy: PathBuf) -> PathBuf {
    succeed(command("strip").arg("-o").arg(&copy).arg(program));
    copy
}

/// Removes files and folders that may belong to root.
pub fn remove_as_root(paths: &[&Path]) {
    let _gone = as_root("rm", &[]).arg("-rf").args(paths).status();
}

#[expect(clippy::disallowed_methods, reason = "where the cache is")]
fn prepare() -> Result<Emulator, String> {
    let architecture = try_output(command("dpkg").arg("--print-architecture"))?;
    if architecture != "amd64" {
        return Err(format!("only amd64 is emulated, and this machine is {architecture}"));
    }
    for (program, package) in REQUIRED_PROGRAMS {
        let mut looking = command("sh");
        looking.args(["-c", "PATH=$PATH:/usr/sbin:/sbin; command -v \"$1\"", "sh"]);
        try_output(looking.arg(program))
            .map_err(|_| format!("{program} is missing; install {package}"))?;
    }
    try_output(as_root("losetup", &[]).arg("--find"))
        .map_err(|why| format!("disk images cannot be mounted here: {why}"))?;
    let cache = std::env::var("EVENKEEL_LAB_CACHE").unwrap_or_default();
    let variables = [("EVENKEEL_LAB_CACHE", cache.as_str())];
    let kernel = try_output(as_root(script("make-guest-kernel"), &variables).arg("-"))?;
    let mut folder = tempfile::Builder::new();
    folder.prefix("evenkeel-disks.");
    let memory = Path::new("/dev/shm");
    let folder = if free_mib(memory) >= MIN_FREE_MEMORY_MIB {
        folder.tempdir_in(memory)
    } else {
        folder.tempdir()
    };
    Ok(Emulator {
        kernel: PathBuf::from(kernel),
        folder: folder.map_err(|error| error.to_string())?,
    })
}

/// Free space of a folder in MiB; 0 if it does not exist.
fn free_mib(folder: &Path) -> u64 {
    let mut query = command("df");
    let output = try_output(query.args(["--output=avail", "--block-size=1M"]).arg(folder));
    let last = output.ok().and_then(|output| {
        let last = output.lines().last()?;
        last.trim().parse().ok()
    });
    last.unwrap_or(0)
}

/// Output of a command, or why it failed.
pub(super) fn try_output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        return Ok(text.trim().to_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(errors.lines().last().unwrap_or("no error message").to_owned())
}
