use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::fake::{BootMachine, MOUNTS};
use super::{esp_may_be_late, find, has_slots, wait_for_esp};
use crate::config::{BootControlChoice, Config};
use crate::hooks::fake::FakeRunner;
use crate::module_registry::ModuleRegistry;
use crate::modules::image::slots::Slot;

/// Path of the mount table, relative to the root.
const MOUNTINFO: &str = "proc/self/mountinfo";

fn found_name(machine: &BootMachine) -> Option<&'static str> {
    let runner = Arc::new(FakeRunner::default());
    let boot = find(&machine.paths, runner, &machine.config).expect("no slot is ambiguous");
    boot.map(|boot| boot.name())
}

#[test]
fn an_esp_with_systemd_boot_and_two_slots_are_found() {
    let machine = BootMachine::new();
    assert_eq!(found_name(&machine), Some("systemd-boot"));
}

#[test]
fn the_esp_is_found_where_systemd_mounts_it_or_where_it_is_configured() {
    for at in ["boot", "boot/efi", "srv/esp"] {
        let mut machine = BootMachine::new();
        fs::create_dir_all(machine.path("boot")).unwrap();
        fs::rename(machine.path("efi"), machine.path("moved")).unwrap();
        fs::create_dir_all(machine.path(at).parent().unwrap()).unwrap();
        if at == "boot" {
            fs::remove_dir(machine.path("boot")).unwrap();
        }
        fs::rename(machine.path("moved"), machine.path(at)).unwrap();
        machine.write("proc/self/mountinfo", MOUNTS.replace("/efi", &format!("/{at}")));
        if at.starts_with("srv") {
            assert_eq!(found_name(&machine), None);
            machine.config.esp = Some("/srv/esp".into());
        }
        assert_eq!(found_name(&machine), Some("systemd-boot"), "{at}");
    }
}

#[test]
fn a_system_with_a_missing_part_has_no_boot_control() {
    let lacks: [fn(&BootMachine); 4] = [
        |machine| fs::remove_file(machine.path("efi/EFI/systemd/systemd-bootx64.efi")).unwrap(),
        |machine| fs::remove_dir_all(machine.path("efi/loader")).unwrap(),
        |machine| machine.write("proc/self/mountinfo", MOUNTS.replace("vfat", "ext4")),
        |machine| fs::remove_dir_all(machine.path("sys/class/block/vda3")).unwrap(),
    ];
    for (number, lack) in lacks.into_iter().enumerate() {
        let machine = BootMachine::new();
        lack(&machine);
        assert_eq!(found_name(&machine), None, "{number}");
    }
}

#[test]
fn a_partition_of_another_disk_is_never_a_slot() {
    let machine = BootMachine::new();
    machine.add_partition_of_other_disk(3, "root-b");
    machine.add_partition_of_other_disk(2, "root-a");
    assert_eq!(found_name(&machine), Some("systemd-boot"));
    let device = machine.esp().find_device(Slot::B).unwrap();
    assert_eq!(device, machine.path("dev/vda3"));
    // The root is an overlay, so the disk is that of the ESP.
    let overlay = MOUNTS.replace("254:2 / / ro - erofs", "0:31 / / rw - overlay");
    machine.write(MOUNTINFO, overlay);
    assert_eq!(machine.esp().find_device(Slot::B).unwrap(), machine.path("dev/vda3"));

    fs::remove_dir_all(machine.path("sys/class/block/vda3")).unwrap();
    machine.write(MOUNTINFO, MOUNTS);
    assert_eq!(found_name(&machine), None, "the disk of the system has one slot");
    let why = machine.esp().find_device(Slot::B).unwrap_err().reason;
    assert!(why.contains("root-b"), "{why}");
}

/// Adds a disk with the ESP only, and moves the ESP there.
fn move_esp_to_other_disk(machine: &BootMachine, root: &str) {
    machine.add_partition_of_other_disk(1, "esp");
    fs::remove_dir_all(machine.path("sys/class/block/vda1")).unwrap();
    let root = MOUNTS.replace("254:2 / / ro - erofs /dev/root ro", root);
    machine.write(MOUNTINFO, root.replace("254:1 / /efi rw", "8:1 / /efi rw"));
}

/// Such a machine must not become one that is updated by packages.
#[test]
fn the_esp_may_be_on_another_disk_than_the_slots() {
    // The layers below the last four are not visible.
    let roots = [
        "254:2 / / ro - erofs /dev/root ro",
        "0:31 / / rw - overlay overlay rw,lowerdir=/media/root-ro,upperdir=/u,workdir=/w\n\
         21 22 254:2 / /media/root-ro ro - ext4 /dev/vda2 ro",
        "0:31 / / rw - overlay overlay rw,lowerdir=/sysroot,upperdir=/u,workdir=/w",
        "0:31 / / ro - overlay composefs ro,lowerdir+=/run/cfs,datadir+=/sysroot/objects",
        "0:2 / / rw - tmpfs none rw\n21 22 254:2 / /usr ro - erofs /dev/vda2 ro",
        "0:2 / / rw - tmpfs none rw",
    ];
    for root in roots {
        let machine = BootMachine::new();
        move_esp_to_other_disk(&machine, root);
        assert_eq!(found_name(&machine), Some("systemd-boot"), "{root}");
        assert_eq!(machine.esp().find_device(Slot::B).unwrap(), machine.path("dev/vda3"), "{root}");
    }
}

#[test]
fn the_disk_below_an_overlay_is_found_if_several_disks_have_slots() {
    let overlay = "0:31 / / rw - overlay overlay rw,lowerdir=/ro,upperdir=/u,workdir=/w";
    // A partition, encryption or verity, a file system with device numbers of its own, and a file.
    let lower = [
        "254:2 / /ro ro - ext4 /dev/vda2 ro",
        "253:0 / /ro ro - ext4 /dev/mapper/root ro",
        "0:40 / /ro ro - btrfs /dev/vda2 ro",
        "7:0 / /ro ro - squashfs /dev/loop0 ro\n20 22 254:2 / /medium ro - ext4 /dev/vda2 ro",
        "0:32 / /ro ro - overlay overlay ro,lowerdir=/a:/b\n20 22 254:2 / /b ro - ext4 /dev/vda2 ro",
    ];
    for lower in lower {
        let machine = BootMachine::new();
        move_esp_to_other_disk(&machine, &format!("{overlay}\n21 22 {lower}"));
        machine.add_partition_of_other_disk(2, "root-a");
        machine.add_partition_of_other_disk(3, "root-b");
        machine.write("sys/class/block/dm-0/uevent", "MAJOR=253\nMINOR=0\nDEVNAME=dm-0\n");
        let slaves = machine.path("sys/class/block/dm-0/slaves");
        fs::create_dir(&slaves).unwrap();
        let slave = machine.path("sys/class/block/vda2");
        std::os::unix::fs::symlink(slave, slaves.join("vda2")).unwrap();
        machine.write("sys/class/block/loop0/uevent", "MAJOR=7\nMINOR=0\nDEVNAME=loop0\n");
        machine.write("sys/class/block/loop0/loop/backing_file", "/medium/root.squashfs\n");
        let device = machine.esp().find_device(Slot::B).unwrap();
        assert_eq!(device, machine.path("dev/vda3"), "{lower}");
    }
}

/// The wrong choice would overwrite the disk of another node.
#[test]
fn several_disks_with_slots_are_an_error_if_nothing_shows_which_one_runs() {
    for root in [
        "0:31 / / rw - overlay overlay rw,lowerdir=/sysroot,upperdir=/u,workdir=/w",
        "0:31 / / rw - overlay overlay rw,lowerdir=/,upperdir=/u,workdir=/w",
        "7:0 / / ro - squashfs /dev/loop0 ro",
    ] {
        let machine = BootMachine::new();
        machine.write("sys/class/block/loop0/uevent", "MAJOR=7\nMINOR=0\nDEVNAME=loop0\n");
        machine.write("sys/class/block/loop0/loop/backing_file", "/root.squashfs\n");
        let other = MOUNTS.replace("254:2 / / ro - erofs /dev/root ro", root);
        machine.write(
            MOUNTINFO,
            other.replace("254:1 / /efi rw - vfat /dev/vda1", "9:1 / /efi rw - vfat /dev/sdc1"),
        );
        machine.add_partition_of_other_disk(2, "root-a");
        machine.add_partition_of_other_disk(3, "root-b");
        let found = find(&machine.paths, Arc::new(FakeRunner::default()), &machine.config);
        let why = found.err().expect("an error").reason;
        assert!(why.contains("dev/vda2") && why.contains("dev/sdb2"), "{why}");
        assert!(why.contains("disconnect the disk of another machine"), "{why}");
    }
}

/// A system whose root is not on one disk, and whose slots, if it has any, are not on its own disks.
fn machine_without_own_slots(root: &str, esp: &str) -> BootMachine {
    let machine = BootMachine::new();
    for number in [2, 3] {
        fs::remove_dir_all(machine.path(&format!("sys/class/block/vda{number}"))).unwrap();
    }
    let mounts = MOUNTS.replace("254:2 / / ro - erofs /dev/root ro", root);
    machine.write(MOUNTINFO, mounts.replace("254:1 / /efi rw - vfat /dev/vda1", esp));
    machine.write("proc/cmdline", "root=/dev/md0 ro\n");
    machine.set_variable("LoaderEntrySelected", "debian-6.1.0-18-amd64.conf");
    machine.add_partition_of_other_disk(2, "root-a");
    machine.add_partition_of_other_disk(3, "root-b");
    machine
}

/// A node that is updated by packages stays one.
#[test]
fn a_foreign_disk_with_slots_is_ignored_unless_the_system_runs_from_a_slot() {
    for (root, esp) in [
        ("9:0 / / rw - ext4 /dev/md0 rw", "254:1 / /efi rw - vfat /dev/vda1"),
        ("0:45 / / rw - zfs rpool/ROOT/debian rw", "254:1 / /efi rw - vfat /dev/vda1"),
        ("0:46 / / rw - nfs4 192.0.2.1:/srv/root rw", "9:1 / /efi rw - vfat /dev/md1"),
    ] {
        let machine = machine_without_own_slots(root, esp);
        assert_eq!(found_name(&machine), None, "{root}");
        assert!(!has_slots(&machine.paths), "{root}");
        machine.set_variable("LoaderEntrySelected", "evenkeel-000001.conf");
        assert_eq!(found_name(&machine), Some("systemd-boot"), "{root}");
        machine.unset_variable("LoaderEntrySelected");
        assert_eq!(found_name(&machine), None, "{root}");
        machine.write("proc/cmdline", "root=PARTLABEL=root-a ro\n");
        assert_eq!(found_name(&machine), Some("systemd-boot"), "{root}");
    }
}

#[test]
fn one_slot_on_each_of_two_unknown_disks_is_an_error() {
    let machine = BootMachine::new();
    let root = "0:31 / / rw - overlay overlay rw,lowerdir=/sysroot,upperdir=/u,workdir=/w";
    let mounts = MOUNTS.replace("254:2 / / ro - erofs /dev/root ro", root);
    let esp_elsewhere = "9:1 / /efi rw - vfat /dev/md1";
    machine.write(MOUNTINFO, mounts.replace("254:1 / /efi rw - vfat /dev/vda1", esp_elsewhere));
    fs::remove_dir_all(machine.path("sys/class/block/vda3")).unwrap();
    machine.add_partition_of_other_disk(3, "root-b");
    let found = find(&machine.paths, Arc::new(FakeRunner::default()), &machine.config);
    let why = found.err().expect("an error").reason;
    assert!(why.contains("root-a and root-b are on different disks"), "{why}");
}

/// An ambiguous slot is not the same as none: the node would be updated by packages.
#[test]
fn two_partitions_of_the_disk_with_the_name_of_a_slot_are_an_error() {
    let machine = BootMachine::new();
    machine.add_partition(5, "root-b");
    let found = find(&machine.paths, Arc::new(FakeRunner::default()), &machine.config);
    let why = found.err().expect("an error").reason;
    assert!(why.contains("dev/vda3") && why.contains("dev/vda5"), "{why}");
    assert!(why.contains("another name"), "{why}");
    assert!(has_slots(&machine.paths));

    let config = Config { image: machine.config.clone(), ..Config::default() };
    let registry = ModuleRegistry::new(&config, &machine.paths);
    registry.images().unwrap_err();
    assert!(!registry.has_packages(), "an image without dpkg");
}

#[test]
fn the_disk_of_an_encrypted_root_is_the_one_below() {
    let machine = BootMachine::new();
    machine.write(MOUNTINFO, MOUNTS.replace("254:2 / / ro - erofs", "253:0 / / ro - ext4"));
    machine.write("sys/class/block/dm-0/uevent", "MAJOR=253\nMINOR=0\nDEVNAME=dm-0\n");
    let slaves = machine.path("sys/class/block/dm-0/slaves");
    fs::create_dir(&slaves).unwrap();
    std::os::unix::fs::symlink(machine.path("sys/class/block/vda2"), slaves.join("vda2")).unwrap();
    machine.add_partition_of_other_disk(3, "root-b");
    assert_eq!(machine.esp().find_device(Slot::B).unwrap(), machine.path("dev/vda3"));
}

#[tokio::test(start_paused = true)]
async fn an_esp_that_is_mounted_late_is_waited_for() {
    let machine = BootMachine::new();
    machine.write(MOUNTINFO, MOUNTS.replace(" /efi ", " /mnt "));
    assert_eq!(found_name(&machine), None);
    assert!(has_slots(&machine.paths));
    let coming = wait_for_esp(&machine.paths, &machine.config);
    let mounting = async {
        sleep(Duration::from_mins(5)).await;
        machine.write(MOUNTINFO, MOUNTS);
        Instant::now()
    };
    let (come, mounted) = tokio::join!(timeout(Duration::from_hours(1), coming), mounting);
    come.expect("the ESP is checked again");
    assert!(mounted.elapsed() < Duration::from_mins(1));
    assert_eq!(found_name(&machine), Some("systemd-boot"));
}

/// The agent restarts when the wait ends.
#[tokio::test(start_paused = true)]
async fn the_wait_for_an_esp_does_not_end_while_a_slot_is_missing() {
    let machine = BootMachine::new();
    fs::remove_dir_all(machine.path("sys/class/block/vda3")).unwrap();
    let coming = wait_for_esp(&machine.paths, &machine.config);
    timeout(Duration::from_mins(1), coming).await.unwrap_err();
}

#[test]
fn without_a_partition_for_each_slot_no_esp_is_expected() {
    let machine = BootMachine::new();
    fs::remove_dir_all(machine.path("sys/class/block/vda3")).unwrap();
    assert!(!has_slots(&machine.paths));
}

#[test]
fn an_esp_is_late_only_where_systemd_boot_may_have_started_this_boot() {
    const VARIABLES: &str = "sys/firmware/efi/efivars";
    let late = |change: fn(&mut BootMachine)| {
        let mut machine = BootMachine::new();
        change(&mut machine);
        esp_may_be_late(&machine.paths, &machine.config)
    };
    assert!(late(|_| {}));
    assert!(late(|machine| {
        fs::remove_dir_all(machine.path(VARIABLES)).unwrap();
        fs::create_dir(machine.path(VARIABLES)).unwrap();
    }));
    assert!(late(|machine| machine.set_variable_bytes("LoaderInfo", b"odd")));
    let nothing_to_wait_for: [fn(&mut BootMachine); 5] = [
        |machine| fs::remove_dir_all(machine.path("sys/firmware/efi")).unwrap(),
        |machine| machine.unset_variable("LoaderInfo"),
        |machine| machine.set_variable("LoaderInfo", "GRUB 2.12"),
        |machine| machine.config.tool = Some("/usr/bin/os-update-tool.sh".into()),
        |machine| fs::remove_dir_all(machine.path("sys/class/block/vda3")).unwrap(),
    ];
    for (number, change) in nothing_to_wait_for.into_iter().enumerate() {
        assert!(!late(change), "{number}");
    }
}

#[test]
fn a_configured_tool_has_priority() {
    let mut machine = BootMachine::new();
    machine.config.tool = Some("/usr/bin/os-update-tool.sh".into());
    assert_eq!(found_name(&machine), Some("os-update-tool"));
}

/// Another tool may install bundles on such a machine.
#[test]
fn rauc_is_used_only_if_it_is_chosen() {
    let mut machine = BootMachine::new();
    fs::remove_dir_all(machine.path("efi/loader")).unwrap();
    machine.write("usr/bin/rauc", "ELF");
    machine.write("etc/rauc/system.conf", "[system]\n");
    assert_eq!(found_name(&machine), None);
    machine.config.boot_control = BootControlChoice::Rauc;
    assert_eq!(found_name(&machine), Some("rauc"));
}

/// Without an error, the node would be updated by packages.
#[test]
fn a_chosen_systemd_boot_that_is_missing_is_an_error_and_may_come_later() {
    let lacks: [fn(&BootMachine); 2] = [
        |machine| machine.write(MOUNTINFO, MOUNTS.replace(" /efi ", " /mnt ")),
        |machine| fs::remove_dir_all(machine.path("sys/class/block/vda3")).unwrap(),
    ];
    for lack in lacks {
        let mut machine = BootMachine::new();
        machine.config.boot_control = BootControlChoice::SystemdBoot;
        lack(&machine);
        let found = find(&machine.paths, Arc::new(FakeRunner::default()), &machine.config);
        let failure = found.err().expect("an error");
        assert!(failure.is_temporary, "{failure}");
        assert!(failure.reason.contains("set image.boot_control to \"none\""), "{failure}");
    }
}

#[test]
fn a_chosen_boot_control_is_the_only_one() {
    let mut machine = BootMachine::new();
    for (choice, name, may_wait) in [
        (BootControlChoice::Rauc, Some("rauc"), false),
        (BootControlChoice::None, None, false),
        (BootControlChoice::SystemdBoot, Some("systemd-boot"), true),
        (BootControlChoice::Auto, Some("systemd-boot"), true),
    ] {
        machine.config.boot_control = choice;
        assert_eq!(found_name(&machine), name, "{choice:?}");
        assert_eq!(esp_may_be_late(&machine.paths, &machine.config), may_wait, "{choice:?}");
    }
}
