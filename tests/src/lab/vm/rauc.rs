//! Machines with GRUB and RAUC. Their releases are complete Debian systems, and their images are bundles of the format
//! verity.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_registry::Digest;
use serde_json::Value;

use super::contents::DiskContents;
use super::esp::{partition_range, partition_table};
use super::judge::assert_nothing_left;
use super::{Release, ReleaseKind, Slot, Vm, VmFleet, Vms, statement, tool};
use crate::architecture::tree;
use crate::boot::grub;
use crate::lab::disk::try_output;
use crate::lab::{Binaries, Lab, Node, build_debian_package, strip};

/// Packages of the releases, and of the tools that build them.
const PACKAGES: &[&str] = &[
    "dbus",
    "dosfstools",
    "e2fsprogs",
    "fdisk",
    "grub-common",
    "grub-efi-amd64-bin",
    "initramfs-tools",
    "kmod",
    "linux-image-amd64",
    "mount",
    "mtools",
    "openssl",
    "rauc",
    "rauc-service",
    "squashfs-tools",
    "systemd",
    "systemd-sysv",
    "udev",
];

/// Folder of the releases in the root that builds them.
const RELEASES: &str = "srv/releases";

/// Memory of a machine in MiB. GRUB reads a kernel of Debian only with more than 256.
const MEMORY_MIB: u32 = 512;

/// How long the agent may take to confirm a boot on a busy machine.
const CONFIRM_TIMEOUT: Duration = Duration::from_mins(5);

/// Builds releases and machines with RAUC.
#[derive(Debug)]
pub struct RaucVms {
    vms: Arc<Vms>,
    /// The Debian system of all releases. It also builds them.
    root: Node,
    /// Last field, so that it is dropped last.
    _lab: Lab,
}

impl RaucVms {
    /// Prepares the system of the releases, for a test that runs only with `EVENKEEL_VM=all`.
    #[track_caller]
    pub fn open_if_all() -> Option<Self> {
        let vms = Vms::open_if_all()?;
        let lab = Lab::open_with(None, PACKAGES)?;
        let agent = strip(&Binaries::get().agent, lab.path("agent"));
        let deb = build_debian_package(&agent, &lab.path("package"));
        let key = lab.path("image-key.pem");
        fs::write(&key, vms.key().public_pem()).expect("a key");
        let root = Node::new(&lab, "root")
            .with_file(&tree::root().join("tests/lab/rauc"), "/srv/lab")
            .with_file(&tree::root().join("deploy/image"), "/srv/image")
            .with_file(&deb, "/srv/agent.deb")
            .with_file(&key, "/srv/image-key.pem")
            .without_network();
        root.succeed(&["/srv/lab/prepare", "/srv/agent.deb", "/srv/image-key.pem", "/srv/image"]);
        Some(Self { vms, root, _lab: lab })
    }

    /// Creates servers, and everything else that does not depend on the boot control.
    pub fn vms(&self) -> &Arc<Vms> {
        &self.vms
    }

    /// Builds a release of the profile `edge`. Its image is a bundle.
    #[track_caller]
    pub fn release(&self, version: &str, kind: ReleaseKind) -> Release {
        self.root.succeed(&["/srv/lab/make-release", version, kind.script_name()]);
        let file = self.release_path(&format!("{version}.raucb"));
        let bundle = fs::read(&file).expect("a bundle");
        let sha256 = Digest::compute(&bundle).hex();
        Release {
            version: version.to_owned(),
            kind,
            bytes: u64::try_from(bundle.len()).expect("a length"),
            signature: self.vms.key().sign_text(&statement(version, &sha256)),
            sha256,
            folder: self.release_path(""),
            file,
        }
    }

    /// The image in the bundle of a version.
    pub fn image(&self, version: &str) -> PathBuf {
        self.release_path(&format!("{version}.img"))
    }

    fn release_path(&self, name: &str) -> PathBuf {
        self.root.layer().join(RELEASES).join(name)
    }

    /// Creates a machine that has a release in its slot A and joins a fleet when it is switched on. The machine is off.
    /// The release is published on the server.
    #[track_caller]
    pub fn machine(&self, fleet: &VmFleet, first: &Release, name: &str) -> Vm {
        fleet.publish(first);
        self.root.succeed(&["/srv/lab/make-machine", &first.version]);
        let disk = self.root.layer().join("srv/disk.img");
        let mut vm = Vm::new(self.vms.subfolder(name), &disk, name);
        vm.firmware_config = Some(fleet.firmware_config());
        vm.memory_mib = Some(MEMORY_MIB);
        // The agent tries no image with RAUC without a watchdog.
        vm.give_watchdog();
        vm
    }

    /// Waits until no update is in progress on a machine, the server's records match what it runs, and the boot loader
    /// would start that again. Then cuts its power and checks that the image is completely in its slot, and that the
    /// update left nothing behind. Returns the version.
    ///
    /// # Panics
    /// The machine does not settle, or a check fails; the message says which.
    #[track_caller]
    pub fn judge(&self, fleet: &VmFleet, vm: &mut Vm, may_run: &[&Release]) -> String {
        let booted = fleet.until_consistent(vm, may_run);
        let disk = vm.disk().to_owned();
        vm.until("the boot loader starts what runs", CONFIRM_TIMEOUT, || {
            // During a write the variables may be unreadable.
            let variables = read_boot_variables(&disk).ok()?;
            (next_slot(&variables) == Some(booted.slot)).then_some(())
        });
        vm.cut();
        let image = fs::read(self.image(&booted.version)).expect("an image");
        let contents = DiskContents::read(&disk);
        let bytes = u64::try_from(image.len()).expect("a length");
        let in_slot = contents.slot_digest(booted.slot, bytes);
        assert_eq!(in_slot, Digest::compute(&image).hex(), "content of the slot {:?}", booted.slot);
        assert_nothing_left(&contents, &booted.version);
        booted.version
    }
}

/// Variables of GRUB on a disk.
///
/// # Errors
/// They cannot be read. This is temporary if the machine writes them.
fn read_boot_variables(disk: &Path) -> Result<BTreeMap<String, String>, String> {
    let is_theirs = |partition: &Value| partition["name"] == "grubenv";
    let (start, _) = partition_range(&partition_table(disk), is_theirs).expect("a partition");
    let mut reading = tool("mtype");
    // mtools would refuse a file system of an unexpected size.
    reading.env("MTOOLS_SKIP_CHECK", "1");
    reading.arg("-i").arg(format!("{}@@{start}", disk.display())).arg("::/grubenv");
    Ok(grub::parse_variables(&try_output(&mut reading)?))
}

/// The slot that GRUB starts next (`tests/lab/rauc/guest/grub.cfg`): the first one that is good and was not started since
/// it was last confirmed.
fn next_slot(variables: &BTreeMap<String, String>) -> Option<Slot> {
    let has_value =
        |name: String, value: &str| variables.get(&name).is_some_and(|found| found == value);
    let mut slots = variables.get("ORDER")?.split(' ');
    let next = slots.find(|slot| {
        has_value(format!("{slot}_OK"), "1") && has_value(format!("{slot}_TRY"), "0")
    })?;
    Slot::from_letter(&next.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grub_starts_the_first_good_slot_that_was_not_started_since_it_was_confirmed() {
        let next = |order: &str, a: (u8, u8), b: (u8, u8)| {
            let block = format!(
                "# GRUB Environment Block\nORDER={order}\nA_OK={}\nA_TRY={}\nB_OK={}\nB_TRY={}\n####",
                a.0, a.1, b.0, b.1
            );
            next_slot(&grub::parse_variables(&block))
        };
        assert_eq!(next("A B", (1, 0), (1, 0)), Some(Slot::A));
        assert_eq!(next("B A", (1, 0), (1, 0)), Some(Slot::B));
        assert_eq!(next("B A", (1, 0), (1, 1)), Some(Slot::A));
        assert_eq!(next("B A", (1, 0), (0, 0)), Some(Slot::A));
        assert_eq!(next("A B", (1, 1), (0, 0)), None);
        assert_eq!(next_slot(&grub::parse_variables("")), None);
    }
}
