//! What registries have of operating systems. A registry is asked once for all projects, so all of it belongs to the
//! fleet.
//!
//! A cycle is one look at a registry. Wishes for cycles are counted; whoever claims one holds it under a lease by the
//! database's clock, and nothing is written for a cycle but by who holds it.

mod artifacts;
mod cycle;
mod sides;

use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::{CycleOutcome, CycleStep, File, SideKind, Trusted};
use serde_json::Value;
use uuid::Uuid;

use crate::contents::Digest;
use crate::error::StoreError;
use crate::rows::named;

pub use artifacts::{artifacts, keep, mark_gone, see};
pub use cycle::{beat, claim, finish, request, state, strike};
pub use sides::{forget_sides, keep_side, side_body, sides};

/// A cycle that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The registry that is looked at.
    pub registry: String,
    /// Who looks.
    pub holder: Uuid,
    /// Which of the wishes is met by it, and with it all before.
    pub number: i64,
}

/// How far a cycle has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub step: CycleStep,
    /// How much of the step is done.
    pub finished: u32,
    /// How much there is to do in the step; 0 if that is not known.
    pub total: u32,
}

/// How a cycle ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How it went.
    pub outcome: CycleOutcome,
    /// In words, at most 1,000 bytes; empty if there is nothing to say.
    pub message: String,
    /// Before this the registry is not asked again; none if it may be.
    pub not_before: Option<Time>,
}

/// Where the cycles of a registry stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleState {
    /// The number of the last wish for a cycle.
    pub wanted: i64,
    /// The number of the last wish that was met.
    pub done: i64,
    /// The wish that a cycle is meeting; none if there is no cycle.
    pub claimed: Option<i64>,
    /// How far the cycle has come; idle if there is none.
    pub progress: Progress,
    /// Before this the registry is not asked again.
    pub not_before: Option<Time>,
    /// When the last cycle began.
    pub started_at: Option<Time>,
    /// When the last cycle ended.
    pub ended_at: Option<Time>,
    /// When the last one ended in which nothing was wrong.
    pub good_at: Option<Time>,
    /// How the last one ended; none before the first end.
    pub outcome: Option<CycleOutcome>,
    /// What was said of it.
    pub message: String,
}

/// What a tag leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Artifact {
    /// The repository.
    pub repository: String,
    /// The tag.
    pub tag: String,
    /// Of its manifest.
    pub digest: Digest,
    /// What the tag led to before; none if it never moved.
    pub moved_from: Option<Digest>,
    /// What the file of its profile is called; none if that was not read.
    pub title: Option<String>,
    /// Its manifest as it came; none if it was no text.
    pub manifest: Option<String>,
    /// Its profile as it came; none if it could not be had, or is no text.
    pub document: Option<String>,
    /// What is to be said of it.
    pub findings: Vec<Value>,
    /// What was found of its signature.
    pub trust: Trusted,
    /// The signature, and what a node needs to check it; none if there is no good one.
    pub signature: Option<Value>,
    /// The files that belong to it.
    pub files: Vec<File>,
    /// Since when the tag is gone; none if it is there.
    pub gone_at: Option<Time>,
}

/// By what a document beside profiles is known in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SideKey {
    /// Where it lies.
    pub place: String,
    /// What it lists.
    pub kind: SideKind,
    /// The digest of the list of packages that it was cut down to; none if to none.
    pub filtered_by: Option<Digest>,
}

/// A document beside profiles. Its body is read apart from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Side {
    /// By what it is known.
    pub key: SideKey,
    /// Of the last good body, as it is shown; none if there was none yet.
    pub digest: Option<Digest>,
    /// By what its server knows what it gave last; none if it said none. At most 1,024 bytes.
    pub etag: Option<String>,
    /// What is to be said of it.
    pub findings: Vec<Value>,
    /// When it was last asked for.
    pub fetched_at: Time,
}

/// A digest as a column holds it.
fn digest(bytes: Vec<u8>, table: &'static str, column: &'static str) -> Result<Digest, StoreError> {
    named(Digest::try_from(bytes).ok(), table, 0, column)
}
