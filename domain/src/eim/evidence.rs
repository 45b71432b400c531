//! What a sample proves.

use crate::Time;
use crate::eim::delivery::Delivered;
use crate::eim::detail::Detail;
use crate::run::{Evidence, Happening, OpenRun, RunEvent};
use crate::status::Indication;

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

impl SampleKind {
    /// The ancestor's words for it and how to take them (southbound section 1.6).
    #[must_use]
    pub const fn status(self) -> (&'static str, Indication) {
        match self {
            Self::Unspecified => ("Unknown", Indication::Unspecified),
            Self::UpToDate => ("No new updates available", Indication::Idle),
            Self::Downloading => ("Downloading artifacts", Indication::Idle),
            Self::Downloaded => ("Download complete", Indication::Idle),
            Self::Started => ("Updating", Indication::InProgress),
            Self::Updated => ("Update completed", Indication::Idle),
            Self::Failed => ("Update failed", Indication::Error),
        }
    }
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
    // A detail sticks: what stood there before says nothing about what ends now.
    let stale = seen.detail_digest == sample.seen().detail_digest;
    let said = if stale { "" } else { sample.detail.as_str() };
    let event = match (sample.kind, open) {
        (K::Unspecified, _) => return Vec::new(),

        // What was seen before and belongs to no open run was ended by us: it is not begun anew.
        (K::Downloading | K::Downloaded | K::Started, None) if seen.kind == sample.kind => {
            return Vec::new();
        }
        (K::Downloading, _) => RunEvent::Downloading,
        (K::Downloaded, _) => RunEvent::Downloaded,
        (K::Started, _) => RunEvent::Began,

        // It began and found nothing to do; what was only fetched waits on.
        (K::UpToDate, Some(run)) if !run.state.is_untouched() => RunEvent::NothingToDo,
        (K::UpToDate, _) => return Vec::new(),

        (K::Updated, None) if repeated => return Vec::new(),
        (K::Updated, _) => return vec![ended(RunEvent::Finished, Detail::read(said))],

        // A failure is repeated until the next update begins, so the very same one says nothing about an open run
        // that has changed nothing yet.
        (K::Failed, None) if repeated => return Vec::new(),
        (K::Failed, Some(run)) if repeated && run.state.is_untouched() => return Vec::new(),
        // Without a word and without a window it is a fault of the agent's sampling, not an update.
        (K::Failed, None) if said.is_empty() && !delivered.was_open(now) => {
            return Vec::new();
        }
        (K::Failed, _) => {
            let detail = Detail::read(said);
            return vec![ended(RunEvent::Failed(detail.failure()), detail)];
        }
    };
    vec![Happening::of(event)]
}

/// An end, with what the node says of it.
fn ended(event: RunEvent, detail: Detail) -> Happening {
    Happening {
        evidence: Evidence {
            plan: (!detail.packages.is_empty()).then_some(detail.packages),
            results: Vec::new(),
            log: detail.text,
        },
        ..Happening::of(event)
    }
}
