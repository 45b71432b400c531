//! The kinds of entries.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Component {
    File,
    Unit,
    Package,
    PackageSource,
    Action,
    User,
    UserGroup,
    Sysctl,
}

impl Component {
    /// All components, in the order of the reference.
    pub const ALL: [Self; 8] = [
        Self::File,
        Self::Unit,
        Self::Package,
        Self::PackageSource,
        Self::Action,
        Self::User,
        Self::UserGroup,
        Self::Sysctl,
    ];

    /// The component with a name, as documents write it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|component| component.name() == name)
    }

    /// The name in documents and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "File",
            Self::Unit => "Unit",
            Self::Package => "Package",
            Self::PackageSource => "PackageSource",
            Self::Action => "Action",
            Self::User => "User",
            Self::UserGroup => "UserGroup",
            Self::Sysctl => "Sysctl",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
