//! Two slots, the image in each, and the state machine of an update.
//!
//! The record holds what the agent knows of its slots. Only [`step`] changes it, a total function
//! without I/O or a clock, and the record is on disk before the agent continues ([`SlotFile`]). At
//! each start, [`reconcile()`] compares the record with the boot entries and lists the necessary
//! repairs. So the record does not have to be exact at the moment of a power cut. It only has to be
//! right about which slots can be trusted, and the order of the writes ensures that.
//!
//! An update makes these writes, in this order:
//!
//! | Write | Reason for its position |
//! | --- | --- |
//! | record: [`SlotEvent::Begin`] | intent first: the slot is no longer trusted, and this step checks the guards |
//! | the boot entries of the slot are removed | nothing may boot a slot that is being written |
//! | the slot is written and read back | |
//! | record: [`SlotEvent::Wrote`] | the network is not needed any more |
//! | the kernel of the slot is installed on the ESP | no entry may refer to an incomplete kernel |
//! | record: [`SlotEvent::Arm`] | the image that boots must know that it is on trial |
//! | **a boot entry with a counter is created** | first point of no return; the last good slot has no counter |
//! | record: [`SlotEvent::Booted`], by the image on trial | evidence of the boot, if nothing else is recorded |
//! | record: [`SlotEvent::Passed`] | a power cut during the blessing must not make the image bad |
//! | **the counter is removed from the entry: the blessing** | second point of no return, only if the image is healthy |
//! | record: [`SlotEvent::Committed`] | |
//!
//! An unsuccessful trial makes these:
//!
//! | Write | Reason for its position |
//! | --- | --- |
//! | record: [`SlotEvent::Failed`] | reason first |
//! | or record: [`SlotEvent::Undecided`], if only the server was unreachable | the slot stays on trial, so a power cut here makes no image bad |
//! | its boot entry is removed, then the machine is reset | does not depend on the counting of the loader |
//!
//! `tests/model.rs` checks the invariants over all interleavings.

mod file;
mod reconcile;
mod record;
mod table;
#[cfg(test)]
mod tests;

use crate::model::{Failure, FailureKind};

pub use self::file::SlotFile;
pub use self::reconcile::{BootRepair, reconcile};
pub use self::record::{
    BadImage, RawImage, Slot, SlotImage, SlotState, Slots, TrialEnd, UndecidedImage, VersionFloor,
};
pub use self::table::{find_write_obstacle, step};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotEvent {
    /// An image is about to be written.
    Begin {
        /// The image. Its `raw` is ignored, because the content is not written yet.
        image: SlotImage,
        /// Whether a retry of a bad image is permitted.
        allow_retry: bool,
    },
    /// The image was written completely and read back.
    Wrote(RawImage),
    /// Writing failed, or the content is not what was written.
    Corrupted,
    /// The slot is about to get a boot entry.
    Arm {
        /// Whether a retry of a bad image is permitted.
        allow_retry: bool,
    },
    /// The slot runs. Reported at each start, and counted once per boot.
    Booted,
    /// The slot runs and is healthy.
    Passed,
    /// The boot entry of the slot has no counter any more.
    Committed,
    /// The slot ran, and everything except the connection to the server was healthy until the
    /// deadline. The server may be the cause. The image on trial reports this event; the slot that
    /// runs next marks the image as written again. After too many such trials of an image the event
    /// is a failure.
    Undecided {
        /// Reason, for display.
        reason: String,
        /// Last lines of the log.
        log: String,
    },
    /// The image failed. Reported by the image on trial, or later by the slot that runs instead,
    /// which may know more.
    Failed {
        /// Reason, for display.
        reason: String,
        /// Last lines of the log.
        log: String,
    },
    /// The image was tried, and another slot runs. Reported by the slot that runs.
    FellBack {
        /// Reason, for display.
        reason: String,
    },
    /// The slot was armed, but never booted, or must not be booted any more. Its boot entry is
    /// removed.
    NotTried,
}

/// Observed boot entry of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BootEntry {
    /// No entry: nothing boots the slot.
    Absent,
    /// The slot is on trial.
    Counted {
        /// Remaining boots.
        left: u8,
        /// Boots that started and were not blessed.
        done: u8,
    },
    /// No counter: the slot boots permanently.
    Plain,
    /// Selected for one boot, by a boot control that counts no boots. It is not known whether that
    /// boot happened.
    OneShot,
    /// The agent did not write it like this; the text says why.
    Invalid(String),
}

/// What the boot control observes at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootObservation {
    /// The running slot, if it is known.
    pub booted: Option<Slot>,
    pub boot_id: String,
    /// Profile and ID of the running image, as the image itself reports them.
    pub image: Option<(String, String)>,
    pub a: BootEntry,
    pub b: BootEntry,
    /// Boot entries that are not the agent's.
    pub foreign: Vec<String>,
}

impl BootObservation {
    pub fn entry(&self, slot: Slot) -> &BootEntry {
        match slot {
            Slot::A => &self.a,
            Slot::B => &self.b,
        }
    }
}

/// Why an event is refused. The record does not change then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    /// The event does not fit the state of the slot.
    #[error("{event} is not possible: the slot {slot} {state}")]
    InvalidState {
        slot: Slot,
        /// Description of its state.
        state: &'static str,
        /// Description of the event.
        event: &'static str,
    },
    /// The slot runs.
    #[error("{event} is not possible: the slot {slot} is what runs")]
    IsRunning {
        slot: Slot,
        /// Description of the event.
        event: &'static str,
    },
    /// The slot does not run.
    #[error("{event} is not possible: the slot {slot} is not what runs")]
    IsNotRunning {
        slot: Slot,
        /// Description of the event.
        event: &'static str,
    },
    /// The running slot is not known.
    #[error(
        "it is not known which slot runs, so no slot is written; start the machine through one of the agent's boot entries"
    )]
    RunningUnknown,
    /// The running slot has not proved itself.
    #[error(
        "the slot {slot} runs and {state}, so the other slot is not written; start the machine from a slot that is known to be \
         good"
    )]
    RunningNotGood {
        /// The running slot.
        slot: Slot,
        /// Description of its state.
        state: &'static str,
    },
    /// Nothing could boot if the other slot failed.
    #[error(
        "the slot {slot} runs and has no boot entry without a counter, so a failed trial could not fall back to it; create that \
         entry again"
    )]
    NoFallback {
        /// The running slot.
        slot: Slot,
    },
    /// The image failed on this node before.
    #[error(
        "the image {image_id} failed on this node before ({reason}); request a retry, or forget the failure with \
         `evenkeel-agent image forget`"
    )]
    KnownBad {
        image_id: String,
        /// Reason of the failure.
        reason: String,
    },
    /// The image did not prove itself.
    #[error("the slot {slot} cannot be committed before it was found healthy")]
    NotPassed { slot: Slot },
    /// The loader still counts boots.
    #[error("the slot {slot} cannot be committed before its boot entry has no counter")]
    NotBlessed { slot: Slot },
    /// Each boot entry needs a new sequence number.
    #[error("there is no sequence number left for a boot entry: remove the record of the slots")]
    SequenceExhausted,
}

impl From<SlotError> for Failure {
    fn from(refused: SlotError) -> Self {
        Self::new(FailureKind::Plan, refused.to_string())
    }
}
