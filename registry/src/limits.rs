//! Limits on the size and duration of requests.

use std::time::Duration;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// Limits on the size and duration of requests. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest response of a token server.
    pub token_bytes: u64,
    /// Largest page of a tag list.
    pub tag_page_bytes: u64,
    /// Maximum number of pages of a tag list.
    pub tag_pages: u32,
    /// Maximum number of tags of a repository.
    pub tags: u64,
    /// Number of tags to request per page.
    pub tags_per_page: u64,
    /// Largest manifest.
    pub manifest_bytes: u64,
    /// Largest profile.
    pub profile_bytes: u64,
    /// Largest signature.
    pub signature_bytes: u64,
    /// Largest package list.
    pub packages_bytes: u64,
    /// Largest CVE document as transferred.
    pub cves_bytes: u64,
    /// Largest file to copy, and largest blob of a bundle.
    pub blob_bytes: u64,
    /// Maximum number of entries of a bundle.
    pub bundle_entries: u64,
    /// Maximum total size of a bundle.
    pub bundle_bytes: u64,
    /// Timeout for establishing a connection.
    pub connect_timeout: Duration,
    /// Timeout for receiving data on an open connection.
    pub stall_timeout: Duration,
    /// Minimum rate in bytes per second, averaged over `stall_timeout`. For uploads it applies to
    /// the sent data. Together with the size limits it bounds the duration.
    pub min_bytes_per_second: u64,
    /// Maximum number of attempts per request.
    pub max_attempts: u32,
    /// Delay before the second attempt. It grows exponentially for later attempts.
    pub initial_backoff: Duration,
    /// Longest delay between two attempts.
    pub max_backoff: Duration,
    /// Longest `Retry-After` that is waited for. A longer one is returned to the caller as an
    /// error.
    pub max_retry_after: Duration,
    /// Maximum number of redirects per request.
    pub max_redirects: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            token_bytes: 64 * KIB,
            tag_page_bytes: MIB,
            tag_pages: 100,
            tags: 20_000,
            tags_per_page: 1_000,
            manifest_bytes: MIB,
            profile_bytes: 256 * KIB,
            signature_bytes: 64 * KIB,
            packages_bytes: 16 * MIB,
            cves_bytes: 64 * MIB,
            blob_bytes: 64 * GIB,
            bundle_entries: 100_000,
            bundle_bytes: 1024 * GIB,
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
            min_bytes_per_second: KIB,
            max_attempts: 4,
            initial_backoff: Duration::from_millis(500),
            max_backoff: Duration::from_secs(30),
            max_retry_after: Duration::from_mins(1),
            max_redirects: 5,
        }
    }
}
