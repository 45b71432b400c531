//! Paths of the managed root and of the agent's own files.

use std::io;
use std::path::{Path, PathBuf};

use crate::durable::{self, FileError};

/// Folder of the agent inside the managed root. apt of that root must be able to read it.
const AGENT_FOLDER: &str = "var/lib/evenkeel-agent";

/// Name of the journal in a state directory. The file exists while an update is open.
pub const JOURNAL_FILE: &str = "journal.json";

/// Paths in the managed root and in the agent's state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPaths {
    root: PathBuf,
    state: PathBuf,
}

impl AgentPaths {
    /// Paths for `root`; the default state directory is `<root>/var/lib/evenkeel-agent`.
    pub fn new(root: impl Into<PathBuf>, state: Option<PathBuf>) -> Self {
        let root = root.into();
        let state = state.unwrap_or_else(|| root.join(AGENT_FOLDER));
        Self { root, state }
    }

    /// Creates the required folders. Only the owner may list the state directory, but others may
    /// traverse it, because apt downloads packages into a folder below it. A folder in the root is
    /// created for these downloads; if the root is read-only, it gets no packages.
    pub fn prepare(&self) -> Result<(), FileError> {
        durable::create_folder(&self.state, 0o711)?;
        let own = self.apt_folder();
        match durable::create_folder(&own, 0o711) {
            Err(error)
                if own != self.state
                    && error.source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
            {
                tracing::debug!(folder = %own.display(), "the root is read-only");
                Ok(())
            }
            result => result,
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

    /// Path of a file in the managed root; `path` is as seen from inside.
    pub fn inside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The agent's folder inside the managed root. It contains the files for apt.
    pub fn apt_folder(&self) -> PathBuf {
        self.root.join(AGENT_FOLDER)
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The journal of the open attempt.
    pub fn journal(&self) -> PathBuf {
        self.state.join(JOURNAL_FILE)
    }

    /// The state of the configuration documents that were applied on this machine.
    pub fn configuration(&self) -> PathBuf {
        self.state.join("configuration")
    }

    /// The running change of packages.
    pub fn change_record(&self) -> PathBuf {
        self.state.join("change.json")
    }

    /// The session that agents share which run once.
    pub fn session(&self) -> PathBuf {
        self.inside("/run/evenkeel-agent.session")
    }

    /// The offline grant.
    pub fn grant(&self) -> PathBuf {
        self.state.join("grant.json")
    }

    /// Lock file of the running agent.
    pub fn lock(&self) -> PathBuf {
        self.state.join("lock")
    }

    /// Record of the image slots and of failed images.
    pub fn slots(&self) -> PathBuf {
        self.state.join("slots.json")
    }

    /// Record of the kernels that ran.
    pub fn kernels(&self) -> PathBuf {
        self.state.join("kernels.json")
    }

    /// Downloaded image files until they are unpacked.
    pub fn spool(&self) -> PathBuf {
        self.state.join("images")
    }

    /// Keys that may sign images.
    pub fn image_keys(&self) -> PathBuf {
        self.inside("/etc/evenkeel/image-keys.d")
    }

    /// Identity of this node at the server.
    pub fn node(&self) -> PathBuf {
        self.state.join("node.json")
    }

    /// The bearer token, for a server behind a proxy that terminates TLS.
    pub fn credential(&self) -> PathBuf {
        self.state.join("credential")
    }

    /// The node's private key.
    pub fn key(&self) -> PathBuf {
        self.state.join("key.pem")
    }

    /// A new private key of the node that the server has not accepted yet.
    pub fn enrolment_key(&self) -> PathBuf {
        self.state.join("enrolment-key.pem")
    }

    /// The client certificate for the node's key.
    pub fn certificate(&self) -> PathBuf {
        self.state.join("certificate.pem")
    }

    /// The private key that decrypts secrets.
    pub fn decryption_key(&self) -> PathBuf {
        self.state.join("decryption-key.pem")
    }

    /// The certificate for the key that decrypts secrets.
    pub fn decryption_certificate(&self) -> PathBuf {
        self.state.join("decryption-certificate.pem")
    }

    /// CA of the server; missing if the system roots are used.
    pub fn ca(&self) -> PathBuf {
        self.state.join("ca.pem")
    }

    /// Time of the last contact with the server, in one line (RFC 3339).
    pub fn last_contact(&self) -> PathBuf {
        self.state.join("last-contact")
    }

    /// Since when locks of ordinary users delay changes, in one line (RFC 3339); missing if there are none.
    pub fn user_lock(&self) -> PathBuf {
        self.state.join("user-lock")
    }

    /// History of the ended attempts.
    pub fn history(&self) -> PathBuf {
        self.state.join("history.json")
    }

    /// Limits of the machine's owner.
    pub fn limits(&self) -> PathBuf {
        self.inside("/etc/evenkeel/limits.toml")
    }

    /// What is disabled of other update programs.
    pub fn other_updaters(&self) -> PathBuf {
        self.state.join("other-updaters.json")
    }

    /// The packages as the agent last saw them.
    pub fn package_versions(&self) -> PathBuf {
        self.state.join("package-versions.json")
    }

    /// The update that the server requested last, for `plan`.
    pub fn target(&self) -> PathBuf {
        self.state.join("target.json")
    }

    /// The agent's last status, for `status`.
    pub fn status(&self) -> PathBuf {
        self.state.join("status.json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_in_the_managed_root_by_default() {
        let paths = AgentPaths::new("/srv/node", None);
        assert_eq!(paths.journal(), Path::new("/srv/node/var/lib/evenkeel-agent/journal.json"));
        assert_eq!(paths.inside("/etc/os-release"), Path::new("/srv/node/etc/os-release"));
        let paths = AgentPaths::new("/", Some("/tmp/state".into()));
        assert_eq!(paths.key(), Path::new("/tmp/state/key.pem"));
        assert!(paths.is_own_system());
    }
}
