//! Machines that are emulated from the firmware on: a boot loader that counts, two slots, and releases with the real
//! agent that come up or do not; and beside them the real server.
//!
//! A test begins with [`Vms::open`] and ends there, with one line, where no such machine can be. With
//! `EVENKEEL_REQUIRE_OS_TESTS=1` it fails instead. Where this machine is of another architecture, it is left out in any
//! case: only one kind of machine is emulated.

mod console;
mod contents;
mod esp;
mod fleet;
mod judge;
mod machine;
mod monitor;
mod release;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use evenkeel_registry::SigningKey;
use tempfile::TempDir;

pub use self::console::Booted;
pub use self::esp::{Count, Entry, Slot, counts, startable};
pub use self::fleet::VmFleet;
pub use self::judge::judge;
pub use self::machine::Vm;
pub use self::monitor::Resets;
pub use self::release::{ARCHITECTURE, Kind, PROFILE, Release, statement};
use super::Binaries;
use super::boot::skipped;
use super::disk::words_of;
use super::machine::{command, succeed};
use crate::history::say;
use crate::house::tree;

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

/// Some of the programs are where only root looks for them, but work for everybody.
const FIND_AND_RUN: &str = r#"PATH=$PATH:/usr/sbin:/sbin; exec "$@""#;

/// A folder for machines, gone with the last test that has one there.
#[derive(Debug)]
pub struct Vms {
    agent: PathBuf,
    /// One that can be told to do wrong.
    wrong_agent: PathBuf,
    /// Signs the releases.
    key: SigningKey,
    releases: Mutex<BTreeMap<(String, Kind), Release>>,
    /// Disks that were never started, by the version of the release in slot A.
    disks: Mutex<BTreeMap<(String, Kind), PathBuf>>,
    /// Last, so that it goes last.
    folder: TempDir,
}

impl Vms {
    /// Opens the folder, or the one that another test of this program has open.
    pub fn open() -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Vms>> = Mutex::new(Weak::new());
        let architecture = words_of(command("dpkg").arg("--print-architecture"));
        if architecture.as_deref() != Ok("amd64") {
            // Nobody can require what is nowhere.
            say(&format!("left out {}: only amd64 is emulated", story()));
            return None;
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(vms) = shared.upgrade() {
            return Some(vms);
        }
        match Self::prepare() {
            Ok(vms) => {
                let vms = Arc::new(vms);
                *shared = Arc::downgrade(&vms);
                Some(vms)
            }
            Err(why) => skipped(&why),
        }
    }

    /// Opens it for a story that is told only where all of them are (`EVENKEEL_VM=all`).
    pub fn open_for_all() -> Option<Arc<Self>> {
        if tells_all() {
            return Self::open();
        }
        say(&format!("left out {}: EVENKEEL_VM=all tells it", story()));
        None
    }

    /// Finds or makes what all machines have.
    ///
    /// # Errors
    /// Something is missing on this machine. What is there and does not work is no error but a panic.
    fn prepare() -> Result<Self, String> {
        for (program, package) in PROGRAMS {
            words_of(tool("which").arg(program))
                .map_err(|_| format!("{program} is not there; install {package}"))?;
        }
        for (variable, otherwise, file, package) in FIRMWARE {
            let file = place(variable, otherwise).join(file);
            if !file.exists() {
                let file = file.display();
                return Err(format!("{file} is not there; install {package}"));
            }
        }
        words_of(tool(script("make-kernel")).arg("-"))?;
        // Postgres does not run as root and must get through to its data.
        let folder = tempfile::Builder::new()
            .prefix("evenkeel-vm.")
            .permissions(Permissions::from_mode(0o711))
            .tempdir();
        let binaries = Binaries::get();
        Ok(Self {
            agent: binaries.agent.clone(),
            wrong_agent: binaries.halting_agent.clone(),
            key: SigningKey::make(),
            releases: Mutex::default(),
            disks: Mutex::default(),
            folder: folder.map_err(|error| error.to_string())?,
        })
    }

    /// A release of the profile `edge`: made, or the one that was made before.
    #[track_caller]
    pub fn release(&self, version: &str, kind: Kind) -> Release {
        let releases = self.releases.lock();
        let mut releases = releases.unwrap_or_else(PoisonError::into_inner);
        let made = releases.entry((version.to_owned(), kind));
        made.or_insert_with(|| self.make_release(version, kind))
            .clone()
    }

    #[track_caller]
    fn make_release(&self, version: &str, kind: Kind) -> Release {
        let name = format!("{version}-{kind:?}");
        let folder = self.folder.path().join(&name);
        let overlay = self.folder.path().join(format!("{name}.overlay"));
        let keys = overlay.join("etc/evenkeel/image-keys.d");
        fs::create_dir_all(&keys).expect("a folder");
        fs::write(keys.join("lab.pem"), self.key.public_pem()).expect("a key");
        let agent = if kind == Kind::WrongOrder {
            let words = overlay.join("etc/evenkeel/agent-words");
            fs::write(words, "--early-entry").expect("a file");
            &self.wrong_agent
        } else {
            &self.agent
        };
        let mut making = tool(script("make-release"));
        making.arg(&folder).args(["--version", version]);
        making.args(["--profile", PROFILE, "--kind", kind.word()]);
        making.args(["--deadline", &kind.deadline().to_string()]);
        making.args(["--healthy-within", &kind.healthy_within().to_string()]);
        making.arg("--overlay").arg(&overlay);
        making.arg("--agent").arg(agent);
        let kernel = succeed(tool(script("make-kernel")).args(["-", kind.kernel()]));
        making.args(["--kernel", kernel.trim()]);
        succeed(&mut making);
        Release::read(&folder, kind, &self.key)
    }

    /// A server for machines, and what lies between.
    #[track_caller]
    pub fn fleet(&self) -> VmFleet {
        self.fleet_with(&[])
    }

    /// The same, with more settings for the server.
    #[track_caller]
    pub fn fleet_with(&self, settings: &[(&str, &str)]) -> VmFleet {
        VmFleet::new(self.subfolder("fleet"), settings)
    }

    /// A machine that has a release in its slot A, and joins a fleet when it is switched on. It is off. The server knows
    /// the release from now on.
    #[track_caller]
    pub fn machine(&self, fleet: &VmFleet, first: &Release, name: &str) -> Vm {
        fleet.publish(first);
        let mut vm = self.lone_machine(first, name);
        vm.told = Some(fleet.told());
        vm
    }

    /// A machine that has a release in its slot A, and is told of no server. It is off.
    #[track_caller]
    pub fn lone_machine(&self, first: &Release, name: &str) -> Vm {
        let disks = self.disks.lock();
        let mut disks = disks.unwrap_or_else(PoisonError::into_inner);
        let disk = disks
            .entry((first.version.clone(), first.kind))
            .or_insert_with(|| {
                let disk = first.folder.join("disk.img");
                let mut making = tool(script("make-machine"));
                succeed(making.arg(&disk).arg("--release").arg(&first.folder));
                disk
            });
        Vm::new(self.subfolder(name), disk, name)
    }

    #[track_caller]
    fn subfolder(&self, name: &str) -> TempDir {
        tempfile::Builder::new()
            .prefix(&format!("{name}."))
            .permissions(Permissions::from_mode(0o711))
            .tempdir_in(self.folder.path())
            .expect("a folder")
    }

    /// The key that vouches for releases.
    pub fn key(&self) -> &SigningKey {
        &self.key
    }
}

/// Packs a file with zstd.
#[track_caller]
pub fn packed(file: &Path, to: &Path) {
    let mut packing = tool("zstd");
    succeed(packing.args(["-q", "-f", "-o"]).arg(to).arg(file));
}

/// A command of this machine. The process that it starts becomes the program.
fn tool(program: impl AsRef<OsStr>) -> Command {
    let mut command = command("sh");
    command.args(["-c", FIND_AND_RUN, "sh"]).arg(program);
    command
}

/// Where one of the scripts for machines is.
fn script(name: &str) -> PathBuf {
    tree::root().join("tests/lab/image").join(name)
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

/// The name of the story that this thread tells.
fn story() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}
