//! Checks of the image slots: the boot control, the readiness for a trial, and the keys of images.

use std::fs;

use super::ImageSystem;
use super::boot_control::{self, RAUC};
use super::signature::ImageKeys;
use super::slots::{BootObservation, Slot, SlotState, Slots, find_write_obstacle};
use crate::commands::doctor::DoctorFinding;
use crate::module_registry::ModuleRegistry;
use crate::paths::AgentPaths;
use crate::text;

/// Runs the checks. A system without a second slot has none of them.
pub async fn check_boot(registry: &ModuleRegistry<'_>) -> Vec<DoctorFinding> {
    let images = match registry.images() {
        Ok(Some(images)) => images,
        Ok(None) => return Vec::new(),
        Err(failure) => {
            return vec![DoctorFinding::failed(
                "images",
                failure.reason,
                "fix the reported problem",
            )];
        }
    };
    let slots = images.slots.get();
    let mut findings = vec![match images.boot.observe().await {
        Ok(seen) => check_slots(&slots, &seen),
        Err(failure) => DoctorFinding::failed(
            "slots",
            failure.reason,
            "run this command as root; if it already is, check how the boot partition is mounted",
        ),
    }];
    findings.extend(check_boot_control(images).await);
    findings.extend(check_confirmation(registry.paths, images.boot.name()));
    findings.push(check_image_keys(registry));
    findings.extend(list_failed_images(&slots));
    findings
}

/// Shows the images in the slots, and whether another image can be tried.
fn check_slots(slots: &Slots, seen: &BootObservation) -> DoctorFinding {
    let lines = Slot::ALL.map(|slot| {
        let state = slots.state(slot);
        let image = state.image().map(|image| format!(" ({})", image.image_id));
        let runs = if seen.booted == Some(slot) { ", and runs" } else { "" };
        let image = image.unwrap_or_default();
        format!("{slot} {}{image}{runs}", state.description())
    });
    let lines = lines.join("\n");
    if let Some(refused) = find_write_obstacle(slots, seen) {
        return DoctorFinding::failed("slots", lines, refused.to_string());
    }
    let mut states = Slot::ALL.iter().map(|slot| slots.state(*slot));
    if states.any(|state| matches!(state, SlotState::Trial { .. })) {
        return DoctorFinding::warning(
            "slots",
            lines,
            "no other image is tried before this trial ends",
        );
    }
    DoctorFinding::passed("slots", lines)
}

async fn check_boot_control(images: &ImageSystem) -> Vec<DoctorFinding> {
    let name = images.boot.name();
    let faults = images.boot.faults().await;
    if faults.is_empty() {
        let good = format!("{name}; an image that fails to boot is rolled back");
        return vec![DoctorFinding::passed("boot", good)];
    }
    let faults = faults.into_iter();
    faults
        .map(|fault| DoctorFinding::failed("boot", fault, "no image is tried until this is fixed"))
        .collect()
}

/// Boot loaders of RAUC count each boot, and an agent that is not enrolled does not run.
fn check_confirmation(paths: &AgentPaths, boot_control_name: &str) -> Option<DoctorFinding> {
    if boot_control_name != RAUC || paths.node().exists() {
        return None;
    }
    let fault = boot_control::check_rauc_confirm_unit(paths).err()?;
    Some(DoctorFinding::warning(
        "boot",
        "this node is not enrolled, so nothing confirms its boots, and a boot loader that counts them gives up the slot",
        format!("enrol the node, or fix this: {fault}"),
    ))
}

/// Checks whether images can be verified.
fn check_image_keys(registry: &ModuleRegistry<'_>) -> DoctorFinding {
    let unsigned = registry.owner.limits().map(|limits| limits.image.unsigned_images);
    if unsigned == Ok(true) {
        return DoctorFinding::warning(
            "image keys",
            "images without a valid signature are allowed to run",
            "put the publisher's key into /etc/evenkeel/image-keys.d, and remove `unsigned_images` from the limits",
        );
    }
    let folder = registry.paths.image_keys();
    if let Err(failure) = ImageKeys::load(&folder) {
        return DoctorFinding::failed("image keys", failure.reason, "fix the reported problem");
    }
    let files = fs::read_dir(&folder).into_iter().flatten().flatten();
    let is_key = |path: std::path::PathBuf| path.extension().is_some_and(|end| end == "pem");
    match files.filter(|file| is_key(file.path())).count() {
        0 => DoctorFinding::failed(
            "image keys",
            "there is no key, so every image is refused",
            format!("put the publisher's public key into {} as a .pem file", folder.display()),
        ),
        count => {
            let keys = text::pluralize(count, "key", "keys");
            DoctorFinding::passed("image keys", format!("images are verified with {keys}"))
        }
    }
}

/// Images that failed and are not tried again automatically.
fn list_failed_images(slots: &Slots) -> Vec<DoctorFinding> {
    let bad = slots.bad.iter();
    bad.map(|bad| {
        let message = format!("{} failed here: {}", bad.image_id, bad.reason);
        let advice = format!("run `evenkeel-agent image forget {}` to allow another try", bad.file);
        DoctorFinding::warning("image", message, advice)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::CheckOutcome;
    use crate::model::Sha256;
    use crate::modules::image::slots::{BootEntry, SlotImage};

    fn slot_content(image_id: &str) -> SlotImage {
        SlotImage {
            file: Sha256::hash(image_id.as_bytes()),
            profile_name: "demo".into(),
            image_id: image_id.into(),
            raw: None,
        }
    }

    #[test]
    fn a_node_that_is_not_enrolled_needs_the_unit_that_confirms_its_boots() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        paths.prepare().unwrap();
        assert!(check_confirmation(&paths, "systemd-boot").is_none());
        let finding = check_confirmation(&paths, RAUC).unwrap();
        assert_eq!(finding.outcome, CheckOutcome::Warning);
        assert!(finding.advice.contains("evenkeel-rauc-confirm.service"), "{finding:?}");

        fs::write(paths.node(), "{}").unwrap();
        assert!(check_confirmation(&paths, RAUC).is_none());
        fs::remove_file(paths.node()).unwrap();
        for file in [
            "/usr/lib/systemd/system/evenkeel-rauc-confirm.service",
            "/usr/lib/systemd/system/multi-user.target.wants/evenkeel-rauc-confirm.service",
            "/usr/lib/evenkeel/rauc-confirm-boot",
        ] {
            assert!(check_confirmation(&paths, RAUC).is_some(), "without {file}");
            let path = paths.inside(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let start = "[Service]\nExecStart=/bin/sh /usr/lib/evenkeel/rauc-confirm-boot\n";
            fs::write(path, start).unwrap();
        }
        assert!(check_confirmation(&paths, RAUC).is_none());
        let moved = AgentPaths::new(root.path(), Some(paths.inside("/data/agent")));
        let finding = check_confirmation(&moved, RAUC).unwrap();
        assert!(finding.advice.contains("rauc-confirm-boot /data/agent"), "{finding:?}");
    }

    #[test]
    fn slots_are_good_if_there_is_an_image_to_fall_back_to() {
        let mut slots = Slots {
            a: SlotState::Good(slot_content("1.0")),
            last_good: Some(Slot::A),
            ..Slots::default()
        };
        let mut seen = BootObservation {
            booted: Some(Slot::A),
            boot_id: "b".into(),
            image: None,
            a: BootEntry::Plain,
            b: BootEntry::Absent,
            foreign: Vec::new(),
        };
        let finding = check_slots(&slots, &seen);
        assert_eq!(finding.outcome, CheckOutcome::Passed);
        assert_eq!(
            finding.result,
            "root-a holds a good image (1.0), and runs\nroot-b is not known to hold an image"
        );
        slots.b = SlotState::Trial {
            image: slot_content("1.1"),
            boots: Vec::new(),
            passed: false,
            undecided_end: None,
        };
        assert_eq!(check_slots(&slots, &seen).outcome, CheckOutcome::Warning);
        seen.booted = None;
        let finding = check_slots(&slots, &seen);
        assert_eq!(finding.outcome, CheckOutcome::Failed);
        assert!(finding.advice.contains("boot entries"), "{finding:?}");
    }
}
