use super::*;
use crate::model::{
    Change, Failure, FailureKind, ImageChange, ImageWish, News, PackageResult, Wish, Withheld,
    WithheldCause,
};

fn event(news: News, sequence: u32) -> Event {
    Event {
        sequence,
        at: DateTime::UNIX_EPOCH,
        boot_id: String::new(),
        news,
        account: None,
    }
}

fn entry() -> Entry {
    let target = Target {
        digest: "d".into(),
        wish: Wish::Unknown,
    };
    Entry {
        phase: Phase::Staged,
        events: vec![
            event(News::Downloading(Plan::default()), 1),
            event(News::Downloaded, 2),
        ],
        acknowledged: 1,
        ..Entry::new(Uuid::from_u128(7), target)
    }
}

#[test]
fn what_was_written_is_read_until_it_is_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let journal = FileJournal::at(folder.path().join("journal.json"));
    assert_eq!(journal.read().unwrap(), None);
    journal.write(&Point::fixed("opened"), &entry()).unwrap();
    assert_eq!(journal.read().unwrap(), Some(entry()));
    journal.clear().unwrap();
    assert_eq!(journal.read().unwrap(), None);
    journal.clear().unwrap();
}

#[test]
fn only_what_is_not_acknowledged_is_sent() {
    let mut entry = entry();
    let numbers = |entry: &Entry| {
        entry
            .unsent()
            .iter()
            .map(|event| event.sequence)
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers(&entry), [2]);
    entry.acknowledged = 0;
    assert_eq!(numbers(&entry), [1, 2]);
    entry.acknowledged = 9;
    assert_eq!(numbers(&entry), [0; 0]);
}

#[test]
fn a_journal_that_makes_no_sense_is_set_aside_and_not_guessed_at() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.json");
    let journal = FileJournal::at(&path);
    journal.write(&Point::fixed("opened"), &entry()).unwrap();
    let sound = std::fs::read_to_string(&path).unwrap();

    let gap = sound.replace("\"sequence\":1", "\"sequence\":3");
    let other_form = sound.replace("\"format\":1", "\"format\":2");
    let half = sound[..sound.len() / 2].to_owned();
    let unknown = sound.replace("\"before\"", "\"befour\"");
    for (number, bad) in [gap, other_form, half, unknown, String::new()]
        .into_iter()
        .enumerate()
    {
        std::fs::write(&path, &bad).unwrap();
        assert_eq!(journal.read().unwrap(), None, "{bad}");
        assert!(!path.exists());
        let aside = folder.path().join(format!("journal.json.corrupt-{number}"));
        assert_eq!(std::fs::read_to_string(aside).unwrap(), bad);
    }
}

#[test]
fn what_was_set_aside_is_told_until_a_person_removes_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.json");
    assert!(FileJournal::set_asides(&path).is_empty());
    std::fs::write(&path, "noise").unwrap();
    FileJournal::at(&path).read().unwrap();
    let told = FileJournal::set_asides(&path);
    let aside = folder.path().join("journal.json.corrupt-0");
    assert_eq!(told.len(), 1);
    assert!(told[0].contains(&aside.display().to_string()), "{told:?}");
    std::fs::remove_file(aside).unwrap();
    assert!(FileJournal::set_asides(&path).is_empty());
    assert!(FileJournal::set_asides(Path::new("/no/such/folder/journal.json")).is_empty());
}

#[test]
fn a_clock_that_jumps_makes_no_negative_time() {
    let at = |seconds| DateTime::from_timestamp(seconds, 0).unwrap();
    let mut entry = entry();
    entry.spent("download", (at(100), at(103)), 7);
    entry.spent("download", (at(103), at(5)), 1);
    entry.spent("apply", (at(9), at(8)), 0);
    let account = entry.account().unwrap();
    let told: Vec<_> = account
        .phases
        .iter()
        .map(|span| (span.phase.as_str(), span.millis, span.bytes))
        .collect();
    assert_eq!(told, [("download", 3000, 8), ("apply", 0, 0)]);
}

#[test]
fn the_journal_of_an_agent_that_noted_less_is_understood() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.json");
    let earlier = r#"{"format":1,"attempt":{
        "attempt":"00000000-0000-0000-0000-000000000007",
        "target":{"digest":"d","wish":{"packages":{"mode":"latest","sources":[]}}},
        "phase":"applying",
        "plan":{"changes":[{"name":"a","architecture":"all","before":"1","after":"2"}],"download_bytes":3},
        "steps":[],"events":[{"sequence":1,"at":"1970-01-01T00:00:00Z","boot_id":"b","news":"began"}],
        "acknowledged":0,"before":null}}"#;
    std::fs::write(&path, earlier).unwrap();
    let entry = FileJournal::at(&path).read().unwrap().unwrap();
    assert_eq!(entry.phase, Phase::Applying);
    assert!(entry.baselines.is_empty());
    assert_eq!(entry.account(), None);
}

/// An image is left, and the older agent of the one before reads what the newer one wrote down.
#[test]
fn what_a_newer_agent_tells_besides_is_read_past_and_what_it_wants_besides_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.json");
    let journal = FileJournal::at(&path);
    let entry = told_at_length();
    journal.write(&Point::fixed("ended"), &entry).unwrap();
    let sound: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let with_more = |pointer: &str| {
        let mut newer = sound.clone();
        let object = newer.pointer_mut(pointer).and_then(Value::as_object_mut);
        let added = object.expect("an object").insert("more".into(), 1.into());
        assert_eq!(added, None);
        newer.to_string()
    };
    for told in [
        "/attempt/plan",
        "/attempt/plan/changes/0",
        "/attempt/plan/withheld/0",
        "/attempt/plan/image",
        "/attempt/spans/0",
        "/attempt/events/0",
        "/attempt/events/0/news/downloading",
        "/attempt/events/1/news/failed",
        "/attempt/events/1/news/failed/failure",
        "/attempt/events/1/news/failed/results/0",
        "/attempt/events/1/account",
        "/attempt/events/1/account/phases/0",
    ] {
        fs::write(&path, with_more(told)).unwrap();
        assert_eq!(journal.read().unwrap().as_ref(), Some(&entry), "{told}");
    }
    for wanted in [
        "",
        "/attempt",
        "/attempt/target",
        "/attempt/target/wish/image",
        "/attempt/target/wish/image/rules",
        "/attempt/steps/0",
        "/attempt/steps/0/step",
    ] {
        fs::write(&path, with_more(wanted)).unwrap();
        assert_eq!(journal.read().unwrap(), None, "{wanted}");
    }
}

/// An attempt for an image that is over, with everything in it that can be told.
fn told_at_length() -> Entry {
    let wish = Wish::Image(ImageWish::sample("1.1"));
    let digest = "d".to_owned();
    let mut entry = Entry::new(Uuid::from_u128(7), Target { digest, wish });
    entry.steps.push(Step {
        step: AnyStep {
            module: "image".into(),
            name: "arm".into(),
            what: Value::Null,
        },
        done: false,
    });
    entry.plan = Plan {
        changes: vec![Change {
            name: "a".into(),
            architecture: "all".into(),
            before: None,
            after: Some("2".into()),
            suite: String::new(),
            download_bytes: 0,
        }],
        withheld: vec![Withheld {
            name: "b".into(),
            architecture: "all".into(),
            installed: "1".into(),
            available: "2".into(),
            cause: WithheldCause::Hold,
        }],
        image: Some(ImageChange::default()),
        ..Plan::default()
    };
    entry.spans.push(PhaseSpan::default());
    let failed = News::Failed {
        failure: Failure::new(FailureKind::Verify, "it hung"),
        results: vec![PackageResult {
            name: "a".into(),
            architecture: "all".into(),
            version: "1".into(),
            state: "installed".into(),
        }],
        booted: None,
    };
    let plan = entry.plan.clone();
    entry.events = vec![event(News::Downloading(plan), 1), event(failed, 2)];
    entry.events[1].account = entry.account();
    entry.phase = Phase::Over;
    entry
}

/// An agent that knows nothing of images is put back on a node, and the other way round.
#[test]
fn what_is_not_of_an_image_is_written_as_before_and_what_is_one_can_be_read_again() {
    let words = |entry: &Entry| serde_json::to_string(entry).unwrap();
    let mut entry = entry();
    let finished = News::Finished {
        results: Vec::new(),
        booted: None,
    };
    entry.events.push(event(finished, 3));
    for word in ["image", "booted", "reboot_is_the_change"] {
        assert!(!words(&entry).contains(word), "{word}");
    }

    entry.plan.image = Some(ImageChange {
        profile_name: "demo".into(),
        before: "1.0".into(),
        wanted: "1.1".into(),
    });
    entry.reboot_is_the_change = true;
    let reverted = News::Reverted {
        failure: Failure::new(FailureKind::Verify, "it hung"),
        booted: Some("1.0".into()),
    };
    entry.events.push(event(reverted, 4));
    let read: Entry = serde_json::from_str(&words(&entry)).unwrap();
    assert_eq!(read, entry);
}
