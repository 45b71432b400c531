//! What is waited for, what is too much, and what is left free.

use std::time::Duration;

use super::failure;
use super::record::Record;
use crate::model::{Failure, ImageWish};
use crate::modules::image::web::Patience;

/// How often it may fail in a row if nobody said.
const ATTEMPTS: u32 = 5;

/// A download that begins anew so often comes nowhere, however much comes in between.
const MOST_BEGUN: u32 = 10;

/// What stays free for the journal and all others who write there,
const MARGIN: u64 = 64 << 20;

/// and at most this part of a file system: one for data may be small.
const MARGIN_PART: u64 = 8;

/// What is waited for, and what is left free.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// A server must have answered within.
    pub open: Duration,
    /// A line on which less comes is given up.
    pub patience: Patience,
    /// What came is flushed whenever it is so much,
    pub sync_bytes: u64,
    /// and at least so often.
    pub sync_every: Duration,
    /// So much stays free beside the image, of a file system with so many bytes.
    pub margin: fn(u64) -> u64,
}

/// Those of a node.
pub const TERMS: Terms = Terms {
    open: Duration::from_secs(30),
    patience: Patience {
        idle: Duration::from_mins(1),
        span: Duration::from_mins(10),
        least: 64 << 10,
    },
    sync_bytes: 8 << 20,
    sync_every: Duration::from_secs(5),
    margin,
};

fn margin(file_system: u64) -> u64 {
    MARGIN.min(file_system / MARGIN_PART)
}

/// Why nothing more is read from a line.
#[derive(Debug)]
pub enum End {
    /// All is there.
    Whole,
    /// The slice is over.
    Slice,
    /// It broke.
    Broken(String),
    /// More came than the server said there is.
    Excess,
    /// More came than may.
    TooLarge,
    /// What came could not be unpacked.
    Unfit(Failure),
}

/// Why not to read on after so many bytes, of which `total` are to come if that is known, and at most `most` may if
/// that is not 0. `None` to read on.
pub fn end_at(bytes: u64, total: Option<u64>, most: u64) -> Option<End> {
    match total {
        Some(total) if bytes > total => Some(End::Excess),
        _ if most > 0 && bytes > most => Some(End::TooLarge),
        Some(total) if bytes == total => Some(End::Whole),
        _ => None,
    }
}

/// How often a download may fail in a row.
fn attempts(wish: &ImageWish) -> u32 {
    match wish.rules.attempts {
        0 => ATTEMPTS,
        attempts => attempts,
    }
}

/// How often it failed, and how often it may, in words.
pub fn count(record: &Record, wish: &ImageWish) -> String {
    format!("attempt {} of {}", record.attempts, attempts(wish))
}

/// In which way it came nowhere; `None` if it may still be tried.
pub fn hopeless(record: &Record, wish: &ImageWish) -> Option<String> {
    if record.attempts >= attempts(wish) {
        return Some(format!("in {} attempts", record.attempts));
    }
    let too_often = record.begun >= MOST_BEGUN;
    too_often.then(|| format!("though it began anew {} times", record.begun))
}

/// Whether a file of so many bytes may be fetched.
pub fn fits(wish: &ImageWish, bytes: u64) -> Result<(), Failure> {
    let most = wish.rules.max_bytes;
    if most > 0 && bytes > most {
        return Err(too_large(wish, &bytes.to_string()));
    }
    Ok(())
}

/// A file is too large, for the policy or for the slot: a disk with more room would not help.
pub fn too_large(wish: &ImageWish, bytes: &str) -> Failure {
    failure(format!(
        "the image has {bytes} bytes, and at most {} may be fetched: let the release be smaller, or the policy allow \
         more if the slots of the node have room for it",
        wish.rules.max_bytes
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_system_need_not_keep_free_what_a_large_one_does() {
        assert_eq!(margin(1 << 40), 64 << 20);
        assert_eq!(margin(512 << 20), 64 << 20);
        assert_eq!(margin(256 << 20), 32 << 20);
        assert_eq!(margin(0), 0);
    }

    #[test]
    fn what_is_too_large_is_too_large_also_when_it_is_whole() {
        let all = Some(10);
        assert!(end_at(9, all, 0).is_none());
        assert!(matches!(end_at(10, all, 0), Some(End::Whole)));
        assert!(matches!(end_at(11, all, 0), Some(End::Excess)));
        assert!(matches!(end_at(10, all, 10), Some(End::Whole)));
        assert!(matches!(end_at(10, all, 9), Some(End::TooLarge)));
        // What comes behind that of which the server spoke is not the file's.
        assert!(matches!(end_at(11, all, 10), Some(End::Excess)));
        assert!(end_at(10, None, 10).is_none());
        assert!(matches!(end_at(11, None, 10), Some(End::TooLarge)));
    }
}
