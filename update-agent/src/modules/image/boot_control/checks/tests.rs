use super::super::fake::{GOOD, MOUNTS, Machine, text};
use super::*;
use crate::config::Watchdog;

const BLESSING: &str = "usr/lib/systemd/system/systemd-bless-boot.service";

/// The kernel of the slot that runs.
const KERNEL: &str = "efi/EFI/evenkeel/slot-a.efi";

#[test]
fn a_machine_that_is_as_it_should_be_has_no_faults() {
    let machine = Machine::new();
    let rescue = "sort-key rescue\nefi /EFI/rescue/linux.efi\n";
    machine.entry("rescue.conf", rescue);
    machine.entry("evenkeel-000002+2-1.conf", &text(2, "slot-b"));
    assert_eq!(all(&machine.esp()), [""; 0]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of all faults")]
fn each_fault_is_told_with_what_to_do() {
    type Change = fn(&Machine);
    let cases: [(Change, &str, &str); 27] = [
        (
            |m| m.write("proc/self/mountinfo", MOUNTS.replace("/efi", "/elsewhere")),
            "the ESP is not mounted at /efi",
            "mount it there",
        ),
        (
            |m| {
                m.write(
                    "proc/self/mountinfo",
                    MOUNTS.replace("/dev/vda1 rw", "/dev/vda1 ro"),
                );
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
            |m| std::fs::remove_file(m.path(KERNEL)).unwrap(),
            "the ESP has no kernel of slot a, which runs, at EFI/evenkeel/slot-a.efi",
            "copy it there from /usr/lib/evenkeel/boot",
        ),
        (
            |m| m.write(KERNEL, ""),
            "no kernel of slot a",
            "copy it there",
        ),
        (
            |m| m.write("efi/loader/loader.conf", "timeout 3\ndefault  debian-*\n"),
            "says \"default debian-*\"",
            "remove that line",
        ),
        (
            |m| m.write("efi/loader/loader.conf", "preferred x.conf\n"),
            "says \"preferred x.conf\"",
            "remove that line",
        ),
        (
            |m| m.write("efi/loader/loader.conf", "timeout menu-force\n"),
            "wait for somebody",
            "remove that line",
        ),
        (
            |m| m.write("efi/loader/loader.conf", b"\xff"),
            "loader.conf",
            "cannot read",
        ),
        (
            |m| m.variable("LoaderEntryDefault", "debian.conf"),
            "LoaderEntryDefault is debian.conf",
            "bootctl set-default",
        ),
        (
            |m| m.variable("LoaderEntryPreferred", "debian.conf"),
            "LoaderEntryPreferred is debian.conf",
            "bootctl set-preferred",
        ),
        (
            |m| m.variable("LoaderEntryOneShot", "auto-reboot-to-firmware-setup"),
            "LoaderEntryOneShot",
            "bootctl set-oneshot",
        ),
        (
            |m| m.variable("LoaderConfigTimeout", "menu-force"),
            "LoaderConfigTimeout is menu-force",
            "`bootctl set-timeout \"\"`",
        ),
        (
            |m| m.variable("LoaderConfigTimeout", "4294967295"),
            "waits for somebody",
            "`bootctl set-timeout \"\"`",
        ),
        (
            |m| m.variable("LoaderConfigTimeoutOneShot", "0"),
            "LoaderConfigTimeoutOneShot is 0",
            "`bootctl set-timeout-oneshot \"\"`",
        ),
        (
            |m| m.bytes_of_variable("LoaderEntryOneShot", b"x"),
            "LoaderEntryOneShot cannot be read",
            "it is no text",
        ),
        (
            |m| m.bytes_of_variable("LoaderFeatures", &0x1ef_u64.to_le_bytes()),
            "can count boots",
            "bootctl update",
        ),
        (
            |m| m.bytes_of_variable("LoaderFeatures", &0x0ff_u64.to_le_bytes()),
            "can sort by sort-key",
            "bootctl update",
        ),
        (
            |m| m.variable("LoaderInfo", "systemd-boot 258.1-2"),
            "258 and 259 miscount",
            "install another",
        ),
        (
            |m| m.variable("LoaderInfo", "systemd-boot 259"),
            "258 and 259 miscount",
            "install another",
        ),
        (
            |m| m.variable("LoaderInfo", "GRUB 2.12"),
            "started by GRUB 2.12",
            "bootctl install",
        ),
        (
            |m| m.unset("LoaderInfo"),
            "no boot loader told",
            "mount efivarfs",
        ),
        (
            |m| m.write(BLESSING, "[Service]\n"),
            "systemd-bless-boot.service would keep an image",
            "systemctl mask",
        ),
        (
            |m| m.entry("debian.conf", "sort-key debian\nlinux /vmlinuz\n"),
            "may start debian.conf",
            "a sort-key behind",
        ),
        (
            |m| m.write("efi/EFI/Linux/other+3.efi", "MZ"),
            "may start EFI/Linux/other+3.efi",
            "remove it",
        ),
        (
            |m| m.entry("by-hand.conf", &text(9, "slot-b")),
            "by-hand.conf starts a slot",
            "remove it",
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
    for (change, what, answer) in cases {
        let machine = Machine::new();
        change(&machine);
        let faults = all(&machine.esp());
        let told = |fault: &String| fault.contains(what) && fault.contains(answer);
        assert!(faults.iter().any(told), "{what}: {faults:?}");
    }
}

#[test]
fn a_kernel_is_missed_only_if_it_is_known_what_runs_and_the_esp_is_there() {
    let machine = Machine::new();
    std::fs::remove_file(machine.path(KERNEL)).unwrap();
    machine.partition(2, "rescue");
    assert_eq!(all(&machine.esp()), [""; 0]);
    machine.partition(2, "root-a");
    assert_eq!(all(&machine.esp()).len(), 1);
    machine.write("proc/self/mountinfo", MOUNTS.replace("/efi", "/elsewhere"));
    let faults = all(&machine.esp());
    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("is not mounted"), "{faults:?}");
}

#[test]
fn a_loader_that_says_nothing_of_itself_can_nothing() {
    let machine = Machine::new();
    machine.unset("LoaderFeatures");
    assert_eq!(all(&machine.esp()).len(), 2);
}

#[test]
fn a_loader_that_waits_for_a_while_goes_on() {
    let machine = Machine::new();
    for value in ["0", "5", "menu-hidden", "menu-disabled"] {
        machine.variable("LoaderConfigTimeout", value);
        assert_eq!(all(&machine.esp()), [""; 0], "{value}");
    }
    machine.variable("LoaderConfigTimeoutOneShot", "5");
    assert_eq!(all(&machine.esp()), [""; 0]);
}

#[test]
fn a_missing_file_of_settings_is_none() {
    let machine = Machine::new();
    std::fs::remove_file(machine.path("efi/loader/loader.conf")).unwrap();
    assert_eq!(all(&machine.esp()), [""; 0]);
}

#[test]
fn a_service_that_is_masked_blesses_nothing() {
    let machine = Machine::new();
    machine.write(BLESSING, "[Service]\n");
    machine.write("etc/systemd/system/here", "");
    let mask = machine.path("etc/systemd/system/systemd-bless-boot.service");
    std::os::unix::fs::symlink("/dev/null", &mask).unwrap();
    assert_eq!(all(&machine.esp()), [""; 0]);
    // A link to another unit is no mask.
    std::fs::remove_file(&mask).unwrap();
    std::os::unix::fs::symlink("/usr/lib/systemd/system/x.service", &mask).unwrap();
    assert_eq!(all(&machine.esp()).len(), 1);
}

#[test]
fn a_watchdog_is_demanded_only_where_it_is_required() {
    let mut machine = Machine::new();
    for watchdog in [Watchdog::Use, Watchdog::Ignore] {
        machine.config.watchdog = watchdog;
        assert_eq!(all(&machine.esp()), [""; 0]);
    }
    machine.config.watchdog = Watchdog::Require;
    let faults = all(&machine.esp());
    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("load the driver"), "{faults:?}");
    machine.write("sys/class/watchdog/watchdog0/identity", "i6300ESB timer\n");
    assert_eq!(all(&machine.esp()), [""; 0]);
}

#[test]
fn a_watchdog_that_cannot_be_stopped_is_one_only_if_somebody_feeds_it() {
    let machine = Machine::new();
    let says = |file: &str, word: &str| {
        machine.write(&format!("sys/class/watchdog/watchdog0/{file}"), word);
        watchdog(&machine.path("sys"), "a test wants one")
    };
    assert_eq!(says("nowayout", "0\n"), None);
    let fault = says("nowayout", "1\n").unwrap();
    assert!(
        fault.contains("a test wants one: let systemd feed it"),
        "{fault}"
    );
    assert!(says("state", "inactive\n").is_some());
    assert_eq!(says("state", "active\n"), None);
}

#[test]
fn a_command_line_must_reset_the_machine_wherever_the_kernel_stops() {
    let good = [
        GOOD,
        "panic=1 rd.emergency=reboot",
        "panic=-1 evenkeel.deadline=60 root=/dev/vda3",
        "panic=0 panic=5 evenkeel.deadline=60",
    ];
    for line in good {
        assert_eq!(cmdline(line, Slot::B), Ok(()), "{line}");
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
        (
            "panic=5 evenkeel.deadline=60 root=PARTLABEL=root-a",
            "slot a",
        ),
    ];
    for (line, why) in bad {
        let said = cmdline(line, Slot::B).unwrap_err();
        assert!(said.contains(why), "{line}: {said}");
    }
}
