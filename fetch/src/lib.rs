//! Downloads that can be resumed, with a digest and a size limit.
//!
//! The crate has no HTTP client. The server has a client with redirects, tokens and connections
//! that are reused; the agent has a small one that pauses a response between two polls and checks
//! certificates at a time that it trusts. Both pass their responses to this crate.
//!
//! | module | content |
//! | --- | --- |
//! | [`mod@digest`] | digests of content |
//! | [`partial_file`] | a file on the disk that is not complete yet |
//! | [`download`] | fills a partial file from responses and checks the content |
//! | [`range`] | requests for the rest of a file, and what a response to one contains |
//! | [`body`] | bodies of responses that stall or are too slow |

pub mod body;
pub mod digest;
pub mod download;
pub mod partial_file;
pub mod range;

pub use body::{BodyEvent, StallError, StallLimits, StallWatch};
pub use digest::{BadDigest, Digest, Hasher};
pub use download::{Download, ExpectedContent, FillError, SourceError, run_blocking};
pub use partial_file::{CHUNK_BYTES, FileHash, PartialFile, sync_parent_folder, write_atomically};
pub use range::{RangeRequest, RangeResponse};

/// Minimum progress in bytes after which earlier failures of a download no longer count. So a
/// connection that breaks often still delivers a large file.
pub const MIN_PROGRESS_BYTES: u64 = 1 << 20;
