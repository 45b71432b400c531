//! What runs on a host.

use crate::Time;
use crate::condition::Condition;
use crate::id::{HostId, InstanceId, OsId, PolicyId};
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
    /// What the node said last, summed up.
    pub summary: Summary,
    /// When it was made.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
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
}
