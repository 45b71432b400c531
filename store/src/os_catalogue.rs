//! The contents of OS registries. Each registry is fetched once for all projects, so the data
//! belongs to the fleet.
//!
//! A cycle is one fetch of a registry. Requests for cycles are numbered. A server claims a cycle
//! with a lease by the clock of the database, and only the holder of the lease writes for the
//! cycle.

mod artifacts;
mod attachments;
mod cycle;

use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::{
    AttachmentKind, CatalogFile, CycleOutcome, CycleStep, SignatureStatus,
};
use serde_json::Value;
use uuid::Uuid;

use crate::contents::ContentDigest;
use crate::error::StoreError;
use crate::rows::or_corrupt;

pub use artifacts::{list_artifacts, mark_gone, mark_seen, store_artifact};
pub use attachments::{
    attachment_body, delete_unused_attachments, list_attachments, store_attachment,
};
pub use cycle::{claim, finish, report_progress, request, request_if_due, state};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleClaim {
    pub registry: String,
    /// The server that holds the claim.
    pub holder: Uuid,
    /// The number of the request that this cycle fulfils, together with all earlier requests.
    pub number: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current step.
    pub step: CycleStep,
    /// Finished items of the step.
    pub finished: u32,
    /// All items of the step; 0 if unknown.
    pub total: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleResult {
    pub outcome: CycleOutcome,
    /// For users, at most 1,000 bytes; may be empty.
    pub message: String,
    /// The registry must not be asked again before this time.
    pub not_before: Option<Time>,
}

/// The state of the cycles of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleState {
    /// The number of the last request.
    pub requested: i64,
    /// The number of the last fulfilled request.
    pub done: i64,
    /// The request that the running cycle fulfils; none if no cycle runs.
    pub claimed: Option<i64>,
    /// Progress of the running cycle; idle if no cycle runs.
    pub progress: Progress,
    /// The registry must not be asked again before this time.
    pub not_before: Option<Time>,
    /// Start of the last cycle.
    pub started_at: Option<Time>,
    /// End of the last cycle.
    pub ended_at: Option<Time>,
    /// End of the last cycle without errors.
    pub last_success_at: Option<Time>,
    /// Outcome of the last cycle; none before the first one ended.
    pub outcome: Option<CycleOutcome>,
    /// Message of the last cycle.
    pub message: String,
}

/// The artifact of a tag.
#[derive(Clone, Debug, PartialEq)]
pub struct Artifact {
    pub repository: String,
    pub tag: String,
    /// Digest of its manifest.
    pub digest: ContentDigest,
    /// The previous artifact of the tag; none if the tag never moved.
    pub moved_from: Option<ContentDigest>,
    /// File name of its profile; none if it was not read.
    pub title: Option<String>,
    /// Its manifest as received; none if it is not valid text.
    pub manifest: Option<String>,
    /// Its profile as received; none if it could not be fetched or is not valid text.
    pub document: Option<String>,
    /// Findings about it.
    pub findings: Vec<Value>,
    /// Result of the signature check.
    pub trust: SignatureStatus,
    /// The signature and the data that a node needs to verify it; none without a valid signature.
    pub signature: Option<Value>,
    pub files: Vec<CatalogFile>,
    /// Since when the tag no longer exists; none if it exists.
    pub gone_at: Option<Time>,
}

/// The key of an attachment of profiles in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttachmentKey {
    /// Its path or URL.
    pub location: String,
    /// Its kind of list.
    pub kind: AttachmentKind,
    /// The digest of the package list by which it was filtered; none if it is unfiltered.
    pub filtered_by: Option<ContentDigest>,
}

/// An attachment of profiles, such as an SBOM or a CVE list. Its body is read separately.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    pub key: AttachmentKey,
    /// Digest of the last valid body after conversion; none if there was no valid body yet.
    pub digest: Option<ContentDigest>,
    /// `ETag` of the last response, if the server sent one; at most 1,024 bytes.
    pub etag: Option<String>,
    /// Findings about it.
    pub findings: Vec<Value>,
    /// Time of the last fetch.
    pub fetched_at: Time,
}

/// The digest in a column.
fn digest(
    bytes: Vec<u8>,
    table: &'static str,
    column: &'static str,
) -> Result<ContentDigest, StoreError> {
    or_corrupt(ContentDigest::try_from(bytes).ok(), table, 0, column)
}
