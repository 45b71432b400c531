//! The record compared with the boot entries.

use std::fmt::Write as _;

use super::*;

/// Slot A runs, is good and has a plain entry. Each cell: the new state of slot B, by its boot
/// entry, and the repairs.
const OTHER: &str = "\
| | absent | +3-0 | +1-2 | plain | one-shot | invalid |
| empty | empty | empty | empty | empty | empty | empty |
| writing | writing | writing, withdraw | writing, withdraw | writing, withdraw | writing, withdraw | writing, withdraw |
| written | written | written, withdraw | written, withdraw | written, withdraw | written, withdraw | written, withdraw |
| armed now | armed | armed | armed | armed | armed | armed |
| armed then | written | armed, withdraw | bad, withdraw | bad, withdraw | bad, withdraw | bad, withdraw |
| trial | bad | bad, withdraw | bad, withdraw | bad, withdraw | bad, withdraw | bad, withdraw |
| undecided | written | undecided, withdraw | undecided, withdraw | undecided, withdraw | undecided, withdraw | undecided, withdraw |
| passed | written | passed, withdraw | passed, withdraw | passed, withdraw | passed, withdraw | passed, withdraw |
| good | good | good | good | good | good | good |
| bad | bad | bad, withdraw | bad, withdraw | bad, withdraw | bad, withdraw | bad, withdraw |
";

/// Slot B runs, and slot A is good with a plain entry.
const RUNNING: &str = "\
| | absent | +3-0 | +1-2 | plain | one-shot | invalid |
| empty | empty | trial | trial | trial | trial | empty |
| writing | writing | trial | trial | trial | trial | writing |
| written | written | written | written | written | written | written |
| armed now | trial | trial | trial | trial | trial | trial |
| armed then | trial | trial | trial | trial | trial | trial |
| trial | trial | trial | trial | trial | trial | trial |
| undecided | trial | trial | trial | trial | trial | trial |
| passed | passed, bless | passed, bless | passed, bless | good | passed, bless | passed |
| good | good | good | good | good | good | good |
| bad | bad, reset | bad, withdraw, reset | bad, withdraw, reset | bad, withdraw, reset | bad, withdraw, reset | \
bad, withdraw, reset |
";

fn every_state() -> Vec<(&'static str, SlotState)> {
    vec![
        ("empty", SlotState::Empty),
        ("writing", SlotState::Writing(slot_image(2))),
        ("written", SlotState::Written(slot_image(2))),
        ("armed now", armed("now")),
        ("armed then", armed("then")),
        ("trial", trial(false)),
        ("undecided", undecided_trial()),
        ("passed", trial(true)),
        ("good", SlotState::Good(slot_image(2))),
        ("bad", bad()),
    ]
}

fn every_entry() -> Vec<(&'static str, BootEntry)> {
    vec![
        ("absent", BootEntry::Absent),
        ("+3-0", counted(3, 0)),
        ("+1-2", counted(1, 2)),
        ("plain", BootEntry::Plain),
        ("one-shot", BootEntry::OneShot),
        ("invalid", BootEntry::Invalid("two of them".to_owned())),
    ]
}

fn print_table(running: Slot) -> String {
    let entries = every_entry();
    let names: Vec<_> = entries.iter().map(|(name, _)| *name).collect();
    let mut printed = format!("| | {} |\n", names.join(" | "));
    for (name, state) in every_state() {
        let slots = with_good_slot_a(state);
        let cells = entries.iter().map(|(_, entry)| {
            let observed = boot_observation(running, BootEntry::Plain, entry.clone());
            let (next, repairs) = reconcile(&slots, &observed, NOON);
            assert_eq!(next.a, slots.a, "the good slot is unchanged");
            let repairs = repairs.iter().map(|repair| match repair {
                BootRepair::Withdraw(slot) => {
                    assert_eq!(*slot, Slot::B);
                    "withdraw"
                }
                BootRepair::Bless(slot) => {
                    assert_eq!(*slot, Slot::B);
                    "bless"
                }
                BootRepair::Reset => "reset",
            });
            let cell: Vec<_> = std::iter::once(state_label(&next.b)).chain(repairs).collect();
            cell.join(", ")
        });
        let cells: Vec<_> = cells.collect();
        writeln!(printed, "| {name} | {} |", cells.join(" | ")).expect("to text");
    }
    printed
}

#[test]
fn the_other_slot_is_settled_by_its_entry() {
    let printed = print_table(Slot::A);
    assert_eq!(printed, OTHER, "it is\n{printed}");
}

#[test]
fn the_running_slot_is_settled_by_its_entry() {
    let printed = print_table(Slot::B);
    assert_eq!(printed, RUNNING, "it is\n{printed}");
}

#[test]
fn without_a_record_the_running_image_is_good_unless_its_boots_are_counted() {
    let first = boot_observation(Slot::A, BootEntry::Plain, BootEntry::Absent);
    let first = BootObservation { image: Some(("demo".to_owned(), "1.0".to_owned())), ..first };
    let (slots, repairs) = reconcile(&Slots::default(), &first, NOON);
    let SlotState::Good(image) = &slots.a else {
        panic!("{slots:?}");
    };
    assert_eq!((image.profile_name.as_str(), &*image.image_id), ("demo", "1.0"));
    assert_eq!(image.file, Sha256::from([0; 32]));
    assert_eq!((slots.last_good, repairs), (Some(Slot::A), vec![]));
    assert_eq!(find_write_obstacle(&slots, &first), None);

    let on_trial = boot_observation(Slot::B, BootEntry::Plain, counted(2, 1));
    let (slots, repairs) = reconcile(&Slots::default(), &on_trial, NOON);
    assert_eq!((state_label(&slots.b), repairs), ("trial", vec![]));
    assert_eq!(slots.last_good, None);
    assert_eq!(find_write_obstacle(&slots, &on_trial), None, "the trial is running");
}

#[test]
fn an_unknown_running_slot_changes_nothing_and_is_an_obstacle() {
    let slots = with_good_slot_a(trial(false));
    let mut observed = boot_observation(Slot::A, BootEntry::Plain, counted(1, 2));
    observed.booted = None;
    assert_eq!(reconcile(&slots, &observed, NOON), (slots.clone(), vec![]));
    let obstacle = find_write_obstacle(&slots, &observed).expect("an obstacle");
    assert_eq!(obstacle, SlotError::RunningUnknown);
}

#[test]
fn a_slot_that_was_started_by_hand_is_an_obstacle() {
    let slots = with_good_slot_a(SlotState::Written(slot_image(2)));
    let observed = boot_observation(Slot::B, BootEntry::Plain, BootEntry::Absent);
    let (next, repairs) = reconcile(&slots, &observed, NOON);
    assert_eq!((&next, repairs), (&slots, vec![]));
    let message = find_write_obstacle(&next, &observed).expect("an obstacle").to_string();
    assert!(
        message.starts_with("the slot root-b runs and holds an image that was not tried"),
        "{message}"
    );
}

#[test]
fn the_only_entry_is_never_withdrawn() {
    // The running slot lost its entry: the entry of the other slot is the only one that boots.
    let slots = with_good_slot_a(SlotState::Written(slot_image(2)));
    let (_, repairs) =
        reconcile(&slots, &boot_observation(Slot::A, BootEntry::Absent, BootEntry::Plain), NOON);
    assert!(repairs.is_empty(), "{repairs:?}");
    // A bad slot runs, and there is no fallback.
    for entry in [BootEntry::Absent, BootEntry::OneShot, counted(3, 0)] {
        let observed = boot_observation(Slot::B, entry, BootEntry::Plain);
        let (_, repairs) = reconcile(&with_good_slot_a(bad()), &observed, NOON);
        assert!(repairs.is_empty(), "{repairs:?}");
    }
    let both_bad = Slots { a: bad(), b: bad(), ..Slots::default() };
    let (_, repairs) =
        reconcile(&both_bad, &boot_observation(Slot::B, BootEntry::Plain, BootEntry::Plain), NOON);
    assert!(repairs.is_empty(), "{repairs:?}");
}

#[test]
fn a_bad_slot_that_a_foreign_entry_starts_is_not_reset_repeatedly() {
    let mut observed = boot_observation(Slot::B, BootEntry::Plain, BootEntry::Absent);
    let slots = with_good_slot_a(bad());
    let (_, repairs) = reconcile(&slots, &observed, NOON);
    assert_eq!(repairs, [BootRepair::Reset]);
    observed.foreign.push("by-hand.conf".to_owned());
    let (_, repairs) = reconcile(&slots, &observed, NOON);
    assert!(repairs.is_empty(), "{repairs:?}");
}

#[test]
fn an_image_that_fell_back_reports_its_number_of_boots() {
    let reason = |state, entry| {
        let observed = boot_observation(Slot::A, BootEntry::Plain, entry);
        let (slots, _) = reconcile(&with_good_slot_a(state), &observed, NOON);
        let bad_image = slots.find_bad(&slot_image(2).file).expect("it fell back");
        bad_image.reason.clone()
    };
    assert_eq!(reason(armed("then"), counted(0, 3)), "it did not come up in 3 boots");
    assert_eq!(reason(armed("then"), counted(2, 1)), "it did not come up in 1 boot");
    assert_eq!(
        reason(armed("then"), BootEntry::OneShot),
        "it was to be booted once, and did not come up"
    );
    assert_eq!(
        reason(trial(false), BootEntry::Absent),
        "it came up in 1 boot and did not prove healthy in time"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn reconciling_is_idempotent_and_its_repairs_preserve_a_fallback(
        (slots, observed) in (any_slots(), any_observation())
    ) {
        let (next, repairs) = reconcile(&slots, &observed, NOON);
        prop_assert_eq!(reconcile(&next, &observed, NOON), (next.clone(), repairs.clone()));
        if let Some(good) = next.last_good {
            prop_assert!(matches!(next.state(good), SlotState::Good(_)));
        }
        for repair in repairs {
            match repair {
                BootRepair::Withdraw(slot) => {
                    prop_assert!(!matches!(next.state(slot), SlotState::Good(_)));
                    prop_assert_eq!(observed.entry(slot.other()), &BootEntry::Plain);
                }
                BootRepair::Bless(slot) => {
                    prop_assert_eq!(observed.booted, Some(slot));
                    prop_assert_eq!(state_label(next.state(slot)), "passed");
                }
                BootRepair::Reset => {
                    let running = observed.booted.expect("it is known");
                    prop_assert_eq!(state_label(next.state(running)), "bad");
                    prop_assert_eq!(observed.entry(running.other()), &BootEntry::Plain);
                }
            }
        }
    }
}
