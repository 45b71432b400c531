//! Mounting a slot to read its kernel.

use evenkeel_tests::lab::UncleanDisk;
use evenkeel_update_agent::modules::image::boot_control::slot_mount_options;

#[test]
fn a_slot_that_needs_recovery_is_not_changed_when_it_is_mounted() {
    let Some(disk) = UncleanDisk::create() else { return };
    let options = slot_mount_options(&disk.image()).expect("the file system is read");
    assert!(options.ends_with(",noload"), "{options}");
    assert!(disk.is_changed_by_mount("ro,nodev,nosuid,noexec"), "the journal is replayed");
    assert!(!disk.is_changed_by_mount(&options));
}
