//! Feeds mutated files of the kernel, the firmware and the boot loader to their parsers, for `EVENKEEL_FUZZ_SECONDS` seconds
//! each (default 1).
//!
//! Each input is derived from a seed that a failure prints. `EVENKEEL_FUZZ_SEED=<seed>` starts with it.

use std::fs;
use std::path::{Path, PathBuf};

use rand::Rng;
use rand::rngs::StdRng;

use super::checks::{check_kernel_cmdline, check_panic_option};
use super::efi::EfiVariables;
use super::entries::{
    LoaderEntry, find_slot_by_id, foreign_entries_before_ours, parse_own_file_name, slot_entry,
};
use super::mounts::{find_mount, read_mounts, read_partitions, slot_of_cmdline};
use crate::fuzz_driver::{fuzz, text};
use crate::modules::image::device::SlotDevice;
use crate::modules::image::slots::{BootEntry, Slot};

/// Letters with a meaning in these files.
const LETTERS: &str = " \n\t\r\\/:=,.+-_~\"0123456789abemoprt\u{0}\u{1b}\u{e9}";

const ENTRIES: &[&str] = &[
    "title edge 1.1 (slot b)\nsort-key evenkeel\nversion 000002\nefi /EFI/evenkeel/slot-b.efi\n",
    "# comment\nsort-key\tdebian\nmachine-id 0123\nversion 6.1.0-40\nlinux \\EFI\\debian\\vmlinuz\noptions root=x\n",
];

const ENTRY_FILES: &[&str] = &[
    "evenkeel-000002+2-1.conf",
    "EVENKEEL-000003.CONF",
    "debian+0-3.conf",
    "auto-x.conf",
    "evenkeel-7+3.conf.new",
];

const MOUNTS: &[&str] = &["22 1 254:2 / / ro,relatime shared:1 - erofs /dev/root ro,user_xattr\n\
     23 22 254:1 / /efi rw,relatime shared:2 master:3 - vfat /dev/vda1 rw,errors=remount-ro\n\
     24 22 254:4 / /my\\040data\\012\\134 rw - ext4 /dev/vda4 rw\n\
     25 22 0:31 / /x ro - overlay overlay rw,lowerdir=/ro:/my\\040data,upperdir=/u,workdir=/w\n\
     26 22 0:32 / /y ro - overlay none ro,lowerdir+=/a,lowerdir+=b,redirect_dir=on\n"];

const UEVENTS: &[&str] = &[
    "MAJOR=254\nMINOR=2\nDEVNAME=vda2\nDEVTYPE=partition\nPARTN=2\nPARTNAME=root-a\n",
    "MAJOR=254\nMINOR=6\nDEVNAME=mapper/../sda\nPARTN=99999999999\nPARTNAME=root-a\n",
];

const CMDLINES: &[&str] = &[
    "root=PARTLABEL=root-a ro panic=10 rd.emergency=reboot quiet -- panic=0",
    "root=\"PARTLABEL=root-b\" evenkeel.deadline=90 panic=-1",
];

const VARIABLES: &[&str] =
    &["systemd-boot 252.39-1~deb12u1", "linux-2.efi", "evenkeel-000002.conf"];

/// Changes some bytes of a text.
fn change_bytes(rng: &mut StdRng, text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    for _ in 0..rng.random_range(0..4) {
        let at = rng.random_range(0..=bytes.len());
        if rng.random() && at < bytes.len() {
            bytes[at] = rng.random();
        } else {
            bytes.insert(at, rng.random());
        }
    }
    bytes
}

#[test]
fn loader_entries_are_parsed() {
    fuzz("loader entry", |rng| {
        let listed: Vec<_> = (0..3)
            .filter_map(|_| {
                let file = text(rng, ENTRY_FILES, LETTERS);
                parse_own_file_name(&file);
                LoaderEntry::parse(&file, &text(rng, ENTRIES, LETTERS))
            })
            .collect();
        for slot in [Slot::A, Slot::B] {
            let is_started = listed.iter().any(|entry| entry.slot() == Some(slot));
            assert_eq!(slot_entry(&listed, slot) == BootEntry::Absent, !is_started);
        }
        for other in foreign_entries_before_ours(&listed) {
            assert!(other.slot().is_none() && other.target.is_some(), "{other:?}");
        }
        find_slot_by_id(&listed, &text(rng, ENTRY_FILES, LETTERS));
    });
}

#[test]
fn mounts_are_parsed_as_the_kernel_prints_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mountinfo");
    fuzz("mountinfo", |rng| {
        let output = text(rng, MOUNTS, LETTERS);
        fs::write(&file, change_bytes(rng, output)).unwrap();
        let mounts = read_mounts(&file).unwrap();
        if let Some(mount) = find_mount(&mounts, Path::new("/efi/loader")) {
            assert!(Path::new("/efi/loader").starts_with(&mount.mount_point), "{mount:?}");
        }

        let mut lower = mounts.iter().flat_map(|mount| &mount.lower_paths);
        assert!(lower.all(|path| path.is_absolute()));

        // A mount point is an absolute path.
        let point = format!("/{}", text(rng, &["my data", "a\\040b", "efi - vfat"], LETTERS));
        fs::write(&file, format!("1 1 0:1 / {} rw - x y rw\n", escape(&point))).unwrap();
        let mounts = read_mounts(&file).unwrap();
        let points: Vec<_> = mounts.into_iter().map(|mount| mount.mount_point).collect();
        assert_eq!(points, [PathBuf::from(point)]);
    });
}

#[test]
fn paths_below_an_overlay_are_parsed_as_the_kernel_prints_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mountinfo");
    fuzz("overlay options", |rng| {
        let samples = ["ro", "my data", "a,upperdir=b"];
        let paths = [(); 2].map(|()| format!("/{}", text(rng, &samples, LETTERS)));
        let escaped =
            paths.each_ref().map(|path| escape(path).replace(',', "\\054").replace(':', "\\072"));
        let [first, second] = &escaped;
        for options in [
            format!("lowerdir={first}:{second},upperdir=/u"),
            format!("lowerdir+={first},lowerdir+={second},upperdir=/u"),
        ] {
            fs::write(&file, format!("1 1 0:1 / / rw - overlay x rw,{options}\n")).unwrap();
            let mounts = read_mounts(&file).unwrap();
            let [mount] = &mounts[..] else { panic!("{mounts:?}") };
            assert_eq!(mount.lower_paths, paths.each_ref().map(PathBuf::from), "{options}");
        }
    });
}

/// Escapes a path as the kernel does.
fn escape(path: &str) -> String {
    path.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012")
}

#[test]
fn the_device_of_a_slot_is_below_dev() {
    let root = tempfile::tempdir().unwrap();
    let (sys, dev) = (root.path().join("sys"), root.path().join("dev"));
    let folder = sys.join("class/block/vda2");
    fs::create_dir_all(&folder).unwrap();
    fuzz("uevent", |rng| {
        let uevent = text(rng, UEVENTS, LETTERS);
        fs::write(folder.join("uevent"), change_bytes(rng, uevent)).unwrap();
        for partition in read_partitions(&sys) {
            assert!(!partition.label.contains('\n') && !partition.node.contains('\n'));
        }
        if let Ok(Some(device)) = SlotDevice::find("root-a", &sys, None) {
            let below = device.strip_prefix(&dev).expect("a path below /dev");
            assert!(below.components().all(|part| part.as_os_str() != ".."), "{below:?}");
        }
    });
}

#[test]
fn command_lines_of_kernels_are_checked() {
    fuzz("kernel command line", |rng| {
        let cmdline = text(rng, CMDLINES, LETTERS);
        let is_accepted = check_kernel_cmdline(&cmdline, Slot::A).is_ok();
        if is_accepted {
            assert!(check_panic_option(&cmdline).is_ok(), "{cmdline:?}");
            assert_ne!(slot_of_cmdline(&cmdline), Some(Slot::B), "{cmdline:?}");
        }
    });
}

#[test]
fn firmware_variables_are_texts_or_errors() {
    const VENDOR: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(format!("LoaderEntrySelected-{VENDOR}"));
    let efi = EfiVariables::new(folder.path());
    fuzz("firmware variable", |rng| {
        let value = text(rng, VARIABLES, LETTERS);
        let units = value.encode_utf16().chain([0]).flat_map(u16::to_le_bytes);
        let mut bytes: Vec<u8> = [6, 0, 0, 0].into_iter().chain(units).collect();
        fs::write(&file, &bytes).unwrap();
        let expected = value.split('\0').next().filter(|text| !text.is_empty());
        assert_eq!(efi.read_text("LoaderEntrySelected").unwrap().as_deref(), expected);

        bytes.truncate(rng.random_range(0..=bytes.len()));
        if let Some(byte) = bytes.last_mut() {
            *byte = rng.random();
        }
        fs::write(&file, &bytes).unwrap();
        if let Ok(Some(answer)) = efi.read_text("LoaderEntrySelected") {
            assert!(!answer.is_empty() && !answer.contains('\0'), "{answer:?}");
        }
        let number = efi.read_number("LoaderEntrySelected");
        assert_eq!(number.is_ok(), bytes.len() == 12, "four bytes of attributes, and the value");
    });
}
