//! What the record says against what the loader knows.

use std::fmt::Write as _;

use super::*;

/// Slot a runs, is good and has a plain entry. What becomes of slot b, by its boot entry, and what is to be mended.
const OTHER: &str = "\
| | absent | +3-0 | +1-2 | plain | once | strange |
| empty | empty | empty | empty | empty | empty | empty |
| writing | writing | writing, withdraw | writing, withdraw | writing, withdraw | writing, withdraw | writing, withdraw |
| written | written | written, withdraw | written, withdraw | written, withdraw | written, withdraw | written, withdraw |
| armed now | armed | armed | armed | armed | armed | armed |
| armed then | written | armed, withdraw | bad, withdraw | bad, withdraw | bad, withdraw | bad, withdraw |
| trial | bad | bad, withdraw | bad, withdraw | bad, withdraw | bad, withdraw | bad, withdraw |
| doubted | written | doubted, withdraw | doubted, withdraw | doubted, withdraw | doubted, withdraw | doubted, withdraw |
| passed | written | passed, withdraw | passed, withdraw | passed, withdraw | passed, withdraw | passed, withdraw |
| good | good | good | good | good | good | good |
| bad | bad | bad, withdraw | bad, withdraw | bad, withdraw | bad, withdraw | bad, withdraw |
";

/// Slot b runs, and slot a is good with a plain entry.
const RUNNING: &str = "\
| | absent | +3-0 | +1-2 | plain | once | strange |
| empty | empty | trial | trial | trial | trial | empty |
| writing | writing | trial | trial | trial | trial | writing |
| written | written | written | written | written | written | written |
| armed now | trial | trial | trial | trial | trial | trial |
| armed then | trial | trial | trial | trial | trial | trial |
| trial | trial | trial | trial | trial | trial | trial |
| doubted | trial | trial | trial | trial | trial | trial |
| passed | passed, bless | passed, bless | passed, bless | good | passed, bless | passed |
| good | good | good | good | good | good | good |
| bad | bad, reset | bad, withdraw, reset | bad, withdraw, reset | bad, withdraw, reset | bad, withdraw, reset | \
bad, withdraw, reset |
";

fn every_state() -> Vec<(&'static str, SlotState)> {
    vec![
        ("empty", SlotState::Empty),
        ("writing", SlotState::Writing(image(2))),
        ("written", SlotState::Written(image(2))),
        ("armed now", armed("now")),
        ("armed then", armed("then")),
        ("trial", trial(false)),
        ("doubted", doubted()),
        ("passed", trial(true)),
        ("good", SlotState::Good(image(2))),
        ("bad", bad()),
    ]
}

fn every_entry() -> Vec<(&'static str, Entry)> {
    vec![
        ("absent", Entry::Absent),
        ("+3-0", counted(3, 0)),
        ("+1-2", counted(1, 2)),
        ("plain", Entry::Plain),
        ("once", Entry::Once),
        ("strange", Entry::Strange("two of them".to_owned())),
    ]
}

fn printed(running: Slot) -> String {
    let entries = every_entry();
    let names: Vec<_> = entries.iter().map(|(name, _)| *name).collect();
    let mut printed = format!("| | {} |\n", names.join(" | "));
    for (name, state) in every_state() {
        let slots = beside_a_good_one(state);
        let cells = entries.iter().map(|(_, entry)| {
            let seen = seen(running, Entry::Plain, entry.clone());
            let (next, mends) = reconcile(&slots, &seen, NOON);
            assert_eq!(next.a, slots.a, "the good one is left alone");
            let mends = mends.iter().map(|mend| match mend {
                Mend::Withdraw(slot) => {
                    assert_eq!(*slot, Slot::B);
                    "withdraw"
                }
                Mend::Bless(slot) => {
                    assert_eq!(*slot, Slot::B);
                    "bless"
                }
                Mend::Reset => "reset",
            });
            let cell: Vec<_> = std::iter::once(shown(&next.b)).chain(mends).collect();
            cell.join(", ")
        });
        let cells: Vec<_> = cells.collect();
        writeln!(printed, "| {name} | {} |", cells.join(" | ")).expect("to text");
    }
    printed
}

#[test]
fn the_slot_that_does_not_run_is_settled_by_its_entry() {
    let printed = printed(Slot::A);
    assert_eq!(printed, OTHER, "it is\n{printed}");
}

#[test]
fn the_slot_that_runs_is_settled_by_its_entry() {
    let printed = printed(Slot::B);
    assert_eq!(printed, RUNNING, "it is\n{printed}");
}

#[test]
fn a_machine_without_a_record_runs_what_is_good_unless_it_is_counted() {
    let first = seen(Slot::A, Entry::Plain, Entry::Absent);
    let first = Seen {
        image: Some(("demo".to_owned(), "1.0".to_owned())),
        ..first
    };
    let (slots, mends) = reconcile(&Slots::default(), &first, NOON);
    let SlotState::Good(what) = &slots.a else {
        panic!("{slots:?}");
    };
    assert_eq!(
        (what.profile_name.as_str(), &*what.image_id),
        ("demo", "1.0")
    );
    assert_eq!(what.file, Sha256::from([0; 32]));
    assert_eq!((slots.last_good, mends), (Some(Slot::A), vec![]));
    assert_eq!(trouble(&slots, &first), None);

    let on_trial = seen(Slot::B, Entry::Plain, counted(2, 1));
    let (slots, mends) = reconcile(&Slots::default(), &on_trial, NOON);
    assert_eq!((shown(&slots.b), mends), ("trial", vec![]));
    assert_eq!(slots.last_good, None);
    assert_eq!(trouble(&slots, &on_trial), None, "it is under way");
}

#[test]
fn what_cannot_be_told_changes_nothing_and_is_a_trouble() {
    let slots = beside_a_good_one(trial(false));
    let mut seen = seen(Slot::A, Entry::Plain, counted(1, 2));
    seen.booted = None;
    assert_eq!(reconcile(&slots, &seen, NOON), (slots.clone(), vec![]));
    let trouble = trouble(&slots, &seen).expect("it is one");
    assert_eq!(trouble, Refused::RunningUnknown);
}

#[test]
fn a_slot_that_was_started_by_hand_is_a_trouble() {
    let slots = beside_a_good_one(SlotState::Written(image(2)));
    let seen = seen(Slot::B, Entry::Plain, Entry::Absent);
    let (next, mends) = reconcile(&slots, &seen, NOON);
    assert_eq!((&next, mends), (&slots, vec![]));
    let said = trouble(&next, &seen).expect("it is one").to_string();
    assert!(
        said.starts_with("the slot root-b runs and holds an image that was not tried"),
        "{said}"
    );
}

#[test]
fn the_only_entry_is_never_withdrawn() {
    // What runs lost its own entry: the other's is all that boots.
    let slots = beside_a_good_one(SlotState::Written(image(2)));
    let (_, mends) = reconcile(&slots, &seen(Slot::A, Entry::Absent, Entry::Plain), NOON);
    assert!(mends.is_empty(), "{mends:?}");
    // A bad one runs, and there is nothing to go to.
    for entry in [Entry::Absent, Entry::Once, counted(3, 0)] {
        let seen = seen(Slot::B, entry, Entry::Plain);
        let (_, mends) = reconcile(&beside_a_good_one(bad()), &seen, NOON);
        assert!(mends.is_empty(), "{mends:?}");
    }
    let both_bad = Slots {
        a: bad(),
        b: bad(),
        ..Slots::default()
    };
    let (_, mends) = reconcile(&both_bad, &seen(Slot::B, Entry::Plain, Entry::Plain), NOON);
    assert!(mends.is_empty(), "{mends:?}");
}

#[test]
fn a_bad_slot_that_another_system_starts_is_not_reset_for_ever() {
    let mut seen = seen(Slot::B, Entry::Plain, Entry::Absent);
    let slots = beside_a_good_one(bad());
    let (_, mends) = reconcile(&slots, &seen, NOON);
    assert_eq!(mends, [Mend::Reset]);
    seen.foreign.push("by-hand.conf".to_owned());
    let (_, mends) = reconcile(&slots, &seen, NOON);
    assert!(mends.is_empty(), "{mends:?}");
}

#[test]
fn what_fell_back_says_how_often_it_was_tried() {
    let why = |state, entry| {
        let seen = seen(Slot::A, Entry::Plain, entry);
        let (slots, _) = reconcile(&beside_a_good_one(state), &seen, NOON);
        let known = slots.known_bad(&image(2).file).expect("it fell back");
        known.why.clone()
    };
    assert_eq!(
        why(armed("then"), counted(0, 3)),
        "it did not come up in 3 boots"
    );
    assert_eq!(
        why(armed("then"), counted(2, 1)),
        "it did not come up in 1 boot"
    );
    assert_eq!(
        why(armed("then"), Entry::Once),
        "it was to be booted once, and did not come up"
    );
    assert_eq!(
        why(trial(false), Entry::Absent),
        "it came up in 1 boot and did not prove healthy in time"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_record_that_was_reconciled_is_settled_and_its_mends_leave_a_way_to_boot(
        (slots, seen) in (any_slots(), any_seen())
    ) {
        let (next, mends) = reconcile(&slots, &seen, NOON);
        prop_assert_eq!(reconcile(&next, &seen, NOON), (next.clone(), mends.clone()));
        if let Some(good) = next.last_good {
            prop_assert!(matches!(next.state(good), SlotState::Good(_)));
        }
        for mend in mends {
            match mend {
                Mend::Withdraw(slot) => {
                    prop_assert!(!matches!(next.state(slot), SlotState::Good(_)));
                    prop_assert_eq!(seen.entry(slot.other()), &Entry::Plain);
                }
                Mend::Bless(slot) => {
                    prop_assert_eq!(seen.booted, Some(slot));
                    prop_assert_eq!(shown(next.state(slot)), "passed");
                }
                Mend::Reset => {
                    let running = seen.booted.expect("it is known");
                    prop_assert_eq!(shown(next.state(running)), "bad");
                    prop_assert_eq!(seen.entry(running.other()), &Entry::Plain);
                }
            }
        }
    }
}
