//! What follows about a node from what is wanted: kept with its state, written only when it changes.

use evenkeel_domain::Time;
use evenkeel_domain::condition::{self, Condition, ConditionKind};
use evenkeel_domain::decide::target;
use evenkeel_domain::eim;
use evenkeel_domain::os::OsKind;
use evenkeel_store::decisions::World;
use evenkeel_store::nodes::{Brief, NodeState};

/// Brings the conditions that follow from the wish, and for a node of images what could be updated, up to date.
pub fn follow(node: &mut NodeState, world: &World, now: Time) {
    node.conditions = conditions(&node.conditions, world, now);
    if let Some(available) = available(world) {
        node.os_update_available = available;
    }
}

/// Whether a condition would change. What could be updated on a node of images is no reason to write: it is brought there
/// by [`crate::ImageWatch`].
pub fn is_outdated(node: &Brief, world: &World, now: Time) -> bool {
    conditions(&node.conditions, world, now) != node.conditions
}

fn conditions(before: &[Condition], world: &World, now: Time) -> Vec<Condition> {
    let mut conditions = before.to_vec();
    // An image that failed stays known as that whatever is ordered, so nothing flaps.
    let reason = match target(&world.known, &world.wanted) {
        Ok(target) => world.known.quarantined(&target),
        Err(reason) => Some(reason),
    };
    let holds = reason.and_then(|reason| reason.condition());
    condition::replace(&mut conditions, ConditionKind::is_of_wish, holds, now);
    conditions
}

/// Three-valued, so that nothing flaps (M8): where nothing is known, what was known stays. Nodes of packages say it
/// themselves.
fn available(world: &World) -> Option<String> {
    match world.known.os_kind {
        OsKind::Mutable => None,
        OsKind::Immutable => eim::available(&world.known, &world.wanted.images, ""),
    }
}
