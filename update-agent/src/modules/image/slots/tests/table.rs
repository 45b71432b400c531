//! Every state against every event.

use super::*;

/// What becomes of slot b if all conditions hold: the slot runs that has to, slot a is as good as can be, and no boot
/// entry has a counter. `-` is refused; `!` makes the slot the last good one.
const TABLE: &str = "\
| | Begin | Wrote | Spoilt | Arm | Booted | Passed | Committed | Undecided | Failed | FellBack | NotTried |
| empty, none good | - | - | empty | - | good! | - | - | - | - | - | empty |
| empty | writing | - | empty | - | trial | - | - | - | - | - | empty |
| writing | writing | written | empty | - | trial | - | - | - | - | - | empty |
| written | writing | written | empty | armed | - | - | - | - | - | - | written |
| armed | - | - | - | armed | trial | - | - | - | - | bad | written |
| trial | - | - | - | - | trial | passed | - | doubted | bad | bad | - |
| doubted | - | - | - | - | trial | passed | - | doubted | bad | written | - |
| passed | - | - | - | - | passed | passed | good! | - | bad | written | - |
| good | writing | - | - | - | good! | good | good | - | - | good | good |
| bad | writing | - | bad | - | - | - | - | - | bad | bad | bad |
";

fn every_event() -> Vec<(&'static str, Event)> {
    let words = || "it does not do".to_owned();
    vec![
        (
            "Begin",
            Event::Begin {
                what: image(3),
                again: false,
            },
        ),
        ("Wrote", Event::Wrote(raw(2))),
        ("Spoilt", Event::Spoilt),
        ("Arm", Event::Arm { again: false }),
        ("Booted", Event::Booted),
        ("Passed", Event::Passed),
        ("Committed", Event::Committed),
        (
            "Undecided",
            Event::Undecided {
                why: words(),
                log: String::new(),
            },
        ),
        (
            "Failed",
            Event::Failed {
                why: words(),
                log: String::new(),
            },
        ),
        ("FellBack", Event::FellBack { why: words() }),
        ("NotTried", Event::NotTried),
    ]
}

fn every_state() -> Vec<SlotState> {
    vec![
        SlotState::Empty,
        SlotState::Writing(image(2)),
        SlotState::Written(image(2)),
        armed("then"),
        trial(false),
        doubted(),
        trial(true),
        SlotState::Good(image(2)),
        bad(),
    ]
}

/// The slot that has to run for an event at slot b.
fn runs_at(event: &Event) -> Slot {
    match event {
        Event::Booted
        | Event::Passed
        | Event::Committed
        | Event::Undecided { .. }
        | Event::Failed { .. } => Slot::B,
        _ => Slot::A,
    }
}

fn taken(slots: &Slots, event: &Event) -> Result<Slots, Refused> {
    let seen = seen(runs_at(event), Entry::Plain, Entry::Plain);
    step(slots, Slot::B, event, &seen, NOON)
}

fn cell(slots: &Slots, event: &Event) -> String {
    match taken(slots, event) {
        Err(_) => "-".to_owned(),
        Ok(next) if next.last_good == slots.last_good => shown(&next.b).to_owned(),
        Ok(next) => format!("{}!", shown(&next.b)),
    }
}

#[test]
fn the_table_is_as_it_was_thought_out() {
    let events = every_event();
    let line = |name: &str, cells: Vec<String>| format!("| {name} | {} |\n", cells.join(" | "));
    let names = events.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut printed = line("", names).replacen("|  |", "| |", 1);
    let nothing_known = ("empty, none good".to_owned(), Slots::default());
    let rows = every_state()
        .into_iter()
        .map(|state| (shown(&state).to_owned(), beside_a_good_one(state)));
    for (name, slots) in std::iter::once(nothing_known).chain(rows) {
        let cells = events.iter().map(|(_, event)| cell(&slots, event));
        printed.push_str(&line(&name, cells.collect()));
    }
    assert_eq!(printed, TABLE, "it is\n{printed}");
}

#[test]
fn nothing_is_written_or_armed_without_a_good_way_back() {
    let begin = Event::Begin {
        what: image(3),
        again: false,
    };
    let arm = Event::Arm { again: false };
    let written = beside_a_good_one(SlotState::Written(image(2)));
    let refusal = |slots: &Slots, seen: &Seen| {
        let refusals = [&begin, &arm].map(|event| {
            step(slots, Slot::B, event, seen, NOON)
                .unwrap_err()
                .to_string()
        });
        // Both for the same reason; where it is the slot itself that runs they name what was to happen.
        let [of_begin, of_arm] = refusals;
        let reason = |text: &str| text.rsplit(": ").next().unwrap_or_default().to_owned();
        assert_eq!(reason(&of_begin), reason(&of_arm));
        of_begin
    };
    let sound = seen(Slot::A, Entry::Plain, Entry::Absent);
    step(&written, Slot::B, &begin, &sound, NOON).unwrap();
    step(&written, Slot::B, &arm, &sound, NOON).unwrap();

    let itself = seen(Slot::B, Entry::Plain, Entry::Plain);
    let said = refusal(&written, &itself);
    assert!(said.contains("root-b is what runs"), "{said}");

    let unknown = Seen {
        booted: None,
        ..sound.clone()
    };
    let said = refusal(&written, &unknown);
    assert!(said.contains("not known which slot runs"), "{said}");

    for entry in [
        Entry::Absent,
        Entry::Once,
        counted(1, 0),
        Entry::Strange(String::new()),
    ] {
        let said = refusal(&written, &seen(Slot::A, entry, Entry::Plain));
        assert!(said.contains("no way back"), "{said}");
    }

    for state in every_state() {
        let slots = Slots {
            a: state,
            last_good: None,
            ..written.clone()
        };
        let said = refusal(&slots, &sound);
        assert!(said.contains("root-a runs and"), "{said}");
    }
    let other_is_last = Slots {
        b: SlotState::Good(image(2)),
        last_good: Some(Slot::B),
        ..written
    };
    step(&other_is_last, Slot::B, &begin, &sound, NOON).unwrap_err();
}

#[test]
fn a_bad_image_needs_an_order_each_time_until_it_proves_itself() {
    let idle = seen(Slot::A, Entry::Plain, Entry::Absent);
    let on_trial = seen(Slot::B, Entry::Plain, Entry::Plain);
    let begin = |again| Event::Begin {
        what: image(2),
        again,
    };
    let failed = Event::Failed {
        why: "unit web.service failed".to_owned(),
        log: String::new(),
    };
    let go = |slots: &Slots, event: &Event, seen: &Seen| step(slots, Slot::B, event, seen, NOON);

    let slots = go(&beside_a_good_one(trial(false)), &failed, &on_trial).unwrap();
    let refused = go(&slots, &begin(false), &idle).unwrap_err();
    let said = refused.to_string();
    assert!(
        said.contains("1.2") && said.contains("web.service"),
        "{said}"
    );

    let slots = go(&slots, &begin(true), &idle).unwrap();
    let slots = go(&slots, &Event::Wrote(raw(2)), &idle).unwrap();
    // The order is withdrawn: what it began is not gone on with by itself.
    let refused = go(&slots, &Event::Arm { again: false }, &idle).unwrap_err();
    assert!(matches!(refused, Refused::KnownBad { .. }), "{refused}");

    let slots = go(&slots, &Event::Arm { again: true }, &idle).unwrap();
    assert_eq!(slots.sequence, 7);
    let slots = go(&slots, &Event::Booted, &on_trial).unwrap();
    let slots = go(&slots, &Event::Passed, &on_trial).unwrap();
    assert!(slots.known_bad(&image(2).file).is_some());
    let slots = go(&slots, &Event::Committed, &on_trial).unwrap();
    assert!(slots.bad.is_empty(), "{slots:?}");
    assert_eq!(slots.last_good, Some(Slot::B));
}

/// What one more trial of the image in slot b comes to, at the end of which only the server is missing.
fn without_a_server(slots: &Slots) -> Slots {
    let go = |slots: &Slots, event: &Event, seen: &Seen| {
        step(slots, Slot::B, event, seen, NOON).expect("it belongs there")
    };
    let idle = seen(Slot::A, Entry::Plain, Entry::Absent);
    let on_trial = seen(Slot::B, Entry::Plain, counted(2, 1));
    let Doubt { why, log } = doubt();
    let slots = go(slots, &Event::Arm { again: false }, &idle);
    let slots = go(&slots, &Event::Booted, &on_trial);
    let slots = go(&slots, &Event::Undecided { why, log }, &on_trial);
    let why = "it came up in 1 boot".to_owned();
    go(&slots, &Event::FellBack { why }, &idle)
}

#[test]
fn a_server_that_is_away_brands_no_image_unless_it_always_is() {
    let slots = beside_a_good_one(SlotState::Written(image(2)));
    let once = without_a_server(&slots);
    assert_eq!(once.b, SlotState::Written(image(2)));
    assert!(once.bad.is_empty(), "{once:?}");
    let known = once.undecided(&image(2).file).expect("it is counted");
    assert_eq!((known.times, &known.doubt), (1, &doubt()));

    let twice = without_a_server(&once);
    let known = twice.undecided(&image(2).file).expect("it is counted");
    assert_eq!((known.times, twice.undecided.len()), (2, 1));
    assert_eq!(shown(&twice.b), "written");

    let thrice = without_a_server(&twice);
    let SlotState::Bad { why, log, .. } = &thrice.b else {
        panic!("{thrice:?}");
    };
    assert_eq!(
        why,
        "the server cannot be reached; so ended 2 trials of it before"
    );
    assert_eq!(log, "no route");
    assert!(thrice.known_bad(&image(2).file).is_some());
    assert!(thrice.undecided.is_empty(), "it is known for worse");
}

#[test]
fn an_image_that_proves_itself_or_is_forgotten_has_no_doubts_counted() {
    let slots = beside_a_good_one(SlotState::Written(image(2)));
    let mut once = without_a_server(&slots);
    let mut kept = once.clone();
    assert!(once.forget_bad(&image(2).file));
    assert!(once.undecided.is_empty(), "{once:?}");

    kept.b = doubted();
    let on_trial = seen(Slot::B, Entry::Plain, Entry::Plain);
    for event in [Event::Passed, Event::Committed] {
        kept = step(&kept, Slot::B, &event, &on_trial, NOON).unwrap();
    }
    assert_eq!((shown(&kept.b), kept.undecided), ("good", vec![]));
}

#[test]
fn of_many_undecided_images_the_oldest_are_forgotten_and_one_log_is_kept() {
    let mut slots = Slots::default();
    for number in 0..20u8 {
        slots.doubt(&image(number).file, &doubt());
    }
    assert_eq!(slots.undecided.len(), 16);
    assert_eq!(slots.undecided[0].file, image(4).file);
    let logs = slots.undecided.iter().map(|one| one.doubt.log.as_str());
    assert_eq!(logs.collect::<String>(), "no route");
    assert_eq!(slots.undecided[15].doubt, doubt());
}

#[test]
fn a_slot_is_committed_only_healthy_and_without_a_counter() {
    let commit = |state, entry| {
        let seen = seen(Slot::B, Entry::Plain, entry);
        let slots = beside_a_good_one(state);
        step(&slots, Slot::B, &Event::Committed, &seen, NOON)
    };
    commit(trial(true), Entry::Plain).unwrap();
    assert_eq!(
        commit(trial(false), Entry::Plain),
        Err(Refused::NotPassed { slot: Slot::B })
    );
    for entry in [Entry::Absent, Entry::Once, counted(0, 3)] {
        assert_eq!(
            commit(trial(true), entry),
            Err(Refused::NotBlessed { slot: Slot::B })
        );
    }
}

#[test]
fn what_is_known_of_a_failure_grows_and_does_not_repeat_itself() {
    let fail = |slots: &Slots, why: &str, log: &str| {
        let event = Event::Failed {
            why: why.to_owned(),
            log: log.to_owned(),
        };
        let seen = seen(Slot::A, Entry::Plain, Entry::Absent);
        step(slots, Slot::B, &event, &seen, NOON).expect("it is bad already")
    };
    let said = |slots: &Slots| match &slots.b {
        SlotState::Bad { why, log, .. } => (why.clone(), log.clone()),
        other => panic!("{other:?}"),
    };
    let told = |why: &str, log: &str| (why.to_owned(), log.to_owned());
    let slots = beside_a_good_one(bad());
    let same = fail(&slots, "it panicked", "Oops");
    assert_eq!(said(&same), told("it panicked", "Oops"));
    let more = fail(&slots, "", "Call trace");
    assert_eq!(said(&more), told("it panicked", "Oops\nCall trace"));
    let other = fail(&slots, "a driver panicked", "");
    assert_eq!(said(&other), told("a driver panicked", "Oops"));
    let known = other.known_bad(&image(2).file).expect("it is branded");
    assert_eq!(known.why, "a driver panicked");

    let words = "é".repeat(Failure::MAX_LOG);
    let full = fail(&slots, &words, &words);
    let (why, log) = said(&full);
    assert!(why.len() <= Failure::MAX_REASON && log.len() <= Failure::MAX_LOG);
    assert!(full.bad[0].why.len() <= 512);
}

#[test]
fn of_many_bad_images_the_oldest_are_forgotten() {
    let mut slots = Slots::default();
    for number in 0..300u16 {
        let mut what = image(0);
        what.file = Sha256::of(&number.to_le_bytes());
        slots.brand(&what, "it panicked", NOON);
    }
    assert_eq!(slots.bad.len(), 256);
    assert_eq!(slots.bad[0].file, Sha256::of(&44u16.to_le_bytes()));
    let last = slots.bad[255].file;
    assert!(slots.forget_bad(&last));
    assert!(!slots.forget_bad(&last));
}

#[test]
fn a_trial_counts_each_boot_once_and_remembers_the_last() {
    let mut slots = beside_a_good_one(armed("then"));
    for number in 0..40 {
        let mut seen = seen(Slot::B, Entry::Plain, counted(1, 1));
        seen.boot_id = number.to_string();
        for _ in 0..2 {
            slots = step(&slots, Slot::B, &Event::Booted, &seen, NOON).unwrap();
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
    let mut slots = beside_a_good_one(SlotState::Written(image(2)));
    slots.sequence = u32::MAX;
    let seen = seen(Slot::A, Entry::Plain, Entry::Absent);
    let arm = Event::Arm { again: false };
    let refused = step(&slots, Slot::B, &arm, &seen, NOON).unwrap_err();
    assert_eq!(refused, Refused::NoNumberLeft);
}

fn any_event() -> impl Strategy<Value = Event> {
    let words = || Just("it does not do".to_owned());
    prop_oneof![
        (any_what(), any::<bool>()).prop_map(|(what, again)| Event::Begin { what, again }),
        Just(Event::Wrote(raw(2))),
        Just(Event::Spoilt),
        any::<bool>().prop_map(|again| Event::Arm { again }),
        Just(Event::Booted),
        Just(Event::Passed),
        Just(Event::Committed),
        (words(), words()).prop_map(|(why, log)| Event::Undecided { why, log }),
        (words(), words()).prop_map(|(why, log)| Event::Failed { why, log }),
        words().prop_map(|why| Event::FellBack { why }),
        Just(Event::NotTried),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn whatever_happens_the_last_good_slot_stays_and_nothing_bad_goes_on(
        (slots, slot, event, seen) in (any_slots(), any_slot(), any_event(), any_seen())
    ) {
        let Ok(next) = step(&slots, slot, &event, &seen, NOON) else {
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
        if matches!(event, Event::Begin { .. } | Event::Arm { .. }) {
            let other = slot.other();
            prop_assert_eq!(seen.booted, Some(other));
            prop_assert_eq!(slots.last_good, Some(other));
            prop_assert_eq!(seen.entry(other), &Entry::Plain);
            let file = after.what().map(|what| what.file).expect("it holds an image");
            let again = matches!(
                event,
                Event::Begin { again: true, .. } | Event::Arm { again: true }
            );
            prop_assert!(again || slots.known_bad(&file).is_none());
        }
        let is_armed = matches!(event, Event::Arm { .. });
        prop_assert_eq!(next.sequence, slots.sequence + u32::from(is_armed));
        match after {
            SlotState::Good(_) if before != after => {
                prop_assert_eq!(seen.booted, Some(slot));
                prop_assert_eq!(seen.entry(slot), &Entry::Plain);
            }
            SlotState::Bad { what, .. } if before != after => {
                prop_assert!(next.known_bad(&what.file).is_some());
            }
            SlotState::Written(what) if shown(before) == "doubted" => {
                prop_assert!(next.undecided(&what.file).is_some());
            }
            _ => {}
        }
    }
}
