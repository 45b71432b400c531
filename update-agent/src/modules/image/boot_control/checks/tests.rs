use super::super::fake::{BootMachine, GOOD_CMDLINE, MOUNTS, entry_text};
use super::*;
use crate::config::WatchdogPolicy;

const BLESS_UNIT: &str = "usr/lib/systemd/system/systemd-bless-boot.service";

const RUNNING_KERNEL: &str = "efi/EFI/evenkeel/slot-a.efi";

#[test]
fn a_correct_machine_has_no_faults() {
    let machine = BootMachine::new();
    let rescue = "sort-key rescue\nefi /EFI/rescue/linux.efi\n";
    machine.write_entry("rescue.conf", rescue);
    machine.write_entry("evenkeel-000002+2-1.conf", &entry_text(2, "slot-b"));
    assert_eq!(find_faults(&machine.esp()), [""; 0]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of all faults")]
fn each_fault_is_reported_with_its_remedy() {
    type ChangeMachine = fn(&BootMachine);
    let cases: [(ChangeMachine, &str, &str); 27] = [
        (
            |m| m.write("proc/self/mountinfo", MOUNTS.replace("/efi", "/elsewhere")),
            "the ESP is not mounted at /efi",
            "mount it there",
        ),
        (
            |m| {
                m.write("proc/self/mountinfo", MOUNTS.replace("/dev/vda1 rw", "/dev/vda1 ro"));
            },
            "the ESP at /efi is read-only",
            "fsck.vfat",
        ),
        (
            |m| std::fs::remove_file(m.path("proc/self/mountinfo")).unwrap(),
            "cannot read the mounts",
            "",
        ),
        (
            |m| std::fs::remove_file(m.path(RUNNING_KERNEL)).unwrap(),
            "the ESP has no kernel of the running slot a at EFI/evenkeel/slot-a.efi",
            "copy it there from /usr/lib/evenkeel/boot",
        ),
        (|m| m.write(RUNNING_KERNEL, ""), "no kernel of the running slot a", "copy it there"),
        (
            |m| m.write("efi/loader/loader.conf", "timeout 3\ndefault  debian-*\n"),
            "contains \"default debian-*\"",
            "remove that line",
        ),
        (
            |m| m.write("efi/loader/loader.conf", "preferred x.conf\n"),
            "contains \"preferred x.conf\"",
            "remove that line",
        ),
        (
            |m| m.write("efi/loader/loader.conf", "timeout menu-force\n"),
            "wait for input",
            "remove that line",
        ),
        (|m| m.write("efi/loader/loader.conf", b"\xff"), "loader.conf", "cannot read"),
        (
            |m| m.set_variable("LoaderEntryDefault", "debian.conf"),
            "LoaderEntryDefault is debian.conf",
            "bootctl set-default",
        ),
        (
            |m| m.set_variable("LoaderEntryPreferred", "debian.conf"),
            "LoaderEntryPreferred is debian.conf",
            "bootctl set-preferred",
        ),
        (
            |m| m.set_variable("LoaderEntryOneShot", "auto-reboot-to-firmware-setup"),
            "LoaderEntryOneShot",
            "bootctl set-oneshot",
        ),
        (
            |m| m.set_variable("LoaderConfigTimeout", "menu-force"),
            "LoaderConfigTimeout is menu-force",
            "`bootctl set-timeout \"\"`",
        ),
        (
            |m| m.set_variable("LoaderConfigTimeout", "4294967295"),
            "wait for input",
            "`bootctl set-timeout \"\"`",
        ),
        (
            |m| m.set_variable("LoaderConfigTimeoutOneShot", "0"),
            "LoaderConfigTimeoutOneShot is 0",
            "`bootctl set-timeout-oneshot \"\"`",
        ),
        (
            |m| m.set_variable_bytes("LoaderEntryOneShot", b"x"),
            "LoaderEntryOneShot cannot be read",
            "it is not a text",
        ),
        (
            |m| m.set_variable_bytes("LoaderFeatures", &0x1ef_u64.to_le_bytes()),
            "can count boots",
            "bootctl update",
        ),
        (
            |m| m.set_variable_bytes("LoaderFeatures", &0x0ff_u64.to_le_bytes()),
            "can sort by sort-key",
            "bootctl update",
        ),
        (
            |m| m.set_variable("LoaderInfo", "systemd-boot 258.1-2"),
            "258 and 259 count boots wrongly",
            "install another",
        ),
        (
            |m| m.set_variable("LoaderInfo", "systemd-boot 259"),
            "258 and 259 count boots wrongly",
            "install another",
        ),
        (
            |m| m.set_variable("LoaderInfo", "GRUB 2.12"),
            "GRUB 2.12 started this system",
            "bootctl install",
        ),
        (|m| m.unset_variable("LoaderInfo"), "no boot loader set its name", "mount efivarfs"),
        (
            |m| m.write(BLESS_UNIT, "[Service]\n"),
            "systemd-bless-boot.service would bless an image",
            "systemctl mask",
        ),
        (
            |m| m.write_entry("debian.conf", "sort-key debian\nlinux /vmlinuz\n"),
            "may start debian.conf",
            "a sort-key after",
        ),
        (
            |m| m.write("efi/EFI/Linux/other+3.efi", "MZ"),
            "may start EFI/Linux/other+3.efi",
            "remove it",
        ),
        (
            |m| m.write_entry("by-hand.conf", &entry_text(9, "slot-b")),
            "by-hand.conf starts a slot",
            "remove or rename it",
        ),
        (
            |m| {
                let boot = "40 22 254:9 / /boot rw - vfat /dev/vda9 rw\n";
                m.write("proc/self/mountinfo", format!("{MOUNTS}{boot}"));
                m.write("boot/loader/entries/d.conf", "sort-key d\nlinux /vmlinuz\n");
            },
            "may start d.conf",
            "remove it",
        ),
    ];
    for (change, problem, answer) in cases {
        let machine = BootMachine::new();
        change(&machine);
        let faults = find_faults(&machine.esp());
        let matches = |fault: &String| fault.contains(problem) && fault.contains(answer);
        assert!(faults.iter().any(matches), "{problem}: {faults:?}");
    }
}

#[test]
fn a_missing_kernel_is_reported_only_for_a_known_running_slot_on_a_mounted_esp() {
    let machine = BootMachine::new();
    std::fs::remove_file(machine.path(RUNNING_KERNEL)).unwrap();
    machine.add_partition(2, "rescue");
    assert_eq!(find_faults(&machine.esp()), [""; 0]);
    machine.add_partition(2, "root-a");
    assert_eq!(find_faults(&machine.esp()).len(), 1);
    machine.write("proc/self/mountinfo", MOUNTS.replace("/efi", "/elsewhere"));
    let faults = find_faults(&machine.esp());
    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("is not mounted"), "{faults:?}");
}

#[test]
fn a_loader_without_features_can_neither_count_nor_sort() {
    let machine = BootMachine::new();
    machine.unset_variable("LoaderFeatures");
    assert_eq!(find_faults(&machine.esp()).len(), 2);
}

#[test]
fn a_finite_loader_timeout_is_accepted() {
    let machine = BootMachine::new();
    for value in ["0", "5", "menu-hidden", "menu-disabled"] {
        machine.set_variable("LoaderConfigTimeout", value);
        assert_eq!(find_faults(&machine.esp()), [""; 0], "{value}");
    }
    machine.set_variable("LoaderConfigTimeoutOneShot", "5");
    assert_eq!(find_faults(&machine.esp()), [""; 0]);
}

#[test]
fn a_missing_loader_conf_has_no_faults() {
    let machine = BootMachine::new();
    std::fs::remove_file(machine.path("efi/loader/loader.conf")).unwrap();
    assert_eq!(find_faults(&machine.esp()), [""; 0]);
}

#[test]
fn a_masked_bless_unit_is_accepted() {
    let machine = BootMachine::new();
    machine.write(BLESS_UNIT, "[Service]\n");
    machine.write("etc/systemd/system/here", "");
    let mask = machine.path("etc/systemd/system/systemd-bless-boot.service");
    std::os::unix::fs::symlink("/dev/null", &mask).unwrap();
    assert_eq!(find_faults(&machine.esp()), [""; 0]);
    // A link to another unit does not mask it.
    std::fs::remove_file(&mask).unwrap();
    std::os::unix::fs::symlink("/usr/lib/systemd/system/x.service", &mask).unwrap();
    assert_eq!(find_faults(&machine.esp()).len(), 1);
}

#[test]
fn a_watchdog_is_demanded_only_where_it_is_required() {
    let mut machine = BootMachine::new();
    for watchdog in [WatchdogPolicy::Use, WatchdogPolicy::Ignore] {
        machine.config.watchdog = watchdog;
        assert_eq!(find_faults(&machine.esp()), [""; 0]);
    }
    machine.config.watchdog = WatchdogPolicy::Require;
    let faults = find_faults(&machine.esp());
    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("load the driver"), "{faults:?}");
    machine.write("sys/class/watchdog/watchdog0/identity", "i6300ESB timer\n");
    assert_eq!(find_faults(&machine.esp()), [""; 0]);
}

#[test]
fn a_nowayout_watchdog_is_accepted_only_if_systemd_feeds_it() {
    let machine = BootMachine::new();
    let fault_with = |file: &str, value: &str| {
        machine.write(&format!("sys/class/watchdog/watchdog0/{file}"), value);
        check_watchdog(&machine.path("sys"), "a test requires one")
    };
    assert_eq!(fault_with("nowayout", "0\n"), None);
    let fault = fault_with("nowayout", "1\n").unwrap();
    assert!(fault.contains("a test requires one: let systemd feed it"), "{fault}");
    assert!(fault_with("state", "inactive\n").is_some());
    assert_eq!(fault_with("state", "active\n"), None);
}

#[test]
fn a_command_line_must_reset_the_machine_wherever_the_kernel_stops() {
    let good = [
        GOOD_CMDLINE,
        "panic=1 rd.emergency=reboot",
        "panic=-1 evenkeel.deadline=60 root=/dev/vda3",
        "panic=0 panic=5 evenkeel.deadline=60",
    ];
    for line in good {
        assert_eq!(check_kernel_cmdline(line, Slot::B), Ok(()), "{line}");
    }
    let bad = [
        ("", "panic=N"),
        ("evenkeel.deadline=60", "panic=N"),
        ("panic=0 evenkeel.deadline=60", "panic=N"),
        ("panic=5 panic=0 evenkeel.deadline=60", "panic=N"),
        ("panic=soon evenkeel.deadline=60", "panic=N"),
        ("panic= evenkeel.deadline=60", "panic=N"),
        ("nopanic=5 evenkeel.deadline=60", "panic=N"),
        ("evenkeel.deadline=60 -- panic=5", "panic=N"),
        ("panic=5", "evenkeel.deadline=SECONDS"),
        ("panic=5 evenkeel.deadline=0", "evenkeel.deadline=SECONDS"),
        ("panic=5 rd.emergency=poweroff", "rd.emergency=reboot"),
        ("panic=5 evenkeel.deadline=60 root=PARTLABEL=root-a", "slot a"),
    ];
    for (line, why) in bad {
        let message = check_kernel_cmdline(line, Slot::B).unwrap_err();
        assert!(message.contains(why), "{line}: {message}");
    }
}
