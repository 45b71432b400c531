//! The slots of images: what starts them, what stands against a trial, and who may have made what goes into them.

use std::fs;

use super::Finding;
use crate::commands::images::Images;
use crate::commands::text;
use crate::commands::workshop::Workshop;
use crate::modules::image::signature::Keys;
use crate::modules::image::slots::{Seen, Slot, SlotState, Slots, trouble};

/// Looks at them. A system without a second slot has none.
pub async fn look(workshop: &Workshop<'_>) -> Vec<Finding> {
    let images = match workshop.images() {
        Ok(Some(images)) => images,
        Ok(None) => return Vec::new(),
        Err(failure) => return vec![Finding::bad("images", failure.reason, "mend what is named")],
    };
    let slots = images.slots.get();
    let mut findings = vec![match images.boot.look().await {
        Ok(seen) => of_slots(&slots, &seen),
        Err(failure) => Finding::bad(
            "slots",
            failure.reason,
            "run this as root; if you do, look at how the boot partition is mounted",
        ),
    }];
    findings.extend(faults(images).await);
    findings.push(keys(workshop));
    findings.extend(failed(&slots));
    findings
}

/// What is in the slots, and whether another image may be tried.
fn of_slots(slots: &Slots, seen: &Seen) -> Finding {
    let shown = Slot::ALL.map(|slot| {
        let state = slots.state(slot);
        let image = state.what().map(|what| format!(" ({})", what.image_id));
        let runs = if seen.booted == Some(slot) {
            ", and runs"
        } else {
            ""
        };
        let image = image.unwrap_or_default();
        format!("{slot} {}{image}{runs}", state.words())
    });
    let shown = shown.join("\n");
    if let Some(refused) = trouble(slots, seen) {
        return Finding::bad("slots", shown, refused.to_string());
    }
    let mut states = Slot::ALL.iter().map(|slot| slots.state(*slot));
    if states.any(|state| matches!(state, SlotState::Trial { .. })) {
        return Finding::doubtful(
            "slots",
            shown,
            "no other image is tried before that is decided",
        );
    }
    Finding::good("slots", shown)
}

async fn faults(images: &Images) -> Vec<Finding> {
    let name = images.boot.name();
    let faults = images.boot.faults().await;
    if faults.is_empty() {
        let good = format!("{name}; an image that does not come up is left again");
        return vec![Finding::good("boot", good)];
    }
    let faults = faults.into_iter();
    faults
        .map(|fault| Finding::bad("boot", fault, "until that is mended no image is tried here"))
        .collect()
}

/// Whether an image can be checked.
fn keys(workshop: &Workshop<'_>) -> Finding {
    let unsigned = workshop
        .owner
        .limits()
        .map(|limits| limits.image.unsigned_images);
    if unsigned == Ok(true) {
        return Finding::doubtful(
            "image keys",
            "images run here that nobody has signed",
            "put the publisher's key into /etc/evenkeel/image-keys.d, and remove `unsigned_images` from the limits",
        );
    }
    let folder = workshop.place.image_keys();
    if let Err(failure) = Keys::load(&folder) {
        return Finding::bad("image keys", failure.reason, "mend what is named");
    }
    let files = fs::read_dir(&folder).into_iter().flatten().flatten();
    let is_key = |path: std::path::PathBuf| path.extension().is_some_and(|end| end == "pem");
    match files.filter(|file| is_key(file.path())).count() {
        0 => Finding::bad(
            "image keys",
            "there is none, so no image is taken",
            format!(
                "put the publisher's public key into {} as a file with the ending .pem",
                folder.display()
            ),
        ),
        count => {
            let keys = text::count(count, "key", "keys");
            Finding::good("image keys", format!("images are checked with {keys}"))
        }
    }
}

/// Images that are not tried again by themselves.
fn failed(slots: &Slots) -> Vec<Finding> {
    let bad = slots.bad.iter();
    bad.map(|bad| {
        let found = format!("{} failed here: {}", bad.image_id, bad.why);
        let advice = format!(
            "`evenkeel-agent image forget {}` lets it be tried again",
            bad.file
        );
        Finding::doubtful("image", found, advice)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Outcome;
    use crate::model::Sha256;
    use crate::modules::image::slots::{Entry, What};

    fn what(image_id: &str) -> What {
        What {
            file: Sha256::of(image_id.as_bytes()),
            profile_name: "demo".into(),
            image_id: image_id.into(),
            raw: None,
        }
    }

    #[test]
    fn slots_are_well_if_there_is_something_to_come_back_to() {
        let mut slots = Slots {
            a: SlotState::Good(what("1.0")),
            last_good: Some(Slot::A),
            ..Slots::default()
        };
        let mut seen = Seen {
            booted: Some(Slot::A),
            boot_id: "b".into(),
            image: None,
            a: Entry::Plain,
            b: Entry::Absent,
            foreign: Vec::new(),
        };
        let found = of_slots(&slots, &seen);
        assert_eq!(found.outcome, Outcome::Good);
        assert_eq!(
            found.found,
            "root-a holds a good image (1.0), and runs\nroot-b is not known to hold an image"
        );
        slots.b = SlotState::Trial {
            what: what("1.1"),
            boots: Vec::new(),
            passed: false,
            doubt: None,
        };
        assert_eq!(of_slots(&slots, &seen).outcome, Outcome::Doubtful);
        seen.booted = None;
        let found = of_slots(&slots, &seen);
        assert_eq!(found.outcome, Outcome::Bad);
        assert!(found.advice.contains("boot entries"), "{found:?}");
    }
}
