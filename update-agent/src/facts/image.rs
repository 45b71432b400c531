//! What is told of images.

use std::fmt;
use std::sync::Arc;

use super::{Facts, MOST_TEXT, cut};
use crate::modules::image::boot_control::BootControl;
use crate::modules::image::slots::{Seen, Slot, SlotState, Slots, trouble};
use crate::trial;

/// What lies in a slot of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotFact {
    /// Such as `root-a`.
    pub name: String,
    /// Such as `good`.
    pub state: String,
    /// The version of the image; empty if there is none.
    pub image_id: String,
}

/// What runs, as the boot control says.
#[derive(Default)]
pub struct Running {
    boot: Option<Arc<dyn BootControl>>,
    /// As it was seen last; none if it never was.
    seen: Option<Seen>,
    /// Why it could not be seen just now.
    unseen: Option<String>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("seen", &self.seen)
            .field("unseen", &self.unseen)
            .finish_non_exhaustive()
    }
}

impl Running {
    /// As this boot control says; without one nothing is known of it.
    pub fn by(boot: Option<Arc<dyn BootControl>>) -> Self {
        Self {
            boot,
            ..Self::default()
        }
    }

    /// Looks again.
    pub async fn look(&mut self) {
        let Some(boot) = &self.boot else { return };
        let looked = trial::look(boot.as_ref()).await;
        match looked {
            Ok(seen) => (self.seen, self.unseen) = (Some(seen), None),
            Err(failure) => {
                let trouble = format!("what is in the slots cannot be learnt: {failure}");
                self.unseen = Some(trouble);
            }
        }
    }

    /// Whether the image that runs is not on trial: what may be gone with the next boot is not named. Where it is not
    /// known which slot runs, either may be the one.
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

    /// What a person should know of the slots as they are now.
    pub fn trouble(&self, slots: &Slots) -> Option<String> {
        let found = || trouble(slots, self.seen.as_ref()?).map(|refused| refused.to_string());
        self.unseen.clone().or_else(found)
    }
}

/// Adds to the facts which image runs, if it may be named, and what is in the slots if there are any.
pub fn add(facts: &mut Facts, slots: Option<&Slots>, may_be_named: bool) {
    let booted = facts.os_release.booted_image();
    facts.booted_image = booted.filter(|_| may_be_named).map(|mut image| {
        image.profile_name = cut(&image.profile_name, MOST_TEXT);
        image.image_id = cut(&image.image_id, MOST_TEXT);
        image
    });
    let Some(slots) = slots else {
        (facts.slots, facts.bad_images) = Default::default();
        return;
    };
    let fact = |slot: Slot| {
        let state = slots.state(slot);
        let image_id = state.what().map(|what| cut(&what.image_id, MOST_TEXT));
        SlotFact {
            name: slot.label().to_owned(),
            state: state.name().to_owned(),
            image_id: image_id.unwrap_or_default(),
        }
    };
    facts.slots = Slot::ALL.map(fact).to_vec();
    facts.bad_images.clone_from(&slots.bad);
    for bad in &mut facts.bad_images {
        bad.image_id = cut(&bad.image_id, MOST_TEXT);
        bad.why = cut(&bad.why, MOST_TEXT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Sha256;
    use crate::modules::image::slots::{Entry, What};
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

    fn what(image_id: &str) -> What {
        What {
            file: Sha256::of(image_id.as_bytes()),
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
            sequence: 1,
        }
    }

    fn told(facts: &mut Facts, slots: &Slots, running: &Running) {
        add(facts, Some(slots), running.is_settled(slots));
    }

    fn runs(slot: Slot) -> Running {
        Running {
            seen: Some(Seen {
                booted: Some(slot),
                boot_id: "b".into(),
                image: None,
                a: Entry::Plain,
                b: Entry::Absent,
                foreign: Vec::new(),
            }),
            ..Running::default()
        }
    }

    #[test]
    fn an_image_that_is_armed_is_named_only_where_another_one_runs() {
        let mut facts = facts();
        let armed = SlotState::Armed {
            what: what("1.1"),
            boot_id: "b".into(),
        };
        let slots = slots(SlotState::Good(what("1.0")), armed);
        for running in [runs(Slot::B), Running::default()] {
            told(&mut facts, &slots, &running);
            assert_eq!(facts.booted_image, None);
        }
        told(&mut facts, &slots, &runs(Slot::A));
        assert!(facts.booted_image.is_some());
    }

    #[test]
    fn trouble_is_what_the_slots_are_in_now() {
        let running = runs(Slot::A);
        let good = slots(SlotState::Good(what("1.0")), SlotState::Empty);
        assert_eq!(running.trouble(&good), None);
        let bad = SlotState::Bad {
            what: what("1.0"),
            why: "it hung".into(),
            log: String::new(),
        };
        let bad = slots(bad, SlotState::Empty);
        assert!(running.trouble(&bad).is_some());
        assert_eq!(Running::default().trouble(&bad), None, "nothing is known");
    }

    #[test]
    fn an_image_on_trial_is_never_named() {
        let mut facts = facts();
        let running = Running::default();
        let good = SlotState::Good(what("1.0"));
        let trial = |passed| SlotState::Trial {
            what: what("1.1"),
            boots: vec!["b".into()],
            passed,
            doubt: None,
        };
        for passed in [false, true] {
            let slots = slots(good.clone(), trial(passed));
            told(&mut facts, &slots, &running);
            assert_eq!(facts.booted_image, None);
        }
        assert_eq!(facts.slots[1].state, "trial");

        let kept = slots(good, SlotState::Good(what("1.1")));
        told(&mut facts, &kept, &running);
        let booted = facts.booted_image.clone().unwrap();
        assert_eq!(booted.profile_name, "demo");
        assert_eq!(booted.image_id, "1.1");
        let lines: Vec<_> = facts
            .slots
            .iter()
            .map(|slot| {
                let SlotFact {
                    name,
                    state,
                    image_id,
                } = slot;
                format!("{name} {state} {image_id}")
            })
            .collect();
        assert_eq!(lines, ["root-a good 1.0", "root-b good 1.1"]);
    }

    #[test]
    fn a_node_without_slots_tells_what_it_says_of_itself() {
        let mut facts = facts();
        add(&mut facts, None, true);
        assert_eq!(facts.booted_image.unwrap().image_id, "1.1");
        assert!(facts.slots.is_empty());
    }
}
