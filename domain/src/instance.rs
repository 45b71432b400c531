//! What runs on a host.

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::condition::Condition;
use crate::id::{CustomConfigId, HostId, InstanceId, LocalAccountId, OsId, PolicyId};
use crate::invalid::Invalid;
use crate::os::SecurityFeature;
use crate::status::Status;
use crate::text::Name;

named! {
    /// Where an instance stands, wanted or current (northbound section 1.3).
    InstanceState {
        /// Nothing was said yet.
        Unspecified = "unspecified",
        /// It runs.
        Running = "running",
        /// It must not be believed any more.
        Untrusted = "untrusted",
        /// To be removed.
        Deleted = "deleted",
    }
}

named! {
    /// What an instance runs on.
    InstanceKind {
        /// Nothing was said.
        Unspecified = "unspecified",
        /// On the bare machine.
        Metal = "metal",
    }
}

/// The operating system that runs on a host. A host has at most one.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// Its id.
    pub id: InstanceId,
    /// The host.
    pub host: HostId,
    /// May be empty.
    pub name: Name,
    /// What it runs on.
    pub kind: InstanceKind,
    /// Where it should stand.
    pub desired: InstanceState,
    /// Where it stands.
    pub current: InstanceState,
    /// How it is protected.
    pub security_feature: SecurityFeature,
    /// The policy that is assigned to this very instance.
    pub policy: Option<PolicyId>,
    /// The account that may log in.
    pub local_account: Option<LocalAccountId>,
    /// The configuration of its first start, by id, each once.
    pub custom_configs: Vec<CustomConfigId>,
    /// What the node said last, summed up.
    pub summary: Summary,
    /// When it was made.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

impl Instance {
    /// Whether anything that claims to be this instance is believed.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        let distrusted = |state| matches!(state, InstanceState::Untrusted | InstanceState::Deleted);
        !distrusted(self.desired) && !distrusted(self.current)
    }

    /// Whether a person may say that it runs this operating system. Once its node has spoken, only the node says what it
    /// runs.
    ///
    /// # Errors
    /// The node has spoken, and runs another one.
    pub fn check_os(&self, os: OsId) -> Result<(), Invalid> {
        if !self.summary.provisioned || os == self.summary.os {
            return Ok(());
        }
        let runs = self.summary.os;
        let why = format!("the instance is provisioned with {runs}; its node says what it runs");
        Err(Invalid::new("osID", why))
    }
}

/// What is known of an instance from its node: the part of `node_states` that people see.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The operating system.
    pub os: OsId,
    /// Whether the node has spoken since its instance was made.
    pub provisioned: bool,
    /// What it is doing.
    pub status: Status,
    /// Where its updates stand.
    pub update_status: Status,
    /// What could be updated: a JSON array of packages for a mutable system, the name of the newest operating system
    /// for an immutable one; empty if there is nothing.
    pub os_update_available: String,
    /// What people should know about it.
    pub conditions: Vec<Condition>,
    /// The SHA-256 of its list of installed packages; none if it gave none.
    pub packages: Option<[u8; 32]>,
}

/// A place for an image on a node, as the node says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageSlot {
    /// Such as `root-a`.
    pub name: String,
    /// Where it stands, in the agent's words.
    pub state: String,
    /// The version of the image in it; empty if there is none.
    pub image_id: String,
}

/// An image that failed on a node, as the node says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailedImage {
    /// Of its file, as the node says it.
    pub sha256: String,
    /// Its version.
    pub image_id: String,
    /// What was wrong with it, for people.
    pub why: String,
}

/// An instance to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInstance {
    /// On which host.
    pub host: HostId,
    /// With which operating system.
    pub os: OsId,
    /// May be empty.
    pub name: Name,
    /// What it runs on.
    pub kind: InstanceKind,
    /// How it is protected.
    pub security_feature: SecurityFeature,
    /// The policy to assign.
    pub policy: Option<PolicyId>,
    /// The account that may log in.
    pub local_account: Option<LocalAccountId>,
    /// The configuration of its first start; one that is named twice counts once.
    pub custom_configs: Vec<CustomConfigId>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Indication;

    fn instance() -> Instance {
        let status = Status::new("Not Installed", Indication::Unspecified, Time::UNIX_EPOCH);
        Instance {
            id: InstanceId::nth(1),
            host: HostId::nth(1),
            name: Name::default(),
            kind: InstanceKind::Metal,
            desired: InstanceState::Running,
            current: InstanceState::Unspecified,
            security_feature: SecurityFeature::None,
            policy: None,
            local_account: None,
            custom_configs: Vec::new(),
            summary: Summary {
                os: OsId::nth(1),
                provisioned: false,
                status: status.clone(),
                update_status: status,
                os_update_available: String::new(),
                conditions: Vec::new(),
                packages: None,
            },
            created_at: Time::UNIX_EPOCH,
            updated_at: Time::UNIX_EPOCH,
        }
    }

    #[test]
    fn only_the_node_says_what_it_runs_once_it_has_spoken() {
        let mut instance = instance();
        assert_eq!(instance.check_os(OsId::nth(2)), Ok(()));
        instance.summary.provisioned = true;
        assert_eq!(instance.check_os(OsId::nth(1)), Ok(()));
        let refused = instance.check_os(OsId::nth(2)).expect_err("another one");
        assert_eq!(refused.field, "osID");
    }

    #[test]
    fn what_a_node_says_of_its_images_is_kept_as_people_are_shown_it() {
        let slot = ImageSlot {
            name: "root-a".to_owned(),
            state: "good".to_owned(),
            image_id: "1.0".to_owned(),
        };
        let kept = serde_json::to_value(&slot).expect("JSON");
        let shown = serde_json::json!({"name": "root-a", "state": "good", "imageId": "1.0"});
        assert_eq!(kept, shown);
        let read: ImageSlot = serde_json::from_value(kept).expect("a slot");
        assert_eq!(read, slot);
        let failed = serde_json::json!({"sha256": "0a", "imageId": "1.1"});
        let read: FailedImage = serde_json::from_value(failed).expect("an image");
        let expected = FailedImage {
            sha256: "0a".to_owned(),
            image_id: "1.1".to_owned(),
            why: String::new(),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn what_was_invalidated_is_not_believed() {
        let trusted = instance();
        assert!(trusted.is_trusted());
        for state in [InstanceState::Untrusted, InstanceState::Deleted] {
            let wanted = Instance {
                desired: state,
                ..trusted.clone()
            };
            let current = Instance {
                current: state,
                ..trusted.clone()
            };
            assert!(!wanted.is_trusted() && !current.is_trusted(), "{state:?}");
        }
    }
}
