//! Local files that are to be published.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::digest::Hasher;
use crate::finding::{Finding, FindingKind};
use crate::layout::partial_file::CHUNK_BYTES;
use crate::source::Blob;

/// Digest and size of a file.
pub(super) fn hash_file(path: &Path) -> Result<Blob, Finding> {
    try_hash_file(path).map_err(|error| unreadable(path, &error))
}

fn try_hash_file(path: &Path) -> io::Result<Blob> {
    let mut file = File::open(path)?;
    let mut hasher = Hasher::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut size = 0;
    loop {
        match file.read(&mut chunk)? {
            0 => {
                let digest = hasher.finish();
                return Ok(Blob { digest, size });
            }
            count => {
                hasher.update(chunk.get(..count).unwrap_or_default());
                size += count as u64;
            }
        }
    }
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
