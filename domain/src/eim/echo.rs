//! Checks the image that a node reports. A node only echoes the last delivered image, not the one that it booted.

use crate::condition::ConditionKind;
use crate::eim::evidence::{PriorState, Proof, Sample};
use crate::os::{Image, OsKind};
use crate::text;

/// Compares the image that a sample names with the catalogue.
pub(super) fn check_image(before: &PriorState<'_>, sample: &Sample, proof: &mut Proof) {
    if before.facts.os_kind != OsKind::Immutable {
        return;
    }
    let kinds = [ConditionKind::ProfileMismatch, ConditionKind::UnknownImage];
    proof.checked_conditions.extend(kinds);
    let (profile, image) = (shorten(&sample.profile_name), shorten(&sample.os_image_id));
    if sample.os_image_id.is_empty() {
        return;
    }
    let running = &before.facts.running;
    if sample.profile_name != running.profile_name {
        let text = format!(
            "it reported an image of the profile {profile:?}, and its instance runs {:?}",
            running.profile_name
        );
        proof.conditions.push((ConditionKind::ProfileMismatch, text));
    } else if sample.os_image_id != running.image_id
        && !before.images.iter().any(|candidate| matches_sample(candidate, sample))
    {
        let text = format!("it reported the image {image:?}, which the catalogue does not have");
        proof.conditions.push((ConditionKind::UnknownImage, text));
    }
}

/// Concludes a successful image update: the node runs the frozen image unless the sample names another one.
pub(super) fn conclude_update(
    before: &PriorState<'_>,
    frozen: Option<&Image>,
    sample: &Sample,
    proof: &mut Proof,
) {
    proof.checked_conditions.push(ConditionKind::OtherImage);
    let reported = match shorten(&sample.os_image_id) {
        image if image.is_empty() => "no image".to_owned(),
        image => format!("the image {image:?}"),
    };
    let text = match frozen {
        // The agent names the last delivered image, and none if that was withdrawn during the update. A kernel command
        // line would have been frozen instead.
        Some(frozen) if matches_sample(frozen, sample) || names_no_image(sample) => {
            proof.image = Some(frozen.clone());
            return;
        }
        Some(frozen) => format!(
            "it was updated and reported {reported}, but its update was for {:?}",
            frozen.image_id
        ),
        // The kernel command line was changed.
        None if sample.os_image_id.is_empty() || matches_sample(&before.facts.running, sample) => {
            return;
        }
        None => format!("it was updated and reported {reported}, but no image was delivered to it"),
    };
    proof.conditions.push((ConditionKind::OtherImage, text));
}

fn matches_sample(image: &Image, sample: &Sample) -> bool {
    image.image_id == sample.os_image_id && image.profile_name == sample.profile_name
}

fn names_no_image(sample: &Sample) -> bool {
    sample.profile_name.is_empty() && sample.os_image_id.is_empty()
}

fn shorten(text: &str) -> String {
    text::cut(&text::storable(&text::cut(text, 200)), 200)
}
