//! What the bearer of a token may do.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::key_fingerprint::KeyFingerprint;
use crate::named_role::NamedRole;

/// Role that allows everything in every project, and to create projects.
pub const ADMINISTRATOR: &str = "evenkeel-admin";

/// Issuer of our tokens, unless the settings name another one.
pub(crate) const DEFAULT_ISSUER: &str = "urn:evenkeel:issuer";

/// A permission in a token, written as the project's UUID and a suffix. People and configurations
/// write roles with the name of the project instead ([`crate::NamedRole`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// `<uuid>_im-r`, a viewer: read the project.
    Read(Uuid),
    /// `<uuid>_im-rw`, an operator: read and write the project.
    Write(Uuid),
    /// `<uuid>_approver`: read the project, and approve what waits for an approval.
    Approve(Uuid),
    /// `<uuid>_administrator`: read, write and approve in the project, and manage its users and
    /// tokens.
    Manage(Uuid),
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
            "approver" => Self::Approve,
            "administrator" => Self::Manage,
            "en-agent-rw" => Self::Node,
            _ => return None,
        };
        // Roles contain UUIDs only in the form with hyphens.
        if project.len() != 36 {
            return None;
        }
        project.parse().ok().map(role)
    }

    /// The project of the role; none for a role in all projects.
    #[must_use]
    pub const fn project(self) -> Option<Uuid> {
        match self {
            Self::Read(project)
            | Self::Write(project)
            | Self::Approve(project)
            | Self::Manage(project)
            | Self::Node(project) => Some(project),
            Self::Administrator => None,
        }
    }
}

/// A role without its project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleKind {
    /// Read a project. Also written `viewer`.
    #[serde(alias = "viewer")]
    Read,
    /// Read and write a project. Also written `operator`.
    #[serde(alias = "operator")]
    Write,
    /// Read a project, and approve in it.
    Approver,
    /// Everything in a project, including its users and tokens.
    Administrator,
    /// Act as a node of a project.
    Node,
    /// Everything in every project.
    Admin,
}

impl From<Role> for RoleKind {
    fn from(role: Role) -> Self {
        match role {
            Role::Read(_) => Self::Read,
            Role::Write(_) => Self::Write,
            Role::Approve(_) => Self::Approver,
            Role::Manage(_) => Self::Administrator,
            Role::Node(_) => Self::Node,
            Role::Administrator => Self::Admin,
        }
    }
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
        // Administrators create users and tokens that outlive their account at the issuer.
        let kinds = vec![RoleKind::Read, RoleKind::Write, RoleKind::Approver, RoleKind::Node];
        Self { kinds, projects: None }
    }
}

impl RoleLimits {
    /// Whether the issuer may give the role.
    #[must_use]
    pub fn allow(&self, role: Role) -> bool {
        let is_limited = |project: Uuid| {
            self.projects.as_ref().is_some_and(|allowed| !allowed.contains(&project))
        };
        self.kinds.contains(&role.into()) && !role.project().is_some_and(is_limited)
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
            Self::Approve(project) => write!(f, "{project}_approver"),
            Self::Manage(project) => write!(f, "{project}_administrator"),
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
    /// Roles in projects that the token names. [`crate::Authority`] adds those of existing projects
    /// to `roles` for each request, because a project may be created or deleted meanwhile.
    pub named_roles: Box<[NamedRole]>,
    /// Name of the token, if it is one for automation. Then the subject is the user who created it.
    pub token_name: Option<Box<str>>,
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
            named_roles: Box::default(),
            token_name: None,
        }
    }

    /// Name of the caller for the change log. Two issuers may have users of the same name, so it
    /// contains the issuer, unless we are the issuer. A token for automation is named as well.
    #[must_use]
    pub fn actor_name(&self) -> String {
        match &self.token_name {
            Some(token) => format!("{} (token {token})", self.subject),
            None if self.issued_by_us => self.subject.clone(),
            None => format!("{} ({})", self.subject, self.issuer),
        }
    }

    /// Whether the caller may read `project`.
    #[must_use]
    pub fn may_read(&self, project: Uuid) -> bool {
        self.may_approve(project)
            || self.may_write(project)
            || self.roles.contains(&Role::Read(project))
    }

    /// Whether the caller may change `project`.
    #[must_use]
    pub fn may_write(&self, project: Uuid) -> bool {
        self.roles.contains(&Role::Write(project)) || self.may_manage(project)
    }

    /// Whether the caller may approve in `project`. An operator may not, so that the person who
    /// requests a change does not approve it.
    #[must_use]
    pub fn may_approve(&self, project: Uuid) -> bool {
        self.roles.contains(&Role::Approve(project)) || self.may_manage(project)
    }

    /// Whether the caller may manage the users and tokens of `project`.
    #[must_use]
    pub fn may_manage(&self, project: Uuid) -> bool {
        self.roles.contains(&Role::Manage(project)) || self.may_administrate()
    }

    /// Whether the caller may manage the users and tokens of any project.
    #[must_use]
    pub fn may_manage_any(&self) -> bool {
        self.roles.iter().any(|role| matches!(role, Role::Manage(_) | Role::Administrator))
    }

    /// Whether the caller may give the role to somebody else: it manages the project of the role,
    /// which includes every role of people in it. The role of a node is given by enrolling only.
    #[must_use]
    pub fn may_give(&self, role: Role) -> bool {
        match role {
            Role::Node(_) => false,
            Role::Administrator => self.may_administrate(),
            Role::Read(project)
            | Role::Write(project)
            | Role::Approve(project)
            | Role::Manage(project) => self.may_manage(project),
        }
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
        let writes =
            |role: &Role| matches!(role, Role::Write(_) | Role::Manage(_) | Role::Administrator);
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
                Role::Read(project)
                | Role::Write(project)
                | Role::Approve(project)
                | Role::Manage(project) => Some(*project),
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
    fn an_issuer_makes_no_administrators_by_default() {
        let limits = RoleLimits::default();
        assert!(limits.allow(Role::Approve(ONE)));
        assert!(!limits.allow(Role::Manage(ONE)) && !limits.allow(Role::Administrator));
    }

    #[test]
    fn a_token_for_automation_is_an_actor_of_its_own() {
        let token = Caller { token_name: Some("nightly".into()), ..caller(&[]) };
        assert_eq!(token.actor_name(), "somebody (token nightly)");
    }

    #[test]
    fn a_role_is_written_as_it_is_read() {
        for role in [
            Role::Read(ONE),
            Role::Write(ONE),
            Role::Approve(ONE),
            Role::Manage(ONE),
            Role::Node(TWO),
            Role::Administrator,
        ] {
            assert_eq!(Role::parse(&role.to_string()), Some(role));
        }
    }

    /// Each role with what it allows in its project: read, write, approve, manage.
    #[test]
    fn each_role_allows_its_part() {
        for (role, expected) in [
            (Role::Read(ONE), [true, false, false, false]),
            (Role::Write(ONE), [true, true, false, false]),
            (Role::Approve(ONE), [true, false, true, false]),
            (Role::Manage(ONE), [true, true, true, true]),
            (Role::Node(ONE), [false; 4]),
            (Role::Administrator, [true; 4]),
        ] {
            let caller = caller(&[&role.to_string()]);
            let allowed = |project| {
                [
                    caller.may_read(project),
                    caller.may_write(project),
                    caller.may_approve(project),
                    caller.may_manage(project),
                ]
            };
            assert_eq!(allowed(ONE), expected, "{role}");
            let elsewhere = [role == Role::Administrator; 4];
            assert_eq!(allowed(TWO), elsewhere, "{role} in another project");
            let any = [caller.may_read_any(), caller.may_write_any(), caller.may_manage_any()];
            assert_eq!(any, [expected[0], expected[1], expected[3]], "{role} in any project");
        }
    }

    #[test]
    fn only_administrators_give_roles_and_only_in_their_projects() {
        let of_people = |project| {
            [Role::Read, Role::Write, Role::Approve, Role::Manage].map(|role| role(project))
        };
        let manager = caller(&[&Role::Manage(ONE).to_string()]);
        assert!(of_people(ONE).into_iter().all(|role| manager.may_give(role)));
        assert!(!of_people(TWO).into_iter().any(|role| manager.may_give(role)));
        assert!(!manager.may_give(Role::Administrator) && !manager.may_give(Role::Node(ONE)));
        for role in [Role::Read(ONE), Role::Write(ONE), Role::Approve(ONE), Role::Node(ONE)] {
            let caller = caller(&[&role.to_string()]);
            assert!(!of_people(ONE).into_iter().any(|role| caller.may_give(role)), "{role}");
        }
        let administrator = caller(&[ADMINISTRATOR]);
        assert!(administrator.may_give(Role::Administrator));
        assert!(administrator.may_give(Role::Manage(TWO)));
        assert!(!administrator.may_give(Role::Node(ONE)));
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
            "01900000-0000-7000-8000-000000000001_viewer",
            "administrator@shops",
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
