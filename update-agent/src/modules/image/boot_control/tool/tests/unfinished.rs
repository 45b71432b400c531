//! Calls that nobody waits for any longer, and agents that ended beside one.

use std::time::Instant;

use super::*;
use crate::lock::AgentLock;
use crate::place::Place;
use crate::runner::HostRunner;

/// Programs of this machine take no longer.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn while_an_earlier_call_is_at_work_nothing_is_begun() {
    let (fake, boot) = FakeTool::new().boot();
    written(&fake, &boot).await;
    let (note, changes) = (fake.note(), fake.changes());
    let stop = CancellationToken::new();
    let spooled = fake.spooled(Form::Raw);
    let earlier = AgentLock::take(&boot.lock()).unwrap();
    let refused = [
        boot.write(Slot::B, &spooled, &stop).await.map(drop),
        boot.withdraw(Slot::B).await,
        boot.arm(Slot::B, &spooled_what(), 1).await,
    ];
    for failure in refused.map(Result::unwrap_err) {
        assert!(failure.reason.contains("is still at work"), "{failure}");
    }
    assert_eq!((fake.note(), fake.changes()), (note, changes));
    drop(earlier);
    boot.arm(Slot::B, &spooled_what(), 1).await.unwrap();

    // What it ordered does not count before it ends, nor can the slot be kept meanwhile.
    let earlier = AgentLock::take(&boot.lock()).unwrap();
    let seen = boot.look().await.unwrap();
    assert!(matches!(&seen.b, Entry::Strange(why) if why.contains("at work")));
    fake.reset();
    let failure = boot.bless(Slot::B).await.unwrap_err();
    assert!(failure.reason.contains("is still at work"), "{failure}");
    drop(earlier);
    boot.bless(Slot::B).await.unwrap();
}

#[tokio::test]
async fn the_tool_keeps_others_away_until_it_ends_whoever_waits_for_it() {
    let state = tempfile::tempdir().unwrap();
    let (begun, gate) = (state.path().join("begun"), state.path().join("gate"));
    let script = format!(
        ": > {}; until [ -e {} ]; do sleep 0.01; done",
        begun.display(),
        gate.display()
    );
    let place = Place::new("/", Some(state.path().to_owned()));
    let boot = Tool::new(
        System::of(&place),
        Arc::new(HostRunner::new(Path::new("/"))),
        Path::new("/bin/sh"),
        &ImageConfig::default(),
    );
    let patience = Duration::from_millis(50);
    let failure = boot.change(patience, &["-c", &script]).await.unwrap_err();
    assert!(failure.reason.starts_with("/bin/sh -c"), "{failure}");
    assert!(failure.reason.contains("did not end within"), "{failure}");
    let start = Instant::now();
    while !begun.exists() {
        assert!(start.elapsed() < SOON, "it was not begun");
        tokio::task::yield_now().await;
    }
    let failure = boot.change(SOON, &["-c", ":"]).await.unwrap_err();
    assert!(failure.reason.contains("is still at work"), "{failure}");

    std::fs::write(gate, "").unwrap();
    while boot.change(SOON, &["-c", ":"]).await.is_err() {
        assert!(start.elapsed() < SOON, "it holds the lock for ever");
        tokio::task::yield_now().await;
    }
}

/// An agent that ended right behind `-a`.
fn ordered(fake: &FakeTool, boot: &Tool) {
    let mark = Mark {
        slot: Slot::B,
        boot_id: "boot-1".to_owned(),
    };
    let note = Note {
        mark: Some(mark),
        ..fake.note().expect("it was written")
    };
    note.write(&boot.note()).expect("a note");
    fake.act(&["-a"]);
}

#[tokio::test]
async fn what_was_ordered_and_not_compared_is_armed_if_it_is_whole() {
    let (fake, boot) = FakeTool::new().boot();
    written(&fake, &boot).await;
    ordered(&fake, &boot);
    assert_eq!(boot.look().await.unwrap().b, Entry::Once);
}

#[tokio::test]
async fn what_was_ordered_and_is_torn_is_not_armed_and_is_ordered_anew_or_taken_back() {
    for is_wanted in [true, false] {
        let (fake, boot) = FakeTool::new().boot();
        written(&fake, &boot).await;
        fake.tears.store(true, Ordering::Relaxed);
        ordered(&fake, &boot);
        let seen = boot.look().await.unwrap();
        assert!(matches!(&seen.b, Entry::Strange(why) if why.contains("copy it whole")));

        fake.tears.store(false, Ordering::Relaxed);
        if is_wanted {
            boot.arm(Slot::B, &spooled_what(), 1).await.unwrap();
            assert_eq!(boot.look().await.unwrap().b, Entry::Once);
            let changes = fake.changes();
            assert_eq!(changes[1..], ["bootctl set-oneshot", "-a"]);
        } else {
            boot.withdraw(Slot::B).await.unwrap();
            assert_eq!(boot.look().await.unwrap().b, Entry::Absent);
            assert_eq!(fake.note().unwrap().mark, None);
        }
    }
}
