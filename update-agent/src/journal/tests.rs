use super::*;
use serde_json::{Value, json};

use crate::model::{EventKind, Failure, FailureKind, InterruptionCause, SpaceNeed};

fn event(kind: EventKind, sequence: u32) -> AttemptEvent {
    AttemptEvent {
        sequence,
        at: DateTime::UNIX_EPOCH,
        boot_id: "boot-1".to_owned(),
        kind,
        report: None,
        interruptions: Vec::new(),
    }
}

fn entry() -> JournalEntry {
    let target = UpdateTarget { digest: "d".into(), spec: ModuleParts::default() };
    JournalEntry {
        phase: Phase::Staged,
        events: vec![event(EventKind::Downloading, 1), event(EventKind::Downloaded, 2)],
        acknowledged: 1,
        ..JournalEntry::new(Uuid::from_u128(7), target)
    }
}

#[test]
fn an_entry_is_read_until_it_is_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let journal = FileJournal::new(folder.path().join("journal.json"));
    assert_eq!(journal.read().unwrap(), None);
    journal.write(&JournalPoint::fixed("opened"), &entry()).unwrap();
    assert_eq!(journal.read().unwrap(), Some(entry()));
    journal.clear().unwrap();
    assert_eq!(journal.read().unwrap(), None);
    journal.clear().unwrap();
}

#[test]
fn only_unacknowledged_events_are_unsent() {
    let mut entry = entry();
    let numbers = |entry: &JournalEntry| {
        entry.unsent().iter().map(|event| event.sequence).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&entry), [2]);
    entry.acknowledged = 0;
    assert_eq!(numbers(&entry), [1, 2]);
    entry.acknowledged = 9;
    assert_eq!(numbers(&entry), [0; 0]);
}

#[test]
fn an_unreadable_journal_is_quarantined() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.json");
    let journal = FileJournal::new(&path);
    journal.write(&JournalPoint::fixed("opened"), &entry()).unwrap();
    let sound = std::fs::read_to_string(&path).unwrap();

    let gap = sound.replace("\"sequence\":1", "\"sequence\":3");
    let other_form = sound.replace("\"format\":2", "\"format\":1");
    let half = sound[..sound.len() / 2].to_owned();
    let no_events = sound.replace("\"events\"", "\"evends\"");
    for (number, bad) in [gap, other_form, half, no_events, String::new()].into_iter().enumerate() {
        std::fs::write(&path, &bad).unwrap();
        assert_eq!(journal.read().unwrap(), None, "{bad}");
        assert!(!path.exists());
        let quarantined = folder.path().join(format!("journal.json.corrupt-{number}"));
        assert_eq!(std::fs::read_to_string(quarantined).unwrap(), bad);
    }
}

#[test]
fn a_quarantined_journal_is_reported_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.json");
    assert!(FileJournal::quarantined_files(&path).is_empty());
    std::fs::write(&path, "noise").unwrap();
    FileJournal::new(&path).read().unwrap();
    let reports = FileJournal::quarantined_files(&path);
    let quarantined = folder.path().join("journal.json.corrupt-0");
    assert_eq!(reports.len(), 1);
    assert!(reports[0].contains(&quarantined.display().to_string()), "{reports:?}");
    std::fs::remove_file(quarantined).unwrap();
    assert!(FileJournal::quarantined_files(&path).is_empty());
    assert!(FileJournal::quarantined_files(Path::new("/no/such/folder/journal.json")).is_empty());
}

fn interruption(boot_id: &str) -> Interruption {
    Interruption {
        cause: InterruptionCause::MachineRestarted,
        phase: "apply".to_owned(),
        resumed_at: DateTime::UNIX_EPOCH,
        boot_id: boot_id.to_owned(),
    }
}

#[test]
fn interruptions_are_recorded_in_order_up_to_a_maximum() {
    let mut entry = entry();
    entry.events = vec![event(EventKind::Downloading, 1)];
    assert_eq!(entry.last_boot(), Some("boot-1"));
    assert!(entry.add_interruption(interruption("boot-2")));
    assert_eq!(entry.last_boot(), Some("boot-2"));
    entry.events.push(event(EventKind::Began, 2));
    assert_eq!(entry.last_boot(), Some("boot-1"));
    while entry.add_interruption(interruption("boot-3")) {}
    let report = entry.run_report().unwrap();
    assert_eq!(report.interruptions.len(), MAX_INTERRUPTIONS);
    let boots = report.interruptions.iter().map(|one| one.boot_id.as_str());
    assert_eq!(boots.take(2).collect::<Vec<_>>(), ["boot-2", "boot-3"]);
}

/// The version before wrote the durations of all phases.
#[test]
fn recorded_durations_of_other_phases_than_the_planning_are_ignored() {
    let mut entry = entry();
    for phase in ["plan", "download", "apply"] {
        entry.spans.push(PhaseSpan { phase: phase.to_owned(), millis: 9, bytes: 3 });
    }
    entry.events = vec![event(EventKind::Began, 1), event(EventKind::Finished, 2)];
    let phases = entry.run_report().unwrap().phases;
    let phases: Vec<_> = phases.iter().map(|span| (span.phase.as_str(), span.millis)).collect();
    assert_eq!(phases, [("plan", 9), ("apply", 0)]);
}

#[test]
fn missing_optional_fields_have_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.json");
    let earlier = r#"{"format":2,"attempt":{
        "attempt":"00000000-0000-0000-0000-000000000007",
        "target":{"digest":"d","spec":{"packages":{"mode":"latest","sources":[]}}},
        "phase":"applying",
        "plan":{"download_bytes":3},
        "steps":[],"events":[{"sequence":1,"at":"1970-01-01T00:00:00Z","boot_id":"b","kind":"began"}],
        "acknowledged":0,"start_deadline":null}}"#;
    std::fs::write(&path, earlier).unwrap();
    let entry = FileJournal::new(&path).read().unwrap().unwrap();
    assert_eq!(entry.phase, Phase::Applying);
    assert!(entry.baselines.is_empty() && entry.reports.is_empty());
    assert_eq!(entry.run_report(), None);
}

/// After a return to the previous image, the older agent reads the journal of the newer one.
#[test]
fn unknown_report_fields_are_ignored_and_unknown_instructions_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.json");
    let journal = FileJournal::new(&path);
    let entry = full_entry();
    journal.write(&JournalPoint::fixed("ended"), &entry).unwrap();
    let sound: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let with_more = |pointer: &str| {
        let mut newer = sound.clone();
        let object = newer.pointer_mut(pointer).and_then(Value::as_object_mut);
        let added = object.expect("an object").insert("more".into(), 1.into());
        assert_eq!(added, None);
        newer.to_string()
    };
    for ignored_path in [
        "/attempt/plan",
        "/attempt/plan/space/0",
        "/attempt/spans/0",
        "/attempt/events/0",
        "/attempt/events/0/interruptions/0",
        "/attempt/events/1/kind/failed",
        "/attempt/events/1/kind/failed/failure",
        "/attempt/events/1/report",
        "/attempt/events/1/report/phases/0",
    ] {
        fs::write(&path, with_more(ignored_path)).unwrap();
        assert_eq!(journal.read().unwrap().as_ref(), Some(&entry), "{ignored_path}");
    }
    for rejected_path in
        ["", "/attempt", "/attempt/target", "/attempt/steps/0", "/attempt/steps/0/step"]
    {
        fs::write(&path, with_more(rejected_path)).unwrap();
        let partial = journal.read().unwrap().expect("the events are readable");
        let why = partial.unreadable.clone().unwrap_or_default();
        assert!(why.contains("`more`"), "{rejected_path}: {why}");
        let readable = JournalEntry { unreadable: None, plan: entry.plan.clone(), ..partial };
        let readable = JournalEntry { spans: entry.spans.clone(), ..readable };
        assert_eq!(readable, entry, "{rejected_path}");
        assert!(path.exists(), "the file stays until the end of the attempt is written");
    }
}

/// What an agent of a newer version had done is known from the events.
#[test]
fn an_unreadable_attempt_has_the_phase_that_its_events_show() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.json");
    let journal = FileJournal::new(&path);
    let phase = |kinds: &[EventKind]| {
        let mut entry = entry();
        entry.events = (1..).zip(kinds).map(|(at, kind)| event(kind.clone(), at)).collect();
        journal.write(&JournalPoint::fixed("opened"), &entry).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"format\":2", "\"format\":3")).unwrap();
        let partial = journal.read().unwrap().unwrap();
        assert!(partial.unreadable.unwrap().contains("format version 3"));
        partial.phase
    };
    let (downloading, began) = (EventKind::Downloading, EventKind::Began);
    assert_eq!(phase(&[]), Phase::Downloading);
    assert_eq!(phase(&[downloading.clone(), EventKind::Downloaded]), Phase::Downloading);
    assert_eq!(phase(&[downloading.clone(), began.clone()]), Phase::Applying);
    assert_eq!(phase(&[began.clone(), EventKind::RebootBegun]), Phase::Applying);
    assert_eq!(phase(&[downloading, began, EventKind::Finished]), Phase::Ended);
}

/// While another program holds dpkg's lock, such an attempt stays open, and its events are acknowledged meanwhile.
#[test]
fn an_attempt_that_could_not_be_read_stays_unreadable_when_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.json");
    let journal = FileJournal::new(&path);
    let mut entry = entry();
    entry.events.push(event(EventKind::Began, 3));
    entry.phase = Phase::Rebooting;
    journal.write(&JournalPoint::fixed("reboot-begun"), &entry).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"format\":2", "\"format\":3")).unwrap();
    let mut partial = journal.read().unwrap().unwrap();
    partial.acknowledged = 3;
    journal.write(&JournalPoint::fixed("acknowledged"), &partial).unwrap();
    let again = journal.read().unwrap().unwrap();
    assert!(again.unreadable.is_some());
    assert_eq!(again, partial);
}

/// An ended attempt with every optional part.
fn full_entry() -> JournalEntry {
    let spec = ModuleParts::of("demo", &json!({ "text": "new" })).unwrap();
    let digest = "d".to_owned();
    let mut entry = JournalEntry::new(Uuid::from_u128(7), UpdateTarget { digest, spec });
    entry.steps.push(JournalStep {
        step: AnyStep { module: "demo".into(), name: "write".into(), payload: Value::Null },
        done: false,
    });
    entry.plan.space.push(SpaceNeed::default());
    entry.reports = ModuleParts::of("demo", &json!({ "before": "old" })).unwrap();
    entry.spans.push(PhaseSpan::default());
    let failed = EventKind::Failed { failure: Failure::new(FailureKind::Verify, "it hung") };
    entry.events = vec![event(EventKind::Downloading, 1)];
    entry.add_interruption(interruption("boot-2"));
    entry.events.push(event(failed, 2));
    entry.events[1].report = entry.run_report();
    entry.phase = Phase::Ended;
    entry
}

/// The journal does not know what the modules store, and keeps it as it is.
#[test]
fn the_parts_of_modules_are_read_back_unchanged() {
    let mut entry = full_entry();
    assert!(!serde_json::to_string(&entry).unwrap().contains("reboot_is_the_change"));
    entry.reboot_is_the_change = true;
    entry.baselines = ModuleParts::of("other", &json!([1, { "a": null }])).unwrap();
    entry.reports.insert("other", json!({ "results": ["x"], "more": 7 }));
    let folder = tempfile::tempdir().unwrap();
    let journal = FileJournal::new(folder.path().join("journal.json"));
    journal.write(&JournalPoint::fixed("ended"), &entry).unwrap();
    assert_eq!(journal.read().unwrap(), Some(entry));
}
