//! Which actions of configuration documents may run.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::check_only_root_writes;
use crate::hooks::resolve_trusted_path;
use crate::model::Sha256;

/// The permission for every action.
const ALL: &str = "all";

/// Limits of configuration documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigurationLimits {
    /// The actions that may run, which are commands of a document that run as root: `all`; the
    /// SHA-256 of a command; or a directory, for its programs with plain words as arguments. Empty
    /// for none.
    pub actions: Vec<ActionPermission>,
}

/// A permission for actions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ActionPermission {
    /// Every action.
    All,
    /// Actions with the command that has this digest.
    Command(Sha256),
    /// Actions that run a program of this folder, with plain words as arguments.
    Folder(String),
}

/// A text is not a permission for actions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither \"all\" nor the SHA-256 of a command nor the absolute path of a directory"
)]
pub struct BadActionPermission(String);

impl TryFrom<String> for ActionPermission {
    type Error = BadActionPermission;

    fn try_from(text: String) -> Result<Self, BadActionPermission> {
        if text == ALL {
            return Ok(Self::All);
        }
        if let Ok(digest) = text.parse() {
            return Ok(Self::Command(digest));
        }
        let folder = text.trim_end_matches('/');
        if folder.starts_with('/') && has_plain_parts(folder) {
            return Ok(Self::Folder(folder.to_owned()));
        }
        Err(BadActionPermission(text))
    }
}

impl From<ActionPermission> for String {
    fn from(permission: ActionPermission) -> Self {
        permission.to_string()
    }
}

impl fmt::Display for ActionPermission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str(ALL),
            Self::Command(digest) => digest.fmt(f),
            Self::Folder(folder) => f.write_str(folder),
        }
    }
}

impl ConfigurationLimits {
    /// Checks whether an action with this command may run on the machine at `root`. The error says
    /// why not, and what would allow it.
    pub fn check_action(&self, root: &Path, command: &str) -> Result<(), String> {
        let digest = Sha256::hash(command.as_bytes());
        let mut refusals = Vec::new();
        for permission in &self.actions {
            let program = match permission {
                ActionPermission::All => return Ok(()),
                ActionPermission::Command(allowed) if *allowed == digest => return Ok(()),
                ActionPermission::Command(_) => None,
                ActionPermission::Folder(folder) => program_in_folder(folder, command),
            };
            match program.map(|program| check_program(root, program)) {
                Some(Ok(())) => return Ok(()),
                Some(Err(reason)) => refusals.push(format!("; {reason}")),
                None => {}
            }
        }
        Err(format!(
            "the machine's owner does not allow this action: its command has the SHA-256 \
             {digest}{}",
            refusals.concat()
        ))
    }
}

/// The program of a command, if that is in the folder itself and a shell reads the command as a
/// program and its arguments.
fn program_in_folder<'a>(folder: &str, command: &'a str) -> Option<&'a str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._:=@%+,- ".contains(c);
    if !command.chars().all(is_plain) {
        return None;
    }
    let program = command.split(' ').next()?;
    let name = program.strip_prefix(folder)?.strip_prefix('/')?;
    (!name.contains('/') && has_plain_parts(program)).then_some(program)
}

/// Whether an absolute path has no empty part, and no `.` and `..`.
fn has_plain_parts(path: &str) -> bool {
    path.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."))
}

/// Checks that only root can have written a program.
fn check_program(root: &Path, program: &str) -> Result<(), String> {
    let file = resolve_trusted_path(root, Path::new(program)).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| format!("cannot read {program}: {error}"))?;
    if !metadata.is_file() {
        return Err(format!("{program} is not a file"));
    }
    check_only_root_writes(&metadata).map_err(|reason| format!("{program}: {reason}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn limits(actions: &[&str]) -> ConfigurationLimits {
        let actions = actions.iter().map(|text| (*text).to_owned().try_into().unwrap());
        ConfigurationLimits { actions: actions.collect() }
    }

    fn root_with_program() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (folder, mode) in [("opt", 0o755), ("opt/actions", 0o755), ("opt/shared", 0o777)] {
            let folder = root.path().join(folder);
            fs::create_dir(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            fs::write(folder.join("reload"), "").unwrap();
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(folder.join("reload"), mode).unwrap();
        }
        root
    }

    #[test]
    fn permissions_are_parsed_and_printed() {
        let digest = "ab".repeat(32);
        for text in ["all", &digest, "/opt/actions"] {
            let permission = ActionPermission::try_from(text.to_owned()).unwrap();
            assert_eq!(permission.to_string(), text);
        }
        let folder = ActionPermission::try_from("/opt/actions/".to_owned()).unwrap();
        assert_eq!(folder, ActionPermission::Folder("/opt/actions".to_owned()));
        for text in ["", "All", "opt", "/", "//", "/opt/../bin", "/opt//bin", &digest[1..]] {
            ActionPermission::try_from(text.to_owned()).unwrap_err();
        }
    }

    #[test]
    fn no_action_is_allowed_by_default() {
        let root = root_with_program();
        let refused = limits(&[]).check_action(root.path(), "true").unwrap_err();
        let digest = "b5bea41b6c623f7c09f1bf24dcae58ebab3c0cdd90ad966bc43a45b44867e12b";
        assert!(refused.ends_with(&format!("SHA-256 {digest}")), "{refused}");
        limits(&["all"]).check_action(root.path(), "true").unwrap();
        limits(&[digest]).check_action(root.path(), "true").unwrap();
        limits(&[digest]).check_action(root.path(), "true ").unwrap_err();
    }

    #[test]
    fn a_folder_allows_its_programs_with_plain_arguments() {
        let root = root_with_program();
        let is_allowed =
            |command: &str| limits(&["/opt/actions"]).check_action(root.path(), command).is_ok();
        for command in ["/opt/actions/reload", "/opt/actions/reload --now key=a,b /etc/x"] {
            assert!(is_allowed(command), "{command}");
        }
        for command in [
            "reload",
            "/opt/actions",
            "/opt/actions/",
            "/opt/actions/none",
            "/opt/actions/../shared/reload",
            "/opt/actions/a/reload",
            "/opt/actionsx/reload",
            "/opt/actions/reload; reboot",
            "/opt/actions/reload\nreboot",
            "/opt/actions/reload $(reboot)",
            "/opt/actions/reload > /etc/passwd",
            "A=b /opt/actions/reload",
            " /opt/actions/reload",
        ] {
            assert!(!is_allowed(command), "{command}");
        }
    }

    #[test]
    fn a_program_that_a_user_can_replace_is_refused() {
        let root = root_with_program();
        let limits = limits(&["/opt/shared"]);
        let refused = limits.check_action(root.path(), "/opt/shared/reload").unwrap_err();
        let end = "; /opt/shared: users other than root may write to it";
        assert!(refused.ends_with(end), "{refused}");
    }
}
