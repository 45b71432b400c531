//! Machines that are emulated including the firmware: a boot loader that counts, two slots, and releases with the real
//! agent that boot or fail. They use the real server.
//!
//! A test begins with [`Vms::open`]. Where such machines are impossible, it prints one line and the test ends there;
//! with `EVENKEEL_REQUIRE_OS_TESTS=1` the test fails instead. Only amd64 is emulated, so on other architectures the
//! test is always skipped.

mod console;
mod contents;
mod esp;
mod fleet;
mod judge;
mod machine;
mod monitor;
mod rauc;
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

pub use self::console::BootedRelease;
pub use self::esp::{BootCount, Slot, SlotEntry, counts, startable};
pub use self::fleet::VmFleet;
pub use self::judge::judge;
pub use self::machine::Vm;
pub use self::monitor::Resets;
pub use self::rauc::RaucVms;
pub use self::release::{ARCHITECTURE, PROFILE, Release, ReleaseKind, statement};
use super::Binaries;
use super::boot::skip_test;
use super::disk::try_output;
use super::machine::{command, succeed};
use crate::architecture::tree;
use crate::history::print_progress;

/// Required programs, and their Debian packages.
const REQUIRED_PROGRAMS: &[(&str, &str)] = &[
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

/// Variable with the folder of a firmware or boot loader, the default folder, one of its files, and its package.
const FIRMWARE_FILES: &[(&str, &str, &str, &str)] = &[
    ("OVMF", "/usr/share/OVMF", "OVMF_CODE_4M.fd", "ovmf"),
    ("SYSTEMD_BOOT", "/usr/lib/systemd/boot/efi", "systemd-bootx64.efi", "systemd-boot-efi"),
];

/// Some of the programs are in folders that are only in root's path, although everybody may run them.
const FIND_AND_RUN: &str = r#"PATH=$PATH:/usr/sbin:/sbin; exec "$@""#;

/// A folder for machines. It is removed with the last test that uses it.
#[derive(Debug)]
pub struct Vms {
    agent: PathBuf,
    /// The agent with halt points, which can also be told to work in a wrong order.
    halting_agent: PathBuf,
    /// Key that signs the releases.
    key: SigningKey,
    releases: Mutex<BTreeMap<(String, ReleaseKind), Release>>,
    /// Disks that were never started, by version and kind of the release in slot A.
    disks: Mutex<BTreeMap<(String, ReleaseKind), PathBuf>>,
    /// Last field, so that it is dropped last.
    folder: TempDir,
}

impl Vms {
    /// Opens the folder, which is shared with other tests of this program.
    pub fn open() -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Vms>> = Mutex::new(Weak::new());
        let architecture = try_output(command("dpkg").arg("--print-architecture"));
        if architecture.as_deref() != Ok("amd64") {
            // Never a failure: no setting can make these tests possible here.
            print_progress(&format!("skipped {}: only amd64 is emulated", test_name()));
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
            Err(why) => skip_test(&why),
        }
    }

    /// Opens it for a test that runs only with `EVENKEEL_VM=all`.
    pub fn open_if_all() -> Option<Arc<Self>> {
        if runs_all() {
            return Self::open();
        }
        print_progress(&format!("skipped {}: set EVENKEEL_VM=all to run it", test_name()));
        None
    }

    /// Finds or builds everything that all machines share.
    ///
    /// # Errors
    /// Something is missing on this machine. If an existing tool fails, this panics instead.
    fn prepare() -> Result<Self, String> {
        for (program, package) in REQUIRED_PROGRAMS {
            try_output(tool("which").arg(program))
                .map_err(|_| format!("{program} is missing; install {package}"))?;
        }
        for (variable, otherwise, file, package) in FIRMWARE_FILES {
            let file = firmware_folder(variable, otherwise).join(file);
            if !file.exists() {
                let file = file.display();
                return Err(format!("{file} is missing; install {package}"));
            }
        }
        try_output(tool(script("make-kernel")).arg("-"))?;
        // Postgres does not run as root and must be able to reach its data.
        let folder = tempfile::Builder::new()
            .prefix("evenkeel-vm.")
            .permissions(Permissions::from_mode(0o711))
            .tempdir();
        let binaries = Binaries::get();
        Ok(Self {
            agent: binaries.agent.clone(),
            halting_agent: binaries.halting_agent.clone(),
            key: SigningKey::generate(),
            releases: Mutex::default(),
            disks: Mutex::default(),
            folder: folder.map_err(|error| error.to_string())?,
        })
    }

    /// A release of the profile `edge`. Each is built once.
    #[track_caller]
    pub fn release(&self, version: &str, kind: ReleaseKind) -> Release {
        let releases = self.releases.lock();
        let mut releases = releases.unwrap_or_else(PoisonError::into_inner);
        let entry = releases.entry((version.to_owned(), kind));
        entry.or_insert_with(|| self.make_release(version, kind)).clone()
    }

    #[track_caller]
    fn make_release(&self, version: &str, kind: ReleaseKind) -> Release {
        let name = format!("{version}-{kind:?}");
        let folder = self.folder.path().join(&name);
        let overlay = self.folder.path().join(format!("{name}.overlay"));
        let keys = overlay.join("etc/evenkeel/image-keys.d");
        fs::create_dir_all(&keys).expect("a folder");
        fs::write(keys.join("lab.pem"), self.key.public_pem()).expect("a key");
        let agent = if kind == ReleaseKind::WrongOrder {
            let flags_file = overlay.join("etc/evenkeel/agent-words");
            fs::write(flags_file, "--early-entry").expect("a file");
            &self.halting_agent
        } else {
            &self.agent
        };
        let mut making = tool(script("make-release"));
        making.arg(&folder).args(["--version", version]);
        making.args(["--profile", PROFILE, "--kind", kind.script_name()]);
        making.args(["--deadline", &kind.deadline().to_string()]);
        making.args(["--healthy-within", &kind.healthy_within().to_string()]);
        making.arg("--overlay").arg(&overlay);
        making.arg("--agent").arg(agent);
        let kernel = succeed(tool(script("make-kernel")).args(["-", kind.kernel()]));
        making.args(["--kernel", kernel.trim()]);
        succeed(&mut making);
        Release::read(&folder, kind, &self.key)
    }

    /// Starts a server for machines, with a network connection and a web server.
    #[track_caller]
    pub fn fleet(&self) -> VmFleet {
        self.fleet_with(&[])
    }

    /// Same as [`Vms::fleet`], with additional settings for the server.
    #[track_caller]
    pub fn fleet_with(&self, settings: &[(&str, &str)]) -> VmFleet {
        VmFleet::new(self.subfolder("fleet"), settings)
    }

    /// Creates a machine that has a release in its slot A and joins a fleet when it is switched on. The machine is off.
    /// The release is published on the server.
    #[track_caller]
    pub fn machine(&self, fleet: &VmFleet, first: &Release, name: &str) -> Vm {
        fleet.publish(first);
        let mut vm = self.machine_without_server(first, name);
        vm.firmware_config = Some(fleet.firmware_config());
        vm
    }

    /// Creates a machine that has a release in its slot A and no server. The machine is off.
    #[track_caller]
    pub fn machine_without_server(&self, first: &Release, name: &str) -> Vm {
        let disks = self.disks.lock();
        let mut disks = disks.unwrap_or_else(PoisonError::into_inner);
        let disk = disks.entry((first.version.clone(), first.kind)).or_insert_with(|| {
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

    /// The key that signs releases.
    pub fn key(&self) -> &SigningKey {
        &self.key
    }
}

/// Compresses a file with zstd.
#[track_caller]
pub fn compress(file: &Path, to: &Path) {
    let mut packing = tool("zstd");
    succeed(packing.args(["-q", "-f", "-o"]).arg(to).arg(file));
}

/// A command of this machine. The process that it starts is replaced by the program.
fn tool(program: impl AsRef<OsStr>) -> Command {
    let mut command = command("sh");
    command.args(["-c", FIND_AND_RUN, "sh"]).arg(program);
    command
}

/// Path of a script for machines.
fn script(name: &str) -> PathBuf {
    tree::root().join("tests/lab/image").join(name)
}

#[expect(clippy::disallowed_methods, reason = "where the firmware is")]
fn firmware_folder(variable: &str, otherwise: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| PathBuf::from(otherwise), PathBuf::from)
}

#[expect(clippy::disallowed_methods, reason = "a switch of these tests")]
fn runs_all() -> bool {
    match std::env::var("EVENKEEL_VM").as_deref() {
        Ok("all") => true,
        Ok("") | Err(_) => false,
        Ok(other) => panic!("EVENKEEL_VM={other}: expected `all` or nothing"),
    }
}

/// Name of the current test.
fn test_name() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}
