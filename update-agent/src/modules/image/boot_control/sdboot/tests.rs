use super::super::fake::{GOOD, MOUNTS, Machine, Mounting, SLOT, names, text, uki, what};
use super::*;
use crate::model::Sha256;
use crate::modules::image::slots::Entry;
use crate::modules::image::unpack::Form;

mod kernels;

fn counted(left: u8, done: u8) -> Entry {
    Entry::Counted { left, done }
}

/// An entry of another system, which sorts behind ours.
const RESCUE: &str = "title rescue\nsort-key rescue\nefi /EFI/rescue/linux.efi\n";

/// The file that it starts.
const RESCUE_KERNEL: &str = "efi/EFI/rescue/linux.efi";

#[tokio::test]
async fn what_runs_and_what_would_start_is_seen() {
    let machine = Machine::new();
    machine.entry("evenkeel-000002+2-1.conf", &text(2, "slot-b"));
    machine.entry("rescue.conf", RESCUE);
    machine.entry("notes.txt", "of a person");
    machine.write("efi/EFI/Linux/other.efi", "MZ");
    machine.write("efi/EFI/Linux/spent+0-3.efi", "MZ");
    let seen = machine.quiet_boot().look().await.unwrap();
    assert_eq!(seen.booted, Some(Slot::A));
    assert_eq!(seen.boot_id, "boot-1");
    assert_eq!(seen.image, Some(("edge".to_owned(), "1.0".to_owned())));
    assert_eq!((seen.a, seen.b), (Entry::Plain, counted(2, 1)));
    assert_eq!(seen.foreign, ["rescue.conf", "EFI/Linux/other.efi"]);
}

#[tokio::test]
async fn the_slot_that_runs_is_found_where_the_root_is_no_partition() {
    let machine = Machine::new();
    let overlay = MOUNTS.replace(
        "254:2 / / ro - erofs /dev/root",
        "0:30 / / rw - overlay over",
    );
    machine.entry("evenkeel-000002+2-1.conf", &text(2, "slot-b"));
    let booted = async || machine.quiet_boot().look().await.unwrap().booted;

    // The partition of the root is what runs, whatever was asked for.
    machine.write("proc/cmdline", "root=PARTLABEL=root-b\n");
    assert_eq!(booted().await, Some(Slot::A));
    machine.write("proc/self/mountinfo", overlay);
    assert_eq!(booted().await, Some(Slot::B));
    machine.write("proc/cmdline", "root=/dev/dm-0\n");
    assert_eq!(booted().await, Some(Slot::A), "as the loader says");
    machine.variable("LoaderEntrySelected", "rescue.conf");
    assert_eq!(booted().await, None);
    machine.unset("LoaderEntrySelected");
    assert_eq!(booted().await, None);
}

#[tokio::test]
async fn a_root_that_is_no_slot_is_none_of_them() {
    let machine = Machine::new();
    machine.partition(2, "rescue");
    assert_eq!(machine.quiet_boot().look().await.unwrap().booted, None);
}

#[tokio::test]
async fn a_folder_of_entries_that_cannot_be_read_is_an_error_and_an_absent_one_is_empty() {
    let machine = Machine::new();
    fs::remove_dir_all(machine.path("efi/loader/entries")).unwrap();
    let seen = machine.quiet_boot().look().await.unwrap();
    assert_eq!((seen.a, seen.b), (Entry::Absent, Entry::Absent));
    machine.write("efi/loader/entries", "a file");
    let failure = machine.quiet_boot().look().await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert!(failure.reason.starts_with("cannot read "), "{failure}");
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story")]
async fn an_image_goes_from_its_file_to_a_blessed_slot() {
    let machine = Machine::new();
    machine.entry("rescue.conf", RESCUE);
    let kernel = uki(GOOD);
    let runner = Arc::new(Mounting::new(&machine, vec![(Slot::B, kernel.clone())]));
    let boot = machine.boot(Arc::<Mounting>::clone(&runner));
    assert_eq!(boot.room(Slot::B).await.unwrap(), SLOT as u64);

    boot.withdraw(Slot::B).await.unwrap();
    let image = vec![0x5a; 3 * 4096 + 100];
    machine.write("image", &image);
    let spooled = Spooled {
        path: machine.path("image"),
        sha256: Sha256::of(&image),
        bytes: image.len() as u64,
        form: Form::Raw,
    };
    let stop = CancellationToken::new();
    let raw = boot.write(Slot::B, &spooled, &stop).await.unwrap();
    assert_eq!(raw.sha256, Sha256::of(&image));
    assert_eq!(raw.bytes, image.len() as u64);
    assert!(
        fs::read(machine.path("dev/vda3"))
            .unwrap()
            .starts_with(&image)
    );
    assert_eq!(fs::read(machine.path("dev/vda2")).unwrap(), vec![0; SLOT]);
    boot.reread(Slot::B, &raw).await.unwrap();

    boot.kernel(Slot::B, &what()).await.unwrap();
    assert_eq!(
        runner.asked(),
        [
            "mount -o ro,nodev,nosuid,noexec /dev/vda3 /var/lib/evenkeel-agent/slot",
            "umount /var/lib/evenkeel-agent/slot"
        ]
    );
    assert!(!machine.path("var/lib/evenkeel-agent/slot").exists());
    assert_eq!(
        names(&machine.path("efi/EFI/evenkeel")),
        ["slot-a.efi", "slot-b.efi"]
    );
    assert_eq!(
        fs::read(machine.path("efi/EFI/evenkeel/slot-b.efi")).unwrap(),
        kernel
    );

    boot.arm(Slot::B, &what(), 2).await.unwrap();
    let all = [
        "evenkeel-000001.conf",
        "evenkeel-000002+3.conf",
        "rescue.conf",
    ];
    assert_eq!(machine.entries(), all);
    let entry = machine.path("efi/loader/entries/evenkeel-000002+3.conf");
    assert_eq!(
        fs::read_to_string(entry).unwrap(),
        "title edge 1.1 (slot b)\nsort-key evenkeel\nversion 000002\nefi /EFI/evenkeel/slot-b.efi\n"
    );
    let listed = machine.esp().entries().unwrap();
    assert_eq!(
        listed[0].slot(),
        Some(Slot::B),
        "the loader starts it first"
    );
    assert_eq!(boot.look().await.unwrap().b, counted(3, 0));

    boot.bless(Slot::B).await.unwrap();
    assert_eq!(
        machine.entries(),
        [
            "evenkeel-000001.conf",
            "evenkeel-000002.conf",
            "rescue.conf"
        ]
    );
    assert_eq!(boot.look().await.unwrap().b, Entry::Plain);
}

#[tokio::test]
async fn a_slot_that_changed_under_what_was_written_is_told() {
    let machine = Machine::new();
    let boot = machine.quiet_boot();
    let raw = Raw {
        sha256: Sha256::of(&[0; 4096]),
        bytes: 4096,
    };
    boot.reread(Slot::B, &raw).await.unwrap();
    machine.write("dev/vda3", vec![1; SLOT]);
    let failure = boot.reread(Slot::B, &raw).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Verify);
}

#[tokio::test]
async fn an_image_that_would_keep_itself_or_has_nothing_to_reset_it_is_not_armed() {
    let cases = [
        (
            "usr/lib/systemd/system/systemd-bless-boot.service",
            "would keep it before it is known to be healthy",
        ),
        (
            "usr/lib/systemd/systemd",
            "evenkeel-trial.service is missing",
        ),
    ];
    for (file, why) in cases {
        let machine = Machine::new();
        machine.write("efi/EFI/evenkeel/slot-b.efi", "the one before");
        let runner = Mounting::new(&machine, vec![(Slot::B, uki(GOOD))]).has(file);
        let runner = Arc::new(runner);
        let boot = machine.boot(Arc::<Mounting>::clone(&runner));
        let failure = boot.kernel(Slot::B, &what()).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Apply);
        assert!(failure.reason.contains("the image 1.1"), "{failure}");
        assert!(failure.reason.contains(why), "{failure}");
        let there = fs::read(machine.path("efi/EFI/evenkeel/slot-b.efi")).unwrap();
        assert_eq!(there, b"the one before");
        assert_eq!(runner.asked().len(), 2, "it is unmounted");
    }
}

#[tokio::test]
async fn an_image_without_a_kernel_or_that_cannot_be_mounted_is_refused() {
    let machine = Machine::new();
    let runner = Arc::new(Mounting::new(&machine, vec![(Slot::A, uki(GOOD))]));
    let boot = machine.boot(Arc::<Mounting>::clone(&runner));
    let failure = boot.kernel(Slot::B, &what()).await.unwrap_err();
    assert!(
        failure
            .reason
            .starts_with("the image has no file usr/lib/evenkeel/boot/slot-b.efi"),
        "{failure}"
    );
    assert_eq!(runner.asked().len(), 2, "it is unmounted");

    let boot = machine.boot(Arc::new(Mounting::new(&machine, Vec::new()).refuses()));
    let failure = boot.kernel(Slot::B, &what()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert!(
        failure.reason.ends_with("ended with status 32"),
        "{failure}"
    );
    assert_eq!(failure.log, "wrong fs type\n");
}

#[tokio::test]
async fn an_esp_that_is_full_has_no_room() {
    let machine = Machine::new();
    let kernel = fs::File::create(machine.path("efi/EFI/evenkeel/slot-a.efi")).unwrap();
    // A hole of 8 TiB: the next kernel would not fit beside it.
    kernel.set_len(8 << 40).unwrap();
    let failure = machine.quiet_boot().room(Slot::B).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert!(
        failure.reason.contains("a kernel needs 10485761 MiB"),
        "{failure}"
    );
}

#[tokio::test]
async fn to_arm_twice_is_to_arm_once() {
    let machine = Machine::new();
    machine.write("efi/EFI/evenkeel/slot-b.efi", uki(GOOD));
    let boot = machine.quiet_boot();
    boot.arm(Slot::B, &what(), 2).await.unwrap();
    boot.arm(Slot::B, &what(), 2).await.unwrap();
    let both = ["evenkeel-000001.conf", "evenkeel-000002+3.conf"];
    assert_eq!(machine.entries(), both);
    boot.bless(Slot::B).await.unwrap();
    boot.bless(Slot::B).await.unwrap();
    let both = ["evenkeel-000001.conf", "evenkeel-000002.conf"];
    assert_eq!(machine.entries(), both);
}

#[tokio::test]
async fn a_slot_is_not_armed_beside_another_entry_or_without_a_kernel() {
    let in_the_way = [
        ("evenkeel-000002.conf", text(2, "slot-b")),
        ("evenkeel-000003+3.conf", text(3, "slot-b")),
        ("evenkeel-000001+3.conf", text(1, "slot-b")),
        ("my-own.conf", text(3, "SLOT-B")),
    ];
    for (file, text) in in_the_way {
        let machine = Machine::new();
        machine.write("efi/EFI/evenkeel/slot-b.efi", uki(GOOD));
        machine.entry(file, &text);
        let before = machine.entries();
        let boot = machine.quiet_boot();
        let failure = boot.arm(Slot::B, &what(), 2).await.unwrap_err();
        assert!(failure.reason.contains(file), "{failure}");
        assert_eq!(machine.entries(), before);
    }
    let machine = Machine::new();
    let failure = machine
        .quiet_boot()
        .arm(Slot::B, &what(), 2)
        .await
        .unwrap_err();
    assert_eq!(failure.reason, "slot b has no kernel on the ESP");
    assert_eq!(machine.entries(), ["evenkeel-000001.conf"]);
}

#[tokio::test]
async fn the_next_entry_comes_first_also_if_the_count_was_lost() {
    let machine = Machine::new();
    machine.write("efi/EFI/evenkeel/slot-b.efi", uki(GOOD));
    machine.entry("evenkeel-000001.conf", RESCUE);
    machine.entry("evenkeel-000041.conf", &text(41, "slot-a"));
    let boot = machine.quiet_boot();
    boot.arm(Slot::B, &what(), 1).await.unwrap();
    boot.arm(Slot::B, &what(), 1).await.unwrap();
    let first = &machine.esp().entries().unwrap()[0];
    assert_eq!(first.file, "evenkeel-000042+3.conf");
    assert_eq!(first.version, "000042");
}

#[tokio::test]
async fn of_both_names_of_a_cut_blessing_the_plain_one_counts_and_none_is_removed() {
    let machine = Machine::new();
    machine.entry("evenkeel-000002+2-1.conf", &text(2, "slot-b"));
    machine.entry("evenkeel-000002.conf", &text(2, "slot-b"));
    let boot = machine.quiet_boot();
    boot.bless(Slot::B).await.unwrap();
    assert_eq!(boot.look().await.unwrap().b, Entry::Plain);
    assert_eq!(machine.entries().len(), 3);
}

#[tokio::test]
async fn names_that_may_have_the_same_clusters_start_nothing_any_more_and_stay() {
    let machine = Machine::new();
    let (counted_down, plain, beside) = (
        "evenkeel-000002+2-1.conf",
        "evenkeel-000002.conf",
        "evenkeel-000002+3.conf.new",
    );
    machine.entry(counted_down, &text(2, "slot-b"));
    let path = |file: &str| machine.path(&format!("efi/loader/entries/{file}"));
    for other in [plain, beside] {
        fs::hard_link(path(counted_down), path(other)).unwrap();
    }
    // Of the entry that stays what lies beside is not touched either.
    machine.entry("evenkeel-000001.conf.new", &text(1, "slot-a"));
    let before = machine.entries();
    let boot = machine.quiet_boot();
    for _ in 0..2 {
        boot.withdraw(Slot::B).await.unwrap();
        assert_eq!(machine.entries(), before);
        let seen = boot.look().await.unwrap();
        assert_eq!((seen.a, seen.b), (Entry::Plain, Entry::Absent));
    }
    let blotted = fs::read_to_string(path(beside)).unwrap();
    assert_eq!(
        blotted.len(),
        text(2, "slot-b").len(),
        "no cluster more or less"
    );
    assert!(blotted.starts_with("# Withdrawn"), "{blotted}");
    assert_eq!(fs::read_to_string(path(plain)).unwrap(), blotted);
    let kept = fs::read_to_string(path("evenkeel-000001.conf.new")).unwrap();
    assert_eq!(kept, text(1, "slot-a"));

    machine.write("efi/EFI/evenkeel/slot-b.efi", uki(GOOD));
    boot.arm(Slot::B, &what(), 3).await.unwrap();
    assert_eq!(boot.look().await.unwrap().b, counted(3, 0));
    assert!(path("evenkeel-000003+3.conf").exists());
}

#[tokio::test]
async fn a_name_that_a_cut_rename_left_empty_has_no_clusters_and_goes() {
    let machine = Machine::new();
    machine.entry("evenkeel-000002+3.conf", "");
    machine.entry("evenkeel-000002+3.conf.new", &text(2, "slot-b"));
    machine.quiet_boot().withdraw(Slot::B).await.unwrap();
    assert_eq!(machine.entries(), ["evenkeel-000001.conf"]);
}

#[tokio::test]
async fn what_has_no_entry_of_ours_is_not_blessed() {
    let machine = Machine::new();
    let boot = machine.quiet_boot();
    let failure = boot.bless(Slot::B).await.unwrap_err();
    assert_eq!(
        failure.reason,
        "slot b has no boot entry that could be kept"
    );
    machine.entry("my-own.conf", &text(2, "slot-b"));
    let failure = boot.bless(Slot::B).await.unwrap_err();
    assert!(failure.reason.contains("my-own.conf"), "{failure}");
}

#[tokio::test]
async fn what_runs_and_lost_its_entry_is_given_one_anew() {
    let machine = Machine::new();
    let lost = machine.path("efi/loader/entries/evenkeel-000001.conf");
    fs::remove_file(&lost).unwrap();
    machine.entry("evenkeel-000004+3.conf", &text(4, "slot-b"));
    let boot = machine.quiet_boot();
    boot.bless(Slot::A).await.unwrap();
    assert_eq!(boot.look().await.unwrap().a, Entry::Plain);
    assert_eq!(
        machine.esp().entries().unwrap()[0].file,
        "evenkeel-000005.conf"
    );

    fs::remove_file(machine.path("efi/loader/entries/evenkeel-000005.conf")).unwrap();
    fs::remove_file(machine.path("efi/EFI/evenkeel/slot-a.efi")).unwrap();
    let failure = boot.bless(Slot::A).await.unwrap_err();
    assert_eq!(failure.reason, "slot a has no kernel on the ESP");
}

#[tokio::test]
async fn withdrawing_a_slot_leaves_the_other_and_what_is_not_ours() {
    let machine = Machine::new();
    machine.entry("evenkeel-000002+2-1.conf", &text(2, "slot-b"));
    // By the case of an old file system, by hand, and what cut writes left.
    machine.entry("EVENKE~1.CON", "left alone");
    machine.entry("EVENKEEL-000003+0-3.CONF", &text(3, "SLOT-B"));
    machine.entry("by-hand.conf", "linux \\EFI\\evenkeel\\slot-b.efi\n");
    machine.entry("evenkeel-000004+3.conf", "");
    machine.entry("evenkeel-000005+3.conf.new", "title half");
    machine.entry("rescue.conf", RESCUE);
    machine.entry("rescue.conf.new", RESCUE);
    let boot = machine.quiet_boot();
    boot.withdraw(Slot::B).await.unwrap();
    let left = [
        "EVENKE~1.CON",
        "evenkeel-000001.conf",
        "rescue.conf",
        "rescue.conf.new",
    ];
    assert_eq!(machine.entries(), left);
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(machine.entries(), left);
}

#[tokio::test]
async fn the_last_entry_that_starts_something_is_never_withdrawn() {
    let machine = Machine::new();
    machine.entry("evenkeel-000002+0-3.conf", &text(2, "slot-b"));
    machine.entry("nothing.conf", "title starts nothing\n");
    let boot = machine.quiet_boot();
    let failure = boot.withdraw(Slot::A).await.unwrap_err();
    assert_eq!(
        failure.reason,
        "the boot entry evenkeel-000001.conf stays: without it the boot loader would have nothing to start"
    );
    assert_eq!(machine.entries().len(), 3);
    machine.entry("rescue.conf", RESCUE);
    machine.write(RESCUE_KERNEL, "MZ");
    boot.withdraw(Slot::A).await.unwrap();
    assert_eq!(boot.look().await.unwrap().a, Entry::Absent);
}

#[tokio::test]
async fn an_entry_whose_file_is_gone_or_empty_is_nothing_that_could_start_instead() {
    let machine = Machine::new();
    let own = "evenkeel-000002+2-1.conf";
    machine.entry(own, &text(2, "slot-b"));
    machine.write("efi/EFI/evenkeel/slot-b.efi", uki(GOOD));
    let boot = machine.quiet_boot();
    let refused = async |context: &str| {
        let failure = boot.withdraw(Slot::B).await.unwrap_err();
        assert!(
            failure
                .reason
                .starts_with(&format!("the boot entry {own} stays")),
            "{context}: {failure}"
        );
        assert!(
            machine.entries().iter().any(|file| file == own),
            "{context}"
        );
    };
    fs::remove_file(machine.path("efi/EFI/evenkeel/slot-a.efi")).unwrap();
    refused("the other kernel is gone").await;
    machine.write("efi/EFI/evenkeel/slot-a.efi", "");
    refused("the other kernel is empty").await;
    machine.entry("rescue.conf", RESCUE);
    refused("the file of the foreign entry is gone").await;
    machine.write("efi/EFI/Linux/loose.efi", "");
    refused("the loose kernel is empty").await;

    machine.write(RESCUE_KERNEL, "MZ");
    boot.withdraw(Slot::B).await.unwrap();
    assert_eq!(boot.look().await.unwrap().b, Entry::Absent);
}
