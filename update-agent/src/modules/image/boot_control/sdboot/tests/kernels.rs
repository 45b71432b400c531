//! How the kernel of an image comes to the ESP, and what is left when it does not.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::runner::{Output, RunError};

/// Runs programs only while other work is kept out.
struct KeptOut {
    inner: Mounting,
    work: Arc<Mutex<()>>,
}

#[async_trait::async_trait]
impl Runner for KeptOut {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let is_kept_out = self.work.try_lock().is_err();
        assert!(is_kept_out, "other work may begin beside {command}");
        self.inner.run(command).await
    }
}

#[tokio::test]
async fn no_other_work_begins_before_the_slot_is_unmounted_again() {
    let machine = Machine::new();
    let work = Arc::<Mutex<()>>::default();
    let runner = KeptOut {
        inner: Mounting::new(&machine, vec![(Slot::B, uki(GOOD))]),
        work: Arc::clone(&work),
    };
    let mut boot = machine.boot(Arc::new(runner));
    boot.work = Arc::clone(&work);
    boot.kernel(Slot::B, &what()).await.unwrap();
    assert!(work.try_lock().is_ok(), "it is over");
}

#[tokio::test]
async fn a_kernel_that_must_not_be_tried_leaves_the_one_that_was_there() {
    let cases = [
        (uki("root=PARTLABEL=root-b ro quiet"), "no panic=N"),
        (uki("panic=10"), "neither evenkeel.deadline=SECONDS"),
        (
            uki("root=PARTLABEL=root-a panic=10 rd.emergency=reboot"),
            "names the root of slot a",
        ),
        (b"noise".repeat(100), "slot-b.new: "),
        (Vec::new(), "slot-b.new: "),
    ];
    for (kernel, why) in cases {
        let machine = Machine::new();
        machine.write("efi/EFI/evenkeel/slot-b.efi", "the one before");
        let runner = Arc::new(Mounting::new(&machine, vec![(Slot::B, kernel)]));
        let boot = machine.boot(Arc::<Mounting>::clone(&runner));
        let failure = boot.kernel(Slot::B, &what()).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Apply);
        assert!(failure.reason.contains("the image 1.1"), "{failure}");
        assert!(failure.reason.contains(why), "{failure}");
        let there = fs::read(machine.path("efi/EFI/evenkeel/slot-b.efi")).unwrap();
        assert_eq!(there, b"the one before");
        assert_eq!(
            names(&machine.path("efi/EFI/evenkeel")),
            ["slot-a.efi", "slot-b.efi"]
        );
        assert_eq!(runner.asked().len(), 2, "it is unmounted");
    }
}

#[tokio::test]
async fn what_a_killed_agent_left_mounted_is_unmounted_first() {
    let machine = Machine::new();
    let left = "30 22 254:3 / /var/lib/evenkeel-agent/slot ro - erofs /dev/vda3 ro\n";
    machine.write("proc/self/mountinfo", format!("{MOUNTS}{left}"));
    machine.write("efi/EFI/evenkeel/slot-b.new", "half a kernel");
    let runner = Arc::new(Mounting::new(&machine, vec![(Slot::B, uki(GOOD))]));
    let boot = machine.boot(Arc::<Mounting>::clone(&runner));
    boot.kernel(Slot::B, &what()).await.unwrap();
    let asked = runner.asked();
    let programs: Vec<&str> = asked
        .iter()
        .filter_map(|command| command.split(' ').next())
        .collect();
    assert_eq!(programs, ["umount", "mount", "umount"]);
    assert_eq!(
        names(&machine.path("efi/EFI/evenkeel")),
        ["slot-a.efi", "slot-b.efi"]
    );
}

#[tokio::test]
async fn a_kernel_that_is_in_its_place_already_is_not_copied_again() {
    let machine = Machine::new();
    let kernel = "efi/EFI/evenkeel/slot-b.efi";
    machine.write(kernel, uki(GOOD));
    let runner = Mounting::new(&machine, vec![(Slot::B, uki(GOOD))]);
    let file = || fs::metadata(machine.path(kernel)).unwrap().ino();
    let before = file();
    let boot = machine.boot(Arc::new(runner));
    boot.kernel(Slot::B, &what()).await.unwrap();
    assert_eq!(file(), before);

    let mute = uki("root=PARTLABEL=root-b ro quiet");
    machine.write(kernel, &mute);
    let boot = machine.boot(Arc::new(Mounting::new(&machine, vec![(Slot::B, mute)])));
    let failure = boot.kernel(Slot::B, &what()).await.unwrap_err();
    assert!(failure.reason.contains("no panic=N"), "{failure}");
}

/// A rename on VFAT is more than one write: the power went in the midst of it.
#[tokio::test]
async fn of_both_names_of_a_kernel_that_a_cut_rename_left_none_is_removed_or_replaced() {
    let machine = Machine::new();
    let (kernel, beside) = ("efi/EFI/evenkeel/slot-b.efi", "efi/EFI/evenkeel/slot-b.new");
    machine.write(kernel, uki(GOOD));
    fs::hard_link(machine.path(kernel), machine.path(beside)).unwrap();
    let wanted = Mounting::new(&machine, vec![(Slot::B, uki(GOOD))]);
    let boot = machine.boot(Arc::new(wanted));
    boot.kernel(Slot::B, &what()).await.unwrap();

    let other = uki(&format!("{GOOD} quiet"));
    let other = Mounting::new(&machine, vec![(Slot::B, other)]);
    let boot = machine.boot(Arc::new(other));
    let failure = boot.kernel(Slot::B, &what()).await.unwrap_err();
    assert!(failure.reason.contains("fsck.vfat"), "{failure}");
    for name in [kernel, beside] {
        assert_eq!(fs::read(machine.path(name)).unwrap(), uki(GOOD), "{name}");
    }
    // It was checked: one of them lost its content.
    fs::remove_file(machine.path(beside)).unwrap();
    machine.write(beside, "");
    boot.kernel(Slot::B, &what()).await.unwrap();
    assert!(!machine.path(beside).exists());
    let copied = fs::read(machine.path(kernel)).unwrap();
    assert_eq!(copied, uki(&format!("{GOOD} quiet")));
}

#[tokio::test]
async fn what_an_interrupted_copy_left_does_not_take_the_room_of_the_next_one() {
    let machine = Machine::new();
    let hole = |path: &str, bytes| {
        let file = fs::File::create(machine.path(path)).unwrap();
        file.set_len(bytes).unwrap();
    };
    hole("efi/EFI/evenkeel/slot-a.efi", 8 << 40);
    machine.quiet_boot().room(Slot::B).await.unwrap_err();
    hole("efi/EFI/evenkeel/slot-b.new", 10 << 40);
    machine.quiet_boot().room(Slot::B).await.unwrap();
}
