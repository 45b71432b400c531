//! Limits of a download: timeouts, sizes, attempts and free disk space.

use std::time::Duration;

use evenkeel_fetch::StallLimits;

use super::download_failure;
use super::record::SpoolRecord;
use crate::model::{Failure, ImageSpec};

/// Failed attempts in a row that are allowed if the policy names no number.
const DEFAULT_ATTEMPTS: u32 = 5;

/// Restarts after which a download fails, however many bytes came in between.
const MAX_RESTARTS: u32 = 10;

/// Space that stays free for the journal and other programs, in bytes. Less on a small file system.
const FREE_MARGIN_BYTES: u64 = 64 << 20;

/// The free margin is at most the size of the file system divided by this number: a data partition
/// may be small.
const FREE_MARGIN_DIVISOR: u64 = 8;

/// Timeouts and disk space of a download.
#[derive(Clone, Copy, Debug)]
pub struct DownloadLimits {
    /// Time within which a server must answer.
    pub open_timeout: Duration,
    /// Minimum transfer of a body before it is aborted.
    pub stall_limits: StallLimits,
    /// Number of received bytes after which they are synced.
    pub sync_bytes: u64,
    /// Maximum time between two syncs of received bytes.
    pub sync_interval: Duration,
    /// Bytes that stay free next to the image on a file system of a given size.
    pub free_margin: fn(u64) -> u64,
}

/// Limits on a node.
pub const DEFAULT_LIMITS: DownloadLimits = DownloadLimits {
    open_timeout: Duration::from_secs(30),
    stall_limits: StallLimits {
        idle_timeout: Duration::from_mins(1),
        rate_window: Duration::from_mins(10),
        min_bytes: 64 << 10,
    },
    sync_bytes: 8 << 20,
    sync_interval: Duration::from_secs(5),
    free_margin,
};

fn free_margin(file_system: u64) -> u64 {
    FREE_MARGIN_BYTES.min(file_system / FREE_MARGIN_DIVISOR)
}

/// Why a body is not read any further.
#[derive(Debug)]
pub enum TransferEnd {
    /// The file is complete.
    Complete,
    /// The slice has ended.
    SliceExpired,
    /// The connection broke.
    Broken(String),
    /// The server sent more bytes than it announced.
    Excess,
    /// The server sent more bytes than the policy allows.
    TooLarge,
    /// The received bytes cannot be unpacked.
    CannotUnpack(Failure),
}

/// Whether to stop after `bytes`. `total` is the size of the file, if known; `max_bytes` is the
/// limit, if it is not 0. `None` to read on.
pub fn end_after(bytes: u64, total: Option<u64>, max_bytes: u64) -> Option<TransferEnd> {
    match total {
        Some(total) if bytes > total => Some(TransferEnd::Excess),
        _ if max_bytes > 0 && bytes > max_bytes => Some(TransferEnd::TooLarge),
        Some(total) if bytes == total => Some(TransferEnd::Complete),
        _ => None,
    }
}

/// Failed attempts in a row that are allowed.
fn max_attempts(spec: &ImageSpec) -> u32 {
    match spec.rules.attempts {
        0 => DEFAULT_ATTEMPTS,
        attempts => attempts,
    }
}

/// Formats the count of failed attempts for people.
pub fn format_attempts(record: &SpoolRecord, spec: &ImageSpec) -> String {
    format!("attempt {} of {}", record.attempts, max_attempts(spec))
}

/// Why the download fails for good; `None` if it may be tried again.
pub fn final_failure_reason(record: &SpoolRecord, spec: &ImageSpec) -> Option<String> {
    if record.attempts >= max_attempts(spec) {
        return Some(format!("in {} attempts", record.attempts));
    }
    let too_often = record.restarts >= MAX_RESTARTS;
    too_often.then(|| format!("although it restarted {} times", record.restarts))
}

/// Fails if a file of this size is larger than the limit.
pub fn check_size(spec: &ImageSpec, bytes: u64) -> Result<(), Failure> {
    let max_bytes = spec.rules.max_bytes;
    if max_bytes > 0 && bytes > max_bytes {
        return Err(too_large_failure(spec, &bytes.to_string()));
    }
    Ok(())
}

/// The file exceeds the limit of the policy or the slot; more disk space would not help.
pub fn too_large_failure(spec: &ImageSpec, bytes: &str) -> Failure {
    download_failure(format!(
        "the image has {bytes} bytes, but at most {} may be downloaded: publish a smaller image, \
         or raise the limit of the policy if the slots of the node are large enough",
        spec.rules.max_bytes
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_free_margin_is_smaller_on_a_small_file_system() {
        assert_eq!(free_margin(1 << 40), 64 << 20);
        assert_eq!(free_margin(512 << 20), 64 << 20);
        assert_eq!(free_margin(256 << 20), 32 << 20);
        assert_eq!(free_margin(0), 0);
    }

    #[test]
    fn the_size_limit_also_applies_to_a_complete_file() {
        let all = Some(10);
        assert!(end_after(9, all, 0).is_none());
        assert!(matches!(end_after(10, all, 0), Some(TransferEnd::Complete)));
        assert!(matches!(end_after(11, all, 0), Some(TransferEnd::Excess)));
        assert!(matches!(end_after(10, all, 10), Some(TransferEnd::Complete)));
        assert!(matches!(end_after(10, all, 9), Some(TransferEnd::TooLarge)));
        // Bytes beyond the announced size do not belong to the file.
        assert!(matches!(end_after(11, all, 10), Some(TransferEnd::Excess)));
        assert!(end_after(10, None, 10).is_none());
        assert!(matches!(end_after(11, None, 10), Some(TransferEnd::TooLarge)));
    }
}
