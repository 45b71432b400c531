//! Seals of the change log: makes them, and compares them with the log. The digests are computed here and not in the
//! database, so that one implementation makes and verifies them. docs/design/change-log.md describes how.

mod rows;
mod sealer;
mod verify;

pub use evenkeel_domain::change_seal::{
    ChainFault, ChainReport, ChangeRetention, ChangeSpan, Seal, SealDigest,
};
pub use sealer::{ChangeSealer, SealingPass};
pub use verify::{AuditReport, AuditRequest, ProjectAudit, verify};
