//! What becomes of an image that failed on a node before: it waits for a person, who orders one more try at a time.

use super::{LastEnd, NodeFacts, Protocol, Reason, Target, TargetKind};
use crate::Time;
use crate::order::{Order, OrderKind};
use crate::os::{Image, Sha256};

/// Whether a wish may be tried.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Trial {
    /// It did not fail before, as far as the node says.
    First,
    /// It failed, and a person who knew that ordered it once more.
    Again,
    /// It failed, and nobody has ordered it since.
    Held(Reason),
}

/// Whether a wish may be tried on a node. Total.
///
/// An order counts once: what ended since was its try, however it ended. One that is older than what we know of the failure
/// was given without knowing it.
pub(super) fn trial(known: &NodeFacts, order: Option<&Order>, target: &Target, now: Time) -> Trial {
    let Some((image, since)) = known.failed(target) else {
        return Trial::First;
    };
    let in_force = |order: &&Order| {
        order.kind == OrderKind::Now && order.at <= now && now < order.until && since < order.at
    };
    let is_tried = |order: &Order| {
        let end = known.last_end.as_ref();
        end.is_some_and(|end| end.is_of(image) && order.at <= end.at)
    };
    match order.filter(in_force) {
        Some(order) if !is_tried(order) => Trial::Again,
        _ => Trial::Held(held(image)),
    }
}

fn held(image: &Image) -> Reason {
    Reason::Quarantined {
        image_id: image.image_id.clone(),
    }
}

impl NodeFacts {
    /// Why a wish is not tried by itself on this node, whatever was ordered: its image failed here before. None for
    /// agents that do not say what failed.
    #[must_use]
    pub fn quarantined(&self, target: &Target) -> Option<Reason> {
        self.failed(target).map(|(image, _)| held(image))
    }

    /// The image of a wish, and since when it is known to have failed here.
    fn failed<'a>(&self, target: &'a Target) -> Option<(&'a Image, Time)> {
        let (Protocol::Own { .. }, TargetKind::Image(image)) = (&self.speaks, &target.wish) else {
            return None;
        };
        if image.sha256 == Sha256::NONE {
            return None;
        }
        let mut bad = self.bad_images.iter();
        let bad = bad.find(|bad| bad.sha256 == image.sha256)?;
        Some((image, bad.since))
    }
}

impl LastEnd {
    /// Whether the attempt was for this image, by whatever policy.
    fn is_of(&self, image: &Image) -> bool {
        let named = self.target.as_deref().and_then(Target::named_by);
        named.is_some_and(|(_, os)| os == Some(image.os))
    }
}
