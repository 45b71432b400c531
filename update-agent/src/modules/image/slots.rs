//! Two slots, what lies in each, and what may become of it.
//!
//! The record says what the agent knows of its slots. It is changed by [`step`] alone, one total function without a
//! disk or a clock, and it is on the disk before the agent goes on ([`SlotFile`]). At each start [`reconcile()`]
//! compares it with what the boot loader knows and says what is to be mended. So the record never has to be right about
//! a moment at which the power went: it has to be right about what may be trusted, and the order of the writes sees to
//! that.
//!
//! | | Write | Why it stands there |
//! | --- | --- | --- |
//! | W0 | record: [`Event::Begin`] | intent first: nobody trusts the slot any more; and this step is the guard |
//! | W1 | its boot entries are removed | nothing may boot what will be torn |
//! | W2 | the slot is written and read back | |
//! | W3 | record: [`Event::Wrote`] | no network is needed from here |
//! | W4 | its kernel is put beside the loader | no entry names half a kernel |
//! | W5 | record: [`Event::Arm`] | who boots it must know that it is a trial |
//! | **W6** | a boot entry with a counter | first point of no return; the last good one has no counter |
//! | W8 | record: [`Event::Booted`], by the image on trial | evidence, if no other word comes |
//! | W9 | record: [`Event::Passed`] | a cut in W10 must not brand it |
//! | **W10** | the counter is taken from the entry | second point of no return, only after health |
//! | W11 | record: [`Event::Committed`] | |
//! | U1 | record: [`Event::Failed`] | reason first |
//! | U1 | or record: [`Event::Undecided`], if only the server was missing | on trial still: a cut here brands nothing |
//! | U2, U3 | its boot entry is removed; reset | does not rely on the loader's counting |
//!
//! What holds whatever happens is tried in `tests/model.rs`, over all interleavings.

mod file;
mod reconcile;
mod record;
mod table;
#[cfg(test)]
mod tests;

use crate::model::{Failure, FailureKind};

pub use self::file::SlotFile;
pub use self::reconcile::{Mend, reconcile};
pub use self::record::{BadImage, Doubt, Raw, Slot, SlotState, Slots, Undecided, What};
pub use self::table::{step, trouble};

/// Something that happens to a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An image is about to be written into it (W0).
    Begin {
        /// Which. What is known of its bytes is not taken over: they are not there yet.
        what: What,
        /// Whether a person ordered it although it failed here before.
        again: bool,
    },
    /// All of it is there and was read back (W3).
    Wrote(Raw),
    /// What lies there is not what was written, or the writing failed.
    Spoilt,
    /// It is about to be given a boot entry (W5).
    Arm {
        /// Whether a person ordered it although it failed here before.
        again: bool,
    },
    /// It is what runs. Said at each start, and counted once a boot (W8).
    Booted,
    /// It runs and is healthy (W9).
    Passed,
    /// Its boot entry has no counter any more (W11).
    Committed,
    /// It runs, and everything that is its own was well until the deadline. Only the server could not be reached, which
    /// may be the server's fault. Said by the image on trial (U1); what runs instead takes it for written. Of an image
    /// that ended so too often it is a failure.
    Undecided {
        /// For a person.
        why: String,
        /// The last lines of its log.
        log: String,
    },
    /// It does not do. Said by the image on trial itself (U1), or later by who knows more about it.
    Failed {
        /// For a person.
        why: String,
        /// The last lines of its log.
        log: String,
    },
    /// It was tried, and another slot runs. Said by what runs instead.
    FellBack {
        /// For a person.
        why: String,
    },
    /// It was armed, and nothing ever booted it, or it is not to be booted any more. Its boot entry is gone.
    NotTried,
}

/// The boot entry of a slot, as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// There is none: nothing boots the slot.
    Absent,
    /// It is on trial.
    Counted {
        /// Boots that are left to it.
        left: u8,
        /// Boots that began and were not blessed.
        done: u8,
    },
    /// It counts nothing, so it is booted for ever.
    Plain,
    /// The slot was chosen for one boot only, by a boot control that counts nothing. Whether that boot has been is not
    /// known.
    Once,
    /// It is not as the agent makes them. In words.
    Strange(String),
}

/// What the boot control sees at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The slot that runs; none if that cannot be told.
    pub booted: Option<Slot>,
    /// The id of this boot.
    pub boot_id: String,
    /// The profile and the id of the image that runs, as the image itself says.
    pub image: Option<(String, String)>,
    /// The boot entry of slot a.
    pub a: Entry,
    /// The boot entry of slot b.
    pub b: Entry,
    /// Boot entries that are not the agent's.
    pub foreign: Vec<String>,
}

impl Seen {
    /// The boot entry of a slot.
    pub fn entry(&self, slot: Slot) -> &Entry {
        match slot {
            Slot::A => &self.a,
            Slot::B => &self.b,
        }
    }
}

/// Why nothing comes of an event. The record stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The state of the slot has no place for it.
    #[error("{event} is not possible: the slot {slot} {state}")]
    OutOfPlace {
        /// Which slot.
        slot: Slot,
        /// What it does or holds, in words.
        state: &'static str,
        /// What was to happen, in words.
        event: &'static str,
    },
    /// It is what runs.
    #[error("{event} is not possible: the slot {slot} is what runs")]
    Runs {
        /// Which slot.
        slot: Slot,
        /// What was to happen, in words.
        event: &'static str,
    },
    /// It is not what runs.
    #[error("{event} is not possible: the slot {slot} is not what runs")]
    RunsNot {
        /// Which slot.
        slot: Slot,
        /// What was to happen, in words.
        event: &'static str,
    },
    /// Nobody knows what runs.
    #[error(
        "it is not known which slot runs, so none is written; start the machine through one of the agent's boot entries"
    )]
    RunningUnknown,
    /// What runs has not proved itself.
    #[error(
        "the slot {slot} runs and {state}, so no other is written; start the machine from a slot that the agent knows \
         to be good"
    )]
    RunningNotGood {
        /// The slot that runs.
        slot: Slot,
        /// What it does or holds, in words.
        state: &'static str,
    },
    /// Nothing would boot if the other slot failed.
    #[error(
        "the slot {slot} runs and has no boot entry of its own without a counter, so there would be no way back; make \
         that entry again"
    )]
    NoWayBack {
        /// The slot that runs.
        slot: Slot,
    },
    /// It failed here before.
    #[error(
        "the image {image_id} failed on this node before ({why}); it is tried again by an order, or once it is \
         forgotten with `evenkeel-agent image forget`"
    )]
    KnownBad {
        /// The image.
        image_id: String,
        /// How it failed.
        why: String,
    },
    /// It did not prove itself.
    #[error("the slot {slot} cannot be committed before it was found healthy")]
    NotPassed {
        /// Which slot.
        slot: Slot,
    },
    /// The loader still counts.
    #[error("the slot {slot} cannot be committed before its boot entry has no counter")]
    NotBlessed {
        /// Which slot.
        slot: Slot,
    },
    /// Names of boot entries are never used twice.
    #[error("there is no number left for a boot entry: remove the record of the slots")]
    NoNumberLeft,
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::new(FailureKind::Plan, refused.to_string())
    }
}
