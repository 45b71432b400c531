//! The types of a document, as they are written in native YAML and JSON.

mod component;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use component::Component;

/// Where nodes have the unit files and drop-ins of documents.
pub const UNIT_FOLDER: &str = "/etc/systemd/system";

/// Highest number of a user or group: 4,294,967,295 means that there is none.
pub const MAX_ACCOUNT_ID: u32 = u32::MAX - 1;

/// The desired configuration of a node, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Document {
    /// What the node does with an entry that is not as desired.
    #[serde(default)]
    pub apply_mode: ApplyMode,
    /// Kinds of extras that the node removes. It only reports the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove_extras: Vec<ExtraKind>,
    /// What the node does with the changes of a run that fails.
    #[serde(default)]
    pub on_failure: FailureMode,
    /// Whether the document configures running nodes or creates new ones.
    #[serde(default)]
    pub purpose: Purpose,
    /// Entries, in groups that belong together. Names are unique.
    #[serde(default)]
    pub bundles: Vec<Bundle>,
}

/// What a node does with an entry that is not as desired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ApplyMode {
    /// Reports it.
    Audit,
    /// Corrects it in the next maintenance window.
    #[default]
    Window,
    /// Corrects it at once.
    Continuous,
}

/// A kind of objects that a node has and its document does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ExtraKind {
    /// Packages that were installed by name and that no other package needs.
    Packages,
    /// Enabled units.
    Services,
    /// Users with a login shell.
    Users,
}

/// What a node does with the changes of a run that fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum FailureMode {
    /// Entries that are as desired stay so.
    #[default]
    Keep,
    /// The node restores the files and units that the run changed.
    Revert,
}

/// What a document is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// Rendered as user-data of a new machine.
    Provision,
    /// Applied by the agent.
    #[default]
    Reconcile,
}

/// Entries that belong together: a change of one of them restarts the units of the bundle that name
/// it, and runs the actions of the bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bundle {
    /// Unique in the document.
    pub name: String,
    /// No two entries of a document have the same component and name.
    #[serde(default)]
    pub entries: Vec<Entry>,
}

/// One desired thing.
///
/// In YAML and JSON: `component`, `name` and `desired`, an object with the fields of the component.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawEntry")]
pub struct Entry {
    /// Path of a file, or name of a unit, package, source, action, user, group or kernel setting.
    pub name: String,
    pub desired: Desired,
}

/// An entry before its desired state is read by its component. It keeps the path of a wrong field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RawEntry {
    pub component: Component,
    /// Path of a file, or name of a unit, package, source, action, user, group or kernel setting.
    pub name: String,
    /// Fields of the component.
    #[serde(default)]
    pub desired: serde_json::Map<String, serde_json::Value>,
}

/// The desired state of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Desired {
    File(FileState),
    Unit(UnitState),
    Package(PackageState),
    PackageSource(PackageSourceState),
    Action(ActionSpec),
    User(UserState),
    UserGroup(UserGroupState),
    Sysctl(SysctlState),
}

/// A file, a directory, a symbolic link, or none of them. The name is an absolute path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileState {
    #[serde(default, rename = "type")]
    pub kind: FileKind,
    /// Permissions: octal digits in a string (`"0644"`), or their value as a number. Files get
    /// 0600, and directories 0755, if this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// User name or number. Root, if this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group name or number. Root, if this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Content of a file. An absent content is an empty file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<FileContent>,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Whether the node removes everything from a directory that has no entry.
    #[serde(default, skip_serializing_if = "is_false")]
    pub prune: bool,
}

/// What is at the path of a file entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    #[default]
    File,
    Directory,
    Symlink,
    /// Nothing is at the path. A directory is removed with its contents only if `prune` is true.
    Absent,
    /// Something with this mode, owner and group. Its content is not managed.
    Permissions,
}

/// Permissions of a file: 0 to 0o7777.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(pub u32);

/// Content of a file. Exactly one of the fields is set; `sha256` belongs to `uri`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileContent {
    /// The content as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
    /// The content in base64, for content that is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// A key of a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
    /// HTTPS address that the node downloads the content from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^https://"))]
    pub uri: Option<String>,
    /// SHA-256 of the content at `uri`: 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^[0-9A-Fa-f]{64}$"))]
    pub sha256: Option<String>,
}

/// A key of a secret of the project. A bound document also has the version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRef {
    pub name: String,
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub version: Option<u64>,
}

/// A systemd unit. The name has a suffix, such as `nginx.service`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnitState {
    /// The unit file in `/etc/systemd/system`. Absent for a unit that a package provides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Drop-in files by their name, such as `10-limits.conf`. The node removes only drop-ins that
    /// it has created.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drop_ins: BTreeMap<String, String>,
    /// Whether the unit starts at boot. Absent: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// What the node does with the unit after a change. Absent: it restarts the unit if it is
    /// enabled, and stops it otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<UnitCommand>,
    /// Paths of file entries whose change restarts the unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub file_paths: Vec<String>,
}

/// What a node does with a unit after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum UnitCommand {
    Start,
    Restart,
    Stop,
}

/// A package of the system's package manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PackageState {
    /// `any`, `absent`, or a version as the package manager writes it.
    #[serde(default = "PackageState::any_version")]
    pub version: String,
}

/// A source of packages in the form of deb822.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PackageSourceState {
    /// Paragraph with `Types`, `URIs`, `Suites` and `Components`, without `Signed-By`.
    pub source: String,
    /// `OpenPGP` key of the source, ASCII-armoured. The limits of the node's owner must allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A command that the node runs as root, if the limits of its owner allow it. It is no part of the
/// compliance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionSpec {
    /// Command line, run by `/bin/sh -c`.
    pub command: String,
    #[serde(default)]
    pub timing: ActionTiming,
    #[serde(default)]
    pub when: ActionCondition,
    #[serde(default)]
    pub status: ActionStatusCheck,
    /// Seconds after which the node kills the command: 1 to 86,400.
    #[serde(default = "ActionSpec::default_timeout")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 86_400))]
    pub timeout: u32,
}

/// When a node runs an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ActionTiming {
    /// Before the entries of the bundle change. If it fails, they do not change.
    Pre,
    /// After the entries of the bundle have changed.
    #[default]
    Post,
    Both,
}

/// Whether an action depends on a change of its bundle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ActionCondition {
    #[default]
    Modified,
    Always,
}

/// Whether a failed action is a failure of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ActionStatusCheck {
    #[default]
    Check,
    Ignore,
}

/// A user of the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UserState {
    /// Whether the user must not exist. Then no other field is set.
    #[serde(default, skip_serializing_if = "is_false")]
    pub absent: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 4_294_967_294_u32))]
    pub uid: Option<u32>,
    /// Primary group. Absent: a group with the name of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Further groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Full name or description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Absolute path of the home directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// Absolute path of the login shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
}

/// A group of users of the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UserGroupState {
    /// Whether the group must not exist. Then no other field is set.
    #[serde(default, skip_serializing_if = "is_false")]
    pub absent: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 4_294_967_294_u32))]
    pub gid: Option<u32>,
}

/// A setting of the kernel. The name is its key with dots, such as `vm.max_map_count`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SysctlState {
    pub value: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl FileKind {
    /// The name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Absent => "absent",
            Self::Permissions => "permissions",
        }
    }
}

impl FileState {
    /// The mode of a file or directory that has none in the document.
    pub fn default_mode(&self) -> FileMode {
        if self.kind == FileKind::Directory { FileMode(0o755) } else { FileMode(0o600) }
    }
}

impl PackageState {
    /// Any version.
    pub const ANY: &str = "any";

    /// The package must not be installed.
    pub const ABSENT: &str = "absent";

    pub(crate) fn any_version() -> String {
        Self::ANY.to_owned()
    }
}

impl ActionSpec {
    /// Seconds.
    pub const DEFAULT_TIMEOUT: u32 = 300;

    /// Seconds: a day.
    pub const MAX_TIMEOUT: u32 = 86_400;

    fn default_timeout() -> u32 {
        Self::DEFAULT_TIMEOUT
    }
}

impl SecretRef {
    /// Highest version: the highest number that every reader of JSON reads exactly.
    pub const MAX_VERSION: u64 = (1 << 53) - 1;
}

impl Entry {
    /// The component of the entry.
    pub fn component(&self) -> Component {
        match self.desired {
            Desired::File(_) => Component::File,
            Desired::Unit(_) => Component::Unit,
            Desired::Package(_) => Component::Package,
            Desired::PackageSource(_) => Component::PackageSource,
            Desired::Action(_) => Component::Action,
            Desired::User(_) => Component::User,
            Desired::UserGroup(_) => Component::UserGroup,
            Desired::Sysctl(_) => Component::Sysctl,
        }
    }

    /// Component and name, which are unique in a document.
    pub fn key(&self) -> (Component, &str) {
        (self.component(), &self.name)
    }
}

impl Document {
    /// All entries with the bundle that they belong to, in the order of the document.
    pub fn entries(&self) -> impl Iterator<Item = (&Bundle, &Entry)> {
        self.bundles
            .iter()
            .flat_map(|bundle| bundle.entries.iter().map(move |entry| (bundle, entry)))
    }
}
