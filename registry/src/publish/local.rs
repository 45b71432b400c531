//! Local files that are to be published.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use evenkeel_fetch::FileHash;

use crate::finding::{Finding, FindingKind};
use crate::source::Blob;

/// Digest and size of a file.
pub(super) fn hash_file(path: &Path) -> Result<Blob, Finding> {
    let mut hash = FileHash::default();
    File::open(path)
        .and_then(|file| hash.read(&file, u64::MAX))
        .map_err(|error| unreadable(path, &error))?;
    Ok(Blob { digest: hash.digest(), size: hash.length() })
}

/// Reads a file of at most `limit` bytes.
pub(super) fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, Finding> {
    let mut content = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_end(&mut content))
        .map_err(|error| unreadable(path, &error))?;
    if content.len() as u64 > limit {
        let why = format!("{} is larger than {limit} bytes", path.display());
        return Err(Finding::new(FindingKind::TooLarge, why));
    }
    Ok(content)
}

fn unreadable(path: &Path, error: &io::Error) -> Finding {
    let why = format!("cannot read {}: {error}", path.display());
    Finding::new(FindingKind::NotThere, why)
}
