//! Where things are: the managed root, and the agent's own files.

use std::io;
use std::path::{Path, PathBuf};

use crate::durable::{self, FileError};

/// The folder, inside the managed root, that belongs to the agent. apt of that root must be able to read it.
const OWN: &str = "var/lib/evenkeel-agent";

/// The managed root and the agent's state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    root: PathBuf,
    state: PathBuf,
}

impl Place {
    /// A place for `root`, with the state in `<root>/var/lib/evenkeel-agent` unless it is to be elsewhere.
    pub fn new(root: impl Into<PathBuf>, state: Option<PathBuf>) -> Self {
        let root = root.into();
        let state = state.unwrap_or_else(|| root.join(OWN));
        Self { root, state }
    }

    /// Makes the folders that must be there. The state is for its owner only; it can be walked through, because packages
    /// are fetched into a folder below it. The one in the root is for those alone: a root that cannot be written to gets
    /// no packages.
    pub fn prepare(&self) -> Result<(), FileError> {
        durable::make_folder(&self.state, 0o711)?;
        let own = self.root.join(OWN);
        match durable::make_folder(&own, 0o711) {
            Err(error)
                if own != self.state
                    && error.source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
            {
                tracing::debug!(folder = %own.display(), "the root cannot be written to");
                Ok(())
            }
            made => made,
        }
    }

    /// The managed root; `/` is the running system itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the agent manages the system that it runs on.
    pub fn is_own_system(&self) -> bool {
        self.root == Path::new("/")
    }

    /// A file of the managed root, given as seen from inside.
    pub fn inside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The journal of the open attempt.
    pub fn journal(&self) -> PathBuf {
        self.state.join("journal.json")
    }

    /// Leave that the server gave ahead.
    pub fn grant(&self) -> PathBuf {
        self.state.join("grant.json")
    }

    /// The file that an agent locks while it runs.
    pub fn lock(&self) -> PathBuf {
        self.state.join("lock")
    }

    /// What is in the slots of images, and which of them failed.
    pub fn slots(&self) -> PathBuf {
        self.state.join("slots.json")
    }

    /// Where files of images lie until they are unpacked.
    pub fn spool(&self) -> PathBuf {
        self.state.join("images")
    }

    /// The keys of which one must have signed an image.
    pub fn image_keys(&self) -> PathBuf {
        self.inside("/etc/evenkeel/image-keys.d")
    }

    /// Who this node is to the server.
    pub fn node(&self) -> PathBuf {
        self.state.join("node.json")
    }

    /// The bearer token.
    pub fn credential(&self) -> PathBuf {
        self.state.join("credential")
    }

    /// The node's private key.
    pub fn key(&self) -> PathBuf {
        self.state.join("key.pem")
    }

    /// The certification authority of the server; absent if the system's roots decide.
    pub fn ca(&self) -> PathBuf {
        self.state.join("ca.pem")
    }

    /// The attempts that ended.
    pub fn history(&self) -> PathBuf {
        self.state.join("history.json")
    }

    /// What the machine's owner allows.
    pub fn limits(&self) -> PathBuf {
        self.inside("/etc/evenkeel/limits.toml")
    }

    /// What the agent last did, for `status`.
    pub fn status(&self) -> PathBuf {
        self.state.join("status.json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_lies_in_the_managed_root_unless_it_is_put_elsewhere() {
        let place = Place::new("/srv/node", None);
        assert_eq!(
            place.journal(),
            Path::new("/srv/node/var/lib/evenkeel-agent/journal.json")
        );
        assert_eq!(
            place.inside("/etc/os-release"),
            Path::new("/srv/node/etc/os-release")
        );
        let place = Place::new("/", Some("/tmp/state".into()));
        assert_eq!(place.key(), Path::new("/tmp/state/key.pem"));
        assert!(place.is_own_system());
    }
}
