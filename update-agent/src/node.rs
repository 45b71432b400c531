//! What enrolment left behind: who this node is to the server, and the secrets that prove it.

use chrono::{DateTime, Utc};
use evenkeel_kit::secret::Secret;
use rcgen::{KeyPair, PKCS_ED25519};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{self, FileError};
use crate::identity::Marks;
use crate::journal::FileJournal;
use crate::place::Place;

/// Who this node is to the server. Written last when a node enrols: where it is, everything else is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Where the server is.
    pub server: String,
    /// The machine's UUID as it was told to the server.
    pub uuid: Uuid,
    /// Such as `host-0a1b2c3d`.
    pub host_id: String,
    /// Such as `inst-0a1b2c3d`.
    pub instance_id: String,
    /// Name of the project.
    pub project: String,
    /// When the credential that enrolment gave ends.
    pub credential_expires: Option<DateTime<Utc>>,
    /// What the machine was known by when it enrolled; an earlier agent kept nothing of that.
    #[serde(default)]
    pub machine: Option<Marks>,
}

/// The files of a node are not usable.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It never enrolled.
    #[error("this node is not enrolled; run `evenkeel-agent enroll --server URL --token TOKEN`")]
    NotEnrolled,
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// `node.json` is not what the agent writes.
    #[error("{file} makes no sense; enrol again")]
    Corrupt {
        /// Which file.
        file: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Node {
    /// The node of this place.
    pub fn load(place: &Place) -> Result<Self, NodeError> {
        let content = durable::read(&place.node())?.ok_or(NodeError::NotEnrolled)?;
        serde_json::from_slice(&content).map_err(|error| corrupt("node.json", error))
    }

    /// What is wrong if this is not the machine that enrolled, with what to do; `None` if it is, or nobody can tell. Two
    /// machines that speak as one node would undo each other's work at the server.
    pub fn stranger(&self, now: &Marks) -> Option<String> {
        let known = self.machine.as_ref()?;
        known.are_of_another(now).then(|| {
            format!(
                "this is not the machine that enrolled as {} (was its disk copied?): make it a node of its own with \
                 `evenkeel-agent enroll`",
                self.host_id
            )
        })
    }

    /// Makes this place a node.
    pub fn save(&self, place: &Place) -> Result<(), NodeError> {
        let content =
            serde_json::to_vec_pretty(self).map_err(|error| corrupt("node.json", error))?;
        Ok(durable::replace(&place.node(), &content, 0o600)?)
    }
}

/// Forgets who the node was, before a machine that was made from its disk becomes one of its own: its key, what the server
/// gave it, and what it prepared. Only what was begun on the disk itself stays, because it must be finished.
pub fn forget(place: &Place) -> Result<(), FileError> {
    let files = [
        // First: where it is, everything else is.
        place.node(),
        place.credential(),
        place.key(),
        place.ca(),
        place.grant(),
        place.status(),
        place.history(),
    ];
    files.iter().try_for_each(|file| durable::remove(file))?;
    let open = FileJournal::look(&place.journal())?;
    if open.is_some_and(|entry| !entry.has_begun()) {
        durable::remove(&place.journal())?;
    }
    Ok(())
}

/// Reads the bearer token.
pub fn load_credential(place: &Place) -> Result<Secret, NodeError> {
    let content = durable::read(&place.credential())?.ok_or(NodeError::NotEnrolled)?;
    let text = String::from_utf8(content).map_err(|error| corrupt("credential", error))?;
    Ok(Secret::new(text.trim()))
}

/// Replaces the bearer token.
pub fn save_credential(place: &Place, credential: &Secret) -> Result<(), FileError> {
    durable::replace(&place.credential(), credential.reveal().as_bytes(), 0o600)
}

/// The certification authority that alone may vouch for the server, as PEM; `None` if the system's roots decide.
pub fn load_ca(place: &Place) -> Result<Option<String>, NodeError> {
    let Some(content) = durable::read(&place.ca())? else {
        return Ok(None);
    };
    let text = String::from_utf8(content).map_err(|error| corrupt("ca.pem", error))?;
    Ok(Some(text))
}

/// Keeps the certification authority, or forgets the one there was.
pub fn save_ca(place: &Place, ca: Option<&str>) -> Result<(), FileError> {
    match ca {
        Some(pem) => durable::replace(&place.ca(), pem.as_bytes(), 0o600),
        None => durable::remove(&place.ca()),
    }
}

/// The node's public key (`SubjectPublicKeyInfo`, DER). The key pair is made once and stays.
pub fn public_key(place: &Place) -> Result<Vec<u8>, NodeError> {
    let bad_key = |error: rcgen::Error| corrupt("key.pem", error);
    let pair = if let Some(content) = durable::read(&place.key())? {
        let text = String::from_utf8(content).map_err(|error| corrupt("key.pem", error))?;
        KeyPair::from_pkcs8_pem_and_sign_algo(&text, &PKCS_ED25519).map_err(bad_key)?
    } else {
        let pair = KeyPair::generate_for(&PKCS_ED25519).map_err(bad_key)?;
        durable::replace(&place.key(), pair.serialize_pem().as_bytes(), 0o600)?;
        pair
    };
    Ok(rcgen::PublicKeyData::subject_public_key_info(&pair))
}

fn corrupt(file: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> NodeError {
    NodeError::Corrupt {
        file: file.to_owned(),
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn place() -> (tempfile::TempDir, Place) {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new("/", Some(folder.path().to_owned()));
        (folder, place)
    }

    #[test]
    fn a_key_is_made_once_and_only_its_owner_can_read_it() {
        let (_folder, place) = place();
        let key = public_key(&place).unwrap();
        assert_eq!(public_key(&place).unwrap(), key);
        // The DER prefix of an Ed25519 SubjectPublicKeyInfo, then 32 bytes.
        assert_eq!(key[..12], hex("302a300506032b6570032100"));
        assert_eq!(key.len(), 44);
        let mode = fs::metadata(place.key()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        fs::write(place.key(), "not a key").unwrap();
        let error = public_key(&place).unwrap_err();
        assert_eq!(error.to_string(), "key.pem makes no sense; enrol again");
    }

    #[test]
    fn a_node_that_never_enrolled_is_told_how() {
        let (_folder, place) = place();
        let error = Node::load(&place).unwrap_err();
        assert!(error.to_string().contains("evenkeel-agent enroll"));
        assert!(load_credential(&place).is_err());
        assert_eq!(load_ca(&place).unwrap(), None);
    }

    #[test]
    fn what_enrolment_leaves_can_be_read_again() {
        let (_folder, place) = place();
        let node = Node {
            server: "https://keel.example:50002".into(),
            uuid: Uuid::from_u128(1),
            host_id: "host-0a1b2c3d".into(),
            instance_id: "inst-0a1b2c3d".into(),
            project: "default".into(),
            credential_expires: None,
            machine: None,
        };
        node.save(&place).unwrap();
        assert_eq!(Node::load(&place).unwrap(), node);
        save_credential(&place, &Secret::new("token")).unwrap();
        assert_eq!(load_credential(&place).unwrap().reveal(), "token");
        save_ca(&place, Some("pem")).unwrap();
        assert_eq!(load_ca(&place).unwrap().as_deref(), Some("pem"));
        save_ca(&place, None).unwrap();
        assert_eq!(load_ca(&place).unwrap(), None);
    }

    #[test]
    fn a_machine_that_was_made_from_a_nodes_disk_is_told_to_enrol_and_forgets() {
        let (folder, place) = place();
        let marks = |number| Marks {
            firmware: Some(Uuid::from_u128(number)),
            machine_id: None,
        };
        let node = Node {
            server: "https://keel.example:50002".into(),
            uuid: Uuid::from_u128(1),
            host_id: "host-0a1b2c3d".into(),
            instance_id: "inst-0a1b2c3d".into(),
            project: "default".into(),
            credential_expires: None,
            machine: Some(marks(1)),
        };
        node.save(&place).unwrap();
        public_key(&place).unwrap();
        assert_eq!(node.stranger(&marks(1)), None);
        let told = node.stranger(&marks(2)).unwrap();
        assert!(
            told.contains("host-0a1b2c3d") && told.contains("enroll"),
            "{told}"
        );

        forget(&place).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        forget(&place).unwrap();
    }

    #[test]
    fn an_earlier_agents_node_is_known() {
        let (_folder, place) = place();
        let earlier = r#"{"server":"https://x","uuid":"00000000-0000-0000-0000-000000000001",
            "host_id":"h","instance_id":"i","project":"p","credential_expires":null}"#;
        fs::write(place.node(), earlier).unwrap();
        assert_eq!(
            Node::load(&place).unwrap().stranger(&Marks::default()),
            None
        );
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    }
}
