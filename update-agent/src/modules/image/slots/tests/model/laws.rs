//! What must hold of a machine at every moment, and once it rests.

use super::machine::{BROKEN, GOOD, Machine, Outcome, Place};
use super::*;

/// At every moment.
pub fn holds(machine: &Machine) -> Outcome<()> {
    boots_at_last(machine)?;
    for slot in Slot::ALL {
        let state = machine.record.state(slot);
        // What is about to be written, and could not lose its entry, would be on trial under no name.
        let is_known = matches!(
            state,
            SlotState::Writing(_)
                | SlotState::Armed { .. }
                | SlotState::Trial { .. }
                | SlotState::Bad { .. }
        );
        match machine.entry(slot) {
            Entry::Absent => {}
            _ if machine.bootable(slot).is_none() => {
                return Err("a boot entry names what is not whole".to_owned());
            }
            Entry::Plain if machine.bootable(slot) == Some(BROKEN) => {
                return Err("a boot entry without a counter names what is not good".to_owned());
            }
            // Once the record was lost there may be entries that it does not know.
            entry if machine.is_to_start(entry) && !is_known && !machine.lost => {
                return Err("what may boot is no trial to the record".to_owned());
            }
            _ => {}
        }
    }
    if let Some(slot) = machine.record.last_good {
        let is_good = matches!(machine.record.state(slot), SlotState::Good(_));
        if !is_good || machine.bootable(slot).is_none_or(|image| image == BROKEN) {
            return Err("the last good slot is not good".to_owned());
        }
    }
    for image in [GOOD, BROKEN] {
        let is_bad = machine
            .record
            .known_bad(&super::image(image).file)
            .is_some();
        if is_bad && !machine.tried[usize::from(image)] {
            return Err("an image is called bad that was never tried".to_owned());
        }
        let undecided = machine.record.undecided(&super::image(image).file);
        if undecided.is_some_and(|undecided| undecided.times > MOST_UNDECIDED) {
            return Err("an image is tried again and again, and never decided upon".to_owned());
        }
    }
    Ok(())
}

/// When every counter is used up the loader takes something whole that is good.
fn boots_at_last(machine: &Machine) -> Outcome<()> {
    let plain = |slot: &Slot| *machine.entry(*slot) == Entry::Plain;
    // With two of them the newer one, which is also the choice while no counter is left.
    let choice = machine.choice().filter(plain);
    let last = choice.or_else(|| Slot::ALL.into_iter().find(plain));
    match last.and_then(|slot| machine.bootable(slot)) {
        Some(image) if image != BROKEN => Ok(()),
        _ => Err("what boots at last is not whole and good".to_owned()),
    }
}

/// Once it rests: it rests on old or new, and a wish that comes now is gone on with.
pub fn goes_on<'a>(
    machine: &Machine,
    model: &Model,
    until_rest: impl Fn(Machine) -> &'a Machine,
) -> Outcome<()> {
    let slot = machine.running();
    let other = machine.record.state(slot.other());
    if machine.place != Place::Idle
        || machine.record.last_good != Some(slot)
        || matches!(other, SlotState::Armed { .. } | SlotState::Trial { .. })
    {
        return Err("it rests on what is neither old nor new".to_owned());
    }
    let runs = |machine: &Machine| machine.bootable(machine.running());
    let is_bad = |machine: &Machine, image| {
        let file = super::image(image).file;
        machine.record.known_bad(&file).is_some()
    };
    for (image, again) in [(GOOD, false), (GOOD, true), (BROKEN, true)] {
        let Some(wished) = machine.wished(model, image, again) else {
            continue;
        };
        let end = until_rest(wished);
        if image == GOOD && (again || !is_bad(machine, GOOD)) && runs(end) != Some(GOOD) {
            return Err("a good image is wished for and does not come to run".to_owned());
        }
        if image == BROKEN && (runs(end) != runs(machine) || !is_bad(end, BROKEN)) {
            return Err("a bad image does not end as one that is known".to_owned());
        }
    }
    Ok(())
}
