//! Whether an image can be tried here, and into which slot it goes: from what is seen to the step, without a look at
//! anything.

use serde::{Deserialize, Serialize};

use super::slots::{Refused, Seen, Slot, SlotState, Slots, trouble};
use crate::model::{Failure, FailureKind, ImageChange, ImageWish, Sha256};
use crate::modules::Draft;
use crate::os;

/// Of a file that nobody knows: the record was lost, and the slot was taken for good because it runs.
const UNKNOWN: [u8; 32] = [0; 32];

/// Puts an image into a slot and lets the next boot try it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Into which slot. The other one runs.
    pub slot: Slot,
    /// What.
    pub wish: ImageWish,
    /// How many bytes fit into the slot; none if that was not asked, because the image is there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<u64>,
}

impl Step {
    /// The name of its kind.
    pub const NAME: &'static str = "arm";
    /// There is no other kind.
    pub const NAMES: &'static [&'static str] = &[Self::NAME];

    /// The wish as it is fetched: a file that is larger than the slot, packed or not, is refused while it comes. Its size
    /// may not have been known when that was planned.
    pub(super) fn bounded(&self) -> ImageWish {
        let mut wish = self.wish.clone();
        if let Some(room) = self.room {
            wish.rules.max_bytes = match wish.rules.max_bytes {
                0 => room,
                most => most.min(room),
            };
        }
        wish
    }
}

/// What a plan is made of.
#[derive(Clone, Debug)]
pub struct Observed {
    /// What is known of the slots.
    pub slots: Slots,
    /// What runs, and what the loader would start.
    pub seen: Seen,
    /// The kernel's name of this machine's architecture.
    pub machine: String,
    /// Why nobody vouches for the image; none if somebody does, or if the machine's owner does not ask for it.
    pub unsigned: Option<Failure>,
    /// Why it cannot be written here; none if it can, as far as is known.
    pub refused: Option<Failure>,
    /// What stands against a trial.
    pub faults: Vec<String>,
    /// How many bytes the file has; `None` if that cannot be learnt before it is fetched.
    pub size: Option<u64>,
    /// How many bytes fit into the slot that does not run; or why none do. `None` if it is not known which one that is.
    pub room: Option<Result<u64, Failure>>,
}

/// Thinks. The first thing that stands against the wish is told.
pub fn plan(wish: &ImageWish, observed: &Observed) -> Result<Draft<Step>, Failure> {
    let Observed { slots, seen, .. } = observed;
    let Some(booted) = seen.booted else {
        return Err(Refused::RunningUnknown.into());
    };
    if runs(wish, slots, seen, booted) {
        return Ok(Draft::default());
    }
    fits(wish, observed)?;
    is_settled(slots, seen, booted)?;
    has_not_failed(wish, slots)?;
    if !observed.faults.is_empty() {
        let faults = observed.faults.join("; ");
        let reason = format!("an image would not be tried safely here: {faults}");
        return Err(Failure::new(FailureKind::Apply, reason));
    }
    let slot = booted.other();
    let is_there = is_whole(wish, slots.state(slot));
    if !is_there {
        has_room(wish, observed)?;
    }
    Ok(Draft {
        download_bytes: if is_there {
            0
        } else {
            observed.size.unwrap_or(0)
        },
        reboot_expected: true,
        image: Some(ImageChange {
            profile_name: wish.profile_name.clone(),
            before: seen
                .image
                .as_ref()
                .map_or_else(String::new, |(_, id)| id.clone()),
            wanted: wish.image_id.clone(),
        }),
        steps: vec![Step {
            slot,
            wish: wish.clone(),
            room: match observed.room {
                Some(Ok(room)) => Some(room),
                _ => None,
            },
        }],
        ..Draft::default()
    })
}

/// Whether what is wished for runs and is there to stay.
fn runs(wish: &ImageWish, slots: &Slots, seen: &Seen, booted: Slot) -> bool {
    let SlotState::Good(what) = slots.state(booted) else {
        return false;
    };
    if what.file == Sha256::from(UNKNOWN) {
        let image = seen.image.as_ref();
        return image
            .is_some_and(|(profile, id)| *profile == wish.profile_name && *id == wish.image_id);
    }
    what.file == wish.sha256
}

/// Whether the file of an image is needed: it neither runs nor lies in the slot that it would go to.
pub(super) fn is_missing(wish: &ImageWish, slots: &Slots, seen: &Seen) -> bool {
    seen.booted.is_some_and(|booted| {
        !runs(wish, slots, seen, booted) && !is_whole(wish, slots.state(booted.other()))
    })
}

/// Whether it is made for this machine, and by somebody whom its owner trusts. One of which nobody said for what it is
/// made is for any.
fn fits(wish: &ImageWish, observed: &Observed) -> Result<(), Failure> {
    if wish.sha256 == Sha256::from(UNKNOWN) {
        let reason = "the catalogue has no SHA-256 of the image's file, so that nobody could tell it from another; add that to \
             the operating system at the server";
        return Err(Failure::new(FailureKind::Unsupported, reason));
    }
    let own = os::debian_architecture(&observed.machine);
    let is_for_any = wish.architecture.is_empty();
    if !is_for_any && os::debian_architecture(&wish.architecture) != own {
        let reason = format!(
            "the image is made for {} and this machine is one of {}; give the node a policy with another profile",
            wish.architecture, observed.machine
        );
        return Err(Failure::new(FailureKind::Unsupported, reason));
    }
    let failure = observed.refused.as_ref().or(observed.unsigned.as_ref());
    failure.cloned().map_or(Ok(()), Err)
}

/// Whether what runs is there to stay, so that there is something to come back to.
fn is_settled(slots: &Slots, seen: &Seen, booted: Slot) -> Result<(), Failure> {
    if matches!(slots.state(booted), SlotState::Trial { .. }) {
        let reason = format!(
            "what runs in {booted} is on trial: until that is decided no other image is tried"
        );
        return Err(Failure::new(FailureKind::Plan, reason));
    }
    trouble(slots, seen).map_or(Ok(()), |refused| Err(refused.into()))
}

/// Whether it is not one that failed here; an order goes over that.
fn has_not_failed(wish: &ImageWish, slots: &Slots) -> Result<(), Failure> {
    match slots.known_bad(&wish.sha256) {
        Some(bad) if !wish.again => {
            let reason = format!(
                "the image {} failed here at {} and is not tried again by itself: {}; a person may order it, or forget \
                 that with `evenkeel-agent image forget {}`",
                wish.image_id,
                bad.at.format("%Y-%m-%dT%H:%M:%SZ"),
                bad.why,
                bad.file
            );
            Err(Failure::new(FailureKind::Verify, reason))
        }
        _ => Ok(()),
    }
}

/// Whether the image lies in a slot, whole, and nothing starts it.
pub(super) fn is_written(wish: &ImageWish, state: &SlotState) -> bool {
    matches!(state, SlotState::Written(_)) && is_whole(wish, state)
}

/// Whether the image lies in a slot, whole: also one that was armed by an attempt of which nothing else is left.
fn is_whole(wish: &ImageWish, state: &SlotState) -> bool {
    match state {
        SlotState::Written(what) | SlotState::Armed { what, .. } => {
            what.file == wish.sha256 && what.raw.is_some()
        }
        _ => false,
    }
}

/// Whether the file may be as long as it is, and could fit. Unpacked it may still be too long: then writing it fails.
fn has_room(wish: &ImageWish, observed: &Observed) -> Result<(), Failure> {
    let room = match &observed.room {
        Some(Ok(room)) => Some(*room),
        Some(Err(failure)) => return Err(failure.clone()),
        None => None,
    };
    let Some(size) = observed.size else {
        return Ok(());
    };
    let most = wish.rules.max_bytes;
    if most > 0 && size > most {
        let reason = format!("the image has {size} bytes and the policy allows {most}");
        return Err(Failure::new(FailureKind::Plan, reason));
    }
    match room {
        Some(room) if size > room => {
            let reason = format!("the image has {size} bytes and its slot has room for {room}");
            Err(Failure::new(FailureKind::Storage, reason))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
