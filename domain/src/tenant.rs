//! Projects. A project is a tenant: its resources are invisible to other projects.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::Time;
use crate::invalid::Invalid;

/// Tenant id of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(Uuid);

impl TenantId {
    /// Stands for no project in the change log: changes of users, of tokens without a project, of
    /// projects themselves, and logins. No project has this ID.
    pub const NO_PROJECT: Self = Self(Uuid::nil());

    #[must_use]
    pub const fn new(uuid: Uuid) -> Self {
        Self(uuid)
    }

    #[must_use]
    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for TenantId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    pub id: TenantId,
    /// Unique in the fleet.
    pub name: ProjectName,
    /// For users.
    pub description: String,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Name of a project: a DNS label (RFC 1035 section 2.3.1, digits allowed at the start), because it is part of URLs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProjectName(String);

impl ProjectName {
    /// Parses a name: at most 63 lower-case letters, digits and dashes, with a letter or digit at both ends.
    ///
    /// # Errors
    /// The text is not such a name.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let good = (1..=63).contains(&text.len())
            && text.bytes().all(inside)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(Invalid::new(
                field,
                "a project's name is 1 to 63 lower-case letters, digits and dashes, with a letter or digit at both ends",
            ))
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
