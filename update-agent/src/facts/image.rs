//! Facts about images.

use std::fmt;
use std::sync::Arc;

use super::{Facts, MAX_TEXT_BYTES, truncate_text};
use crate::modules::image::boot_control::BootControl;
use crate::modules::image::slots::{BootObservation, Slot, SlotState, Slots, find_write_obstacle};
use crate::trial;

/// Content of an image slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotFact {
    /// Name, such as `root-a`.
    pub name: String,
    /// State, such as `good`.
    pub state: String,
    /// Version of the image; empty if there is none.
    pub image_id: String,
}

/// The running image, as reported by the boot control.
#[derive(Default)]
pub struct RunningImage {
    boot: Option<Arc<dyn BootControl>>,
    /// The last boot state; `None` if it was never read.
    seen: Option<BootObservation>,
    /// Why the boot state could not be read the last time.
    read_error: Option<String>,
}

impl fmt::Debug for RunningImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningImage")
            .field("seen", &self.seen)
            .field("read_error", &self.read_error)
            .finish_non_exhaustive()
    }
}

impl RunningImage {
    /// Uses this boot control; without one nothing is known.
    pub fn from_boot_control(boot: Option<Arc<dyn BootControl>>) -> Self {
        Self { boot, ..Self::default() }
    }

    /// Reads the boot state again.
    pub async fn refresh(&mut self) {
        let Some(boot) = &self.boot else { return };
        let looked = trial::read_slots(boot.as_ref()).await;
        match looked {
            Ok(seen) => (self.seen, self.read_error) = (Some(seen), None),
            Err(failure) => {
                let message = format!("cannot determine the state of the slots: {failure}");
                self.read_error = Some(message);
            }
        }
    }

    /// Whether the running image is not on trial. An image on trial may be gone at the next boot,
    /// so it is not reported. If the running slot is unknown, neither slot may be on trial.
    pub fn is_settled(&self, slots: &Slots) -> bool {
        let is_open = |slot| {
            let state = slots.state(slot);
            matches!(state, SlotState::Armed { .. } | SlotState::Trial { .. })
        };
        match self.seen.as_ref().and_then(|seen| seen.booted) {
            Some(slot) => !is_open(slot),
            None => !Slot::ALL.into_iter().any(is_open),
        }
    }

    /// Warning about the current state of the slots, if there is one.
    pub fn warning(&self, slots: &Slots) -> Option<String> {
        let slot_warning =
            || find_write_obstacle(slots, self.seen.as_ref()?).map(|refused| refused.to_string());
        self.read_error.clone().or_else(slot_warning)
    }
}

/// Adds the running image, if it may be reported, and the content of the slots to the facts.
pub fn add_image_facts(facts: &mut Facts, slots: Option<&Slots>, may_be_named: bool) {
    let booted = facts.os_release.booted_image();
    facts.booted_image = booted.filter(|_| may_be_named).map(|mut image| {
        image.profile_name = truncate_text(&image.profile_name, MAX_TEXT_BYTES);
        image.image_id = truncate_text(&image.image_id, MAX_TEXT_BYTES);
        image
    });
    let Some(slots) = slots else {
        (facts.slots, facts.bad_images) = Default::default();
        return;
    };
    let fact = |slot: Slot| {
        let state = slots.state(slot);
        let image_id = state.image().map(|image| truncate_text(&image.image_id, MAX_TEXT_BYTES));
        SlotFact {
            name: slot.label().to_owned(),
            state: state.name().to_owned(),
            image_id: image_id.unwrap_or_default(),
        }
    };
    facts.slots = Slot::ALL.map(fact).to_vec();
    facts.bad_images.clone_from(&slots.bad);
    for bad in &mut facts.bad_images {
        bad.image_id = truncate_text(&bad.image_id, MAX_TEXT_BYTES);
        bad.reason = truncate_text(&bad.reason, MAX_TEXT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Sha256;
    use crate::modules::image::slots::{BootEntry, SlotImage};
    use crate::os::OsRelease;

    fn facts() -> Facts {
        Facts {
            os_release: OsRelease {
                image_id: "demo".into(),
                image_version: "1.1".into(),
                ..OsRelease::default()
            },
            ..Facts::default()
        }
    }

    fn slot_content(image_id: &str) -> SlotImage {
        SlotImage {
            file: Sha256::hash(image_id.as_bytes()),
            profile_name: "demo".into(),
            image_id: image_id.into(),
            raw: None,
        }
    }

    fn slots(a: SlotState, b: SlotState) -> Slots {
        Slots {
            a,
            b,
            last_good: Some(Slot::A),
            bad: Vec::new(),
            undecided: Vec::new(),
            version_floors: Vec::new(),
            sequence: 1,
        }
    }

    fn add_running(facts: &mut Facts, slots: &Slots, running: &RunningImage) {
        add_image_facts(facts, Some(slots), running.is_settled(slots));
    }

    fn running_slot(slot: Slot) -> RunningImage {
        RunningImage {
            seen: Some(BootObservation {
                booted: Some(slot),
                boot_id: "b".into(),
                image: None,
                a: BootEntry::Plain,
                b: BootEntry::Absent,
                foreign: Vec::new(),
            }),
            ..RunningImage::default()
        }
    }

    #[test]
    fn an_armed_image_is_reported_only_while_the_other_slot_runs() {
        let mut facts = facts();
        let armed = SlotState::Armed { image: slot_content("1.1"), boot_id: "b".into() };
        let slots = slots(SlotState::Good(slot_content("1.0")), armed);
        for running in [running_slot(Slot::B), RunningImage::default()] {
            add_running(&mut facts, &slots, &running);
            assert_eq!(facts.booted_image, None);
        }
        add_running(&mut facts, &slots, &running_slot(Slot::A));
        assert!(facts.booted_image.is_some());
    }

    #[test]
    fn the_warning_follows_the_state_of_the_slots() {
        let running = running_slot(Slot::A);
        let good = slots(SlotState::Good(slot_content("1.0")), SlotState::Empty);
        assert_eq!(running.warning(&good), None);
        let bad = SlotState::Bad {
            image: slot_content("1.0"),
            reason: "it hung".into(),
            log: String::new(),
        };
        let bad = slots(bad, SlotState::Empty);
        assert!(running.warning(&bad).is_some());
        assert_eq!(RunningImage::default().warning(&bad), None, "no boot state is known");
    }

    #[test]
    fn an_image_on_trial_is_never_reported() {
        let mut facts = facts();
        let running = RunningImage::default();
        let good = SlotState::Good(slot_content("1.0"));
        let trial = |passed| SlotState::Trial {
            image: slot_content("1.1"),
            boots: vec!["b".into()],
            passed,
            undecided_end: None,
        };
        for passed in [false, true] {
            let slots = slots(good.clone(), trial(passed));
            add_running(&mut facts, &slots, &running);
            assert_eq!(facts.booted_image, None);
        }
        assert_eq!(facts.slots[1].state, "trial");

        let committed = slots(good, SlotState::Good(slot_content("1.1")));
        add_running(&mut facts, &committed, &running);
        let booted = facts.booted_image.clone().unwrap();
        assert_eq!(booted.profile_name, "demo");
        assert_eq!(booted.image_id, "1.1");
        let lines: Vec<_> = facts
            .slots
            .iter()
            .map(|slot| {
                let SlotFact { name, state, image_id } = slot;
                format!("{name} {state} {image_id}")
            })
            .collect();
        assert_eq!(lines, ["root-a good 1.0", "root-b good 1.1"]);
    }

    #[test]
    fn a_node_without_slots_reports_its_os_release() {
        let mut facts = facts();
        add_image_facts(&mut facts, None, true);
        assert_eq!(facts.booted_image.unwrap().image_id, "1.1");
        assert!(facts.slots.is_empty());
    }
}
