//! Hooks: programs of the machine that run at fixed points and can object.
//!
//! Each point has a folder, whose programs are run. The caller decides what a failure means: before
//! an update it delays the update, after an update it is a remark.

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
mod trusted_path;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::model::tail;
use crate::owner::check_only_root_writes;
use crate::paths::AgentPaths;
use crate::runner::{Command, RunError, Runner};

use self::trusted_path::UntrustedPath;

pub(crate) use self::trusted_path::{resolve_path, resolve_trusted_path};

/// Exit status that means "not yet" (`EX_TEMPFAIL`). Any other status but 0 means the same, and
/// that the hook is broken.
const EXIT_NOT_YET: i32 = 75;

/// Maximum number of bytes that are reported of the end of a program's output.
const MAX_OUTPUT_BYTES: usize = 300;

/// When hooks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    /// Before a prepared change begins.
    BeforeUpdate,
    /// Before an image is downloaded.
    BeforeDownload,
    /// Before the slot with a new image is armed.
    BeforeArming,
    /// Before the machine is rebooted after a change of packages, or reset into an image; then no
    /// slot is armed yet.
    BeforeReboot,
    /// After an image was committed. A failure then changes nothing.
    AfterCommit,
    /// After an update has finished. A failure then changes nothing.
    AfterUpdate,
}

impl HookPoint {
    /// Folder of the hooks, as seen from inside the managed root.
    pub fn folder(self) -> &'static str {
        match self {
            Self::BeforeUpdate => "/etc/evenkeel/hooks/before-update.d",
            Self::BeforeDownload => "/etc/evenkeel/hooks/before-download.d",
            Self::BeforeArming => "/etc/evenkeel/hooks/before-arming.d",
            Self::BeforeReboot => "/etc/evenkeel/hooks/before-reboot.d",
            Self::AfterCommit => "/etc/evenkeel/hooks/after-commit.d",
            Self::AfterUpdate => "/etc/evenkeel/hooks/after-update.d",
        }
    }
}

/// Runs the hooks of a point in the order of their names, until one fails; the error contains its
/// output. Each hook may take as long as `deadline`.
pub async fn run_hooks(
    point: HookPoint,
    paths: &AgentPaths,
    runner: &dyn Runner,
    deadline: Duration,
) -> Result<(), String> {
    let hooks = ProgramFolder { folder: point.folder(), kind: "hook" };
    hooks.run_all(paths, runner, deadline).await
}

/// A folder of programs, each of which can object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramFolder {
    /// Path as seen from inside the managed root.
    pub folder: &'static str,
    /// What the programs are called, for people.
    pub kind: &'static str,
}

impl ProgramFolder {
    /// Runs the programs in the order of their names, until one fails; the error contains its
    /// output.
    pub async fn run_all(
        self,
        paths: &AgentPaths,
        runner: &dyn Runner,
        deadline: Duration,
    ) -> Result<(), String> {
        for name in self.list_programs(paths)? {
            self.run_program(&name, runner, deadline).await?;
        }
        Ok(())
    }

    /// Runs one of the programs; the error contains its output.
    pub async fn run_program(
        self,
        name: &str,
        runner: &dyn Runner,
        deadline: Duration,
    ) -> Result<(), String> {
        let Self { folder, kind } = self;
        let command = Command::new(format!("{folder}/{name}"), deadline);
        let output = match runner.run(&command).await {
            Ok(output) => output,
            Err(RunError::Deadline { output: partial_output, .. }) => {
                let late = format!("the {kind} {name} did not answer in time");
                return Err(with_output(late, &partial_output));
            }
            Err(error) => return Err(format!("the {kind} {name} cannot be run: {error}")),
        };
        let answer = match output.status {
            Some(0) => return Ok(()),
            Some(EXIT_NOT_YET) => format!("the {kind} {name} is not ready"),
            _ => format!("the {kind} {name} {}", output.describe_status()),
        };
        Err(with_output(answer, &output.combined_output()))
    }

    /// Names of the programs. Fails if users other than root could have added a program.
    pub fn list_programs(self, paths: &AgentPaths) -> Result<Vec<String>, String> {
        let Self { folder, kind } = self;
        let unreadable =
            |error: io::Error| format!("the {kind}s in {folder} cannot be read: {error}");
        let path = match resolve_trusted_path(paths.root(), Path::new(folder)) {
            Ok(path) => path,
            Err(UntrustedPath::Unreadable { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                return Ok(Vec::new());
            }
            Err(UntrustedPath::Unreadable { source, .. }) => return Err(unreadable(source)),
            Err(error @ UntrustedPath::Writable { .. }) => {
                return Err(format!("the {kind}s in {folder} are not run: {error}"));
            }
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(&path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            // Files with other names are backups of editors or dpkg, or text for people.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if is_valid_name(&name) && self.is_program(paths.root(), &name)? {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether a file is a program to run. An executable file that other users can write to is an
    /// error: ignoring it would ignore its objection. The same applies to a link without a target.
    fn is_program(self, root: &Path, name: &str) -> Result<bool, String> {
        let refuse = |why: String| format!("the {} {name} is not run: {why}", self.kind);
        let file = resolve_trusted_path(root, &Path::new(self.folder).join(name))
            .map_err(|error| refuse(error.to_string()))?;
        let metadata = fs::symlink_metadata(file).map_err(|error| refuse(error.to_string()))?;
        if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
            return Ok(false);
        }
        check_only_root_writes(&metadata).map_err(refuse)?;
        Ok(true)
    }
}

pub(crate) fn with_output(answer: String, output: &str) -> String {
    let output = to_one_line(tail(output.trim_end(), MAX_OUTPUT_BYTES));
    if output.is_empty() {
        return answer;
    }
    format!("{answer}: {output}")
}

/// Whether run-parts(8) accepts the name.
fn is_valid_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    !name.is_empty() && name.bytes().all(is_part)
}

/// Converts output to one line of at most 300 bytes, for reports and logs.
pub(crate) fn to_one_line(text: &str) -> String {
    const MAX_BYTES: usize = 300;
    let parts = text.split(|c: char| c.is_whitespace() || c.is_control());
    let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
    let mut line = parts.join(" ");
    if line.len() > MAX_BYTES {
        line.truncate(line.floor_char_boundary(MAX_BYTES));
        line.push_str(" …");
    }
    line
}
