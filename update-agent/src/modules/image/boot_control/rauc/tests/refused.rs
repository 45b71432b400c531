//! Bundles and systems that are refused.

use super::*;

async fn write(fake: &FakeRauc, boot: &RaucControl, content: &[u8]) -> Result<RawImage, Failure> {
    boot.write(Slot::B, &fake.spool(content), &CancellationToken::new()).await
}

#[tokio::test]
async fn a_file_that_is_no_bundle_for_this_machine_is_refused_before_the_slot_is_written() {
    let (fake, boot) = FakeRauc::new(3).into_control();
    for (content, kind, reason) in [
        (&b"noise"[..], FailureKind::Signature, "does not accept the image as a bundle"),
        (b"other:an image", FailureKind::Unsupported, "made for \"other\""),
    ] {
        let failure = write(&fake, &boot, content).await.unwrap_err();
        assert_eq!(failure.kind, kind, "{failure}");
        assert!(failure.reason.contains(reason), "{failure}");
    }
    assert_eq!(fake.changes(), [""; 0]);
    assert!(!fake.machine.path("spool/image.raucb").exists());
}

#[tokio::test]
async fn a_failed_installation_is_reported_with_its_output() {
    let mut fake = FakeRauc::new(3);
    fake.failing.insert("install");
    let (fake, boot) = fake.into_control();
    let failure =
        boot.write(Slot::B, &fake.spool_bundle(), &CancellationToken::new()).await.unwrap_err();
    assert!(failure.reason.ends_with("ended with status 1"), "{failure}");
    assert_eq!(failure.log, "LastError: install failed");
    boot.observe().await.unwrap();
}

#[tokio::test]
async fn a_slot_that_rauc_activates_by_itself_is_withdrawn() {
    let mut fake = FakeRauc::new(3);
    fake.activates_installed = true;
    let (fake, boot) = fake.into_control();
    let failure =
        boot.write(Slot::B, &fake.spool_bundle(), &CancellationToken::new()).await.unwrap_err();
    assert!(failure.reason.contains("activate-installed=false"), "{failure}");
    assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::Absent));
}

#[tokio::test]
async fn a_slot_with_other_content_than_the_bundle_is_refused() {
    let (fake, boot) = FakeRauc::new(3).into_control();
    let spooled = fake.spool_bundle();
    let raw = boot.write(Slot::B, &spooled, &CancellationToken::new()).await.unwrap();
    fake.machine.write("dev/vda3", vec![7; SLOT_BYTES]);
    let failure = boot.verify_slot(Slot::B, &raw).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Verify);
    let stop = CancellationToken::new();
    let device = fake.machine.path("dev/vda3");
    measure_slot(&device, (Some(raw), true), &stop).unwrap_err();
    // RAUC unpacked an archive into another kind of slot.
    let whole = measure_slot(&device, (Some(raw), false), &stop).unwrap();
    assert_eq!(whole.bytes, SLOT_BYTES as u64);
    assert_eq!(measure_slot(&device, (None, false), &stop).unwrap(), whole);
}

#[tokio::test]
async fn the_running_slot_is_neither_written_nor_armed() {
    let (fake, boot) = FakeRauc::new(3).into_control();
    let spooled = fake.spool_bundle();
    let stop = CancellationToken::new();
    boot.write(Slot::A, &spooled, &stop).await.unwrap_err();
    boot.arm(Slot::A, &installed_image(&spooled), 1).await.unwrap_err();
    boot.install_kernel(Slot::A, &slot_image()).await.unwrap_err();
    let failure = boot.withdraw(Slot::A).await.unwrap_err();
    assert!(failure.reason.contains("could not start anything"), "{failure}");
    assert_eq!(fake.changes(), [""; 0]);
}

#[tokio::test]
async fn an_activation_that_fails_or_has_no_effect_leaves_nothing_armed() {
    let mut fake = FakeRauc::new(3);
    fake.failing.insert("mark-active");
    let (fake, boot) = fake.into_control();
    let failure = write_and_arm(&fake, &boot).await.unwrap_err();
    assert_eq!(failure.log, "LastError: mark-active failed");
    assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::Absent));
    assert!(!boot.mark_path().exists());
}

#[tokio::test]
async fn an_image_that_keeps_itself_is_refused() {
    let mut fake = FakeRauc::new(3);
    fake.files.push("usr/lib/systemd/system/rauc-mark-good.service");
    let (fake, boot) = fake.into_control();
    let failure = write_and_arm(&fake, &boot).await.unwrap_err();
    assert!(failure.reason.contains("rauc-mark-good.service would keep it"), "{failure}");
    let commands = fake.commands.lock().unwrap().clone();
    assert!(commands.iter().any(|command| command.starts_with("umount ")), "{commands:?}");
    assert!(!boot.mark_path().exists());
}

#[tokio::test]
async fn each_fault_of_the_system_prevents_a_trial() {
    type Change = fn(&FakeRauc);
    let faults: [(Change, &str); 6] = [
        (
            |fake| fake.machine.write("etc/rauc/system.conf", "[system]\nstatusfile=/d\n"),
            "activate-installed=false",
        ),
        (
            |fake| {
                fake.machine.write("etc/rauc/system.conf", "[system]\nactivate-installed=false\n");
            },
            "statusfile",
        ),
        (
            |fake| fake.machine.write("usr/lib/systemd/system/rauc-mark-good.service", "[Unit]"),
            "systemctl mask",
        ),
        (
            |fake| {
                fs::remove_file(fake.machine.path("usr/lib/systemd/system/rauc.service")).unwrap();
            },
            "rauc-service",
        ),
        (|fake| fs::remove_dir_all(fake.machine.path("sys/class/watchdog")).unwrap(), "watchdog"),
        (|fake| fake.machine.write("proc/cmdline", "quiet\n"), "panic=N"),
    ];
    for (change, remedy) in faults {
        let (fake, boot) = FakeRauc::new(3).into_control();
        change(&fake);
        let found = boot.faults().await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(remedy), "{found:?}");
    }
    let mut fake = FakeRauc::new(3);
    fake.failing.insert("status");
    let (_fake, boot) = fake.into_control();
    assert_eq!(boot.faults().await.len(), 1);
}
