//! Who gets which policy: nearest that fits wins (engine section 2).

use crate::id::{HostId, InstanceId};

named! {
    /// How near an assignment is to an instance, nearest first.
    Level {
        /// This very instance.
        Instance = "instance",
        /// Its host.
        Host = "host",
        /// All of the project.
        Project = "project",
    }
}

/// What a policy is assigned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// One instance.
    Instance(InstanceId),
    /// The instance of one host.
    Host(HostId),
    /// Every instance of the project.
    Project,
}

impl Scope {
    /// How near it is.
    #[must_use]
    pub const fn level(self) -> Level {
        match self {
            Self::Instance(_) => Level::Instance,
            Self::Host(_) => Level::Host,
            Self::Project => Level::Project,
        }
    }

    /// The bits of the id, 0 for the project.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Instance(id) => id.bits(),
            Self::Host(id) => id.bits(),
            Self::Project => 0,
        }
    }
}
