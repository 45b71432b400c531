//! What runs on a host.

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
