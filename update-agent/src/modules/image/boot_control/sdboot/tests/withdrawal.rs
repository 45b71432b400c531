//! Which boot entries are removed or overwritten when a slot is withdrawn.

use super::*;

/// The file that [`RESCUE_ENTRY`] starts.
const RESCUE_KERNEL: &str = "efi/EFI/rescue/linux.efi";

#[tokio::test]
async fn names_that_may_share_clusters_are_overwritten_and_not_removed() {
    let machine = BootMachine::new();
    let (counted_down, plain, temporary) =
        ("evenkeel-000002+2-1.conf", "evenkeel-000002.conf", "evenkeel-000002+3.conf.new");
    machine.write_entry(counted_down, &entry_text(2, "slot-b"));
    let path = |file: &str| machine.path(&format!("efi/loader/entries/{file}"));
    for other in [plain, temporary] {
        fs::hard_link(path(counted_down), path(other)).unwrap();
    }
    // A temporary file of the other entry is not touched.
    machine.write_entry("evenkeel-000001.conf.new", &entry_text(1, "slot-a"));
    let before = machine.entry_files();
    let boot = machine.boot_control_without_programs();
    for _ in 0..2 {
        boot.withdraw(Slot::B).await.unwrap();
        assert_eq!(machine.entry_files(), before);
        let observed = boot.observe().await.unwrap();
        assert_eq!((observed.a, observed.b), (BootEntry::Plain, BootEntry::Absent));
    }
    let blotted = fs::read_to_string(path(temporary)).unwrap();
    assert_eq!(blotted.len(), entry_text(2, "slot-b").len(), "no cluster more or less");
    assert!(blotted.starts_with("# Withdrawn"), "{blotted}");
    assert_eq!(fs::read_to_string(path(plain)).unwrap(), blotted);
    let untouched = fs::read_to_string(path("evenkeel-000001.conf.new")).unwrap();
    assert_eq!(untouched, entry_text(1, "slot-a"));

    machine.write("efi/EFI/evenkeel/slot-b.efi", uki_with_cmdline(GOOD_CMDLINE));
    boot.arm(Slot::B, &slot_image(), 3).await.unwrap();
    assert_eq!(boot.observe().await.unwrap().b, counted(3, 0));
    assert!(path("evenkeel-000003+3.conf").exists());
}

#[tokio::test]
async fn an_empty_name_of_an_interrupted_rename_is_removed() {
    let machine = BootMachine::new();
    machine.write_entry("evenkeel-000002+3.conf", "");
    machine.write_entry("evenkeel-000002+3.conf.new", &entry_text(2, "slot-b"));
    machine.boot_control_without_programs().withdraw(Slot::B).await.unwrap();
    assert_eq!(machine.entry_files(), ["evenkeel-000001.conf"]);
}

#[tokio::test]
async fn withdrawing_a_slot_removes_only_its_own_entries() {
    let machine = BootMachine::new();
    machine.write_entry("evenkeel-000002+2-1.conf", &entry_text(2, "slot-b"));
    // A short name of an old file system, an entry made by hand, and remains of interrupted writes.
    machine.write_entry("EVENKE~1.CON", "unchanged");
    machine.write_entry("EVENKEEL-000003+0-3.CONF", &entry_text(3, "SLOT-B"));
    machine.write_entry("by-hand.conf", "linux \\EFI\\evenkeel\\slot-b.efi\n");
    machine.write_entry("evenkeel-000004+3.conf", "");
    machine.write_entry("evenkeel-000005+3.conf.new", "title half");
    machine.write_entry("rescue.conf", RESCUE_ENTRY);
    machine.write_entry("rescue.conf.new", RESCUE_ENTRY);
    let boot = machine.boot_control_without_programs();
    boot.withdraw(Slot::B).await.unwrap();
    let left = ["EVENKE~1.CON", "evenkeel-000001.conf", "rescue.conf", "rescue.conf.new"];
    assert_eq!(machine.entry_files(), left);
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(machine.entry_files(), left);
}

#[tokio::test]
async fn the_last_entry_that_starts_something_is_never_withdrawn() {
    let machine = BootMachine::new();
    machine.write_entry("evenkeel-000002+0-3.conf", &entry_text(2, "slot-b"));
    machine.write_entry("nothing.conf", "title starts nothing\n");
    let boot = machine.boot_control_without_programs();
    let failure = boot.withdraw(Slot::A).await.unwrap_err();
    assert_eq!(
        failure.reason,
        "the boot entry evenkeel-000001.conf is not removed: without it, the boot loader could not start anything"
    );
    assert_eq!(machine.entry_files().len(), 3);
    machine.write_entry("rescue.conf", RESCUE_ENTRY);
    machine.write(RESCUE_KERNEL, "MZ");
    boot.withdraw(Slot::A).await.unwrap();
    assert_eq!(boot.observe().await.unwrap().a, BootEntry::Absent);
}

#[tokio::test]
async fn an_entry_with_a_missing_or_empty_file_cannot_replace_the_last_one() {
    let machine = BootMachine::new();
    let own = "evenkeel-000002+2-1.conf";
    machine.write_entry(own, &entry_text(2, "slot-b"));
    machine.write("efi/EFI/evenkeel/slot-b.efi", uki_with_cmdline(GOOD_CMDLINE));
    let boot = machine.boot_control_without_programs();
    let refused = async |context: &str| {
        let failure = boot.withdraw(Slot::B).await.unwrap_err();
        assert!(
            failure.reason.starts_with(&format!("the boot entry {own} is not removed")),
            "{context}: {failure}"
        );
        assert!(machine.entry_files().iter().any(|file| file == own), "{context}");
    };
    fs::remove_file(machine.path("efi/EFI/evenkeel/slot-a.efi")).unwrap();
    refused("the other kernel is gone").await;
    machine.write("efi/EFI/evenkeel/slot-a.efi", "");
    refused("the other kernel is empty").await;
    machine.write_entry("rescue.conf", RESCUE_ENTRY);
    refused("the file of the foreign entry is gone").await;
    machine.write("efi/EFI/Linux/loose.efi", "");
    refused("the loose kernel is empty").await;

    machine.write(RESCUE_KERNEL, "MZ");
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(boot.observe().await.unwrap().b, BootEntry::Absent);
}
