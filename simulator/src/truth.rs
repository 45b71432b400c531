//! What simulated nodes really did: the truth that a server's records are held against.

use uuid::Uuid;

use crate::clock::{Moment, Time};
use crate::eim::cron::Repeats;

/// A stretch of time, start included, end excluded.
pub type Span = (Time, Time);

/// What a node of our own agent did.
#[derive(Clone, Debug, Default)]
pub struct OwnTruth {
    /// Its attempts, in order.
    pub attempts: Vec<Attempt>,
    /// Digest of the facts that are true at the end.
    pub facts_digest: Vec<u8>,
}

/// One attempt of a node.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Its name.
    pub id: Uuid,
    /// Digest of its target: the policy, and behind a slash the image if it is one.
    pub digest: String,
    /// What happened, in order. The first has the sequence number 1.
    pub events: Vec<Told>,
    /// Up to where the server acknowledged.
    pub acknowledged: u32,
    /// By whose leave it began; none if it did not begin.
    pub leave: Option<Leave>,
    /// The node lost its memory of the attempt and never spoke of it again.
    pub forgotten: bool,
    /// Which image was to replace which; none if the target was packages.
    pub image: Option<Change>,
    /// Whether the image was to be tried although it had failed on the node, as it was told last before it began.
    pub again: bool,
    /// The image that ran when the attempt had changed the node or failed; none if it did neither, or was for packages.
    pub booted: Option<String>,
}

/// From which image to which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The version that ran.
    pub from: String,
    /// The version that was to run.
    pub to: String,
}

/// Something that happened in an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its name, as the record of a run has it.
    pub news: &'static str,
    /// When.
    pub at: Moment,
}

/// Leave to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The node asked and was answered.
    Asked {
        /// When it asked.
        asked: Time,
        /// When it was granted, by the server.
        granted: Time,
        /// Before when it must have begun.
        before: Time,
    },
    /// The node could not ask, and had leave from before.
    Ahead {
        /// When it asked for something else.
        asked: Time,
        /// When it was given, by the server.
        given: Time,
        /// For when.
        windows: Vec<Span>,
        /// Until when it counts.
        expires: Time,
    },
}

impl Attempt {
    /// When it began to change the node.
    #[must_use]
    pub fn began(&self) -> Option<Moment> {
        let began = self.events.iter().find(|told| told.news == "began");
        began.map(|told| told.at)
    }

    /// Whether the server was told anything that makes a run: one that is given up at once leaves none.
    #[must_use]
    pub fn makes_a_run(&self) -> bool {
        self.events
            .first()
            .is_some_and(|first| first.news != "cancelled")
    }
}

/// What a node of the ancestor's agent did.
#[derive(Clone, Debug, Default)]
pub struct EimTruth {
    /// Its updates, in order.
    pub updates: Vec<Update>,
    /// What it said, in order. What it said several times in a row is one entry.
    pub said: Vec<Said>,
    /// The windows that it was told, in order, with every answer that carried them.
    pub delivered: Vec<Delivered>,
    /// The images that it was told, in order; only of a node that is updated by images.
    pub targets: Vec<Targeted>,
}

/// When a node was told that it may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// In one window.
    Once(Span),
    /// Again and again.
    Again(Repeats),
}

/// A window, or windows that repeat themselves, in answers that came one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// As it was told.
    pub window: Opening,
    /// Of each answer that carried it: when the node asked, and when it had the answer. The node was told something
    /// else before the first and after the last of them.
    pub answers: Vec<Span>,
    /// Whether an answer carried it without anything that the node could be brought to.
    pub is_empty: bool,
}

impl Delivered {
    /// When the node was told it first.
    #[must_use]
    pub fn since(&self) -> Option<Time> {
        self.answers.first().map(|(asked, _)| *asked)
    }
}

/// An image that a node was told in answers that came one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targeted {
    /// Its version.
    pub image: String,
    /// The version that ran when it was told first.
    pub running: String,
    /// The first of the answers.
    pub first: Span,
    /// The last of them.
    pub last: Span,
}

/// One update of such a node: from the first thing that it did for it to its end.
#[derive(Clone, Debug)]
pub struct Update {
    /// The window in which it began to change the node, by the node's clock; none while it only fetched.
    pub window: Option<Span>,
    /// When it began to change the node.
    pub began: Option<Moment>,
    /// When it ended and how.
    pub ended: Option<(Moment, End)>,
    /// Which image was to replace which; none if it was for packages.
    pub image: Option<Change>,
}

/// How an update of such a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Well: the node says `UPDATED` until that is acknowledged.
    Updated,
    /// Not well: the node says `FAILED` until the next update.
    Failed,
    /// There was nothing to do: the node says `UP_TO_DATE`.
    Nothing,
}

/// What the node showed at one tick, or at several in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// What the state file said.
    pub kind: &'static str,
    /// What stood beside it.
    pub detail: String,
    /// The image that it named.
    pub image: String,
    /// The update that it is about, as an index; none before the first.
    pub update: Option<usize>,
    /// The state file could not be read: nothing of it is true.
    pub spurious: bool,
    /// When the first of the calls was made and the last one was over.
    pub between: Span,
    /// How many of the calls were answered.
    pub acknowledged: u64,
}
