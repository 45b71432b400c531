//! The agent is killed, or RAUC runs another command.

use super::*;

/// Number of changes from withdrawing to arming.
const CHANGES: usize = 3;

#[tokio::test]
async fn an_agent_that_is_killed_after_any_command_leaves_a_slot_that_is_armed_or_does_not_start() {
    for done in 0..=CHANGES {
        let (fake, boot) = FakeRauc::new(3).into_control();
        *fake.changes_left.lock().unwrap() = Some(done);
        let result = write_and_arm(&fake, &boot).await;
        // After the last change only the check is missing.
        assert!(result.is_err(), "{done}");
        let boot = fake.control();
        let is_armed = done == CHANGES;
        let expected = if is_armed { BootEntry::OneShot } else { BootEntry::Absent };
        assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, expected), "{done}");
        assert_eq!(fake.next(), Some(if is_armed { Slot::B } else { Slot::A }));
        // The next process makes the steps again.
        write_and_arm(&fake, &boot).await.unwrap();
        fake.reboot();
        boot.bless(Slot::B).await.unwrap();
        assert_eq!(entries(&boot).await, (Some(Slot::B), BootEntry::Plain, BootEntry::Plain));
    }
}

#[tokio::test]
async fn a_withdrawal_that_is_interrupted_starts_the_other_slot_and_is_repeated() {
    for done in 0..=2 {
        let (fake, boot) = FakeRauc::new(3).into_control();
        let image = write_and_arm(&fake, &boot).await.unwrap();
        *fake.changes_left.lock().unwrap() = Some(done);
        boot.withdraw(Slot::B).await.unwrap_err();
        let next = if done == 0 { Slot::B } else { Slot::A };
        assert_eq!(fake.next(), Some(next), "{done}");
        let boot = fake.control();
        boot.withdraw(Slot::B).await.unwrap();
        assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::Absent));
        boot.arm(Slot::B, &image, 2).await.unwrap();
        assert_eq!(fake.next(), Some(Slot::B));
    }
}

#[tokio::test]
async fn a_blessing_that_is_interrupted_is_repeated() {
    let (fake, boot) = FakeRauc::new(3).into_control();
    let image = write_and_arm(&fake, &boot).await.unwrap();
    fake.reboot();
    *fake.changes_left.lock().unwrap() = Some(1);
    boot.bless(Slot::B).await.unwrap_err();
    let boot = fake.control();
    let observed = boot.observe().await.unwrap();
    assert_eq!(observed.b, BootEntry::OneShot);
    let passed = SlotState::Trial {
        image: image.clone(),
        boots: vec![observed.boot_id.clone()],
        passed: true,
        undecided_end: None,
    };
    let record = Slots { b: passed, ..armed_record(&image, "boot-1") };
    let (_, repairs) = reconcile(&record, &observed, DateTime::UNIX_EPOCH);
    assert_eq!(repairs, [BootRepair::Bless(Slot::B)]);
    boot.bless(Slot::B).await.unwrap();
    assert_eq!(boot.observe().await.unwrap().b, BootEntry::Plain);
}

#[tokio::test]
async fn a_power_cut_before_the_activation_counts_as_a_trial_and_a_killed_agent_does_not() {
    let (fake, boot) = FakeRauc::new(3).into_control();
    let mark = ArmedMark {
        slot: Slot::B,
        boot_id: "boot-1".to_owned(),
        bootname: "B".to_owned(),
        guard_seconds: 660,
    };
    mark.write(&boot.mark_path()).unwrap();
    assert_eq!(boot.observe().await.unwrap().b, BootEntry::Absent);
    fake.reboot();
    assert_eq!(entries(&boot).await, (Some(Slot::A), BootEntry::Plain, BootEntry::OneShot));
}

#[tokio::test]
async fn a_mark_that_cannot_be_read_does_not_make_an_image_on_trial_good() {
    let (fake, boot) = FakeRauc::new(3).into_control();
    write_and_arm(&fake, &boot).await.unwrap();
    fake.reboot();
    fs::write(boot.mark_path(), "{").unwrap();
    let failure = boot.observe().await.unwrap_err();
    assert!(failure.reason.contains("rauc-armed.json"), "{failure}");
}

#[tokio::test]
async fn while_rauc_is_busy_nothing_is_changed_and_the_failure_is_temporary() {
    let (fake, boot) = FakeRauc::new(3).into_control();
    let spooled = fake.spool_bundle();
    *fake.is_busy.lock().unwrap() = true;
    let failures = [
        boot.observe().await.unwrap_err(),
        boot.withdraw(Slot::B).await.unwrap_err(),
        boot.write(Slot::B, &spooled, &CancellationToken::new()).await.unwrap_err(),
        boot.arm(Slot::B, &installed_image(&spooled), 1).await.unwrap_err(),
    ];
    for failure in failures {
        assert!(failure.is_temporary && failure.reason.contains("wait until it ends"), "{failure}");
    }
    assert_eq!(fake.changes(), [""; 0]);
    assert!(!boot.mark_path().exists());
}

#[tokio::test]
async fn the_boot_state_is_known_during_an_installation() {
    let (fake, boot) = FakeRauc::new(3).into_control();
    let before = boot.observe().await.unwrap();
    *boot.during_installation.lock().unwrap() = Some(before.clone());
    *fake.is_busy.lock().unwrap() = true;
    assert_eq!(boot.observe().await.unwrap(), before);
    drop(InstallationGuard(Arc::clone(&boot.during_installation)));
    boot.observe().await.unwrap_err();
}
