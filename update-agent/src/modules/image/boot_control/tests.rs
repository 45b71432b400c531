use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::fake::{MOUNTS, Machine};
use super::{find, has_come, has_slots, may_be_late};
use crate::hooks::fake::Fake;

/// Where the kernel tells of mounts, below the root.
const MOUNTINFO: &str = "proc/self/mountinfo";

fn found(machine: &Machine) -> Option<&'static str> {
    let runner = Arc::new(Fake::default());
    find(&machine.place, runner, &machine.config).map(|boot| boot.name())
}

#[test]
fn an_esp_with_systemd_boot_and_two_slots_are_found() {
    let machine = Machine::new();
    assert_eq!(found(&machine), Some("systemd-boot"));
}

#[test]
fn the_esp_is_found_where_systemd_mounts_it_or_where_it_is_configured() {
    for at in ["boot", "boot/efi", "srv/esp"] {
        let mut machine = Machine::new();
        fs::create_dir_all(machine.path("boot")).unwrap();
        fs::rename(machine.path("efi"), machine.path("moved")).unwrap();
        fs::create_dir_all(machine.path(at).parent().unwrap()).unwrap();
        if at == "boot" {
            fs::remove_dir(machine.path("boot")).unwrap();
        }
        fs::rename(machine.path("moved"), machine.path(at)).unwrap();
        machine.write(
            "proc/self/mountinfo",
            MOUNTS.replace("/efi", &format!("/{at}")),
        );
        if at.starts_with("srv") {
            assert_eq!(found(&machine), None);
            machine.config.esp = Some("/srv/esp".into());
        }
        assert_eq!(found(&machine), Some("systemd-boot"), "{at}");
    }
}

#[test]
fn a_system_that_lacks_a_part_of_it_is_not_updated_by_images() {
    let lacks: [fn(&Machine); 5] = [
        |machine| fs::remove_file(machine.path("efi/EFI/systemd/systemd-bootx64.efi")).unwrap(),
        |machine| fs::remove_dir_all(machine.path("efi/loader")).unwrap(),
        |machine| machine.write("proc/self/mountinfo", MOUNTS.replace("vfat", "ext4")),
        |machine| fs::remove_dir_all(machine.path("sys/class/block/vda3")).unwrap(),
        |machine| machine.partition(5, "root-b"),
    ];
    for (number, lack) in lacks.into_iter().enumerate() {
        let machine = Machine::new();
        lack(&machine);
        assert_eq!(found(&machine), None, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_esp_that_is_mounted_late_is_waited_for() {
    let machine = Machine::new();
    machine.write(MOUNTINFO, MOUNTS.replace(" /efi ", " /mnt "));
    assert_eq!(found(&machine), None);
    assert!(has_slots(&machine.place));
    let coming = has_come(&machine.place, &machine.config);
    let mounting = async {
        sleep(Duration::from_mins(5)).await;
        machine.write(MOUNTINFO, MOUNTS);
        Instant::now()
    };
    let (come, mounted) = tokio::join!(timeout(Duration::from_hours(1), coming), mounting);
    come.expect("it is never looked for again");
    assert!(mounted.elapsed() < Duration::from_mins(1));
    assert_eq!(found(&machine), Some("systemd-boot"));
}

#[test]
fn without_a_partition_for_each_slot_no_esp_is_waited_for() {
    let machine = Machine::new();
    fs::remove_dir_all(machine.path("sys/class/block/vda3")).unwrap();
    assert!(!has_slots(&machine.place));
}

#[test]
fn an_esp_is_late_only_where_systemd_boot_may_have_started_this_boot() {
    const VARIABLES: &str = "sys/firmware/efi/efivars";
    let late = |change: fn(&mut Machine)| {
        let mut machine = Machine::new();
        change(&mut machine);
        may_be_late(&machine.place, &machine.config)
    };
    assert!(late(|_| {}));
    assert!(late(|machine| {
        fs::remove_dir_all(machine.path(VARIABLES)).unwrap();
        fs::create_dir(machine.path(VARIABLES)).unwrap();
    }));
    assert!(late(
        |machine| machine.bytes_of_variable("LoaderInfo", b"odd")
    ));
    let nothing_to_wait_for: [fn(&mut Machine); 5] = [
        |machine| fs::remove_dir_all(machine.path("sys/firmware/efi")).unwrap(),
        |machine| machine.unset("LoaderInfo"),
        |machine| machine.variable("LoaderInfo", "GRUB 2.12"),
        |machine| machine.config.tool = Some("/usr/bin/os-update-tool.sh".into()),
        |machine| fs::remove_dir_all(machine.path("sys/class/block/vda3")).unwrap(),
    ];
    for (number, change) in nothing_to_wait_for.into_iter().enumerate() {
        assert!(!late(change), "{number}");
    }
}

#[test]
fn a_configured_tool_comes_first() {
    let mut machine = Machine::new();
    machine.config.tool = Some("/usr/bin/os-update-tool.sh".into());
    assert_eq!(found(&machine), Some("os-update-tool"));
}
