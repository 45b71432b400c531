//! Quarantine: an image that failed on a node is retried only when a user orders it, one attempt for each order.

use super::{AgentProtocol, LastRun, NodeFacts, Reason, Target, TargetKind};
use crate::Time;
use crate::order::{Order, OrderKind};
use crate::os::{Image, Sha256};

/// Whether a target may be applied although its image may have failed before.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum QuarantineCheck {
    /// No failure of the image is known.
    Clear,
    /// The image failed, and a user who knew of the failure ordered a retry.
    RetryOrdered,
    /// The image failed, and no valid order for a retry exists.
    Blocked(Reason),
}

/// Checks whether a target is quarantined on a node. Never fails.
///
/// An order allows one attempt: a run that ended after the order used it up, whatever its result. An order that is
/// older than the failure was given without knowing of it and does not count.
pub(super) fn check_quarantine(
    facts: &NodeFacts,
    order: Option<&Order>,
    target: &Target,
    now: Time,
) -> QuarantineCheck {
    let Some((image, since)) = facts.failed_image(target) else {
        return QuarantineCheck::Clear;
    };
    let in_force = |order: &&Order| {
        order.kind == OrderKind::Now && order.at <= now && now < order.until && since < order.at
    };
    let is_tried = |order: &Order| {
        let end = facts.last_run.as_ref();
        end.is_some_and(|end| end.is_for_image(image) && order.at <= end.at)
    };
    match order.filter(in_force) {
        Some(order) if !is_tried(order) => QuarantineCheck::RetryOrdered,
        _ => QuarantineCheck::Blocked(reason_for(image)),
    }
}

fn reason_for(image: &Image) -> Reason {
    Reason::Quarantined { image_id: image.image_id.clone() }
}

impl NodeFacts {
    /// Why a target is not applied automatically on this node: its image failed here before. Ignores orders. `None`
    /// for agents that do not report failed images.
    #[must_use]
    pub fn quarantine_reason(&self, target: &Target) -> Option<Reason> {
        self.failed_image(target).map(|(image, _)| reason_for(image))
    }

    /// The image of a target and since when its failure on this node is known.
    fn failed_image<'a>(&self, target: &'a Target) -> Option<(&'a Image, Time)> {
        let (AgentProtocol::Own { .. }, TargetKind::Image(image)) = (&self.protocol, &target.kind)
        else {
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

impl LastRun {
    /// Whether the run was for this image, under any policy.
    fn is_for_image(&self, image: &Image) -> bool {
        let parsed = self.target.as_deref().and_then(Target::parse_digest);
        parsed.is_some_and(|(_, os)| os == Some(image.os))
    }
}
