//! How the kernel of an image is installed on the ESP, and what remains if that fails.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::runner::{Command, Output, RunError};

/// A runner that runs programs only while the work lock is held.
struct LockCheckRunner {
    inner: MountRunner,
    work: Arc<Mutex<()>>,
}

#[async_trait::async_trait]
impl Runner for LockCheckRunner {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let is_locked = self.work.try_lock().is_err();
        assert!(is_locked, "other work may start during {command}");
        self.inner.run(command).await
    }
}

#[tokio::test]
async fn no_other_work_starts_before_the_slot_is_unmounted() {
    let machine = BootMachine::new();
    let work = Arc::<Mutex<()>>::default();
    let runner = LockCheckRunner {
        inner: MountRunner::new(&machine, vec![(Slot::B, uki_with_cmdline(GOOD_CMDLINE))]),
        work: Arc::clone(&work),
    };
    let mut boot = machine.boot_control(Arc::new(runner));
    boot.work = Arc::clone(&work);
    boot.install_kernel(Slot::B, &slot_image()).await.unwrap();
    assert!(work.try_lock().is_ok(), "the lock is released");
}

#[tokio::test]
async fn a_kernel_that_must_not_be_tried_does_not_replace_the_old_one() {
    let cases = [
        (uki_with_cmdline("root=PARTLABEL=root-b ro quiet"), "no panic=N"),
        (uki_with_cmdline("panic=10"), "neither evenkeel.deadline=SECONDS"),
        (
            uki_with_cmdline("root=PARTLABEL=root-a panic=10 rd.emergency=reboot"),
            "names the root of slot a",
        ),
        (b"noise".repeat(100), "slot-b.new: "),
        (Vec::new(), "slot-b.new: "),
    ];
    for (kernel, why) in cases {
        let machine = BootMachine::new();
        machine.write("efi/EFI/evenkeel/slot-b.efi", "the one before");
        let runner = Arc::new(MountRunner::new(&machine, vec![(Slot::B, kernel)]));
        let boot = machine.boot_control(Arc::<MountRunner>::clone(&runner));
        let failure = boot.install_kernel(Slot::B, &slot_image()).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Apply);
        assert!(failure.reason.contains("the image 1.1"), "{failure}");
        assert!(failure.reason.contains(why), "{failure}");
        let there = fs::read(machine.path("efi/EFI/evenkeel/slot-b.efi")).unwrap();
        assert_eq!(there, b"the one before");
        assert_eq!(file_names(&machine.path("efi/EFI/evenkeel")), ["slot-a.efi", "slot-b.efi"]);
        assert_eq!(runner.commands()[3..], UNMOUNT_COMMANDS, "it is unmounted, and writable");
    }
}

#[tokio::test]
async fn a_slot_that_a_killed_agent_left_mounted_is_unmounted_first() {
    let machine = BootMachine::new();
    let left = "30 22 254:3 / /var/lib/evenkeel-agent/slot ro - erofs /dev/vda3 ro\n";
    machine.write("proc/self/mountinfo", format!("{MOUNTS}{left}"));
    machine.write("efi/EFI/evenkeel/slot-b.new", "half a kernel");
    let runner =
        Arc::new(MountRunner::new(&machine, vec![(Slot::B, uki_with_cmdline(GOOD_CMDLINE))]));
    let boot = machine.boot_control(Arc::<MountRunner>::clone(&runner));
    boot.install_kernel(Slot::B, &slot_image()).await.unwrap();
    let commands = runner.commands();
    let programs: Vec<&str> =
        commands.iter().filter_map(|command| command.split(' ').next()).collect();
    let expected = ["umount", "blockdev", "blockdev", "mount", "umount", "blockdev"];
    assert_eq!(programs, expected);
    assert_eq!(file_names(&machine.path("efi/EFI/evenkeel")), ["slot-a.efi", "slot-b.efi"]);
}

#[tokio::test]
async fn an_installed_kernel_is_not_copied_again() {
    let machine = BootMachine::new();
    let kernel = "efi/EFI/evenkeel/slot-b.efi";
    machine.write(kernel, uki_with_cmdline(GOOD_CMDLINE));
    let runner = MountRunner::new(&machine, vec![(Slot::B, uki_with_cmdline(GOOD_CMDLINE))]);
    let file = || fs::metadata(machine.path(kernel)).unwrap().ino();
    let before = file();
    let boot = machine.boot_control(Arc::new(runner));
    boot.install_kernel(Slot::B, &slot_image()).await.unwrap();
    assert_eq!(file(), before);

    let mute = uki_with_cmdline("root=PARTLABEL=root-b ro quiet");
    machine.write(kernel, &mute);
    let boot = machine.boot_control(Arc::new(MountRunner::new(&machine, vec![(Slot::B, mute)])));
    let failure = boot.install_kernel(Slot::B, &slot_image()).await.unwrap_err();
    assert!(failure.reason.contains("no panic=N"), "{failure}");
}

/// A power cut in the middle of a rename, which is more than one write on VFAT.
#[tokio::test]
async fn of_both_names_of_an_interrupted_kernel_rename_none_is_removed_or_replaced() {
    let machine = BootMachine::new();
    let (kernel, temporary) = ("efi/EFI/evenkeel/slot-b.efi", "efi/EFI/evenkeel/slot-b.new");
    machine.write(kernel, uki_with_cmdline(GOOD_CMDLINE));
    fs::hard_link(machine.path(kernel), machine.path(temporary)).unwrap();
    let same_kernel = MountRunner::new(&machine, vec![(Slot::B, uki_with_cmdline(GOOD_CMDLINE))]);
    let boot = machine.boot_control(Arc::new(same_kernel));
    boot.install_kernel(Slot::B, &slot_image()).await.unwrap();

    let other = uki_with_cmdline(&format!("{GOOD_CMDLINE} quiet"));
    let other = MountRunner::new(&machine, vec![(Slot::B, other)]);
    let boot = machine.boot_control(Arc::new(other));
    let failure = boot.install_kernel(Slot::B, &slot_image()).await.unwrap_err();
    assert!(failure.reason.contains("fsck.vfat"), "{failure}");
    for name in [kernel, temporary] {
        assert_eq!(fs::read(machine.path(name)).unwrap(), uki_with_cmdline(GOOD_CMDLINE), "{name}");
    }
    // As after fsck.vfat: one of the names lost its content.
    fs::remove_file(machine.path(temporary)).unwrap();
    machine.write(temporary, "");
    boot.install_kernel(Slot::B, &slot_image()).await.unwrap();
    assert!(!machine.path(temporary).exists());
    let copied = fs::read(machine.path(kernel)).unwrap();
    assert_eq!(copied, uki_with_cmdline(&format!("{GOOD_CMDLINE} quiet")));
}

#[tokio::test]
async fn the_rest_of_an_interrupted_copy_does_not_reduce_the_free_space() {
    let machine = BootMachine::new();
    let hole = |path: &str, bytes| {
        let file = fs::File::create(machine.path(path)).unwrap();
        file.set_len(bytes).unwrap();
    };
    hole("efi/EFI/evenkeel/slot-a.efi", 8 << 40);
    machine.boot_control_without_programs().max_image_bytes(Slot::B).await.unwrap_err();
    hole("efi/EFI/evenkeel/slot-b.new", 10 << 40);
    machine.boot_control_without_programs().max_image_bytes(Slot::B).await.unwrap();
}
