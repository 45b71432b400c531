//! The laws that hold for a machine at every moment, and those that hold at rest.

use super::machine::{BROKEN, GOOD, LawResult, ModelMachine, Phase};
use super::*;

/// Checks the laws that hold at every moment.
pub fn check_always(machine: &ModelMachine) -> LawResult<()> {
    check_final_boot(machine)?;
    for slot in Slot::ALL {
        let state = machine.record.state(slot);
        // A slot in state `Writing` whose entry could not be removed would go on trial without an
        // image name.
        let is_known = matches!(
            state,
            SlotState::Writing(_)
                | SlotState::Armed { .. }
                | SlotState::Trial { .. }
                | SlotState::Bad { .. }
        );
        match machine.entry(slot) {
            BootEntry::Absent => {}
            _ if machine.bootable(slot).is_none() => {
                return Err("a boot entry refers to an incomplete image".to_owned());
            }
            BootEntry::Plain if machine.bootable(slot) == Some(BROKEN) => {
                return Err(
                    "a boot entry without a counter refers to an image that is not good".to_owned()
                );
            }
            // After the record was lost, there may be entries that it does not know.
            entry if machine.is_to_start(entry) && !is_known && !machine.lost => {
                return Err("a slot that may boot is not on trial in the record".to_owned());
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
        let is_bad = machine.record.find_bad(&super::slot_image(image).file).is_some();
        if is_bad && !machine.tried[usize::from(image)] {
            return Err("an image is recorded as bad but was never tried".to_owned());
        }
        let undecided = machine.record.find_undecided(&super::slot_image(image).file);
        if undecided.is_some_and(|undecided| undecided.times > MAX_UNDECIDED_TRIALS) {
            return Err("an image is tried repeatedly without a decision".to_owned());
        }
    }
    Ok(())
}

/// When all counters are used up, the loader must start a complete and good image.
fn check_final_boot(machine: &ModelMachine) -> LawResult<()> {
    let plain = |slot: &Slot| *machine.entry(*slot) == BootEntry::Plain;
    // With two plain entries it starts the newer one, which is also its choice while no counter
    // remains.
    let choice = machine.choice().filter(plain);
    let last = choice.or_else(|| Slot::ALL.into_iter().find(plain));
    match last.and_then(|slot| machine.bootable(slot)) {
        Some(image) if image != BROKEN => Ok(()),
        _ => Err("the final boot is not a complete and good image".to_owned()),
    }
}

/// Checks the laws that hold at rest: the old or the new image runs, and a new update succeeds.
pub fn check_at_rest<'a>(
    machine: &ModelMachine,
    model: &Model,
    until_rest: impl Fn(ModelMachine) -> &'a ModelMachine,
) -> LawResult<()> {
    let slot = machine.running();
    let other = machine.record.state(slot.other());
    if machine.phase != Phase::Idle
        || machine.record.last_good != Some(slot)
        || matches!(other, SlotState::Armed { .. } | SlotState::Trial { .. })
    {
        return Err("it rests on neither the old nor the new image".to_owned());
    }
    let runs = |machine: &ModelMachine| machine.bootable(machine.running());
    let is_bad = |machine: &ModelMachine, image| {
        let file = super::slot_image(image).file;
        machine.record.find_bad(&file).is_some()
    };
    for (image, allow_retry) in [(GOOD, false), (GOOD, true), (BROKEN, true)] {
        let Some(updating) = machine.start_update(model, image, allow_retry) else {
            continue;
        };
        let end = until_rest(updating);
        if image == GOOD && (allow_retry || !is_bad(machine, GOOD)) && runs(end) != Some(GOOD) {
            return Err("a good image was requested and does not run".to_owned());
        }
        if image == BROKEN && (runs(end) != runs(machine) || !is_bad(end, BROKEN)) {
            return Err("a bad image is not recorded as bad in the end".to_owned());
        }
    }
    Ok(())
}
