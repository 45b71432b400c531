//! Roles in projects that are identified by their names, such as `operator@shops`.
//!
//! Tokens of the server contain the UUID of the project, which is never used again. Names are for
//! people: in the file of users, at identity providers, and on the command line. A name means the
//! project that has it at the moment.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::roles::Role;

/// Longest name of a project, in bytes: a DNS label.
const MAX_PROJECT_NAME_BYTES: usize = 63;

/// A role of people in one project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProjectRole {
    /// Reads the project.
    Viewer,
    /// Reads and writes the project.
    Operator,
    /// Reads the project, and approves what waits for an approval.
    Approver,
    /// Everything in the project, also its users and tokens.
    Administrator,
}

impl ProjectRole {
    /// All roles, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Operator, Self::Approver, Self::Administrator];

    /// The role of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Approver => "approver",
            Self::Administrator => "administrator",
        }
    }

    /// The role in a project, as tokens contain it.
    #[must_use]
    pub const fn in_project(self, project: Uuid) -> Role {
        match self {
            Self::Viewer => Role::Read(project),
            Self::Operator => Role::Write(project),
            Self::Approver => Role::Approve(project),
            Self::Administrator => Role::Manage(project),
        }
    }

    /// The part of a token's role without the project; none for roles that people do not have in a
    /// project.
    #[must_use]
    pub const fn from_role(role: Role) -> Option<Self> {
        match role {
            Role::Read(_) => Some(Self::Viewer),
            Role::Write(_) => Some(Self::Operator),
            Role::Approve(_) => Some(Self::Approver),
            Role::Manage(_) => Some(Self::Administrator),
            Role::Node(_) | Role::Administrator => None,
        }
    }
}

/// A role in the project with a name, written `operator@shops`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedRole {
    pub role: ProjectRole,
    /// Name of the project.
    pub project: Box<str>,
}

impl NamedRole {
    /// The role that a text names. None for other texts, which tokens often contain.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (role, project) = text.split_once('@')?;
        let role = ProjectRole::parse(role)?;
        let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_name = (1..=MAX_PROJECT_NAME_BYTES).contains(&project.len())
            && project.bytes().all(inside)
            && !project.starts_with('-')
            && !project.ends_with('-');
        is_name.then(|| Self { role, project: project.into() })
    }
}

impl fmt::Display for NamedRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.role.name(), self.project)
    }
}

/// A role that a person or a configuration has written: with the UUID of the project, as in a
/// token, or with its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RoleGrant {
    /// The role as tokens contain it. Never that of a node.
    Exact(Role),
    Named(NamedRole),
}

/// The text is not a role that a person can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRole {
    #[error("a person cannot speak as a node")]
    Node,
    #[error(
        "{0:?} is not a role: it must be evenkeel-admin, or one of viewer, operator, approver and \
         administrator with a project, as in operator@default"
    )]
    Unknown(String),
}

impl FromStr for RoleGrant {
    type Err = BadRole;

    fn from_str(text: &str) -> Result<Self, BadRole> {
        match Role::parse(text) {
            Some(Role::Node(_)) => Err(BadRole::Node),
            Some(role) => Ok(Self::Exact(role)),
            None => {
                let named = NamedRole::parse(text).map(Self::Named);
                named.ok_or_else(|| BadRole::Unknown(text.to_owned()))
            }
        }
    }
}

impl fmt::Display for RoleGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(role) => role.fmt(f),
            Self::Named(role) => role.fmt(f),
        }
    }
}

/// The existing projects, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectNames(HashMap<Box<str>, Uuid>);

impl ProjectNames {
    /// The project of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Uuid> {
        self.0.get(name).copied()
    }

    /// The role as tokens contain it; none if there is no project of the name.
    #[must_use]
    pub fn resolve(&self, role: &NamedRole) -> Option<Role> {
        self.find(&role.project).map(|project| role.role.in_project(project))
    }

    /// As [`Self::resolve`], for a role that may have the UUID of its project.
    #[must_use]
    pub fn resolve_grant(&self, role: &RoleGrant) -> Option<Role> {
        match role {
            RoleGrant::Exact(role) => Some(*role),
            RoleGrant::Named(role) => self.resolve(role),
        }
    }
}

impl FromIterator<(String, Uuid)> for ProjectNames {
    fn from_iter<I: IntoIterator<Item = (String, Uuid)>>(projects: I) -> Self {
        let by_name = projects.into_iter().map(|(name, id)| (name.into_boxed_str(), id));
        Self(by_name.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOPS: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

    #[test]
    fn a_role_names_its_project() {
        let names = ProjectNames::from_iter([("shops".to_owned(), SHOPS)]);
        for (text, expected) in [
            ("viewer@shops", Role::Read(SHOPS)),
            ("operator@shops", Role::Write(SHOPS)),
            ("approver@shops", Role::Approve(SHOPS)),
            ("administrator@shops", Role::Manage(SHOPS)),
        ] {
            let role = NamedRole::parse(text).unwrap();
            assert_eq!(role.to_string(), text);
            assert_eq!(names.resolve(&role), Some(expected), "{text}");
            assert_eq!(ProjectRole::from_role(expected), Some(role.role), "{text}");
            let elsewhere = NamedRole { project: "banks".into(), ..role };
            assert_eq!(names.resolve(&elsewhere), None, "{text}");
        }
    }

    #[test]
    fn other_texts_are_not_roles() {
        for text in [
            "",
            "@",
            "viewer",
            "viewer@",
            "@shops",
            "Viewer@shops",
            "viewer@Shops",
            "viewer@-shops",
            "viewer@shops-",
            "viewer@shops@banks",
            "viewer @shops",
            "viewer@shops\n",
            "owner@shops",
            "node@shops",
            "alice@example.org",
        ] {
            assert_eq!(NamedRole::parse(text), None, "{text:?}");
        }
        let long = format!("viewer@{}", "x".repeat(64));
        assert_eq!(NamedRole::parse(&long), None);
        assert!(NamedRole::parse(&long[..long.len() - 1]).is_some());
    }

    #[test]
    fn a_person_has_a_role_by_name_or_as_in_a_token_but_not_that_of_a_node() {
        for text in ["evenkeel-admin", "operator@shops", &Role::Manage(SHOPS).to_string()] {
            let role: RoleGrant = text.parse().unwrap();
            assert_eq!(role.to_string(), text);
        }
        let node = Role::Node(SHOPS).to_string();
        assert_eq!(node.parse::<RoleGrant>(), Err(BadRole::Node));
        let error = "root".parse::<RoleGrant>().unwrap_err().to_string();
        assert!(error.contains("\"root\" is not a role") && error.contains("viewer"), "{error}");
    }

    /// The project of a role is a UUID only with the suffixes of tokens.
    #[test]
    fn a_project_whose_name_looks_like_a_uuid_is_found_by_its_name() {
        let name = SHOPS.to_string();
        let other = Uuid::from_u128(2);
        let names = ProjectNames::from_iter([(name.clone(), other)]);
        let role: RoleGrant = format!("viewer@{name}").parse().unwrap();
        assert_eq!(names.resolve_grant(&role), Some(Role::Read(other)));
    }
}
