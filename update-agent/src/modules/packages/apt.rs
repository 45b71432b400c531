//! The command lines of apt and dpkg, and what their answers mean.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::files::{ARCHIVES, Deb};
use super::parse::{self, Known, Simulation};
use super::sources;
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
const CONFFILES: [&str; 2] = ["--force-confdef", "--force-confold"];

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

    /// Makes the lists of packages current. A warning is an error here: apt itself keeps old lists and calls it success.
    pub async fn update(&self, own_sources: bool) -> Result<(), Failure> {
        let command = self
            .apt_get(self.limits.refresh, own_sources)
            .with(["update", "--error-on=any"]);
        let output = self.run(&command, FailureKind::Refresh).await?;
        if output.succeeded() {
            return Ok(());
        }
        let words = output.words();
        let kind = if speaks_of_signatures(&words) {
            FailureKind::Signature
        } else {
            FailureKind::Refresh
        };
        Err(failure(kind, "apt-get update", &output))
    }

    /// What apt would do for a wish.
    pub async fn simulate(&self, wanted: &PackageWish) -> Result<Simulation, Failure> {
        let command = self
            .apt_get(self.limits.look, !wanted.sources.is_empty())
            .with(["--simulate", "--verbose-versions"]);
        let command = match &wanted.mode {
            PackageMode::Latest => command.with(["upgrade", "--with-new-pkgs"]),
            PackageMode::Exactly(packages) => {
                let orders = packages.iter().map(|package| match &package.version {
                    Some(version) => format!("{}={version}", package.name),
                    None => package.name.clone(),
                });
                command.with(["install", "--"]).with(orders)
            }
        };
        self.read_simulation(&command).await
    }

    /// What apt would do with the files of a plan.
    pub async fn simulate_files(&self, debs: &[Deb]) -> Result<Simulation, Failure> {
        let command = self.install(debs, self.limits.look, &["--simulate"]);
        self.read_simulation(&command).await
    }

    async fn read_simulation(&self, command: &Command) -> Result<Simulation, Failure> {
        let output = self.run(command, FailureKind::Plan).await?;
        if !output.succeeded() {
            return Err(failure(FailureKind::Plan, "apt-get --simulate", &output));
        }
        parse::simulation(&output.stdout).map_err(|line| unreadable(FailureKind::Plan, line))
    }

    /// The files that orders (`NAME=VERSION`) mean, in the same order.
    pub async fn files(&self, orders: &[String], own_sources: bool) -> Result<Vec<Deb>, Failure> {
        if orders.is_empty() {
            return Ok(Vec::new());
        }
        let command = self
            .apt_get(self.limits.look, own_sources)
            // The folder is empty, so no file is left out because it is there already.
            .with(["-o".to_owned(), format!("Dir::Cache::archives={ARCHIVES}")])
            .with(["--print-uris", "download", "--"])
            .with(orders);
        let output = self.run(&command, FailureKind::Download).await?;
        if !output.succeeded() {
            return Err(failure(FailureKind::Download, "apt-get download", &output));
        }
        let fetches =
            parse::uris(&output.stdout).map_err(|line| unreadable(FailureKind::Download, line))?;
        if fetches.len() != orders.len() {
            let reason = format!(
                "apt names {} files for {} packages",
                fetches.len(),
                orders.len()
            );
            return Err(Failure::new(FailureKind::Download, reason));
        }
        let deb = |(fetch, order): (parse::Fetch, &String)| Deb {
            name: fetch.name,
            size: fetch.size,
            digest: fetch.digest,
            order: order.clone(),
        };
        Ok(fetches.into_iter().zip(orders).map(deb).collect())
    }

    /// Fetches files into the agent's folder.
    pub async fn download(&self, debs: &[&Deb], own_sources: bool) -> Result<(), Failure> {
        let apt = self.apt_get(self.limits.download, own_sources);
        let command = Command::new("env", apt.deadline)
            .with([format!("--chdir={ARCHIVES}"), apt.program])
            .with(apt.arguments)
            .with(["download", "--"])
            .with(debs.iter().map(|deb| deb.order.clone()));
        let output = self.run(&command, FailureKind::Download).await?;
        if output.succeeded() {
            return Ok(());
        }
        Err(failure(FailureKind::Download, "apt-get download", &output))
    }

    /// Installs the files of a plan in one transaction. The answer is what apt said; only the packages' states tell
    /// whether it worked.
    pub async fn install_files(&self, debs: &[Deb]) -> Result<Output, Failure> {
        let command = self.install(debs, self.limits.apply, &[]).that_changes();
        self.run(&command, FailureKind::Apply).await
    }

    fn install(&self, debs: &[Deb], deadline: Duration, options: &[&str]) -> Command {
        let conffiles = CONFFILES.map(|option| format!("DPkg::Options::={option}"));
        let conffiles = conffiles
            .into_iter()
            .flat_map(|option| ["-o".to_owned(), option]);
        self.apt_get(deadline, false)
            .with(NO_SOURCES)
            .with(conffiles)
            .with(options.iter().copied())
            .with(["--no-remove", "--no-install-recommends", "install", "--"])
            .with(debs.iter().map(Deb::path))
    }

    /// Unpacks and configures files without apt. Only with dpkg's front-end lock held.
    pub async fn unpack_files(&self, debs: &[Deb]) -> Result<Output, Failure> {
        let command = self.dpkg_that_changes().with(["--install", "--"]);
        self.run(
            &command.with(debs.iter().map(Deb::path)),
            FailureKind::Apply,
        )
        .await
    }

    /// Configures whatever can be. Only with dpkg's front-end lock held.
    pub async fn configure(&self) -> Result<Output, Failure> {
        let command = self.dpkg_that_changes().with(["--configure", "-a"]);
        self.run(&command, FailureKind::Apply).await
    }

    fn dpkg_that_changes(&self) -> Command {
        Command::new("dpkg", self.limits.apply)
            .with(CONFFILES)
            .variable("DPKG_FRONTEND_LOCKED", "1")
            .that_changes()
    }

    /// Every package that dpkg knows.
    pub async fn list(&self) -> Result<Vec<Known>, Failure> {
        let format = format!("--showformat={}", parse::LISTING);
        let command = Command::new("dpkg-query", self.limits.look).with(["--show", &format]);
        let output = self.answer(&command, "dpkg-query").await?;
        parse::listing(&output).map_err(|line| unreadable(FailureKind::Verify, line))
    }

    /// What is wrong with dpkg's database, in its own words; empty if nothing is. The status says nothing.
    pub async fn audit(&self) -> Result<String, Failure> {
        let command = Command::new("dpkg", self.limits.look).with(["--audit"]);
        let output = self.run(&command, FailureKind::Verify).await?;
        Ok(output.words().trim().to_owned())
    }

    /// The architecture of dpkg itself.
    pub async fn architecture(&self) -> Result<String, Failure> {
        let command = Command::new("dpkg", self.limits.look).with(["--print-architecture"]);
        let output = self.answer(&command, "dpkg --print-architecture").await?;
        Ok(output.trim().to_owned())
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

    fn apt_get(&self, deadline: Duration, own_sources: bool) -> Command {
        let lock = format!("DPkg::Lock::Timeout={}", self.limits.lock.as_secs());
        let command = Command::new("apt-get", deadline)
            .with(["--quiet", "--yes", "-o", &lock])
            .with(["-o", "Acquire::Retries=3"]);
        if own_sources {
            command.with(sources::options())
        } else {
            command
        }
    }

    async fn answer(&self, command: &Command, what: &str) -> Result<String, Failure> {
        let output = self.run(command, FailureKind::Plan).await?;
        if output.succeeded() {
            return Ok(output.stdout);
        }
        Err(failure(FailureKind::Plan, what, &output))
    }

    async fn run(&self, command: &Command, kind: FailureKind) -> Result<Output, Failure> {
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

fn unreadable(kind: FailureKind, line: &str) -> Failure {
    let reason = format!("a line of the package tools makes no sense: {line:?}");
    Failure::new(kind, reason)
}

/// Whether apt complains about a signature: forged, expired, by an unknown key, or missing.
fn speaks_of_signatures(words: &str) -> bool {
    [
        "NO_PUBKEY",
        "BADSIG",
        "EXPKEYSIG",
        "REVKEYSIG",
        "NODATA",
        "is not signed",
        "signatures were invalid",
        "signatures couldn't be verified",
        "Clearsigned file isn't valid",
    ]
    .iter()
    .any(|sign| words.contains(sign))
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

    #[test]
    fn a_forged_list_is_told_from_one_that_is_gone() {
        assert!(speaks_of_signatures(
            "W: GPG error: file:/srv/repo stable InRelease: The following signatures were invalid: BADSIG 1"
        ));
        assert!(!speaks_of_signatures(
            "E: The repository 'file:/srv/repo stable Release' does not have a Release file."
        ));
    }
}
