//! Decides whether an image can be tried on this machine and in which slot: from the observation to
//! the step, without any input or output.

use std::cmp::Ordering;

use evenkeel_domain::os::compare_versions;
use serde::{Deserialize, Serialize};

use super::ImageReport;
use super::slots::{BootObservation, Slot, SlotError, SlotState, Slots, find_write_obstacle};
use crate::model::{
    Failure, FailureKind, ImageChange, ImageSpec, RebootRule, Sha256, SpaceNeed, UpdatePlan,
};
use crate::modules::Draft;
use crate::os;

/// Digest of an unknown file: the record was lost, and the slot counts as good because it runs.
const UNKNOWN_DIGEST: [u8; 32] = [0; 32];

/// Maximum size of the agent's own files while an image is armed and tried, in bytes.
const RECORDS_BYTES: u64 = 4 << 20;

/// Writes an image into a slot and arms the slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageStep {
    /// Target slot. The other one runs.
    pub slot: Slot,
    /// Image to write.
    pub spec: ImageSpec,
    /// Size of the slot in bytes; `None` if it is unknown because the image is already there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot_capacity: Option<u64>,
}

impl ImageStep {
    /// Name of the only kind of step.
    pub const NAME: &'static str = "arm";

    /// The spec for the download, which refuses a file that is larger than the slot, compressed or
    /// not. The size may have been unknown when the update was planned.
    pub(super) fn size_limited_spec(&self) -> ImageSpec {
        let mut spec = self.spec.clone();
        if let Some(slot_capacity) = self.slot_capacity {
            spec.rules.max_bytes = match spec.rules.max_bytes {
                0 => slot_capacity,
                max_bytes => max_bytes.min(slot_capacity),
            };
        }
        spec
    }
}

/// Input of a plan.
#[derive(Clone, Debug)]
pub struct ImageObservation {
    /// Record of the slots.
    pub slots: Slots,
    /// The running slot and the boot entries.
    pub boot: BootObservation,
    /// Architecture of this machine, as the kernel names it.
    pub architecture: String,
    /// Why the image is not trusted: its signature or its version is not accepted and the owner did
    /// not allow it. `None` if it is trusted.
    pub trust_failure: Option<Failure>,
    /// Why the image cannot be written on this machine; `None` if no reason is known.
    pub write_failure: Option<Failure>,
    /// Faults of the machine that make a trial unsafe.
    pub faults: Vec<String>,
    /// Size of the file in bytes; `None` if it is unknown before the download.
    pub size: Option<u64>,
    /// Size of the slot that does not run, or why no image fits. `None` if the running slot is
    /// unknown.
    pub slot_capacity: Option<Result<u64, Failure>>,
}

/// Plans the update. Fails with the first obstacle.
pub fn plan_image(
    spec: &ImageSpec,
    observation: &ImageObservation,
) -> Result<Draft<ImageStep, ImageReport>, Failure> {
    let ImageObservation { slots, boot, .. } = observation;
    let Some(booted) = boot.booted else {
        return Err(SlotError::RunningUnknown.into());
    };
    if is_running(spec, slots, boot, booted) {
        return Ok(Draft::default());
    }
    check_compatibility(spec, observation)?;
    check_settled(slots, boot, booted)?;
    check_not_failed_before(spec, slots)?;
    if !observation.faults.is_empty() {
        let faults = observation.faults.join("; ");
        let reason = format!("an image cannot be tried safely on this machine: {faults}");
        return Err(Failure::new(FailureKind::Apply, reason));
    }
    let slot = booted.other();
    let is_there = is_complete(spec, slots.state(slot));
    if !is_there {
        check_size(spec, observation)?;
    }
    let before = boot.image.as_ref().map(|(_, id)| id.clone());
    Ok(Draft {
        plan: UpdatePlan {
            download_bytes: if is_there { 0 } else { observation.size.unwrap_or(0) },
            disk_bytes: 0,
            reboot_expected: true,
            reboot: RebootRule::IfRequired,
            // The slot is already written, the root may be read-only, and no package is changed.
            space: vec![SpaceNeed { max_free: Some(RECORDS_BYTES), ..SpaceNeed::default() }],
        },
        report: ImageReport {
            change: Some(ImageChange {
                profile_name: spec.profile_name.clone(),
                before: before.clone().unwrap_or_default(),
                after: spec.image_id.clone(),
            }),
            booted: before.filter(|id| !id.is_empty()),
        },
        steps: vec![ImageStep {
            slot,
            spec: spec.clone(),
            slot_capacity: match observation.slot_capacity {
                Some(Ok(slot_capacity)) => Some(slot_capacity),
                _ => None,
            },
        }],
        ..Draft::default()
    })
}

/// Whether the desired image runs and was committed.
fn is_running(spec: &ImageSpec, slots: &Slots, boot: &BootObservation, booted: Slot) -> bool {
    let SlotState::Good(slot_image) = slots.state(booted) else {
        return false;
    };
    if slot_image.file == Sha256::from(UNKNOWN_DIGEST) {
        let image = boot.image.as_ref();
        return image
            .is_some_and(|(profile, id)| *profile == spec.profile_name && *id == spec.image_id);
    }
    slot_image.file == spec.sha256
}

/// Whether the file of the image is needed: the image neither runs nor is in its target slot.
pub(super) fn is_file_needed(spec: &ImageSpec, slots: &Slots, boot: &BootObservation) -> bool {
    boot.booted.is_some_and(|booted| {
        !is_running(spec, slots, boot, booted) && !is_complete(spec, slots.state(booted.other()))
    })
}

/// Fails unless the image fits this machine and is signed by a trusted key. An image without an
/// architecture fits any machine.
fn check_compatibility(spec: &ImageSpec, observation: &ImageObservation) -> Result<(), Failure> {
    if spec.sha256 == Sha256::from(UNKNOWN_DIGEST) {
        let reason = "the catalogue has no SHA-256 of the image's file; add it to the operating \
                      system at the server";
        return Err(Failure::new(FailureKind::Unsupported, reason));
    }
    let own = os::debian_architecture(&observation.architecture);
    let is_for_any = spec.architecture.is_empty();
    if !is_for_any && os::debian_architecture(&spec.architecture) != own {
        let reason = format!(
            "the image is made for {}, but this machine is {}; give the node a policy with another \
             profile",
            spec.architecture, observation.architecture
        );
        return Err(Failure::new(FailureKind::Unsupported, reason));
    }
    let failure = observation.write_failure.as_ref().or(observation.trust_failure.as_ref());
    failure.cloned().map_or(Ok(()), Err)
}

/// Fails if an image is older than one of its profile that proved itself on this machine, or cannot
/// be compared with it. Otherwise everybody who controls the server could install an old image with
/// known faults: its signature is valid for ever.
pub(super) fn check_version(spec: &ImageSpec, slots: &Slots) -> Result<(), Failure> {
    let Some(floor) = slots.version_floor(&spec.profile_name) else {
        return Ok(());
    };
    let how = match compare_versions(&spec.image_id, floor) {
        Some(Ordering::Less) => "is older than",
        Some(Ordering::Equal | Ordering::Greater) => return Ok(()),
        None => "cannot be compared with",
    };
    let reason = format!(
        "the image {} {how} {floor}, which proved itself on this machine: the machine's owner can allow this with \
         `downgrades = true` in the section [image] of the limits file",
        spec.image_id
    );
    Err(Failure::new(FailureKind::Limits, reason))
}

/// Fails unless the running image was committed, so that there is an image to return to.
fn check_settled(slots: &Slots, boot: &BootObservation, booted: Slot) -> Result<(), Failure> {
    if matches!(slots.state(booted), SlotState::Trial { .. }) {
        let reason = format!(
            "the image in {booted} is on trial: no other image is tried until the trial ends"
        );
        return Err(Failure::new(FailureKind::Plan, reason));
    }
    find_write_obstacle(slots, boot).map_or(Ok(()), |refused| Err(refused.into()))
}

/// Fails if the image failed on this node before, unless a retry was ordered.
fn check_not_failed_before(spec: &ImageSpec, slots: &Slots) -> Result<(), Failure> {
    match slots.find_bad(&spec.sha256) {
        Some(bad) if !spec.allow_retry => {
            let reason = format!(
                "the image {} failed here at {} and is not tried again automatically: {}; order a \
                 retry at the server, or forget the failure with `evenkeel-agent image forget {}`",
                spec.image_id,
                bad.at.format("%Y-%m-%dT%H:%M:%SZ"),
                bad.reason,
                bad.file
            );
            Err(Failure::new(FailureKind::Verify, reason))
        }
        _ => Ok(()),
    }
}

/// Whether the complete image is in a slot and nothing starts it.
pub(super) fn is_written(spec: &ImageSpec, state: &SlotState) -> bool {
    matches!(state, SlotState::Written(_)) && is_complete(spec, state)
}

/// Whether the complete image is in a slot. Includes a slot that an attempt armed whose journal was
/// lost.
fn is_complete(spec: &ImageSpec, state: &SlotState) -> bool {
    match state {
        SlotState::Written(image) | SlotState::Armed { image, .. } => {
            image.file == spec.sha256 && image.raw.is_some()
        }
        _ => false,
    }
}

/// Fails if the file is larger than the policy or the slot allows. The unpacked image may still be
/// too large: then writing it fails.
fn check_size(spec: &ImageSpec, observation: &ImageObservation) -> Result<(), Failure> {
    let slot_capacity = match &observation.slot_capacity {
        Some(Ok(slot_capacity)) => Some(*slot_capacity),
        Some(Err(failure)) => return Err(failure.clone()),
        None => None,
    };
    let Some(size) = observation.size else {
        return Ok(());
    };
    let max_bytes = spec.rules.max_bytes;
    if max_bytes > 0 && size > max_bytes {
        let reason = format!("the image has {size} bytes and the policy allows {max_bytes}");
        return Err(Failure::new(FailureKind::Plan, reason));
    }
    match slot_capacity {
        Some(slot_capacity) if size > slot_capacity => {
            let reason =
                format!("the image has {size} bytes and its slot has room for {slot_capacity}");
            Err(Failure::new(FailureKind::Storage, reason))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
