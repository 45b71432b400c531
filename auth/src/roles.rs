//! What the bearer of a token may do.

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// The role that may do everything in every project, and make projects.
pub const ADMINISTRATOR: &str = "evenkeel-admin";

/// One thing that a token allows. Written in a token as the project's UUID and a suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// `<uuid>_im-r`: read what is in the project.
    Read(Uuid),
    /// `<uuid>_im-rw`: read and write what is in the project.
    Write(Uuid),
    /// `<uuid>_en-agent-rw`: speak as a node of the project.
    Node(Uuid),
    /// `evenkeel-admin`: everything in every project.
    Administrator,
}

impl Role {
    /// The role of this name. Tokens name many that mean nothing here.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == ADMINISTRATOR {
            return Some(Self::Administrator);
        }
        let (project, kind) = text.split_once('_')?;
        let role = match kind {
            "im-r" => Self::Read,
            "im-rw" => Self::Write,
            "en-agent-rw" => Self::Node,
            _ => return None,
        };
        // Of all the ways to write a UUID only this one is used.
        if project.len() != 36 {
            return None;
        }
        project.parse().ok().map(role)
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(project) => write!(f, "{project}_im-r"),
            Self::Write(project) => write!(f, "{project}_im-rw"),
            Self::Node(project) => write!(f, "{project}_en-agent-rw"),
            Self::Administrator => f.write_str(ADMINISTRATOR),
        }
    }
}

/// Who sent a request, as its token proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user's name or id; for a node of ours, its host's id.
    pub subject: String,
    /// What it may do.
    pub roles: Vec<Role>,
    /// From then on the token counts.
    pub not_before: Option<DateTime<Utc>>,
    /// Until then the token counts.
    pub expires_at: DateTime<Utc>,
    /// Whether we issued the token. Only then the subject of a node is a host's id.
    pub ours: bool,
}

impl Caller {
    /// Whether the caller may read what is in `project`.
    #[must_use]
    pub fn may_read(&self, project: Uuid) -> bool {
        self.may_write(project) || self.roles.contains(&Role::Read(project))
    }

    /// Whether the caller may change what is in `project`.
    #[must_use]
    pub fn may_write(&self, project: Uuid) -> bool {
        self.roles.contains(&Role::Write(project)) || self.may_administrate()
    }

    /// Whether the caller may make and delete projects.
    #[must_use]
    pub fn may_administrate(&self) -> bool {
        self.roles.contains(&Role::Administrator)
    }

    /// The project of which the caller is a node. None if it is no node, or of several projects at once.
    #[must_use]
    pub fn node_of(&self) -> Option<Uuid> {
        let mut projects = self.roles.iter().filter_map(|role| match role {
            Role::Node(project) => Some(*project),
            _ => None,
        });
        let project = projects.next()?;
        projects.all(|other| other == project).then_some(project)
    }

    /// The projects that the token names as readable. An administrator may read all others as well.
    #[must_use]
    pub fn readable_projects(&self) -> Vec<Uuid> {
        let mut projects: Vec<Uuid> = self
            .roles
            .iter()
            .filter_map(|role| match role {
                Role::Read(project) | Role::Write(project) => Some(*project),
                Role::Node(_) | Role::Administrator => None,
            })
            .collect();
        projects.sort_unstable();
        projects.dedup();
        projects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);
    const TWO: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0002);

    fn caller(roles: &[&str]) -> Caller {
        Caller {
            subject: "somebody".to_owned(),
            roles: roles.iter().filter_map(|role| Role::parse(role)).collect(),
            not_before: None,
            expires_at: DateTime::UNIX_EPOCH,
            ours: true,
        }
    }

    #[test]
    fn a_role_is_written_as_it_is_read() {
        for role in [
            Role::Read(ONE),
            Role::Write(ONE),
            Role::Node(TWO),
            Role::Administrator,
        ] {
            assert_eq!(Role::parse(&role.to_string()), Some(role));
        }
    }

    #[test]
    fn unknown_roles_mean_nothing() {
        for text in [
            "",
            "_",
            "_im-rw",
            "default-roles-master",
            "rs-access-r",
            "EVENKEEL-ADMIN",
            "evenkeel-admin ",
            "not-a-uuid_im-rw",
            "01900000000070008000000000000001_im-rw",
            "{01900000-0000-7000-8000-000000000001}_im-rw",
            "urn:uuid:01900000-0000-7000-8000-000000000001_im-rw",
            "01900000-0000-7000-8000-000000000001_im-rwx",
            "01900000-0000-7000-8000-000000000001_im-rw_im-r",
            " 01900000-0000-7000-8000-000000000001_im-rw",
        ] {
            assert_eq!(Role::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn who_may_write_may_read_and_not_the_other_way_round() {
        let reader = caller(&[&format!("{ONE}_im-r")]);
        assert!(reader.may_read(ONE) && !reader.may_write(ONE));
        let writer = caller(&[&format!("{ONE}_im-rw")]);
        assert!(writer.may_read(ONE) && writer.may_write(ONE));
        for caller in [reader, writer] {
            assert!(!caller.may_read(TWO) && !caller.may_write(TWO) && !caller.may_administrate());
            assert_eq!(caller.node_of(), None);
            assert_eq!(caller.readable_projects(), [ONE]);
        }
    }

    #[test]
    fn an_administrator_may_do_everything_but_speak_for_a_node() {
        let administrator = caller(&[ADMINISTRATOR]);
        assert!(administrator.may_read(ONE) && administrator.may_write(TWO));
        assert!(administrator.may_administrate());
        assert_eq!(administrator.node_of(), None);
    }

    #[test]
    fn a_node_belongs_to_one_project_and_may_not_read_it() {
        let role = format!("{ONE}_en-agent-rw");
        let node = caller(&[&role, "default-roles-master", &role]);
        assert_eq!(node.node_of(), Some(ONE));
        assert!(!node.may_read(ONE) && !node.may_write(ONE));
        let torn = caller(&[&role, &format!("{TWO}_en-agent-rw")]);
        assert_eq!(torn.node_of(), None);
    }
}
