//! What the bearer of a token may do.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::key_fingerprint::KeyFingerprint;

/// Role that allows everything in every project, and to create projects.
pub const ADMINISTRATOR: &str = "evenkeel-admin";

/// Issuer of our tokens, unless the settings name another one.
pub(crate) const DEFAULT_ISSUER: &str = "urn:evenkeel:issuer";

/// A permission in a token, written as the project's UUID and a suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// `<uuid>_im-r`: read the project.
    Read(Uuid),
    /// `<uuid>_im-rw`: read and write the project.
    Write(Uuid),
    /// `<uuid>_en-agent-rw`: act as a node of the project.
    Node(Uuid),
    /// `evenkeel-admin`: everything in every project.
    Administrator,
}

impl Role {
    /// The role of this name. None for names without a meaning here, which tokens often contain.
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
        // Roles contain UUIDs only in the form with hyphens.
        if project.len() != 36 {
            return None;
        }
        project.parse().ok().map(role)
    }
}

/// A role without its project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleKind {
    /// Read a project.
    Read,
    /// Read and write a project.
    Write,
    /// Act as a node of a project.
    Node,
    /// Everything in every project.
    Admin,
}

/// The roles that an external issuer may give. Its tokens have no other roles here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleLimits {
    /// The kinds of roles.
    pub kinds: Vec<RoleKind>,
    /// The projects of the roles; none for all projects.
    pub projects: Option<Vec<Uuid>>,
}

impl Default for RoleLimits {
    fn default() -> Self {
        Self { kinds: vec![RoleKind::Read, RoleKind::Write, RoleKind::Node], projects: None }
    }
}

impl RoleLimits {
    /// Whether the issuer may give the role.
    #[must_use]
    pub fn allow(&self, role: Role) -> bool {
        let (kind, project) = match role {
            Role::Read(project) => (RoleKind::Read, Some(project)),
            Role::Write(project) => (RoleKind::Write, Some(project)),
            Role::Node(project) => (RoleKind::Node, Some(project)),
            Role::Administrator => (RoleKind::Admin, None),
        };
        let is_limited = |project: Uuid| {
            self.projects.as_ref().is_some_and(|allowed| !allowed.contains(&project))
        };
        self.kinds.contains(&kind) && !project.is_some_and(is_limited)
    }
}

/// The node that a token of an external issuer belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeSubject {
    /// The host with this UUID.
    Uuid(Uuid),
    /// The first host that uses a token with this text in the claim of nodes.
    FirstHost(Box<str>),
    /// The first host that uses this token. Other tokens of the same subject may belong to other
    /// hosts.
    Unknown,
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

/// The sender of a request, according to its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Name or id of the user, or of the client if the token names no user; for a node with one of
    /// our tokens, the id of its host.
    pub subject: String,
    /// What the caller may do.
    pub roles: Vec<Role>,
    /// Start of the token's validity.
    pub not_before: Option<DateTime<Utc>>,
    /// End of the token's validity.
    pub expires_at: DateTime<Utc>,
    /// Whether we issued the token. Only then the subject of a node is the id of its host.
    pub issued_by_us: bool,
    /// The key of the node that the token was issued for. Only the credential of a node of ours has
    /// one.
    pub node_key: Option<KeyFingerprint>,
    /// The issuer of the token: its claim `iss`.
    pub issuer: Arc<str>,
    /// ID of the token (`jti`), if it is a UUID, as in our own tokens.
    pub token_id: Option<Uuid>,
    /// When the token was issued, if it says so.
    pub issued_at: Option<DateTime<Utc>>,
    /// The node that the token belongs to, if an external issuer gave it the role of a node.
    pub node_subject: Option<NodeSubject>,
}

impl Caller {
    /// A caller with one of our tokens, from the default issuer. The token has no ID and does not
    /// say when it was issued.
    #[must_use]
    pub fn new(subject: &str, roles: &[Role], expires_at: DateTime<Utc>) -> Self {
        Self {
            subject: subject.to_owned(),
            roles: roles.to_vec(),
            not_before: None,
            expires_at,
            issued_by_us: true,
            node_key: None,
            issuer: DEFAULT_ISSUER.into(),
            token_id: None,
            issued_at: None,
            node_subject: None,
        }
    }

    /// Name of the caller for the change log. Two issuers may have users of the same name, so it
    /// contains the issuer, unless we are the issuer.
    #[must_use]
    pub fn actor_name(&self) -> String {
        if self.issued_by_us {
            self.subject.clone()
        } else {
            format!("{} ({})", self.subject, self.issuer)
        }
    }

    /// Whether the caller may read `project`.
    #[must_use]
    pub fn may_read(&self, project: Uuid) -> bool {
        self.may_write(project) || self.roles.contains(&Role::Read(project))
    }

    /// Whether the caller may change `project`.
    #[must_use]
    pub fn may_write(&self, project: Uuid) -> bool {
        self.roles.contains(&Role::Write(project)) || self.may_administrate()
    }

    /// Whether the caller may read any project.
    #[must_use]
    pub fn may_read_any(&self) -> bool {
        let reads = |role: &Role| !matches!(role, Role::Node(_));
        self.roles.iter().any(reads)
    }

    /// Whether the caller may change any project.
    #[must_use]
    pub fn may_write_any(&self) -> bool {
        let writes = |role: &Role| matches!(role, Role::Write(_) | Role::Administrator);
        self.roles.iter().any(writes)
    }

    /// Whether the caller may create and delete projects.
    #[must_use]
    pub fn may_administrate(&self) -> bool {
        self.roles.contains(&Role::Administrator)
    }

    /// The project of which the caller is a node. None if it is not a node, or a node of several
    /// projects.
    #[must_use]
    pub fn node_project(&self) -> Option<Uuid> {
        let mut projects = self.roles.iter().filter_map(|role| match role {
            Role::Node(project) => Some(*project),
            _ => None,
        });
        let project = projects.next()?;
        projects.all(|other| other == project).then_some(project)
    }

    /// Projects that the token names as readable. An administrator may read all others as well.
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
        let roles: Vec<Role> = roles.iter().filter_map(|role| Role::parse(role)).collect();
        Caller::new("somebody", &roles, DateTime::UNIX_EPOCH)
    }

    #[test]
    fn an_issuer_gives_only_the_roles_that_it_is_allowed() {
        let all = [Role::Read(ONE), Role::Write(ONE), Role::Node(ONE), Role::Administrator];
        let allowed = |limits: &RoleLimits, roles: &[Role]| -> Vec<Role> {
            roles.iter().copied().filter(|role| limits.allow(*role)).collect()
        };
        assert_eq!(allowed(&RoleLimits::default(), &all), all[..3]);
        let admin = RoleLimits { kinds: vec![RoleKind::Admin], projects: None };
        assert_eq!(allowed(&admin, &all), [Role::Administrator]);
        let readers = RoleLimits { kinds: vec![RoleKind::Read], projects: Some(vec![TWO]) };
        let roles = [Role::Read(ONE), Role::Read(TWO), Role::Write(TWO)];
        assert_eq!(allowed(&readers, &roles), [Role::Read(TWO)]);
        let nothing = RoleLimits { projects: Some(Vec::new()), ..RoleLimits::default() };
        assert!(allowed(&nothing, &all).is_empty());
    }

    #[test]
    fn the_name_of_an_actor_contains_a_foreign_issuer() {
        let ours = caller(&[]);
        assert_eq!(ours.actor_name(), "somebody");
        let theirs = Caller { issued_by_us: false, issuer: "https://login.example".into(), ..ours };
        assert_eq!(theirs.actor_name(), "somebody (https://login.example)");
    }

    #[test]
    fn a_role_is_written_as_it_is_read() {
        for role in [Role::Read(ONE), Role::Write(ONE), Role::Node(TWO), Role::Administrator] {
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
            assert_eq!(caller.node_project(), None);
            assert_eq!(caller.readable_projects(), [ONE]);
        }
    }

    #[test]
    fn an_administrator_may_do_everything_but_speak_for_a_node() {
        let administrator = caller(&[ADMINISTRATOR]);
        assert!(administrator.may_read(ONE) && administrator.may_write(TWO));
        assert!(administrator.may_administrate());
        assert_eq!(administrator.node_project(), None);
    }

    #[test]
    fn a_node_belongs_to_one_project_and_may_not_read_it() {
        let role = format!("{ONE}_en-agent-rw");
        let node = caller(&[&role, "default-roles-master", &role]);
        assert_eq!(node.node_project(), Some(ONE));
        assert!(!node.may_read(ONE) && !node.may_write(ONE));
        let torn = caller(&[&role, &format!("{TWO}_en-agent-rw")]);
        assert_eq!(torn.node_project(), None);
    }
}
