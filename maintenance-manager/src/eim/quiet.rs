//! Whether a sample of one of the ancestor's agents says nothing new, and what it is answered: judged by what was read.
//! Nothing is locked and nothing is written.
//!
//! It does not if all that is kept of the node would stay as it is were the sample taken, and the same were answered once
//! more.

use evenkeel_domain::Time;
use evenkeel_domain::decide::Protocol;
use evenkeel_domain::eim::{self, Before, Sample, SampleKind, Shows};
use evenkeel_domain::host::Host;
use evenkeel_domain::os::OsKind;
use evenkeel_domain::run::UpdateRun;
use evenkeel_domain::status::{Indication, Status as Shown};
use evenkeel_store::decisions::World;
use evenkeel_store::nodes::{self, Brief};

use super::{given_up, holds_slot, render, wire};
use crate::desk::Looked;
use crate::view::{Answer, Said};
use crate::{derived, status};

/// Whether a sample of a kind may say nothing new. How an update goes on and ends is always taken.
pub fn may_be(kind: SampleKind) -> bool {
    !matches!(
        kind,
        SampleKind::Downloading | SampleKind::Started | SampleKind::Updated
    )
}

/// Judges a sample, and what is said with it that could be updated.
pub fn eim(
    (host, node): (&Host, &Brief),
    world: &World,
    (sample, available): (&Sample, &str),
    now: Time,
) -> Looked {
    let is_quiet = may_be(sample.kind)
        && is_shown_as_heard(host, node, world, now)
        && is_known(node, world, sample, now)
        && is_listed(node, world, available)
        && !derived::is_outdated(node, world, now)
        && given_up(world, &node.delivered, now).is_none();
    if !is_quiet {
        return Looked::News;
    }
    let rendered = render(world, &node.delivered, now);
    if rendered.delivered != node.delivered || rendered.slot.is_some() != holds_slot(world) {
        return Looked::News;
    }
    let has_window = rendered.single.is_some() || !rendered.repeated.is_empty();
    // The agent begins by itself in a window.
    let begins = eim::may_begin_from(&world.wanted, &node.delivered, now);
    let begins = begins.filter(|_| has_window);
    let may_begin = begins.is_some_and(|at| at <= now);
    let answer = Answer {
        // How an update failed must not be taken for old news.
        fresh: may_begin || sample.kind == SampleKind::Failed,
        counted: world.counted(),
        // Nobody holds their polls.
        in_line: false,
        // These agents go by no tag.
        tag: 0,
        said: Said::Eim(wire::answer(rendered, world.known.os_kind)),
    };
    Looked::Quiet {
        answer: Box::new(answer),
        until: world
            .steady_until(now)
            .into_iter()
            .chain(begins.filter(|_| !may_begin))
            .min(),
    }
}

/// Whether the node is believed, is one of the ancestor's, and shows as heard.
fn is_shown_as_heard(host: &Host, node: &Brief, world: &World, now: Time) -> bool {
    let running = Shown::new(status::RUNNING, Indication::Idle, now);
    host.is_trusted()
        && world.known.trusted
        && host.public_key.is_empty()
        && host.status.text == running.text
        && running.since(Some(&node.status)) == node.status
        && node.protocol == Protocol::Eim
        && node.provisioned
}

/// Whether all that the sample makes known is known.
fn is_known(node: &Brief, world: &World, sample: &Sample, now: Time) -> bool {
    let open = world.run.as_ref().and_then(UpdateRun::as_open);
    let before = Before {
        seen: node.seen.as_ref(),
        delivered: &node.delivered,
        open: open.as_ref(),
        known: &world.known,
        images: &world.wanted.images,
    };
    let shows = Shows {
        status: &node.update_status,
        conditions: &node.conditions,
    };
    eim::is_settled(&before, sample, &shows, now)
}

/// Whether what could be updated is kept as it is said. A node of images does not say it: it follows from the catalogue,
/// and is brought there by [`crate::ImageWatch`].
fn is_listed(node: &Brief, world: &World, said: &str) -> bool {
    if world.known.os_kind == OsKind::Immutable {
        return true;
    }
    let available = eim::available(&world.known, &world.wanted.images, said);
    available.is_none_or(|available| nodes::digest_of(&available) == node.available_digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_an_update_goes_on_is_always_taken() {
        use SampleKind as K;
        let quiet = [K::Unspecified, K::UpToDate, K::Downloaded, K::Failed];
        assert!(quiet.into_iter().all(may_be));
        let loud = [K::Downloading, K::Started, K::Updated];
        assert!(!loud.into_iter().any(may_be));
    }
}
