//! The command lines of apt, and what their answers mean.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::files::Deb;
use super::parse::{self, Exact, Install, Simulation};
use super::sources::View;
use super::targets::{self, Target};
use crate::durable::FileError;
use crate::model::{Failure, FailureKind, PackageMode, PackageWish};
use crate::runner::{Command, Output, RunError, Runner};

/// How long apt and dpkg may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// To look and to think.
    pub look: Duration,
    /// To fetch lists of packages.
    pub refresh: Duration,
    /// To fetch packages.
    pub download: Duration,
    /// To change packages.
    pub apply: Duration,
    /// To wait for dpkg's lock.
    pub lock: Duration,
}

/// With no source at all apt knows what is installed and the files that it is given, and can fetch nothing else. The
/// caches stay in memory, so that the ones for all the sources are not lost.
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

/// What becomes of configuration files that a person changed: they stay.
pub(super) const CONFFILES: [&str; 2] = ["--force-confdef", "--force-confold"];

/// More names than this are not put on one command line.
pub(super) const MOST_NAMES: usize = 500;

/// What apt is to do at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction<'a> {
    /// The files to install.
    pub debs: &'a [Deb],
    /// The packages to remove.
    pub removals: Vec<&'a str>,
    /// Whether an older version may replace a newer one.
    pub downgrades: bool,
}

/// apt and dpkg of the managed root.
pub struct Tools {
    runner: Arc<dyn Runner>,
    limits: Limits,
}

impl std::fmt::Debug for Tools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tools")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Tools {
    /// The tools behind a runner.
    pub fn new(runner: Arc<dyn Runner>, limits: Limits) -> Self {
        Self { runner, limits }
    }

    /// How long they may take.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What apt would do for a wish. Older versions and packages that a person marked to stay are shown, not refused: the
    /// plan decides about them.
    pub async fn simulate(
        &self,
        wanted: &PackageWish,
        removals: bool,
        view: View,
    ) -> Result<Simulation, Failure> {
        let command = self.apt_get(self.limits.look, view).with([
            "--simulate",
            "--verbose-versions",
            "--allow-downgrades",
        ]);
        let command = match &wanted.mode {
            PackageMode::Latest if removals => command.with(["dist-upgrade"]),
            PackageMode::Latest => command.with(["upgrade", "--with-new-pkgs"]),
            PackageMode::Exactly(packages) => {
                let orders = packages.iter().map(|package| match &package.version {
                    Some(version) => format!("{}={version}", package.name),
                    None => package.name.clone(),
                });
                command
                    .with(["--allow-change-held-packages", "install", "--"])
                    .with(orders)
            }
        };
        self.read_simulation(&command).await
    }

    /// What apt would do with the files of a plan.
    pub async fn simulate_files(&self, what: &Transaction<'_>) -> Result<Simulation, Failure> {
        let command = self.install(
            what,
            self.limits.look,
            &["--simulate", "--verbose-versions"],
        );
        self.read_simulation(&command).await
    }

    async fn read_simulation(&self, command: &Command) -> Result<Simulation, Failure> {
        let output = self.run(command, FailureKind::Plan).await?;
        if !output.succeeded() {
            return Err(failure(FailureKind::Plan, "apt-get --simulate", &output));
        }
        parse::simulation(&output.stdout).map_err(|line| unreadable(FailureKind::Plan, line))
    }

    /// The indexes of packages that apt has.
    pub async fn targets(&self, view: View) -> Result<Vec<Target>, Failure> {
        let command = self.apt_get(self.limits.look, view).with([
            "indextargets",
            "--format",
            targets::FORMAT,
            targets::KIND,
        ]);
        let output = self.answer(&command, "apt-get indextargets").await?;
        targets::read(&output).map_err(|line| unreadable(FailureKind::Plan, line))
    }

    /// The bytes that versions will take on the disk, as far as they say so.
    pub async fn sizes(
        &self,
        installs: &[Install],
        view: View,
    ) -> Result<BTreeMap<Exact, u64>, Failure> {
        let mut sizes = BTreeMap::new();
        for some in installs.chunks(MOST_NAMES) {
            let command = Command::new("apt-cache", self.limits.look)
                .with(view.options())
                .with(["show", "--no-all-versions", "--"])
                .with(some.iter().map(Install::order));
            let output = self.run(&command, FailureKind::Plan).await?;
            // It tells what it knows, whatever its status.
            sizes.extend(parse::sizes(&output.stdout));
        }
        Ok(sizes)
    }

    /// Installs the files of a plan, and removes what is in their way, in one transaction. The answer is what apt said;
    /// only the packages' states tell whether it worked.
    pub async fn install_files(&self, what: &Transaction<'_>) -> Result<Output, Failure> {
        let command = self.install(what, self.limits.apply, &[]).that_changes();
        self.run(&command, FailureKind::Apply).await
    }

    fn install(&self, what: &Transaction<'_>, deadline: Duration, options: &[&str]) -> Command {
        let conffiles = CONFFILES.map(|option| format!("DPkg::Options::={option}"));
        let conffiles = conffiles
            .into_iter()
            .flat_map(|option| ["-o".to_owned(), option]);
        let mut command = self
            .apt_get(deadline, View::default())
            .with(NO_SOURCES)
            .with(conffiles)
            .with(options.iter().copied());
        if what.removals.is_empty() {
            command = command.with(["--no-remove"]);
        }
        if what.downgrades {
            command = command.with(["--allow-downgrades"]);
        }
        command
            .with(["--no-install-recommends", "install", "--"])
            .with(what.debs.iter().map(Deb::path))
            .with(what.removals.iter().map(|package| format!("{package}-")))
    }

    /// Packages that are there only because others need them.
    pub async fn automatic(&self) -> Result<BTreeSet<String>, Failure> {
        let command = Command::new("apt-mark", self.limits.look).with(["showauto"]);
        let output = self.answer(&command, "apt-mark showauto").await?;
        Ok(output.lines().map(str::to_owned).collect())
    }

    /// Marks packages so.
    pub async fn mark_automatic(&self, packages: &[String]) -> Result<(), Failure> {
        let command = Command::new("apt-mark", self.limits.look)
            .with(["auto", "--"])
            .with(packages);
        let output = self.run(&command, FailureKind::Apply).await?;
        if output.succeeded() {
            return Ok(());
        }
        Err(failure(FailureKind::Apply, "apt-mark auto", &output))
    }

    pub(super) fn apt_get(&self, deadline: Duration, view: View) -> Command {
        let lock = format!("DPkg::Lock::Timeout={}", self.limits.lock.as_secs());
        Command::new("apt-get", deadline)
            .with(["--quiet", "--yes", "-o", &lock])
            .with(["-o", "Acquire::Retries=3"])
            .with(view.options())
    }

    pub(super) async fn answer(&self, command: &Command, what: &str) -> Result<String, Failure> {
        let output = self.run(command, FailureKind::Plan).await?;
        if output.succeeded() {
            return Ok(output.stdout);
        }
        Err(failure(FailureKind::Plan, what, &output))
    }

    pub(super) async fn run(
        &self,
        command: &Command,
        kind: FailureKind,
    ) -> Result<Output, Failure> {
        self.runner.run(command).await.map_err(|error| {
            let log = match &error {
                RunError::Deadline { said, .. } => parse::words(said),
                _ => String::new(),
            };
            Failure::with_log(kind, evenkeel_kit::chain(&error).to_string(), &log)
        })
    }
}

/// What a tool's failure means.
pub fn failure(kind: FailureKind, what: &str, output: &Output) -> Failure {
    let words = parse::words(&output.words());
    let gist = parse::gist(&words);
    let colon = if gist.is_empty() { "" } else { ": " };
    let reason = format!("{what} {}{colon}{gist}", output.ending());
    let no_space = words.contains("No space left on device")
        || words.contains("You don't have enough free space");
    let kind = if no_space { FailureKind::Storage } else { kind };
    Failure::with_log(kind, reason, &words)
}

/// A file of the agent's own could not be handled.
pub fn storage(error: FileError) -> Failure {
    Failure::new(
        FailureKind::Storage,
        evenkeel_kit::chain(&error).to_string(),
    )
}

pub(super) fn unreadable(kind: FailureKind, line: &str) -> Failure {
    let reason = format!("a line of the package tools makes no sense: {line:?}");
    Failure::new(kind, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_not_the_packages_fault() {
        let output = Output {
            status: Some(100),
            stdout: "dpkg: error processing archive x (--unpack):\n cannot copy: No space left on device\n".into(),
            stderr: String::new(),
        };
        let failure = failure(FailureKind::Apply, "apt-get install", &output);
        assert_eq!(failure.kind, FailureKind::Storage);
        assert_eq!(
            failure.reason,
            "apt-get install ended with status 100: dpkg: error processing archive x (--unpack): cannot copy: No space left on device"
        );
    }
}
