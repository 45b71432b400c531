//! Result of the enrolment: the identity of this node at the server, and its secrets.

use chrono::{DateTime, Utc};
use evenkeel_kit::secret::Secret;
use rcgen::{KeyPair, PKCS_ED25519};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{self, FileError};
use crate::identity::MachineMarks;
use crate::journal::FileJournal;
use crate::paths::AgentPaths;

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
    /// Expiry of the credential that was issued at enrolment.
    pub credential_expires: Option<DateTime<Utc>>,
    /// Marks of the machine when it enrolled; older agents did not store them.
    #[serde(default)]
    pub machine: Option<MachineMarks>,
}

/// The files of a node are missing or unusable.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The machine is not enrolled.
    #[error("this node is not enrolled; run `evenkeel-agent enroll --server URL --token TOKEN`")]
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
        paths.key(),
        paths.ca(),
        paths.grant(),
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

/// Reads the bearer token.
pub fn load_credential(paths: &AgentPaths) -> Result<Secret, NodeError> {
    let content = durable::read_file(&paths.credential())?.ok_or(NodeError::NotEnrolled)?;
    let text = String::from_utf8(content).map_err(|error| corrupt_file("credential", error))?;
    Ok(Secret::new(text.trim()))
}

/// Replaces the bearer token.
pub fn save_credential(paths: &AgentPaths, credential: &Secret) -> Result<(), FileError> {
    durable::replace_file(&paths.credential(), credential.reveal().as_bytes(), 0o600)
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

/// The node's public key (`SubjectPublicKeyInfo`, DER). The key pair is created at the first call.
pub fn public_key(paths: &AgentPaths) -> Result<Vec<u8>, NodeError> {
    let bad_key = |error: rcgen::Error| corrupt_file("key.pem", error);
    let pair = if let Some(content) = durable::read_file(&paths.key())? {
        let text = String::from_utf8(content).map_err(|error| corrupt_file("key.pem", error))?;
        KeyPair::from_pkcs8_pem_and_sign_algo(&text, &PKCS_ED25519).map_err(bad_key)?
    } else {
        let pair = KeyPair::generate_for(&PKCS_ED25519).map_err(bad_key)?;
        durable::replace_file(&paths.key(), pair.serialize_pem().as_bytes(), 0o600)?;
        pair
    };
    Ok(rcgen::PublicKeyData::subject_public_key_info(&pair))
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
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn test_paths() -> (tempfile::TempDir, AgentPaths) {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
        (folder, paths)
    }

    #[test]
    fn a_key_is_created_once_and_only_its_owner_can_read_it() {
        let (_folder, paths) = test_paths();
        let key = public_key(&paths).unwrap();
        assert_eq!(public_key(&paths).unwrap(), key);
        // The DER prefix of an Ed25519 SubjectPublicKeyInfo, then 32 bytes.
        assert_eq!(key[..12], hex("302a300506032b6570032100"));
        assert_eq!(key.len(), 44);
        let mode = fs::metadata(paths.key()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        fs::write(paths.key(), "not a key").unwrap();
        let error = public_key(&paths).unwrap_err();
        assert_eq!(error.to_string(), "key.pem is invalid; enrol again");
    }

    #[test]
    fn a_node_without_enrolment_gets_the_enroll_command() {
        let (_folder, paths) = test_paths();
        let error = Node::load(&paths).unwrap_err();
        assert!(error.to_string().contains("evenkeel-agent enroll"));
        assert!(load_credential(&paths).is_err());
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
        save_credential(&paths, &Secret::new("token")).unwrap();
        assert_eq!(load_credential(&paths).unwrap().reveal(), "token");
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
        public_key(&paths).unwrap();
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

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    }
}
