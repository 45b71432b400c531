//! The update that the server requested last, for `evenkeel-agent plan`. The agent itself does not
//! depend on the file: it may be missing or outdated.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use evenkeel_kit::chain;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::durable;
use crate::model::UpdateTarget;

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedTarget {
    /// When the server sent this target for the first time, by the node's clock.
    pub received: DateTime<Utc>,
    pub target: UpdateTarget,
}

/// Stores the last target.
#[derive(Debug)]
pub struct TargetFile {
    path: PathBuf,
    /// Digest of the stored target, which itself may be large.
    stored: Option<[u8; 32]>,
}

impl TargetFile {
    /// Loads the stored target.
    pub fn load(path: &Path) -> Self {
        let stored = read_target(path).map(|stored| digest_target(&stored.target));
        Self { path: path.to_owned(), stored }
    }

    /// Stores a target that the server has sent, if it is new. A failed write is ignored.
    pub fn store(&mut self, target: &UpdateTarget, received: DateTime<Utc>) {
        let digest = digest_target(target);
        if self.stored == Some(digest) {
            return;
        }
        let newer = ReceivedTarget { received, target: target.clone() };
        let content = serde_json::to_vec(&newer).unwrap_or_default();
        match durable::replace_file(&self.path, &content, 0o600) {
            Ok(()) => self.stored = Some(digest),
            Err(error) => {
                tracing::debug!(error = %chain(&error), "cannot store the requested update");
            }
        }
    }
}

fn digest_target(target: &UpdateTarget) -> [u8; 32] {
    Sha256::digest(serde_json::to_vec(target).unwrap_or_default()).into()
}

/// Reads the last target; `None` if it is missing or invalid.
pub fn read_target(path: &Path) -> Option<ReceivedTarget> {
    let content = durable::read_file(path).ok()??;
    serde_json::from_slice(&content).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModuleParts;

    #[test]
    fn a_target_is_stored_with_the_time_at_which_it_came_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target.json");
        assert_eq!(read_target(&path), None);
        let target =
            |digest: &str| UpdateTarget { digest: digest.into(), spec: ModuleParts::default() };
        let at = |seconds| DateTime::from_timestamp(seconds, 0).unwrap();
        let mut file = TargetFile::load(&path);
        file.store(&target("a"), at(1));
        file.store(&target("a"), at(2));
        let stored = ReceivedTarget { received: at(1), target: target("a") };
        assert_eq!(read_target(&path), Some(stored));
        let mut file = TargetFile::load(&path);
        file.store(&target("a"), at(3));
        assert_eq!(read_target(&path).unwrap().received, at(1));
        file.store(&target("b"), at(4));
        assert_eq!(read_target(&path).unwrap().received, at(4));
        std::fs::write(&path, "noise").unwrap();
        assert_eq!(read_target(&path), None);
    }
}
