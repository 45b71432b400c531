//! The files that are to be published, as they lie on this machine.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::digest::Hasher;
use crate::finding::{Finding, FindingKind};
use crate::layout::part::PIECE;
use crate::source::Blob;

/// What a file is in a registry.
pub(super) fn hash(path: &Path) -> Result<Blob, Finding> {
    hashed(path).map_err(|error| unreadable(path, &error))
}

fn hashed(path: &Path) -> io::Result<Blob> {
    let mut file = File::open(path)?;
    let mut hasher = Hasher::default();
    let mut piece = vec![0; PIECE];
    let mut size = 0;
    loop {
        match file.read(&mut piece)? {
            0 => {
                let digest = hasher.finish();
                return Ok(Blob { digest, size });
            }
            count => {
                hasher.update(piece.get(..count).unwrap_or_default());
                size += count as u64;
            }
        }
    }
}

/// The whole of a file that is not larger than allowed.
pub(super) fn read_whole(path: &Path, limit: u64) -> Result<Vec<u8>, Finding> {
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
