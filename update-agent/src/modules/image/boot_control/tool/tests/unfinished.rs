//! Calls that outlive their time limit, and agents that are killed during a call.

use std::time::Instant;

use super::*;
use crate::agent_lock::AgentLock;
use crate::paths::AgentPaths;
use crate::runner::HostRunner;

/// Time limit for programs of this machine.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn nothing_starts_while_an_earlier_call_is_running() {
    let (fake, boot) = FakeTool::new().into_tool();
    write_image(&fake, &boot).await;
    let (note, changes) = (fake.record(), fake.changing_calls());
    let stop = CancellationToken::new();
    let spooled = fake.spool(ImageFormat::Raw);
    let earlier = AgentLock::acquire(&boot.lock_path()).unwrap();
    let refused = [
        boot.write(Slot::B, &spooled, &stop).await.map(drop),
        boot.withdraw(Slot::B).await,
        boot.arm(Slot::B, &spooled_image(), 1).await,
    ];
    for failure in refused.map(Result::unwrap_err) {
        assert!(failure.reason.contains("is still running"), "{failure}");
        assert!(failure.is_temporary, "it would end the attempt of the earlier call: {failure}");
    }
    assert_eq!((fake.record(), fake.changing_calls()), (note, changes));
    drop(earlier);
    boot.arm(Slot::B, &spooled_image(), 1).await.unwrap();

    // Its order is invalid until it ends, and the slot cannot be blessed meanwhile.
    let earlier = AgentLock::acquire(&boot.lock_path()).unwrap();
    let observed = boot.observe().await.unwrap();
    assert!(matches!(&observed.b, BootEntry::Invalid(why) if why.contains("still running")));
    fake.reboot();
    let failure = boot.bless(Slot::B).await.unwrap_err();
    assert!(failure.reason.contains("is still running"), "{failure}");
    drop(earlier);
    boot.bless(Slot::B).await.unwrap();
}

#[tokio::test]
async fn the_tool_holds_the_lock_until_it_ends() {
    let state = tempfile::tempdir().unwrap();
    let (begun, gate) = (state.path().join("begun"), state.path().join("gate"));
    let script =
        format!(": > {}; until [ -e {} ]; do sleep 0.01; done", begun.display(), gate.display());
    let paths = AgentPaths::new("/", Some(state.path().to_owned()));
    let boot = ImageTool::new(
        SystemInterfaces::new(&paths),
        Arc::new(HostRunner::new(Path::new("/"))),
        Path::new("/bin/sh"),
        &ImageConfig::default(),
    );
    let timeout = Duration::from_millis(50);
    let failure = boot.run_change(timeout, &["-c", &script]).await.unwrap_err();
    assert!(failure.reason.starts_with("/bin/sh -c"), "{failure}");
    assert!(failure.reason.contains("did not end within"), "{failure}");
    let start = Instant::now();
    while !begun.exists() {
        assert!(start.elapsed() < PROGRAM_TIMEOUT, "it does not start");
        tokio::task::yield_now().await;
    }
    let failure = boot.run_change(PROGRAM_TIMEOUT, &["-c", ":"]).await.unwrap_err();
    assert!(failure.reason.contains("is still running"), "{failure}");

    std::fs::write(gate, "").unwrap();
    while boot.run_change(PROGRAM_TIMEOUT, &["-c", ":"]).await.is_err() {
        assert!(start.elapsed() < PROGRAM_TIMEOUT, "it never releases the lock");
        tokio::task::yield_now().await;
    }
}

/// Simulates an agent that is killed right after `-a`.
fn arm_without_check(fake: &FakeTool, boot: &ImageTool) {
    let mark = TrialMark { slot: Slot::B, boot_id: "boot-1".to_owned() };
    let note = ToolRecord { mark: Some(mark), ..fake.record().expect("it was written") };
    note.write(&boot.record_path()).expect("a note");
    fake.execute(&["-a"]);
}

#[tokio::test]
async fn an_unchecked_one_shot_is_armed_if_its_kernel_is_complete() {
    let (fake, boot) = FakeTool::new().into_tool();
    write_image(&fake, &boot).await;
    arm_without_check(&fake, &boot);
    assert_eq!(boot.observe().await.unwrap().b, BootEntry::OneShot);
}

#[tokio::test]
async fn an_unchecked_one_shot_with_a_truncated_kernel_is_not_armed() {
    for is_desired in [true, false] {
        let (fake, boot) = FakeTool::new().into_tool();
        write_image(&fake, &boot).await;
        fake.truncates_kernels.store(true, Ordering::Relaxed);
        arm_without_check(&fake, &boot);
        let observed = boot.observe().await.unwrap();
        assert!(
            matches!(&observed.b, BootEntry::Invalid(why) if why.contains("copy it completely"))
        );

        fake.truncates_kernels.store(false, Ordering::Relaxed);
        if is_desired {
            boot.arm(Slot::B, &spooled_image(), 1).await.unwrap();
            assert_eq!(boot.observe().await.unwrap().b, BootEntry::OneShot);
            let changes = fake.changing_calls();
            assert_eq!(changes[1..], ["bootctl set-oneshot", "-a"]);
        } else {
            boot.withdraw(Slot::B).await.unwrap();
            assert_eq!(boot.observe().await.unwrap().b, BootEntry::Absent);
            assert_eq!(fake.record().unwrap().mark, None);
        }
    }
}
