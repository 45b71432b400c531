//! Pauses: no new update starts in the scope of a pause.

use std::fmt;
use std::str::FromStr;

use crate::Time;
use crate::id::{BadId, PolicyId, SiteId};

/// Scope of a pause. Printed as the id, or as `project`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PauseScope {
    /// The whole project.
    Project,
    Site(SiteId),
    Policy(PolicyId),
}

impl PauseScope {
    /// The stable name of the kind.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Site(_) => "site",
            Self::Policy(_) => "policy",
        }
    }

    /// The bits of the id; 0 for the project.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Project => 0,
            Self::Site(id) => id.bits(),
            Self::Policy(id) => id.bits(),
        }
    }

    /// The scope of this kind with these bits, as stored in the database.
    #[must_use]
    pub fn from_bits(kind: &str, bits: u32) -> Option<Self> {
        match kind {
            "project" => Some(Self::Project),
            "site" => Some(Self::Site(SiteId::from_bits(bits))),
            "policy" => Some(Self::Policy(PolicyId::from_bits(bits))),
            _ => None,
        }
    }
}

impl fmt::Display for PauseScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Project => f.write_str("project"),
            Self::Site(id) => id.fmt(f),
            Self::Policy(id) => id.fmt(f),
        }
    }
}

impl FromStr for PauseScope {
    type Err = BadId;

    /// Reads an id of a site or policy, or `project`.
    fn from_str(text: &str) -> Result<Self, BadId> {
        match text.split('-').next().unwrap_or_default() {
            "project" if text == "project" => Ok(Self::Project),
            SiteId::PREFIX => text.parse().map(Self::Site),
            PolicyId::PREFIX => text.parse().map(Self::Policy),
            _ => Err(BadId::OtherKind { text: text.to_owned(), prefix: "site or osupdatepolicy" }),
        }
    }
}

/// Stops all new updates in its scope until it is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    pub scope: PauseScope,
    /// Reason, for users.
    pub reason: String,
    /// The user who paused.
    pub by: String,
    pub at: Time,
}
