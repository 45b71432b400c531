//! Every state against every event.

use super::*;

/// The new state of slot B if all conditions hold: the right slot runs, slot A is good, and no boot
/// entry has a counter. `-` means refused; `!` means that slot B becomes the last good one.
const TABLE: &str = "\
| | Begin | Wrote | Corrupted | Arm | Booted | Passed | Committed | Undecided | Failed | FellBack | NotTried |
| empty, none good | - | - | empty | - | good! | - | - | - | - | - | empty |
| empty | writing | - | empty | - | trial | - | - | - | - | - | empty |
| writing | writing | written | empty | - | trial | - | - | - | - | - | empty |
| written | writing | written | empty | armed | - | - | - | - | - | - | written |
| armed | - | - | - | armed | trial | - | - | - | - | bad | written |
| trial | - | - | - | - | trial | passed | - | undecided | bad | bad | - |
| undecided | - | - | - | - | trial | passed | - | undecided | bad | written | - |
| passed | - | - | - | - | passed | passed | good! | - | bad | written | - |
| good | writing | - | - | - | good! | good | good | - | - | good | good |
| bad | writing | - | bad | - | - | - | - | - | bad | bad | bad |
";

fn every_event() -> Vec<(&'static str, SlotEvent)> {
    let reason = || "it is not healthy".to_owned();
    vec![
        ("Begin", SlotEvent::Begin { image: slot_image(3), allow_retry: false }),
        ("Wrote", SlotEvent::Wrote(raw_image(2))),
        ("Corrupted", SlotEvent::Corrupted),
        ("Arm", SlotEvent::Arm { allow_retry: false }),
        ("Booted", SlotEvent::Booted),
        ("Passed", SlotEvent::Passed),
        ("Committed", SlotEvent::Committed),
        ("Undecided", SlotEvent::Undecided { reason: reason(), log: String::new() }),
        ("Failed", SlotEvent::Failed { reason: reason(), log: String::new() }),
        ("FellBack", SlotEvent::FellBack { reason: reason() }),
        ("NotTried", SlotEvent::NotTried),
    ]
}

fn every_state() -> Vec<SlotState> {
    vec![
        SlotState::Empty,
        SlotState::Writing(slot_image(2)),
        SlotState::Written(slot_image(2)),
        armed("then"),
        trial(false),
        undecided_trial(),
        trial(true),
        SlotState::Good(slot_image(2)),
        bad(),
    ]
}

/// The slot that must run for an event of slot B.
fn runs_at(event: &SlotEvent) -> Slot {
    match event {
        SlotEvent::Booted
        | SlotEvent::Passed
        | SlotEvent::Committed
        | SlotEvent::Undecided { .. }
        | SlotEvent::Failed { .. } => Slot::B,
        _ => Slot::A,
    }
}

fn apply_event(slots: &Slots, event: &SlotEvent) -> Result<Slots, SlotError> {
    let observed = boot_observation(runs_at(event), BootEntry::Plain, BootEntry::Plain);
    step(slots, Slot::B, event, &observed, NOON)
}

fn format_cell(slots: &Slots, event: &SlotEvent) -> String {
    match apply_event(slots, event) {
        Err(_) => "-".to_owned(),
        Ok(next) if next.last_good == slots.last_good => state_label(&next.b).to_owned(),
        Ok(next) => format!("{}!", state_label(&next.b)),
    }
}

#[test]
fn the_table_matches_the_design() {
    let events = every_event();
    let line = |name: &str, cells: Vec<String>| format!("| {name} | {} |\n", cells.join(" | "));
    let names = events.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut printed = line("", names).replacen("|  |", "| |", 1);
    let nothing_known = ("empty, none good".to_owned(), Slots::default());
    let rows = every_state()
        .into_iter()
        .map(|state| (state_label(&state).to_owned(), with_good_slot_a(state)));
    for (name, slots) in std::iter::once(nothing_known).chain(rows) {
        let cells = events.iter().map(|(_, event)| format_cell(&slots, event));
        printed.push_str(&line(&name, cells.collect()));
    }
    assert_eq!(printed, TABLE, "it is\n{printed}");
}

#[test]
fn nothing_is_written_or_armed_without_a_good_fallback() {
    let begin = SlotEvent::Begin { image: slot_image(3), allow_retry: false };
    let arm = SlotEvent::Arm { allow_retry: false };
    let written = with_good_slot_a(SlotState::Written(slot_image(2)));
    let refusal = |slots: &Slots, observed: &BootObservation| {
        let refusals = [&begin, &arm]
            .map(|event| step(slots, Slot::B, event, observed, NOON).unwrap_err().to_string());
        // Both are refused for the same reason. If the slot itself runs, the text starts with the
        // event.
        let [of_begin, of_arm] = refusals;
        let reason = |text: &str| text.rsplit(": ").next().unwrap_or_default().to_owned();
        assert_eq!(reason(&of_begin), reason(&of_arm));
        of_begin
    };
    let sound = boot_observation(Slot::A, BootEntry::Plain, BootEntry::Absent);
    step(&written, Slot::B, &begin, &sound, NOON).unwrap();
    step(&written, Slot::B, &arm, &sound, NOON).unwrap();

    let itself = boot_observation(Slot::B, BootEntry::Plain, BootEntry::Plain);
    let message = refusal(&written, &itself);
    assert!(message.contains("root-b is what runs"), "{message}");

    let unknown = BootObservation { booted: None, ..sound.clone() };
    let message = refusal(&written, &unknown);
    assert!(message.contains("not known which slot runs"), "{message}");

    for entry in
        [BootEntry::Absent, BootEntry::OneShot, counted(1, 0), BootEntry::Invalid(String::new())]
    {
        let message = refusal(&written, &boot_observation(Slot::A, entry, BootEntry::Plain));
        assert!(message.contains("could not fall back"), "{message}");
    }

    for state in every_state() {
        let slots = Slots { a: state, last_good: None, ..written.clone() };
        let message = refusal(&slots, &sound);
        assert!(message.contains("root-a runs and"), "{message}");
    }
    let other_is_last =
        Slots { b: SlotState::Good(slot_image(2)), last_good: Some(Slot::B), ..written };
    step(&other_is_last, Slot::B, &begin, &sound, NOON).unwrap_err();
}

#[test]
fn a_bad_image_needs_permission_for_each_retry_until_it_proves_itself() {
    let idle = boot_observation(Slot::A, BootEntry::Plain, BootEntry::Absent);
    let on_trial = boot_observation(Slot::B, BootEntry::Plain, BootEntry::Plain);
    let begin = |allow_retry| SlotEvent::Begin { image: slot_image(2), allow_retry };
    let failed =
        SlotEvent::Failed { reason: "unit web.service failed".to_owned(), log: String::new() };
    let go = |slots: &Slots, event: &SlotEvent, observed: &BootObservation| {
        step(slots, Slot::B, event, observed, NOON)
    };

    let slots = go(&with_good_slot_a(trial(false)), &failed, &on_trial).unwrap();
    let refused = go(&slots, &begin(false), &idle).unwrap_err();
    let message = refused.to_string();
    assert!(message.contains("1.2") && message.contains("web.service"), "{message}");

    let slots = go(&slots, &begin(true), &idle).unwrap();
    let slots = go(&slots, &SlotEvent::Wrote(raw_image(2)), &idle).unwrap();
    // The retry is withdrawn: the update does not continue without permission.
    let refused = go(&slots, &SlotEvent::Arm { allow_retry: false }, &idle).unwrap_err();
    assert!(matches!(refused, SlotError::KnownBad { .. }), "{refused}");

    let slots = go(&slots, &SlotEvent::Arm { allow_retry: true }, &idle).unwrap();
    assert_eq!(slots.sequence, 7);
    let slots = go(&slots, &SlotEvent::Booted, &on_trial).unwrap();
    let slots = go(&slots, &SlotEvent::Passed, &on_trial).unwrap();
    assert!(slots.find_bad(&slot_image(2).file).is_some());
    let slots = go(&slots, &SlotEvent::Committed, &on_trial).unwrap();
    assert!(slots.bad.is_empty(), "{slots:?}");
    assert_eq!(slots.last_good, Some(Slot::B));
}

/// The record after one more trial of the image in slot B, at the end of which only the server is
/// unreachable.
fn try_without_server(slots: &Slots) -> Slots {
    let go = |slots: &Slots, event: &SlotEvent, observed: &BootObservation| {
        step(slots, Slot::B, event, observed, NOON).expect("a valid event")
    };
    let idle = boot_observation(Slot::A, BootEntry::Plain, BootEntry::Absent);
    let on_trial = boot_observation(Slot::B, BootEntry::Plain, counted(2, 1));
    let TrialEnd { reason, log } = undecided_end();
    let slots = go(slots, &SlotEvent::Arm { allow_retry: false }, &idle);
    let slots = go(&slots, &SlotEvent::Booted, &on_trial);
    let slots = go(&slots, &SlotEvent::Undecided { reason, log }, &on_trial);
    let reason = "it came up in 1 boot".to_owned();
    go(&slots, &SlotEvent::FellBack { reason }, &idle)
}

#[test]
fn an_unreachable_server_fails_no_image_unless_it_is_unreachable_in_each_trial() {
    let slots = with_good_slot_a(SlotState::Written(slot_image(2)));
    let once = try_without_server(&slots);
    assert_eq!(once.b, SlotState::Written(slot_image(2)));
    assert!(once.bad.is_empty(), "{once:?}");
    let undecided = once.find_undecided(&slot_image(2).file).expect("an undecided image");
    assert_eq!((undecided.times, &undecided.latest_end), (1, &undecided_end()));

    let twice = try_without_server(&once);
    let undecided = twice.find_undecided(&slot_image(2).file).expect("an undecided image");
    assert_eq!((undecided.times, twice.undecided.len()), (2, 1));
    assert_eq!(state_label(&twice.b), "written");

    let thrice = try_without_server(&twice);
    let SlotState::Bad { reason, log, .. } = &thrice.b else {
        panic!("{thrice:?}");
    };
    assert_eq!(reason, "the server cannot be reached; 2 earlier trials ended the same way");
    assert_eq!(log, "no route");
    assert!(thrice.find_bad(&slot_image(2).file).is_some());
    assert!(thrice.undecided.is_empty(), "it is recorded as bad");
}

#[test]
fn an_image_that_proves_itself_or_is_forgotten_is_not_undecided() {
    let slots = with_good_slot_a(SlotState::Written(slot_image(2)));
    let mut once = try_without_server(&slots);
    let mut proven = once.clone();
    assert!(once.forget_bad(&slot_image(2).file));
    assert!(once.undecided.is_empty(), "{once:?}");

    proven.b = undecided_trial();
    let on_trial = boot_observation(Slot::B, BootEntry::Plain, BootEntry::Plain);
    for event in [SlotEvent::Passed, SlotEvent::Committed] {
        proven = step(&proven, Slot::B, &event, &on_trial, NOON).unwrap();
    }
    assert_eq!((state_label(&proven.b), proven.undecided), ("good", vec![]));
}

#[test]
fn only_the_latest_undecided_images_and_one_log_are_retained() {
    let mut slots = Slots::default();
    for number in 0..20u8 {
        slots.count_undecided(&slot_image(number).file, &undecided_end());
    }
    assert_eq!(slots.undecided.len(), 16);
    assert_eq!(slots.undecided[0].file, slot_image(4).file);
    let logs = slots.undecided.iter().map(|one| one.latest_end.log.as_str());
    assert_eq!(logs.collect::<String>(), "no route");
    assert_eq!(slots.undecided[15].latest_end, undecided_end());
}

#[test]
fn only_a_healthy_slot_without_a_counter_is_committed() {
    let commit = |state, entry| {
        let observed = boot_observation(Slot::B, BootEntry::Plain, entry);
        let slots = with_good_slot_a(state);
        step(&slots, Slot::B, &SlotEvent::Committed, &observed, NOON)
    };
    commit(trial(true), BootEntry::Plain).unwrap();
    assert_eq!(commit(trial(false), BootEntry::Plain), Err(SlotError::NotPassed { slot: Slot::B }));
    for entry in [BootEntry::Absent, BootEntry::OneShot, counted(0, 3)] {
        assert_eq!(commit(trial(true), entry), Err(SlotError::NotBlessed { slot: Slot::B }));
    }
}

/// A fallback to an older image leaves the floor, and so does a commit of an older image.
#[test]
fn a_commit_raises_the_version_floor_and_nothing_lowers_it() {
    let commit = |slots: &Slots, number: u8| {
        let passed = SlotState::Trial {
            image: slot_image(number),
            boots: Vec::new(),
            passed: true,
            undecided_end: None,
        };
        let slots = Slots { b: passed, ..slots.clone() };
        let observed = boot_observation(Slot::B, BootEntry::Plain, BootEntry::Plain);
        step(&slots, Slot::B, &SlotEvent::Committed, &observed, NOON).unwrap()
    };
    let slots = with_good_slot_a(SlotState::Empty);
    assert_eq!(slots.version_floor("demo"), Some("1.1"), "the image to return to");
    let slots = commit(&slots, 10);
    assert_eq!(slots.version_floor("demo"), Some("1.10"));
    let slots = commit(&slots, 9);
    assert_eq!(slots.version_floor("demo"), Some("1.10"));
    assert_eq!(slots.version_floors.len(), 1);
    assert_eq!(slots.version_floor("other"), None);

    let fallen_back = boot_observation(Slot::A, BootEntry::Plain, BootEntry::Absent);
    let slots = step(&slots, Slot::A, &SlotEvent::Booted, &fallen_back, NOON).unwrap();
    assert_eq!(slots.last_good, Some(Slot::A));
    assert_eq!(slots.version_floor("demo"), Some("1.10"));
}

#[test]
fn logs_of_a_failure_accumulate_without_repetition() {
    let fail = |slots: &Slots, reason: &str, log: &str| {
        let event = SlotEvent::Failed { reason: reason.to_owned(), log: log.to_owned() };
        let observed = boot_observation(Slot::A, BootEntry::Plain, BootEntry::Absent);
        step(slots, Slot::B, &event, &observed, NOON).expect("it is bad already")
    };
    let reason_and_log = |slots: &Slots| match &slots.b {
        SlotState::Bad { reason, log, .. } => (reason.clone(), log.clone()),
        other => panic!("{other:?}"),
    };
    let expected = |reason: &str, log: &str| (reason.to_owned(), log.to_owned());
    let slots = with_good_slot_a(bad());
    let same = fail(&slots, "it panicked", "Oops");
    assert_eq!(reason_and_log(&same), expected("it panicked", "Oops"));
    let more = fail(&slots, "", "Call trace");
    assert_eq!(reason_and_log(&more), expected("it panicked", "Oops\nCall trace"));
    let other = fail(&slots, "a driver panicked", "");
    assert_eq!(reason_and_log(&other), expected("a driver panicked", "Oops"));
    let bad_image = other.find_bad(&slot_image(2).file).expect("it is recorded as bad");
    assert_eq!(bad_image.reason, "a driver panicked");

    let long_text = "é".repeat(Failure::MAX_LOG);
    let full = fail(&slots, &long_text, &long_text);
    let (reason, log) = reason_and_log(&full);
    assert!(reason.len() <= Failure::MAX_REASON && log.len() <= Failure::MAX_LOG);
    assert!(full.bad[0].reason.len() <= 512);
}

#[test]
fn only_the_latest_bad_images_are_retained() {
    let mut slots = Slots::default();
    for number in 0..300u16 {
        let mut image = slot_image(0);
        image.file = Sha256::hash(&number.to_le_bytes());
        slots.remember_bad(&image, "it panicked", NOON);
    }
    assert_eq!(slots.bad.len(), 256);
    assert_eq!(slots.bad[0].file, Sha256::hash(&44u16.to_le_bytes()));
    let last = slots.bad[255].file;
    assert!(slots.forget_bad(&last));
    assert!(!slots.forget_bad(&last));
}

#[test]
fn a_trial_counts_each_boot_once_and_retains_the_latest() {
    let mut slots = with_good_slot_a(armed("then"));
    for number in 0..40 {
        let mut observed = boot_observation(Slot::B, BootEntry::Plain, counted(1, 1));
        observed.boot_id = number.to_string();
        for _ in 0..2 {
            slots = step(&slots, Slot::B, &SlotEvent::Booted, &observed, NOON).unwrap();
        }
    }
    let SlotState::Trial { boots, .. } = &slots.b else {
        panic!("{slots:?}");
    };
    let last: Vec<_> = (24..40).map(|number: u32| number.to_string()).collect();
    assert_eq!(*boots, last);
}

#[test]
fn the_numbers_of_boot_entries_end_before_they_repeat() {
    let mut slots = with_good_slot_a(SlotState::Written(slot_image(2)));
    slots.sequence = u32::MAX;
    let observed = boot_observation(Slot::A, BootEntry::Plain, BootEntry::Absent);
    let arm = SlotEvent::Arm { allow_retry: false };
    let refused = step(&slots, Slot::B, &arm, &observed, NOON).unwrap_err();
    assert_eq!(refused, SlotError::SequenceExhausted);
}

fn any_event() -> impl Strategy<Value = SlotEvent> {
    let reason = || Just("it is not healthy".to_owned());
    prop_oneof![
        (any_image(), any::<bool>())
            .prop_map(|(image, allow_retry)| SlotEvent::Begin { image, allow_retry }),
        Just(SlotEvent::Wrote(raw_image(2))),
        Just(SlotEvent::Corrupted),
        any::<bool>().prop_map(|allow_retry| SlotEvent::Arm { allow_retry }),
        Just(SlotEvent::Booted),
        Just(SlotEvent::Passed),
        Just(SlotEvent::Committed),
        (reason(), reason()).prop_map(|(reason, log)| SlotEvent::Undecided { reason, log }),
        (reason(), reason()).prop_map(|(reason, log)| SlotEvent::Failed { reason, log }),
        reason().prop_map(|reason| SlotEvent::FellBack { reason }),
        Just(SlotEvent::NotTried),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn no_event_changes_the_last_good_slot_or_arms_a_bad_image(
        (slots, slot, event, observed) in (any_slots(), any_slot(), any_event(), any_observation())
    ) {
        let Ok(next) = step(&slots, slot, &event, &observed, NOON) else {
            return Ok(());
        };
        let (before, after) = (slots.state(slot), next.state(slot));
        prop_assert_eq!(slots.state(slot.other()), next.state(slot.other()));
        if slots.last_good == Some(slot) {
            prop_assert_eq!(before, after);
        }
        if let Some(good) = next.last_good {
            prop_assert!(matches!(next.state(good), SlotState::Good(_)));
        }
        if matches!(event, SlotEvent::Begin { .. } | SlotEvent::Arm { .. }) {
            let other = slot.other();
            prop_assert_eq!(observed.booted, Some(other));
            prop_assert_eq!(slots.last_good, Some(other));
            prop_assert_eq!(observed.entry(other), &BootEntry::Plain);
            let file = after.image().map(|image| image.file).expect("it holds an image");
            let allow_retry = matches!(
                event,
                SlotEvent::Begin { allow_retry: true, .. } | SlotEvent::Arm { allow_retry: true }
            );
            prop_assert!(allow_retry || slots.find_bad(&file).is_none());
        }
        let is_armed = matches!(event, SlotEvent::Arm { .. });
        prop_assert_eq!(next.sequence, slots.sequence + u32::from(is_armed));
        match after {
            SlotState::Good(_) if before != after => {
                prop_assert_eq!(observed.booted, Some(slot));
                prop_assert_eq!(observed.entry(slot), &BootEntry::Plain);
            }
            SlotState::Bad { image, .. } if before != after => {
                prop_assert!(next.find_bad(&image.file).is_some());
            }
            SlotState::Written(image) if state_label(before) == "undecided" => {
                prop_assert!(next.find_undecided(&image.file).is_some());
            }
            _ => {}
        }
    }
}
