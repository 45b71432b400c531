//! Result of the enrolment: the identity of this node at the server, its certificates and its secrets.

mod certificates;

use chrono::{DateTime, Utc};
use evenkeel_kit::secret::Secret;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{self, FileError};
use crate::identity::MachineMarks;
use crate::journal::FileJournal;
use crate::paths::AgentPaths;

pub use self::certificates::{CertificateRequests, IssuedCertificates, NodeCertificates};

/// Identity of this node at the server. Written last at enrolment: if this file exists, all others
/// exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// URL of the server.
    pub server: String,
    /// UUID of the machine as sent to the server.
    pub uuid: Uuid,
    /// Host ID, such as `host-0a1b2c3d`.
    pub host_id: String,
    /// Instance ID, such as `inst-0a1b2c3d`.
    pub instance_id: String,
    /// Name of the project.
    pub project: String,
    /// Expiry of the bearer token that was issued at enrolment.
    pub credential_expires: Option<DateTime<Utc>>,
    /// Marks of the machine when it enrolled; older agents did not store them.
    #[serde(default)]
    pub machine: Option<MachineMarks>,
}

/// The files of a node are missing or unusable.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The machine is not enrolled.
    #[error(
        "this node is not enrolled; run `evenkeel-agent enroll --server URL --token-file FILE`"
    )]
    NotEnrolled,
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file of the agent has invalid content.
    #[error("{file} is invalid; enrol again")]
    Corrupt {
        /// Name of the file.
        file: String,
        /// Error of the parser.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The key of an enrolled node was lost.
    #[error(
        "{file} is missing, so this node cannot prove that it is {host}: restore the file; without a backup, run \
         `evenkeel host delete {host} --with-instance`, and enrol again"
    )]
    MissingKey {
        /// Path of the file.
        file: String,
        /// Host ID of the node.
        host: String,
    },
    /// There is neither a client certificate nor a bearer token.
    #[error("this node has no certificate; enrol again")]
    NoCertificate,
    /// A certificate request could not be made.
    #[error("cannot make the certificate request")]
    Request(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A certificate from the server does not fit the key.
    #[error("the certificate from the server is not for the key of this node")]
    Certificate(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Node {
    pub fn load(paths: &AgentPaths) -> Result<Self, NodeError> {
        let content = durable::read_file(&paths.node())?.ok_or(NodeError::NotEnrolled)?;
        serde_json::from_slice(&content).map_err(|error| corrupt_file("node.json", error))
    }

    /// Message with advice if this is certainly not the machine that enrolled; otherwise `None`.
    /// Two machines with the same identity would overwrite each other's reports at the server.
    pub fn identity_mismatch(&self, now: &MachineMarks) -> Option<String> {
        let enrolled = self.machine.as_ref()?;
        enrolled.identifies_other_machine(now).then(|| {
            format!(
                "this is not the machine that enrolled as {} (was its disk copied?): make it a node of its own with \
                 `evenkeel-agent enroll`",
                self.host_id
            )
        })
    }

    /// Whether both are the same instance at the same server.
    pub fn is_same_host(&self, other: &Self) -> bool {
        (&self.server, &self.host_id, &self.instance_id)
            == (&other.server, &other.host_id, &other.instance_id)
    }

    /// Stores the node.
    pub fn save(&self, paths: &AgentPaths) -> Result<(), NodeError> {
        let content =
            serde_json::to_vec_pretty(self).map_err(|error| corrupt_file("node.json", error))?;
        Ok(durable::replace_file(&paths.node(), &content, 0o600)?)
    }
}

/// Removes the identity of a copied disk before the machine enrols with its own: keys, data from
/// the server and prepared changes. A change that has begun on this disk stays open, because it
/// must be finished.
pub fn forget_identity(paths: &AgentPaths) -> Result<(), FileError> {
    let files = [
        // Removed first: if this file exists, all others must exist.
        paths.node(),
        paths.credential(),
        paths.certificate(),
        paths.key(),
        paths.enrolment_key(),
        paths.decryption_certificate(),
        paths.decryption_key(),
        paths.ca(),
        paths.grant(),
        paths.target(),
        paths.status(),
        paths.history(),
    ];
    files.iter().try_for_each(|file| durable::remove_file(file))?;
    let open = FileJournal::peek(&paths.journal())?;
    if open.is_some_and(|entry| !entry.has_begun()) {
        durable::remove_file(&paths.journal())?;
    }
    Ok(())
}

/// Reads the bearer token; `None` if the server issued none.
pub fn load_credential(paths: &AgentPaths) -> Result<Option<Secret>, NodeError> {
    let Some(content) = durable::read_file(&paths.credential())? else {
        return Ok(None);
    };
    let text = String::from_utf8(content).map_err(|error| corrupt_file("credential", error))?;
    Ok(Some(Secret::new(text.trim())))
}

/// Replaces the bearer token, or removes the stored one.
pub fn save_credential(paths: &AgentPaths, credential: Option<&Secret>) -> Result<(), FileError> {
    match credential {
        Some(token) => durable::replace_file(&paths.credential(), token.reveal().as_bytes(), 0o600),
        None => durable::remove_file(&paths.credential()),
    }
}

/// The only CA that the server is verified with, as PEM; `None` for the system roots.
pub fn load_ca(paths: &AgentPaths) -> Result<Option<String>, NodeError> {
    let Some(content) = durable::read_file(&paths.ca())? else {
        return Ok(None);
    };
    let text = String::from_utf8(content).map_err(|error| corrupt_file("ca.pem", error))?;
    Ok(Some(text))
}

/// Stores the CA, or removes the stored one.
pub fn save_ca(paths: &AgentPaths, ca: Option<&str>) -> Result<(), FileError> {
    match ca {
        Some(pem) => durable::replace_file(&paths.ca(), pem.as_bytes(), 0o600),
        None => durable::remove_file(&paths.ca()),
    }
}

fn corrupt_file(
    file: &str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> NodeError {
    NodeError::Corrupt { file: file.to_owned(), source: source.into() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn test_paths() -> (tempfile::TempDir, AgentPaths) {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
        (folder, paths)
    }

    #[test]
    fn a_node_without_enrolment_gets_the_enroll_command() {
        let (_folder, paths) = test_paths();
        let error = Node::load(&paths).unwrap_err();
        assert!(error.to_string().contains("evenkeel-agent enroll"));
        assert!(load_credential(&paths).unwrap().is_none());
        assert_eq!(load_ca(&paths).unwrap(), None);
    }

    #[test]
    fn saved_files_can_be_read_back() {
        let (_folder, paths) = test_paths();
        let node = Node {
            server: "https://keel.example:50002".into(),
            uuid: Uuid::from_u128(1),
            host_id: "host-0a1b2c3d".into(),
            instance_id: "inst-0a1b2c3d".into(),
            project: "default".into(),
            credential_expires: None,
            machine: None,
        };
        node.save(&paths).unwrap();
        assert_eq!(Node::load(&paths).unwrap(), node);
        save_credential(&paths, Some(&Secret::new("token"))).unwrap();
        assert_eq!(load_credential(&paths).unwrap().unwrap().reveal(), "token");
        save_credential(&paths, None).unwrap();
        assert!(load_credential(&paths).unwrap().is_none());
        save_ca(&paths, Some("pem")).unwrap();
        assert_eq!(load_ca(&paths).unwrap().as_deref(), Some("pem"));
        save_ca(&paths, None).unwrap();
        assert_eq!(load_ca(&paths).unwrap(), None);
    }

    #[test]
    fn a_copy_of_a_nodes_disk_must_enrol_and_forgets_the_identity() {
        let (folder, paths) = test_paths();
        let marks =
            |number| MachineMarks { firmware: Some(Uuid::from_u128(number)), machine_id: None };
        let node = Node {
            server: "https://keel.example:50002".into(),
            uuid: Uuid::from_u128(1),
            host_id: "host-0a1b2c3d".into(),
            instance_id: "inst-0a1b2c3d".into(),
            project: "default".into(),
            credential_expires: None,
            machine: Some(marks(1)),
        };
        node.save(&paths).unwrap();
        for file in [
            paths.key(),
            paths.enrolment_key(),
            paths.certificate(),
            paths.decryption_key(),
            paths.decryption_certificate(),
            paths.credential(),
        ] {
            fs::write(file, "of the other machine").unwrap();
        }
        assert_eq!(node.identity_mismatch(&marks(1)), None);
        let mismatch = node.identity_mismatch(&marks(2)).unwrap();
        assert!(mismatch.contains("host-0a1b2c3d") && mismatch.contains("enroll"), "{mismatch}");

        forget_identity(&paths).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        forget_identity(&paths).unwrap();
    }

    #[test]
    fn a_node_file_of_an_older_agent_is_read() {
        let (_folder, paths) = test_paths();
        let earlier = r#"{"server":"https://x","uuid":"00000000-0000-0000-0000-000000000001",
            "host_id":"h","instance_id":"i","project":"p","credential_expires":null}"#;
        fs::write(paths.node(), earlier).unwrap();
        assert_eq!(Node::load(&paths).unwrap().identity_mismatch(&MachineMarks::default()), None);
    }
}
