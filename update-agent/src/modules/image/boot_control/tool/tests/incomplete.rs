//! Slots and kernels that the tool did not write or copy completely.

use super::*;

#[tokio::test]
async fn an_incompletely_written_slot_is_not_armed() {
    let mut fake = FakeTool::new();
    fake.exit_codes.insert("-w", 3);
    let (fake, boot) = fake.into_tool();
    let stop = CancellationToken::new();
    let spooled = fake.spool(ImageFormat::Raw);
    let failure = boot.write(Slot::B, &spooled, &stop).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Apply);
    assert_eq!(failure.log, "no, 3\n");
    // The tool fails after it stored the backup kernel.
    fake.machine.write(&format!("boot/efi/{BACKUP_KERNEL}"), uki_with_cmdline(CMDLINE));
    boot.install_kernel(Slot::B, &spooled_image()).await.unwrap_err();
    let failure = boot.arm(Slot::B, &spooled_image(), 1).await.unwrap_err();
    assert!(failure.reason.contains("was not written completely by"), "{failure}");
    assert_eq!(fake.changing_calls().len(), 1, "{:?}", fake.changing_calls());

    let (fake, boot) = FakeTool::new().into_tool();
    write_image(&fake, &boot).await;
    let failure = boot.arm(Slot::B, &slot_image(), 1).await.unwrap_err();
    assert!(failure.reason.contains("was not written completely by"), "another image");
    fake.machine.write(&format!("boot/efi/{BACKUP_KERNEL}"), uki_with_cmdline("panic=1"));
    let failure = boot.arm(Slot::B, &spooled_image(), 1).await.unwrap_err();
    assert!(failure.reason.contains("is not the kernel that"), "{failure}");
}

#[tokio::test]
async fn an_incompletely_copied_kernel_is_not_started() {
    let (fake, boot) = FakeTool::new().into_tool();
    fake.truncates_kernels.store(true, Ordering::Relaxed);
    write_image(&fake, &boot).await;
    let failure = boot.arm(Slot::B, &spooled_image(), 1).await.unwrap_err();
    assert!(failure.reason.contains("did not copy it completely"), "{failure}");
    // It does not count as tried later either.
    fake.reboot();
    let observed = boot.observe().await.unwrap();
    assert_eq!((observed.a, observed.b), (BootEntry::Plain, BootEntry::Absent));
}
