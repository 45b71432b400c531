//! What a sample proves.

use crate::Time;
use crate::eim::delivery::Delivered;
use crate::eim::detail::Detail;
use crate::run::{Evidence, Happening, OpenRun, RunEvent};

named! {
    /// What the state file of a node says (southbound section 1.6).
    SampleKind {
        /// Nothing that can be understood.
        Unspecified = "unspecified",
        /// Nothing is going on.
        UpToDate = "up_to_date",
        /// Fetching.
        Downloading = "downloading",
        /// All is there.
        Downloaded = "downloaded",
        /// The node is being changed.
        Started = "started",
        /// It ended well.
        Updated = "updated",
        /// It did not.
        Failed = "failed",
    }
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// What the state file says.
    pub kind: SampleKind,
    /// What stands beside it: it sticks, so it may belong to an earlier update (M13).
    pub detail: String,
}

/// What the last sample said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What the state file said.
    pub kind: SampleKind,
    /// A digest of the detail.
    pub detail_digest: String,
}

impl Sample {
    /// What is to be remembered of it.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen {
            kind: self.kind,
            detail_digest: digest(&self.detail),
        }
    }
}

/// Tells texts apart; not for secrets (FNV-1a of 64 bits, and the length).
fn digest(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}-{}", text.len())
}

/// The events that a sample proves, given what was seen, delivered and open before. Pure and total.
///
/// The first sample of a node is a baseline and proves nothing (E28). An end is proved once: it is repeated until our
/// answer arrives, and a failure until the next update begins.
#[must_use]
pub fn evidence(
    seen: Option<&Seen>,
    delivered: &Delivered,
    sample: &Sample,
    open: Option<&OpenRun>,
    now: Time,
) -> Vec<Happening> {
    use SampleKind as K;
    let Some(seen) = seen else {
        return Vec::new();
    };
    let repeated = *seen == sample.seen();
    let event = match (sample.kind, open) {
        (K::Unspecified, _) => return Vec::new(),

        (K::Downloading, _) => RunEvent::Downloading,
        (K::Downloaded, _) => RunEvent::Downloaded,
        (K::Started, _) => RunEvent::Began,

        // It began and found nothing to do; what was only fetched waits on.
        (K::UpToDate, Some(run)) if !run.state.is_untouched() => RunEvent::NothingToDo,
        (K::UpToDate, _) => return Vec::new(),

        (K::Updated, Some(_)) => return vec![ended(RunEvent::Finished, sample)],
        (K::Updated, None) if repeated => return Vec::new(),
        (K::Updated, None) => return vec![ended(RunEvent::Finished, sample)],

        // A failure is repeated until the next update begins, so the very same one says nothing about an open run
        // that has changed nothing yet.
        (K::Failed, None) if repeated => return Vec::new(),
        (K::Failed, Some(run)) if repeated && run.state.is_untouched() => return Vec::new(),
        // Without a word and without a window it is a fault of the agent's sampling, not an update.
        (K::Failed, None) if sample.detail.is_empty() && !delivered.was_open(now) => {
            return Vec::new();
        }
        (K::Failed, _) => {
            let failure = Detail::read(&sample.detail).into_failure();
            return vec![ended(RunEvent::Failed(failure), sample)];
        }
    };
    vec![Happening::of(event)]
}

/// An end, with what the node says of it.
fn ended(event: RunEvent, sample: &Sample) -> Happening {
    let detail = Detail::read(&sample.detail);
    Happening {
        evidence: Evidence {
            plan: (!detail.packages.is_empty()).then_some(detail.packages),
            results: Vec::new(),
            log: detail.text,
        },
        ..Happening::of(event)
    }
}
