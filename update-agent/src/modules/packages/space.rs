//! Room for what is fetched.

use std::path::Path;

use rustix::fs::statvfs;

use crate::model::{Failure, FailureKind};

/// What is left free beside what is fetched.
const MARGIN: u64 = 64 << 20;

const MEBIBYTE: u64 = 1 << 20;

/// Whether so many bytes can be fetched into a folder.
pub fn check(folder: &Path, bytes: u64) -> Result<(), Failure> {
    match statvfs(folder) {
        Ok(found) => enough(folder, found.f_bavail.saturating_mul(found.f_frsize), bytes),
        Err(error) => {
            // What does not fit is found out while it is fetched.
            tracing::warn!(%error, folder = %folder.display(), "cannot tell how much room there is");
            Ok(())
        }
    }
}

fn enough(folder: &Path, free: u64, bytes: u64) -> Result<(), Failure> {
    let needed = bytes.saturating_add(MARGIN);
    let Some(lacking) = needed.checked_sub(free).filter(|lacking| *lacking > 0) else {
        return Ok(());
    };
    let reason = format!(
        "there is no room for what must be fetched: {} MiB are missing in {}",
        lacking.div_ceil(MEBIBYTE),
        folder.display()
    );
    Err(Failure::new(FailureKind::Storage, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_and_some_room_is_left() {
        let folder = Path::new("/var/lib/x");
        enough(folder, 100 * MEBIBYTE, 36 * MEBIBYTE).unwrap();
        let failure = enough(folder, 100 * MEBIBYTE, 36 * MEBIBYTE + 1).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        assert_eq!(
            failure.reason,
            "there is no room for what must be fetched: 1 MiB are missing in /var/lib/x"
        );
        assert!(enough(folder, 0, u64::MAX).is_err());
    }

    #[test]
    fn a_real_folder_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check(folder.path(), u64::MAX / 2).is_err());
        check(&folder.path().join("nowhere"), u64::MAX).unwrap();
    }
}
