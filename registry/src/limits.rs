//! How much is taken from outside, and how long is waited for it.

use std::time::Duration;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// How much is taken from outside, and how long is waited for it. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest answer of one that gives tokens.
    pub token: u64,
    /// The largest page of a list of tags.
    pub tag_page: u64,
    /// How many pages a list of tags may have.
    pub tag_pages: u32,
    /// How many tags a repository may have.
    pub tags: u64,
    /// How many tags are asked for at once.
    pub tags_at_once: u64,
    /// The largest manifest.
    pub manifest: u64,
    /// The largest profile.
    pub profile: u64,
    /// The largest signature.
    pub signature: u64,
    /// The largest list of packages.
    pub packages: u64,
    /// The largest document about vulnerabilities, as it travels.
    pub cves: u64,
    /// The largest file that is copied, and the largest blob of a bundle.
    pub blob: u64,
    /// How many files a bundle may have.
    pub files: u64,
    /// How large a bundle may be in all.
    pub bundle: u64,
    /// How long a connection may take to be made.
    pub connect: Duration,
    /// How long nothing may come.
    pub stalled: Duration,
    /// The least that must come in a second, on the average of a time as long as `stalled`; in an upload, that must go
    /// out. So what is bounded in size is bounded in time, too.
    pub slowest: u64,
    /// How often something is tried in all.
    pub tries: u32,
    /// How long is waited before the second try. Later pauses are longer.
    pub first_pause: Duration,
    /// The longest pause between two tries.
    pub longest_pause: Duration,
    /// The longest that is waited because a registry asks for it; what asks for more is told to the caller.
    pub longest_wish: Duration,
    /// How often an answer may lead on to another address.
    pub redirects: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            token: 64 * KIB,
            tag_page: MIB,
            tag_pages: 100,
            tags: 20_000,
            tags_at_once: 1_000,
            manifest: MIB,
            profile: 256 * KIB,
            signature: 64 * KIB,
            packages: 16 * MIB,
            cves: 64 * MIB,
            blob: 64 * GIB,
            files: 100_000,
            bundle: 1024 * GIB,
            connect: Duration::from_secs(5),
            stalled: Duration::from_secs(30),
            slowest: KIB,
            tries: 4,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            longest_wish: Duration::from_mins(1),
            redirects: 5,
        }
    }
}
