//! For tests: a machine with two slots. Its ESP, devices, variables and mounts are files in a
//! folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use super::SystemInterfaces;
use super::sdboot::{Esp, SystemdBoot};
use crate::config::ImageConfig;
use crate::model::Sha256;
use crate::modules::image::slots::{Slot, SlotImage};
use crate::paths::AgentPaths;
use crate::runner::{Command, Output, RunError, Runner};

/// The mount table of the machine: the root is slot A.
pub const MOUNTS: &str = "22 1 254:2 / / ro - erofs /dev/root ro\n\
    23 22 254:1 / /efi rw - vfat /dev/vda1 rw,errors=remount-ro\n\
    24 22 254:4 / /var rw - ext4 /dev/vda4 rw\n";

/// Command line of a kernel that may be tried in slot B.
pub const GOOD_CMDLINE: &str = "root=PARTLABEL=root-b ro panic=10 evenkeel.deadline=60";

/// Size of a slot's device.
pub const SLOT_BYTES: usize = 64 << 10;

/// The machine. It runs slot A, whose entry is blessed; slot B is empty.
pub struct BootMachine {
    root: TempDir,
    pub paths: AgentPaths,
    pub config: ImageConfig,
}

impl BootMachine {
    pub fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let paths = AgentPaths::new(root.path(), None);
        paths.prepare().expect("the state folder");
        let machine = Self { root, paths, config: ImageConfig::default() };
        machine.write("proc/self/mountinfo", MOUNTS);
        machine.write("proc/cmdline", "root=PARTLABEL=root-a panic=10\n");
        machine.write("proc/sys/kernel/random/boot_id", "boot-1\n");
        machine.write("etc/os-release", "IMAGE_ID=edge\nIMAGE_VERSION=\"1.0\"\n");
        let labels = ["esp", "root-a", "root-b", "data"];
        for (number, label) in (1..).zip(labels) {
            machine.add_partition(number, label);
        }
        machine.write("efi/EFI/systemd/systemd-bootx64.efi", "MZ");
        machine.write("efi/loader/loader.conf", "timeout 0\neditor no\n");
        machine.write("efi/EFI/evenkeel/slot-a.efi", "kernel a");
        machine.write_entry("evenkeel-000001.conf", &entry_text(1, "slot-a"));
        machine.set_variable("LoaderInfo", "systemd-boot 252.39-1~deb12u1");
        machine.set_variable("LoaderEntrySelected", "evenkeel-000001.conf");
        machine.set_variable_bytes("LoaderFeatures", &0x1ff_u64.to_le_bytes());
        machine
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
        fs::write(path, content).expect("the file");
    }

    pub fn add_partition(&self, number: u32, label: &str) {
        let uevent = format!(
            "MAJOR=254\nMINOR={number}\nDEVNAME=vda{number}\nDEVTYPE=partition\nPARTN={number}\nPARTNAME={label}\n"
        );
        self.write(&format!("sys/class/block/vda{number}/uevent"), uevent);
        self.write(&format!("dev/vda{number}"), vec![0; SLOT_BYTES]);
    }

    /// Adds a partition of another disk, such as a USB stick. In sysfs it is a link to a folder of
    /// its disk.
    pub fn add_partition_of_other_disk(&self, number: u32, label: &str) {
        let uevent = format!(
            "MAJOR=8\nMINOR={number}\nDEVNAME=sdb{number}\nDEVTYPE=partition\nPARTN={number}\nPARTNAME={label}\n"
        );
        let folder = format!("sys/devices/usb/sdb/sdb{number}");
        self.write(&format!("{folder}/uevent"), uevent);
        let link = self.path(&format!("sys/class/block/sdb{number}"));
        std::os::unix::fs::symlink(self.path(&folder), link).expect("the link");
        self.write(&format!("dev/sdb{number}"), vec![0; SLOT_BYTES]);
    }

    pub fn write_entry(&self, file: &str, text: &str) {
        self.write(&format!("efi/loader/entries/{file}"), text);
    }

    /// Names of all files in the entries folder, sorted.
    pub fn entry_files(&self) -> Vec<String> {
        file_names(&self.path("efi/loader/entries"))
    }

    pub fn set_variable_bytes(&self, name: &str, value: &[u8]) {
        let mut bytes = vec![7, 0, 0, 0];
        bytes.extend(value);
        self.write(&variable_path(name), bytes);
    }

    pub fn set_variable(&self, name: &str, text: &str) {
        let units = text.encode_utf16().chain([0]);
        let bytes: Vec<u8> = units.flat_map(u16::to_le_bytes).collect();
        self.set_variable_bytes(name, &bytes);
    }

    pub fn unset_variable(&self, name: &str) {
        fs::remove_file(self.path(&variable_path(name))).expect("the variable");
    }

    pub fn system(&self) -> SystemInterfaces {
        SystemInterfaces::new(&self.paths)
    }

    pub fn esp(&self) -> Esp {
        Esp::new(self.system(), "/efi".into(), &self.config)
    }

    pub fn boot_control(&self, runner: Arc<dyn Runner>) -> SystemdBoot {
        SystemdBoot::new(self.system(), runner, "/efi".into(), &self.config)
    }

    /// Boot control for tests that start no program.
    pub fn boot_control_without_programs(&self) -> SystemdBoot {
        self.boot_control(Arc::new(crate::hooks::fake::FakeRunner::default()))
    }
}

fn variable_path(name: &str) -> String {
    format!("sys/firmware/efi/efivars/{name}-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f")
}

/// Names of the files in a folder, sorted.
pub fn file_names(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).expect("the folder").flatten();
    let mut names: Vec<String> =
        files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// Content of an entry as the agent writes it.
pub fn entry_text(sequence: u32, kernel: &str) -> String {
    format!("title t\nsort-key evenkeel\nversion {sequence:06}\nefi /EFI/evenkeel/{kernel}.efi\n")
}

pub fn slot_image() -> SlotImage {
    SlotImage {
        file: Sha256::hash(b"the file"),
        profile_name: "edge".to_owned(),
        image_id: "1.1".to_owned(),
        raw: None,
    }
}

/// The smallest PE file with a command line.
pub fn uki_with_cmdline(cmdline: &str) -> Vec<u8> {
    let length = u32::try_from(cmdline.len()).expect("a short command line");
    let mut bytes = vec![0; 64];
    bytes[..2].copy_from_slice(b"MZ");
    bytes[0x3c] = 64;
    bytes.extend(b"PE\0\0");
    // Machine type and one section; no optional header.
    bytes.extend([0x64, 0x86, 1, 0]);
    bytes.extend([0; 16]);
    bytes.extend(b".cmdline");
    bytes.extend(length.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(length.to_le_bytes());
    bytes.extend(128_u32.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(cmdline.as_bytes());
    bytes
}

/// Fake `mount`, `umount` and `blockdev`. A mounted image has these kernels and these other files.
#[derive(Debug)]
pub struct MountRunner {
    root: PathBuf,
    kernels: Vec<(Slot, Vec<u8>)>,
    files: Vec<&'static str>,
    commands: Mutex<Vec<String>>,
    failing: Option<&'static str>,
}

impl MountRunner {
    pub fn new(machine: &BootMachine, kernels: Vec<(Slot, Vec<u8>)>) -> Self {
        Self {
            root: machine.paths.root().to_owned(),
            kernels,
            files: Vec::new(),
            commands: Mutex::default(),
            failing: None,
        }
    }

    /// Adds a file to the image.
    pub fn with_file(mut self, path: &'static str) -> Self {
        self.files.push(path);
        self
    }

    /// Makes each call of a program fail.
    pub fn with_failing(mut self, program: &'static str) -> Self {
        self.failing = Some(program);
        self
    }

    /// The commands so far.
    pub fn commands(&self) -> Vec<String> {
        self.commands.lock().expect("the lock").clone()
    }
}

#[async_trait::async_trait]
impl Runner for MountRunner {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.commands.lock().expect("the lock").push(command.to_string());
        let point = command.arguments.last().expect("a folder");
        let point = self.root.join(point.trim_start_matches('/'));
        match command.program.as_str() {
            program if self.failing == Some(program) => {
                return Ok(Output {
                    status: Some(32),
                    stdout: String::new(),
                    stderr: "wrong fs type\n".to_owned(),
                });
            }
            "mount" => {
                let folder = point.join("usr/lib/evenkeel/boot");
                fs::create_dir_all(&folder).expect("a folder");
                for (slot, kernel) in &self.kernels {
                    let name = format!("slot-{}.efi", super::entries::slot_letter(*slot));
                    fs::write(folder.join(name), kernel).expect("a kernel");
                }
                for path in &self.files {
                    let path = point.join(path);
                    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                    fs::write(path, "of the image").expect("a file");
                }
            }
            "blockdev" => {}
            "umount" => {
                fs::remove_dir_all(point.join("usr")).ok();
            }
            other => panic!("{other} was not expected"),
        }
        Ok(Output { status: Some(0), ..Output::default() })
    }
}
