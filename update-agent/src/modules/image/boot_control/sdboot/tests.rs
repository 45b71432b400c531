use std::fs;

use super::super::fake::{
    BootMachine, GOOD_CMDLINE, MOUNTS, MountRunner, SLOT_BYTES, entry_text, file_names, slot_image,
    uki_with_cmdline,
};
use super::*;
use crate::model::{FailureKind, Sha256};
use crate::modules::image::slots::BootEntry;
use crate::modules::image::unpack::ImageFormat;

mod kernels;
mod withdrawal;

fn counted(left: u8, done: u8) -> BootEntry {
    BootEntry::Counted { left, done }
}

/// An entry of another system, which sorts after ours.
const RESCUE_ENTRY: &str = "title rescue\nsort-key rescue\nefi /EFI/rescue/linux.efi\n";

/// The commands after the kernel of slot B was read.
const UNMOUNT_COMMANDS: [&str; 2] =
    ["umount /var/lib/evenkeel-agent/slot", "blockdev --setrw /dev/vda3"];

#[tokio::test]
async fn the_running_slot_and_all_entries_are_observed() {
    let machine = BootMachine::new();
    machine.write_entry("evenkeel-000002+2-1.conf", &entry_text(2, "slot-b"));
    machine.write_entry("rescue.conf", RESCUE_ENTRY);
    machine.write_entry("notes.txt", "of a person");
    machine.write("efi/EFI/Linux/other.efi", "MZ");
    machine.write("efi/EFI/Linux/spent+0-3.efi", "MZ");
    let observed = machine.boot_control_without_programs().observe().await.unwrap();
    assert_eq!(observed.booted, Some(Slot::A));
    assert_eq!(observed.boot_id, "boot-1");
    assert_eq!(observed.image, Some(("edge".to_owned(), "1.0".to_owned())));
    assert_eq!((observed.a, observed.b), (BootEntry::Plain, counted(2, 1)));
    assert_eq!(observed.foreign, ["rescue.conf", "EFI/Linux/other.efi"]);
}

#[tokio::test]
async fn the_running_slot_is_found_if_the_root_is_not_a_partition() {
    let machine = BootMachine::new();
    let overlay = MOUNTS.replace("254:2 / / ro - erofs /dev/root", "0:30 / / rw - overlay over");
    machine.write_entry("evenkeel-000002+2-1.conf", &entry_text(2, "slot-b"));
    let booted = async || machine.boot_control_without_programs().observe().await.unwrap().booted;

    // The partition of the root decides, whatever the command line says.
    machine.write("proc/cmdline", "root=PARTLABEL=root-b\n");
    assert_eq!(booted().await, Some(Slot::A));
    machine.write("proc/self/mountinfo", overlay);
    assert_eq!(booted().await, Some(Slot::B));
    machine.write("proc/cmdline", "root=/dev/dm-0\n");
    assert_eq!(booted().await, Some(Slot::A), "as the loader selected");
    machine.set_variable("LoaderEntrySelected", "rescue.conf");
    assert_eq!(booted().await, None);
    machine.unset_variable("LoaderEntrySelected");
    assert_eq!(booted().await, None);
}

#[tokio::test]
async fn a_root_outside_the_slots_is_no_slot() {
    let machine = BootMachine::new();
    machine.add_partition(2, "rescue");
    assert_eq!(machine.boot_control_without_programs().observe().await.unwrap().booted, None);
}

#[tokio::test]
async fn an_unreadable_entries_folder_is_an_error_and_an_absent_one_is_empty() {
    let machine = BootMachine::new();
    fs::remove_dir_all(machine.path("efi/loader/entries")).unwrap();
    let observed = machine.boot_control_without_programs().observe().await.unwrap();
    assert_eq!((observed.a, observed.b), (BootEntry::Absent, BootEntry::Absent));
    machine.write("efi/loader/entries", "a file");
    let failure = machine.boot_control_without_programs().observe().await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert!(failure.reason.starts_with("cannot read "), "{failure}");
}

#[tokio::test]
async fn an_image_goes_from_its_file_to_a_blessed_slot() {
    let machine = BootMachine::new();
    machine.write_entry("rescue.conf", RESCUE_ENTRY);
    let kernel = uki_with_cmdline(GOOD_CMDLINE);
    let runner = Arc::new(MountRunner::new(&machine, vec![(Slot::B, kernel.clone())]));
    let boot = machine.boot_control(Arc::<MountRunner>::clone(&runner));
    assert_eq!(boot.max_image_bytes(Slot::B).await.unwrap(), SLOT_BYTES as u64);

    boot.withdraw(Slot::B).await.unwrap();
    let image = vec![0x5a; 3 * 4096 + 100];
    machine.write("image", &image);
    let spooled = SpooledImage {
        path: machine.path("image"),
        sha256: Sha256::hash(&image),
        bytes: image.len() as u64,
        format: ImageFormat::Raw,
    };
    let stop = CancellationToken::new();
    let raw = boot.write(Slot::B, &spooled, &stop).await.unwrap();
    assert_eq!(raw.sha256, Sha256::hash(&image));
    assert_eq!(raw.bytes, image.len() as u64);
    assert!(fs::read(machine.path("dev/vda3")).unwrap().starts_with(&image));
    assert_eq!(fs::read(machine.path("dev/vda2")).unwrap(), vec![0; SLOT_BYTES]);
    boot.verify_slot(Slot::B, &raw).await.unwrap();

    boot.install_kernel(Slot::B, &slot_image()).await.unwrap();
    assert_eq!(
        runner.commands(),
        [
            // Before it is written, and before it is mounted: a killed agent may have left it read-only.
            "blockdev --setrw /dev/vda3",
            "blockdev --setrw /dev/vda3",
            "blockdev --setro /dev/vda3",
            "mount -o ro,nodev,nosuid,noexec /dev/vda3 /var/lib/evenkeel-agent/slot",
            "umount /var/lib/evenkeel-agent/slot",
            "blockdev --setrw /dev/vda3"
        ]
    );
    assert!(!machine.path("var/lib/evenkeel-agent/slot").exists());
    assert_eq!(file_names(&machine.path("efi/EFI/evenkeel")), ["slot-a.efi", "slot-b.efi"]);
    assert_eq!(fs::read(machine.path("efi/EFI/evenkeel/slot-b.efi")).unwrap(), kernel);

    boot.arm(Slot::B, &slot_image(), 2).await.unwrap();
    let all = ["evenkeel-000001.conf", "evenkeel-000002+3.conf", "rescue.conf"];
    assert_eq!(machine.entry_files(), all);
    let entry = machine.path("efi/loader/entries/evenkeel-000002+3.conf");
    assert_eq!(
        fs::read_to_string(entry).unwrap(),
        "title edge 1.1 (slot b)\nsort-key evenkeel\nversion 000002\nefi /EFI/evenkeel/slot-b.efi\n"
    );
    let listed = machine.esp().entries().unwrap();
    assert_eq!(listed[0].slot(), Some(Slot::B), "the loader starts it first");
    assert_eq!(boot.observe().await.unwrap().b, counted(3, 0));

    boot.bless(Slot::B).await.unwrap();
    assert_eq!(
        machine.entry_files(),
        ["evenkeel-000001.conf", "evenkeel-000002.conf", "rescue.conf"]
    );
    assert_eq!(boot.observe().await.unwrap().b, BootEntry::Plain);
}

#[tokio::test]
async fn a_slot_that_changed_after_it_was_written_is_reported() {
    let machine = BootMachine::new();
    let boot = machine.boot_control_without_programs();
    let raw = RawImage { sha256: Sha256::hash(&[0; 4096]), bytes: 4096 };
    boot.verify_slot(Slot::B, &raw).await.unwrap();
    machine.write("dev/vda3", vec![1; SLOT_BYTES]);
    let failure = boot.verify_slot(Slot::B, &raw).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Verify);
}

#[tokio::test]
async fn an_image_that_blesses_itself_or_has_no_trial_guard_is_refused() {
    let cases = [
        (
            "usr/lib/systemd/system/systemd-bless-boot.service",
            "would bless it before it is known to be healthy",
        ),
        ("usr/lib/systemd/systemd", "evenkeel-trial.service is missing"),
    ];
    for (file, why) in cases {
        let machine = BootMachine::new();
        machine.write("efi/EFI/evenkeel/slot-b.efi", "the one before");
        let runner = MountRunner::new(&machine, vec![(Slot::B, uki_with_cmdline(GOOD_CMDLINE))])
            .with_file(file);
        let runner = Arc::new(runner);
        let boot = machine.boot_control(Arc::<MountRunner>::clone(&runner));
        let failure = boot.install_kernel(Slot::B, &slot_image()).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Apply);
        assert!(failure.reason.contains("the image 1.1"), "{failure}");
        assert!(failure.reason.contains(why), "{failure}");
        let there = fs::read(machine.path("efi/EFI/evenkeel/slot-b.efi")).unwrap();
        assert_eq!(there, b"the one before");
        assert_eq!(runner.commands()[3..], UNMOUNT_COMMANDS, "it is unmounted, and writable");
    }
}

#[tokio::test]
async fn an_unknown_file_system_is_mounted_only_if_the_kernel_refuses_writes_to_it() {
    let machine = BootMachine::new();
    let kernels = vec![(Slot::B, uki_with_cmdline(GOOD_CMDLINE))];
    let runner = Arc::new(MountRunner::new(&machine, kernels).with_failing("blockdev"));
    let boot = machine.boot_control(Arc::<MountRunner>::clone(&runner));
    let failure = boot.install_kernel(Slot::B, &slot_image()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert!(failure.reason.contains("install blockdev"), "{failure}");
    assert!(!runner.commands().iter().any(|command| command.starts_with("mount")));

    let mut squashfs = vec![0; SLOT_BYTES];
    squashfs[..4].copy_from_slice(b"hsqs");
    machine.write("dev/vda3", squashfs);
    boot.install_kernel(Slot::B, &slot_image()).await.unwrap();
}

#[tokio::test]
async fn an_image_without_a_kernel_or_that_cannot_be_mounted_is_refused() {
    let machine = BootMachine::new();
    let runner =
        Arc::new(MountRunner::new(&machine, vec![(Slot::A, uki_with_cmdline(GOOD_CMDLINE))]));
    let boot = machine.boot_control(Arc::<MountRunner>::clone(&runner));
    let failure = boot.install_kernel(Slot::B, &slot_image()).await.unwrap_err();
    assert!(
        failure.reason.starts_with("the image has no file usr/lib/evenkeel/boot/slot-b.efi"),
        "{failure}"
    );
    assert_eq!(runner.commands()[3..], UNMOUNT_COMMANDS, "it is unmounted, and writable");

    let runner = Arc::new(MountRunner::new(&machine, Vec::new()).with_failing("mount"));
    let boot = machine.boot_control(Arc::<MountRunner>::clone(&runner));
    let failure = boot.install_kernel(Slot::B, &slot_image()).await.unwrap_err();
    assert_eq!(runner.commands().last().unwrap(), "blockdev --setrw /dev/vda3");
    assert_eq!(failure.kind, FailureKind::Storage);
    assert!(failure.reason.ends_with("ended with status 32"), "{failure}");
    assert_eq!(failure.log, "wrong fs type\n");
}

#[tokio::test]
async fn an_esp_that_is_full_has_no_room() {
    let machine = BootMachine::new();
    let kernel = fs::File::create(machine.path("efi/EFI/evenkeel/slot-a.efi")).unwrap();
    // A sparse file of 8 TiB: the next kernel does not fit next to it.
    kernel.set_len(8 << 40).unwrap();
    let failure =
        machine.boot_control_without_programs().max_image_bytes(Slot::B).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert!(failure.reason.contains("a kernel needs 10485761 MiB"), "{failure}");
}

#[tokio::test]
async fn arming_and_blessing_are_idempotent() {
    let machine = BootMachine::new();
    machine.write("efi/EFI/evenkeel/slot-b.efi", uki_with_cmdline(GOOD_CMDLINE));
    let boot = machine.boot_control_without_programs();
    boot.arm(Slot::B, &slot_image(), 2).await.unwrap();
    boot.arm(Slot::B, &slot_image(), 2).await.unwrap();
    let both = ["evenkeel-000001.conf", "evenkeel-000002+3.conf"];
    assert_eq!(machine.entry_files(), both);
    boot.bless(Slot::B).await.unwrap();
    boot.bless(Slot::B).await.unwrap();
    let both = ["evenkeel-000001.conf", "evenkeel-000002.conf"];
    assert_eq!(machine.entry_files(), both);
}

#[tokio::test]
async fn a_slot_with_another_entry_or_without_a_kernel_is_not_armed() {
    let in_the_way = [
        ("evenkeel-000002.conf", entry_text(2, "slot-b")),
        ("evenkeel-000003+3.conf", entry_text(3, "slot-b")),
        ("evenkeel-000001+3.conf", entry_text(1, "slot-b")),
        ("my-own.conf", entry_text(3, "SLOT-B")),
    ];
    for (file, text) in in_the_way {
        let machine = BootMachine::new();
        machine.write("efi/EFI/evenkeel/slot-b.efi", uki_with_cmdline(GOOD_CMDLINE));
        machine.write_entry(file, &text);
        let before = machine.entry_files();
        let boot = machine.boot_control_without_programs();
        let failure = boot.arm(Slot::B, &slot_image(), 2).await.unwrap_err();
        assert!(failure.reason.contains(file), "{failure}");
        assert_eq!(machine.entry_files(), before);
    }
    let machine = BootMachine::new();
    let failure =
        machine.boot_control_without_programs().arm(Slot::B, &slot_image(), 2).await.unwrap_err();
    assert_eq!(failure.reason, "slot b has no kernel on the ESP");
    assert_eq!(machine.entry_files(), ["evenkeel-000001.conf"]);
}

#[tokio::test]
async fn the_next_entry_comes_first_even_if_the_sequence_was_lost() {
    let machine = BootMachine::new();
    machine.write("efi/EFI/evenkeel/slot-b.efi", uki_with_cmdline(GOOD_CMDLINE));
    machine.write_entry("evenkeel-000001.conf", RESCUE_ENTRY);
    machine.write_entry("evenkeel-000041.conf", &entry_text(41, "slot-a"));
    let boot = machine.boot_control_without_programs();
    boot.arm(Slot::B, &slot_image(), 1).await.unwrap();
    boot.arm(Slot::B, &slot_image(), 1).await.unwrap();
    let first = &machine.esp().entries().unwrap()[0];
    assert_eq!(first.file, "evenkeel-000042+3.conf");
    assert_eq!(first.version, "000042");
}

#[tokio::test]
async fn of_both_names_of_an_interrupted_blessing_the_plain_one_is_used_and_none_is_removed() {
    let machine = BootMachine::new();
    machine.write_entry("evenkeel-000002+2-1.conf", &entry_text(2, "slot-b"));
    machine.write_entry("evenkeel-000002.conf", &entry_text(2, "slot-b"));
    let boot = machine.boot_control_without_programs();
    boot.bless(Slot::B).await.unwrap();
    assert_eq!(boot.observe().await.unwrap().b, BootEntry::Plain);
    assert_eq!(machine.entry_files().len(), 3);
}

#[tokio::test]
async fn a_slot_without_an_own_entry_is_not_blessed() {
    let machine = BootMachine::new();
    let boot = machine.boot_control_without_programs();
    let failure = boot.bless(Slot::B).await.unwrap_err();
    assert_eq!(failure.reason, "slot b has no boot entry that can be blessed");
    machine.write_entry("my-own.conf", &entry_text(2, "slot-b"));
    let failure = boot.bless(Slot::B).await.unwrap_err();
    assert!(failure.reason.contains("my-own.conf"), "{failure}");
}

#[tokio::test]
async fn the_running_slot_gets_a_new_entry_if_its_own_is_lost() {
    let machine = BootMachine::new();
    let lost = machine.path("efi/loader/entries/evenkeel-000001.conf");
    fs::remove_file(&lost).unwrap();
    machine.write_entry("evenkeel-000004+3.conf", &entry_text(4, "slot-b"));
    let boot = machine.boot_control_without_programs();
    boot.bless(Slot::A).await.unwrap();
    assert_eq!(boot.observe().await.unwrap().a, BootEntry::Plain);
    assert_eq!(machine.esp().entries().unwrap()[0].file, "evenkeel-000005.conf");

    fs::remove_file(machine.path("efi/loader/entries/evenkeel-000005.conf")).unwrap();
    fs::remove_file(machine.path("efi/EFI/evenkeel/slot-a.efi")).unwrap();
    let failure = boot.bless(Slot::A).await.unwrap_err();
    assert_eq!(failure.reason, "slot a has no kernel on the ESP");
}
