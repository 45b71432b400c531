//! What a node says about its image: an echo of what it was told (southbound section 3.8), so it is held against that.

use crate::condition::ConditionKind;
use crate::eim::evidence::{Before, Proof, Sample};
use crate::os::{Image, OsKind};
use crate::text;

/// Holds the image that a sample names against the catalogue.
pub(super) fn judge(before: &Before<'_>, sample: &Sample, proof: &mut Proof) {
    if before.known.os_kind != OsKind::Immutable {
        return;
    }
    let kinds = [ConditionKind::ProfileMismatch, ConditionKind::UnknownImage];
    proof.judged.extend(kinds);
    let (profile, image) = (short(&sample.profile_name), short(&sample.os_image_id));
    if sample.os_image_id.is_empty() {
        return;
    }
    let running = &before.known.running;
    if sample.profile_name != running.profile_name {
        let text = format!(
            "it reported an image of the profile {profile:?}, and its instance runs {:?}",
            running.profile_name
        );
        proof
            .conditions
            .push((ConditionKind::ProfileMismatch, text));
    } else if sample.os_image_id != running.image_id
        && !before.images.iter().any(|known| is(known, sample))
    {
        let text = format!("it reported the image {image:?}, which the catalogue does not have");
        proof.conditions.push((ConditionKind::UnknownImage, text));
    }
}

/// An update of a whole image ended well: it was brought to the frozen image if it names no other one.
pub(super) fn conclude(
    before: &Before<'_>,
    frozen: Option<&Image>,
    sample: &Sample,
    proof: &mut Proof,
) {
    proof.judged.push(ConditionKind::OtherImage);
    let said = match short(&sample.os_image_id) {
        image if image.is_empty() => "no image".to_owned(),
        image => format!("the image {image:?}"),
    };
    let text = match frozen {
        // The agent names what it was told last: none if that was taken back while it was brought to it. Had it been
        // told a command line of the kernel, that would be frozen.
        Some(frozen) if is(frozen, sample) || names_none(sample) => {
            proof.image = Some(frozen.clone());
            return;
        }
        Some(frozen) => format!(
            "it was updated and reported {said}; its update was for {:?}",
            frozen.image_id
        ),
        // The command line of the kernel was changed.
        None if sample.os_image_id.is_empty() || is(&before.known.running, sample) => return,
        None => format!("it was updated and reported {said}; it was told none"),
    };
    proof.conditions.push((ConditionKind::OtherImage, text));
}

fn is(image: &Image, sample: &Sample) -> bool {
    image.image_id == sample.os_image_id && image.profile_name == sample.profile_name
}

fn names_none(sample: &Sample) -> bool {
    sample.profile_name.is_empty() && sample.os_image_id.is_empty()
}

fn short(text: &str) -> String {
    text::cut(&text::storable(&text::cut(text, 200)), 200)
}
