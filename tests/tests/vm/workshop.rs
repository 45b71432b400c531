//! Where machines are made: a kernel, releases, and the disk with which each machine begins.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use evenkeel_tests::history::say;
use evenkeel_tests::lab::Binaries;
use tempfile::TempDir;

use crate::machine::Machine;
use crate::tools::{command, script, succeed, try_run};

/// The release that each machine begins with, in slot A.
pub const OLD: &str = "1.0";

/// The release that comes beside it.
pub const NEW: &str = "1.1";

/// What this is done with, and where Debian has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mcopy", "mtools"),
    ("mkfs.vfat", "dosfstools"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.erofs", "erofs-utils"),
    ("sfdisk", "fdisk"),
    ("objcopy", "binutils"),
    ("depmod", "kmod"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("zstd", "zstd"),
    ("setpriv", "util-linux"),
];

/// The variable that says where a firmware or a loader is, where it is otherwise, one of its files, and its package.
const FIRMWARE: &[(&str, &str, &str, &str)] = &[
    ("OVMF", "/usr/share/OVMF", "OVMF_CODE_4M.fd", "ovmf"),
    (
        "SYSTEMD_BOOT",
        "/usr/lib/systemd/boot/efi",
        "systemd-bootx64.efi",
        "systemd-boot-efi",
    ),
];

/// A folder for machines, gone with the last story that is told there.
#[derive(Debug)]
pub struct Workshop {
    folder: TempDir,
    agent: PathBuf,
    /// What each release starts with.
    kernel: PathBuf,
    /// With the old release, and never started.
    disk: PathBuf,
}

impl Workshop {
    /// Opens it, or the one that another story has opened. Where there can be none, says so in one line and returns
    /// nothing, or fails if tests of this kind are required.
    pub fn open() -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Workshop>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(workshop) = shared.upgrade() {
            return Some(workshop);
        }
        match prepare() {
            Ok(workshop) => {
                let workshop = Arc::new(workshop);
                *shared = Arc::downgrade(&workshop);
                Some(workshop)
            }
            Err(why) => skipped(&why),
        }
    }

    /// Opens it for a story that is told only where all of them are.
    pub fn open_for_all() -> Option<Arc<Self>> {
        if tells_all() {
            return Self::open();
        }
        say(&format!("left out {}: EVENKEEL_VM=all tells it", story()));
        None
    }

    /// Makes a release in a folder. `kind` says what is wrong with it, and is `good` if nothing is.
    #[track_caller]
    pub fn release(&self, folder: &Path, version: &str, kind: &str) {
        // A busy machine is slow, which must not look like an initramfs that comes to no end.
        let deadline = if kind == "no-root" { "20" } else { "86400" };
        let mut making = command(script("make-release"));
        making.arg(folder).args(["--version", version]);
        making.args(["--kind", kind, "--deadline", deadline]);
        making.arg("--agent").arg(&self.agent);
        making.arg("--kernel").arg(&self.kernel);
        succeed(&mut making);
    }

    /// A new machine that has the old release. The name is for whoever looks into the folder.
    #[track_caller]
    pub fn machine(&self, name: &str) -> Machine {
        let prefix = format!("{name}.");
        let mut folder = tempfile::Builder::new();
        let folder = folder.prefix(&prefix).tempdir_in(self.folder.path());
        Machine::new(folder.expect("a folder"), &self.disk)
    }
}

/// Finds or makes what all machines have.
///
/// # Errors
/// Something is missing on this machine. What is there and does not work is no error but a panic.
fn prepare() -> Result<Workshop, String> {
    let architecture = try_run(command("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    if architecture != "amd64" {
        return Err(format!(
            "the machine that is emulated is none of {architecture}"
        ));
    }
    for (program, package) in PROGRAMS {
        try_run(command("which").arg(program))
            .map_err(|_| format!("{program} is not there; install {package}"))?;
    }
    for (variable, otherwise, file, package) in FIRMWARE {
        let file = place(variable, otherwise).join(file);
        if !file.exists() {
            let file = file.display();
            return Err(format!("{file} is not there; install {package}"));
        }
    }
    let kernel = try_run(command(script("make-kernel")).arg("-"))?;
    let folder = tempfile::Builder::new().prefix("evenkeel-vm.").tempdir();
    let folder = folder.map_err(|error| error.to_string())?;
    let workshop = Workshop {
        agent: Binaries::get().agent.clone(),
        kernel: PathBuf::from(kernel.trim()),
        disk: folder.path().join("disk.img"),
        folder,
    };
    let old = workshop.folder.path().join("old");
    workshop.release(&old, OLD, "good");
    let mut making = command(script("make-machine"));
    succeed(making.arg(&workshop.disk).arg("--release").arg(&old));
    Ok(workshop)
}

#[expect(clippy::disallowed_methods, reason = "where the firmware is")]
fn place(variable: &str, otherwise: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| PathBuf::from(otherwise), PathBuf::from)
}

#[expect(clippy::disallowed_methods, reason = "a switch of these tests")]
fn tells_all() -> bool {
    match std::env::var("EVENKEEL_VM").as_deref() {
        Ok("all") => true,
        Ok("") | Err(_) => false,
        Ok(other) => panic!("EVENKEEL_VM={other}: `all`, or nothing"),
    }
}

/// Says why a story cannot be told here, and gives nothing; fails if it must be.
#[expect(clippy::disallowed_methods, reason = "a switch of these tests")]
fn skipped<T>(why: &str) -> Option<T> {
    let is_required = std::env::var_os("EVENKEEL_REQUIRE_OS_TESTS").is_some();
    assert!(!is_required, "tests with machines are required: {why}");
    say(&format!("skipped {}: {why}", story()));
    None
}

/// The name of the story that this thread tells.
fn story() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}
