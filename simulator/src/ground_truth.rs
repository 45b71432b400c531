//! What simulated nodes really did: the ground truth for the records of a server.

use uuid::Uuid;

use crate::clock::{Moment, Time};
use crate::eim::cron::RepeatedWindows;

/// A period of time, start included, end excluded.
pub type Span = (Time, Time);

/// What a node with our own agent did.
#[derive(Clone, Debug, Default)]
pub struct OwnGroundTruth {
    /// Its attempts, in order.
    pub attempts: Vec<Attempt>,
    /// The digest of the facts that are true at the end.
    pub facts_digest: Vec<u8>,
}

/// One attempt of a node.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub id: Uuid,
    /// The digest of its target: the policy, and for an image a slash and the image.
    pub digest: String,
    /// Its events, in order. The first has the sequence number 1.
    pub events: Vec<AttemptEvent>,
    /// The last sequence number that the server acknowledged.
    pub acknowledged: u32,
    /// The permit under which it began; `None` if it did not begin.
    pub permit: Option<StartPermit>,
    /// The node lost its journal and never reported the attempt again.
    pub forgotten: bool,
    /// The replaced and the new image; `None` for packages.
    pub image: Option<ImageReplacement>,
    /// Whether the image was to be tried although it had failed on the node, by the last answer
    /// before the beginning.
    pub again: bool,
    /// The image that ran after the attempt changed the node or failed; `None` if it did neither,
    /// and for packages.
    pub booted: Option<String>,
}

/// The replacement of an image by another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageReplacement {
    /// The version that ran.
    pub from: String,
    /// The version that was to run.
    pub to: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptEvent {
    /// Its name, as a run records it.
    pub name: &'static str,
    /// When it happened.
    pub at: Moment,
}

/// A permit to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartPermit {
    /// The node requested it from the server.
    Online {
        /// When the node requested it.
        requested_at: Time,
        /// When it was granted, by the server's clock.
        granted_at: Time,
        /// The attempt must begin before this time.
        start_before: Time,
    },
    /// The node could not reach a server and used an offline grant.
    Offline {
        /// When the node sent the poll that was answered with the grant.
        requested_at: Time,
        /// When it was granted, by the server's clock.
        granted_at: Time,
        /// The windows in which the node may begin.
        windows: Vec<Span>,
        /// When the grant expires.
        expires: Time,
    },
}

impl Attempt {
    /// When it began to change the node.
    #[must_use]
    pub fn began(&self) -> Option<Moment> {
        let began = self.events.iter().find(|event| event.name == "began");
        began.map(|event| event.at)
    }

    /// Whether the server creates a run for it: an attempt that is cancelled at once creates none.
    #[must_use]
    pub fn creates_run(&self) -> bool {
        self.events.first().is_some_and(|first| first.name != "cancelled")
    }
}

/// What a node with EIM's agent did.
#[derive(Clone, Debug, Default)]
pub struct EimGroundTruth {
    /// Its updates, in order.
    pub updates: Vec<EimUpdate>,
    /// Its status reports, in order. Equal reports in a row are one entry.
    pub reports: Vec<StatusReport>,
    /// The schedules that it got, in order, with every answer that had them.
    pub delivered: Vec<DeliveredSchedule>,
    /// The images that it got, in order; empty for a node that is updated by packages.
    pub images: Vec<DeliveredImage>,
}

/// When a node may begin, as an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EimSchedule {
    /// In one window.
    Single(Span),
    Repeated(RepeatedWindows),
}

/// A schedule in consecutive answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveredSchedule {
    pub schedule: EimSchedule,
    /// For each answer with the schedule: when the node sent the call, and when it had the answer.
    /// The answers before the first and after the last of them had another schedule.
    pub answers: Vec<Span>,
    /// Whether one of the answers had no update for the node.
    pub is_empty: bool,
}

impl DeliveredSchedule {
    /// When the node sent the first call that was answered with it.
    #[must_use]
    pub fn since(&self) -> Option<Time> {
        self.answers.first().map(|(requested_at, _)| *requested_at)
    }
}

/// An image in consecutive answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveredImage {
    pub version: String,
    /// The version that ran when it was delivered first.
    pub running_version: String,
    /// The first of the answers.
    pub first: Span,
    /// The last of them.
    pub last: Span,
}

/// An update of an EIM node, from its first action to its end.
#[derive(Clone, Debug)]
pub struct EimUpdate {
    /// The window in which it began to change the node, by the node's clock; `None` before that.
    pub window: Option<Span>,
    /// When it began to change the node.
    pub began: Option<Moment>,
    /// When it ended and how.
    pub ended: Option<(Moment, UpdateEnd)>,
    /// The replaced and the new image; `None` for packages.
    pub image: Option<ImageReplacement>,
}

/// How an update of an EIM node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateEnd {
    /// Success: the node reports `UPDATED` until this is acknowledged.
    Updated,
    /// Failure: the node reports `FAILED` until the next update.
    Failed,
    /// There was nothing to do: the node reports `UP_TO_DATE`.
    NothingToDo,
}

/// What a node reported at one tick, or at several in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusReport {
    /// The status in the state file.
    pub kind: &'static str,
    /// The detail in the state file.
    pub detail: String,
    pub image_version: String,
    /// The index of the update that it is about; `None` before the first.
    pub update: Option<usize>,
    /// The state file could not be read: nothing in the report is true.
    pub spurious: bool,
    /// When the first call was made and the last one ended.
    pub between: Span,
    /// How many of the calls were answered.
    pub acknowledged: u64,
}
