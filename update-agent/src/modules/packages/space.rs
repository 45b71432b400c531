//! Checks the free disk space for downloads.

use std::path::Path;

use rustix::fs::statvfs;

use crate::model::{Failure, FailureKind};

/// Space that must stay free in addition to the downloads, in bytes.
const FREE_MARGIN_BYTES: u64 = 64 << 20;

const MEBIBYTE: u64 = 1 << 20;

/// Fails if the folder has no space for a download of `bytes`.
pub fn check_space(folder: &Path, bytes: u64) -> Result<(), Failure> {
    match statvfs(folder) {
        Ok(stats) => check_free_space(folder, stats.f_bavail.saturating_mul(stats.f_frsize), bytes),
        Err(error) => {
            // Continue: the download itself fails if there is not enough space.
            tracing::warn!(%error, folder = %folder.display(), "cannot determine the free disk space");
            Ok(())
        }
    }
}

fn check_free_space(folder: &Path, free: u64, bytes: u64) -> Result<(), Failure> {
    let needed = bytes.saturating_add(FREE_MARGIN_BYTES);
    let Some(lacking) = needed.checked_sub(free).filter(|lacking| *lacking > 0) else {
        return Ok(());
    };
    let reason = format!(
        "not enough disk space for the download: {} MiB more are needed in {}",
        lacking.div_ceil(MEBIBYTE),
        folder.display()
    );
    Err(Failure::new(FailureKind::Storage, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_space_is_reported_and_a_margin_remains() {
        let folder = Path::new("/var/lib/x");
        check_free_space(folder, 100 * MEBIBYTE, 36 * MEBIBYTE).unwrap();
        let failure = check_free_space(folder, 100 * MEBIBYTE, 36 * MEBIBYTE + 1).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        assert_eq!(
            failure.reason,
            "not enough disk space for the download: 1 MiB more are needed in /var/lib/x"
        );
        assert!(check_free_space(folder, 0, u64::MAX).is_err());
    }

    #[test]
    fn a_real_folder_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_space(folder.path(), u64::MAX / 2).is_err());
        check_space(&folder.path().join("nowhere"), u64::MAX).unwrap();
    }
}
