//! Runs apt and reads its output.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::apt_hooks::{self, HookSet};
use super::files::Deb;
use super::independent_groups::{self, PackageRecords};
use super::index_targets::{self, IndexTarget};
use super::parse::{self, ExactVersion, PlannedInstall, Simulation};
use super::sources::AptView;
use crate::durable::FileError;
use crate::model::{Failure, FailureKind, PackageMode, PackageSpec};
use crate::runner::{Command, Output, RunError, Runner};

/// Timeouts of apt and dpkg commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackageToolTimeouts {
    /// Commands that only read.
    pub query: Duration,
    /// Refresh of the package lists.
    pub refresh: Duration,
    pub download: Duration,
    /// Changes of packages.
    pub apply: Duration,
    /// Waiting for dpkg's lock.
    pub lock: Duration,
}

/// Permissions of an update of all packages, in addition to the replacement of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedChanges {
    pub removals: bool,
    pub new_packages: bool,
}

/// Options without any source: apt then knows the installed packages and the given files, and can fetch nothing else. The
/// caches stay in memory, so that the caches of the configured sources are not lost.
const NO_SOURCES: [&str; 8] = [
    "-o",
    "Dir::Etc::SourceList=/dev/null",
    "-o",
    "Dir::Etc::SourceParts=/dev/null",
    "-o",
    "Dir::Cache::pkgcache=",
    "-o",
    "Dir::Cache::srcpkgcache=",
];

/// Options that retain configuration files with local changes.
pub(super) const CONFFILE_OPTIONS: [&str; 2] = ["--force-confdef", "--force-confold"];

/// Most package names on one command line.
pub(super) const MAX_NAMES_PER_COMMAND: usize = 500;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AptTransaction<'a> {
    /// The files to install.
    pub debs: &'a [Deb],
    /// The packages to remove.
    pub removals: Vec<&'a str>,
    /// Whether an older version may replace a newer one.
    pub allow_downgrades: bool,
}

/// apt, dpkg and systemctl of the managed root.
pub struct PackageTools {
    runner: Arc<dyn Runner>,
    timeouts: PackageToolTimeouts,
    /// Maximum download rate of this machine in bytes per second; 0 for none.
    max_rate: u64,
    /// Time limit of each hook of apt around dpkg.
    hook_timeout: Duration,
}

impl std::fmt::Debug for PackageTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackageTools").field("timeouts", &self.timeouts).finish_non_exhaustive()
    }
}

impl PackageTools {
    /// Creates the tools.
    pub fn new(runner: Arc<dyn Runner>, limits: PackageToolTimeouts) -> Self {
        let hook_timeout = apt_hooks::DEFAULT_HOOK_TIMEOUT;
        Self { runner, timeouts: limits, max_rate: 0, hook_timeout }
    }

    /// Sets the maximum download rate of this machine in bytes per second; 0 for none.
    #[must_use]
    pub fn with_max_rate(self, max_rate: u64) -> Self {
        Self { max_rate, ..self }
    }

    /// Sets the time limit of each hook of apt around dpkg.
    #[must_use]
    pub fn with_hook_timeout(self, hook_timeout: Duration) -> Self {
        Self { hook_timeout, ..self }
    }

    /// The lower one of the limits of a policy and of the machine, in bytes per second; 0 for none.
    pub(super) fn effective_rate(&self, policy: u64) -> u64 {
        let limits = [policy, self.max_rate].into_iter().filter(|limit| *limit > 0);
        limits.min().unwrap_or(0)
    }

    /// The timeouts of the commands.
    pub fn timeouts(&self) -> &PackageToolTimeouts {
        &self.timeouts
    }

    /// Simulates an update. The simulation includes downgrades and packages on hold: the plan decides about them.
    pub async fn simulate(
        &self,
        spec: &PackageSpec,
        allowed: AllowedChanges,
        view: AptView,
    ) -> Result<Simulation, Failure> {
        self.run_simulation(&self.update_command(spec, allowed, view, &[])).await
    }

    /// Simulates an update that also removes the packages that no package needs afterwards.
    /// `in_use` is a setting of apt with the packages that count as needed.
    pub async fn simulate_unused(
        &self,
        spec: &PackageSpec,
        allowed: AllowedChanges,
        view: AptView,
        in_use: Option<&str>,
    ) -> Result<Simulation, Failure> {
        let options = in_use.map(|setting| ["-o", setting]);
        let options = options.iter().flatten().copied().chain(["--auto-remove"]);
        let options: Vec<&str> = options.collect();
        self.run_simulation(&self.update_command(spec, allowed, view, &options)).await
    }

    fn update_command(
        &self,
        spec: &PackageSpec,
        allowed: AllowedChanges,
        view: AptView,
        options: &[&str],
    ) -> Command {
        let command = self
            .apt_get(self.timeouts.query, view)
            .with_arguments(["--simulate", "--verbose-versions", "--allow-downgrades"])
            .with_arguments(options.iter().copied());
        match &spec.mode {
            // apt cannot remove packages without also installing new ones.
            PackageMode::Latest if !allowed.new_packages => {
                command.with_arguments(["-o", "APT::Get::Upgrade-Allow-New=false", "upgrade"])
            }
            PackageMode::Latest if allowed.removals => command.with_arguments(["dist-upgrade"]),
            PackageMode::Latest => command.with_arguments(["upgrade", "--with-new-pkgs"]),
            PackageMode::Exactly(packages) => {
                let orders = packages.iter().map(|package| match &package.version {
                    Some(version) => format!("{}={version}", package.name),
                    None => package.name.clone(),
                });
                command
                    .with_arguments(["--allow-change-held-packages", "install", "--"])
                    .with_arguments(orders)
            }
        }
    }

    /// Simulates the installation of a plan's files.
    pub async fn simulate_files(&self, what: &AptTransaction<'_>) -> Result<Simulation, Failure> {
        let command =
            self.install_command(what, self.timeouts.query, &["--simulate", "--verbose-versions"]);
        self.run_simulation(&command).await
    }

    async fn run_simulation(&self, command: &Command) -> Result<Simulation, Failure> {
        let output = self.run(command, FailureKind::Plan).await?;
        if !output.succeeded() {
            return Err(tool_failure(FailureKind::Plan, "apt-get --simulate", &output));
        }
        parse::parse_simulation(&output.stdout)
            .map_err(|line| unreadable_line(FailureKind::Plan, line))
    }

    /// Lists apt's package indexes.
    pub async fn list_index_targets(&self, view: AptView) -> Result<Vec<IndexTarget>, Failure> {
        let command = self.apt_get(self.timeouts.query, view).with_arguments([
            "indextargets",
            "--format",
            index_targets::FORMAT,
            index_targets::FILTER,
        ]);
        let output = self.run_for_stdout(&command, "apt-get indextargets").await?;
        index_targets::parse_targets(&output)
            .map_err(|line| unreadable_line(FailureKind::Plan, line))
    }

    /// Installed sizes of versions in bytes. Versions that declare none are omitted.
    pub async fn installed_sizes(
        &self,
        installs: &[PlannedInstall],
        view: AptView,
    ) -> Result<BTreeMap<ExactVersion, u64>, Failure> {
        let mut sizes = BTreeMap::new();
        for some in installs.chunks(MAX_NAMES_PER_COMMAND) {
            let command = Command::new("apt-cache", self.timeouts.query)
                .with_arguments(view.options())
                .with_arguments(["show", "--no-all-versions", "--"])
                .with_arguments(some.iter().map(PlannedInstall::apt_argument));
            let output = self.run(&command, FailureKind::Plan).await?;
            // The output is valid whatever the exit status is.
            sizes.extend(parse::parse_sizes(&output.stdout));
        }
        Ok(sizes)
    }

    /// The relations of the installed and of the planned versions.
    pub async fn package_records(
        &self,
        installs: &[PlannedInstall],
        view: AptView,
    ) -> Result<PackageRecords, Failure> {
        let versions = installs.iter().flat_map(|install| {
            let before = install.before.as_ref();
            let before = before.map(|version| format!("{}={version}", install.package));
            before.into_iter().chain([install.apt_argument()])
        });
        let versions: Vec<_> = versions.collect();
        let mut records = PackageRecords::new();
        for some in versions.chunks(MAX_NAMES_PER_COMMAND) {
            let command = Command::new("apt-cache", self.timeouts.query)
                .with_arguments(view.options())
                .with_arguments(["show", "--no-all-versions", "--"])
                .with_arguments(some);
            let output = self.run(&command, FailureKind::Plan).await?;
            // The output is valid whatever the exit status is.
            records.extend(independent_groups::parse_records(&output.stdout));
        }
        Ok(records)
    }

    /// The hooks of apt around dpkg. Without an answer of apt they have no limit of their own.
    pub(super) async fn list_hooks(&self) -> HookSet {
        let command = Command::new("apt-config", self.timeouts.query)
            .with_arguments(["dump", "--format", apt_hooks::FORMAT])
            .with_arguments(apt_hooks::SETTINGS);
        match self.run_for_stdout(&command, "apt-config dump").await {
            Ok(dump) => HookSet::parse(&dump, self.hook_timeout),
            Err(failure) => {
                tracing::warn!(error = %failure, "cannot limit the time of the hooks of apt");
                HookSet::default()
            }
        }
    }

    /// Installs the files of a plan and performs its removals, in one transaction, with a file of additional settings of
    /// apt. Returns apt's output; only the packages' states show whether it worked.
    pub async fn install_files(
        &self,
        what: &AptTransaction<'_>,
        settings: Option<&str>,
    ) -> Result<Output, Failure> {
        let option = settings.map(|file| format!("--config-file={file}"));
        let options: Vec<&str> = option.as_deref().into_iter().collect();
        let command = self.install_command(what, self.timeouts.apply, &options).for_change();
        self.run(&command, FailureKind::Apply).await
    }

    fn install_command(
        &self,
        what: &AptTransaction<'_>,
        deadline: Duration,
        options: &[&str],
    ) -> Command {
        let mut command = self
            .apt_get(deadline, AptView::default())
            .with_arguments(NO_SOURCES)
            .with_arguments(Self::conffile_options())
            .with_arguments(options.iter().copied());
        if what.removals.is_empty() {
            command = command.with_arguments(["--no-remove"]);
        }
        if what.allow_downgrades {
            command = command.with_arguments(["--allow-downgrades"]);
        }
        command
            .with_arguments(["--no-install-recommends", "install", "--"])
            .with_arguments(what.debs.iter().map(Deb::path))
            .with_arguments(what.removals.iter().map(|package| format!("{package}-")))
    }

    /// [`CONFFILE_OPTIONS`] as options of apt.
    pub(super) fn conffile_options() -> impl Iterator<Item = String> {
        let options = CONFFILE_OPTIONS.map(|option| format!("DPkg::Options::={option}"));
        options.into_iter().flat_map(|option| ["-o".to_owned(), option])
    }

    /// Packages that are marked as automatically installed.
    pub async fn list_automatic(&self) -> Result<BTreeSet<String>, Failure> {
        let command = Command::new("apt-mark", self.timeouts.query).with_arguments(["showauto"]);
        let output = self.run_for_stdout(&command, "apt-mark showauto").await?;
        Ok(parse::parse_names(&output))
    }

    /// Marks packages as automatically installed.
    pub async fn mark_automatic(&self, packages: &[String]) -> Result<(), Failure> {
        self.mark("auto", packages).await
    }

    /// Marks packages as manually installed.
    pub async fn mark_manual(&self, packages: &[String]) -> Result<(), Failure> {
        self.mark("manual", packages).await
    }

    async fn mark(&self, mark: &str, packages: &[String]) -> Result<(), Failure> {
        if packages.is_empty() {
            return Ok(());
        }
        let command = Command::new("apt-mark", self.timeouts.query)
            .with_arguments([mark, "--"])
            .with_arguments(packages);
        let output = self.run(&command, FailureKind::Apply).await?;
        if output.succeeded() {
            return Ok(());
        }
        Err(tool_failure(FailureKind::Apply, &format!("apt-mark {mark}"), &output))
    }

    pub(super) fn apt_get(&self, deadline: Duration, view: AptView) -> Command {
        let lock = format!("DPkg::Lock::Timeout={}", self.timeouts.lock.as_secs());
        Command::new("apt-get", deadline)
            .with_arguments(["--quiet", "--yes", "-o", &lock])
            .with_arguments(["-o", "Acquire::Retries=3"])
            // Only the plan decides about removals, whatever the machine's settings of apt are.
            .with_arguments(["-o", "APT::Get::AutomaticRemove=false"])
            .with_arguments(["-o", "APT::Get::AutomaticRemove::Kernels=false"])
            // With a terminal of apt, a script could wait there for an answer.
            .with_arguments(["-o", "Dpkg::Use-Pty=0"])
            .with_arguments(view.options())
    }

    pub(super) async fn run_for_stdout(
        &self,
        command: &Command,
        what: &str,
    ) -> Result<String, Failure> {
        let output = self.run(command, FailureKind::Plan).await?;
        if output.succeeded() {
            return Ok(output.stdout);
        }
        Err(tool_failure(FailureKind::Plan, what, &output))
    }

    pub(super) async fn run(
        &self,
        command: &Command,
        kind: FailureKind,
    ) -> Result<Output, Failure> {
        self.runner.run(command).await.map_err(|error| run_failure(kind, &error))
    }

    /// [`Runner::end_left_over_change`].
    pub(super) async fn end_left_over_change(&self) -> Result<(), Failure> {
        let ended = self.runner.end_left_over_change().await;
        ended.map_err(|error| run_failure(FailureKind::Apply, &error))
    }

    /// [`Runner::forget_ended_change`].
    pub(super) fn forget_ended_change(&self) {
        self.runner.forget_ended_change();
    }
}

fn run_failure(kind: FailureKind, error: &RunError) -> Failure {
    let log = match error {
        RunError::Deadline { output, .. } => parse::clean_output(output),
        _ => String::new(),
    };
    Failure::with_log(kind, evenkeel_kit::chain(error).to_string(), &log)
}

/// Turns the output of a failed tool into a failure.
pub fn tool_failure(kind: FailureKind, what: &str, output: &Output) -> Failure {
    let text = parse::clean_output(&output.combined_output());
    let gist = parse::error_summary(&text);
    let colon = if gist.is_empty() { "" } else { ": " };
    let reason = format!("{what} {}{colon}{gist}", output.describe_status());
    let no_space = text.contains("No space left on device")
        || text.contains("You don't have enough free space");
    let kind = if no_space { FailureKind::Storage } else { kind };
    Failure::with_log(kind, reason, &text)
}

/// The failure of an operation on one of the agent's own files.
pub fn storage_failure(error: FileError) -> Failure {
    Failure::new(FailureKind::Storage, evenkeel_kit::chain(&error).to_string())
}

pub(super) fn unreadable_line(kind: FailureKind, line: &str) -> Failure {
    let reason = format!("cannot read a line of the package tools: {line:?}");
    Failure::new(kind, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_a_storage_failure() {
        let output = Output {
            status: Some(100),
            stdout: "dpkg: error processing archive x (--unpack):\n cannot copy: No space left on device\n".into(),
            stderr: String::new(),
        };
        let failure = tool_failure(FailureKind::Apply, "apt-get install", &output);
        assert_eq!(failure.kind, FailureKind::Storage);
        assert_eq!(
            failure.reason,
            "apt-get install ended with status 100: dpkg: error processing archive x (--unpack): cannot copy: No space left on device"
        );
    }
}
