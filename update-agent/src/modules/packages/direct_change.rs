//! Installs and removes packages that a configuration document names: one transaction of apt,
//! without an update policy.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::apt::{PackageTools, storage_failure, tool_failure, unreadable_line};
use super::dpkg_lock::{DpkgLock, DpkgLockError, WaitState, wait_for_lists};
use super::fetch::rate_limit_options;
use super::index_targets::allows_origins;
use super::parse::{self, DpkgPackage, Simulation};
use super::plan::join_names;
use super::protected::{find_protected, removal_refusal};
use super::repair::has_dpkg_updates;
use super::sources::AptView;
use crate::model::{Failure, FailureKind, PackageRequirement};
use crate::owner::{Owner, OwnerLimits};
use crate::paths::AgentPaths;
use crate::runner::Command;

/// Packages to install and to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedPackages {
    /// Whether the package lists are refreshed before.
    pub update_lists: bool,
    pub installs: Vec<PackageRequirement>,
    /// Debian's names.
    pub removals: Vec<String>,
}

/// A package that is not changed, while others are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPackage {
    /// Debian's name.
    pub name: String,
    pub reason: String,
}

/// Changes named packages within the limits of the machine's owner.
pub struct NamedPackageChanger {
    tools: PackageTools,
    paths: AgentPaths,
    owner: Arc<Owner>,
}

impl fmt::Debug for NamedPackageChanger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedPackageChanger").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl NamedPackages {
    fn is_empty(&self) -> bool {
        self.installs.is_empty() && self.removals.is_empty()
    }

    /// The packages as arguments of `apt-get install`.
    fn apt_arguments(&self) -> impl Iterator<Item = String> {
        let installs = self.installs.iter().map(|package| match &package.version {
            Some(version) => format!("{}={version}", package.name),
            None => package.name.clone(),
        });
        installs.chain(self.removals.iter().map(|name| format!("{name}-")))
    }

    /// Each package alone, with its name.
    fn split(&self) -> impl Iterator<Item = (&str, Self)> {
        let installs = self.installs.iter().map(|package| {
            let alone = Self { installs: vec![package.clone()], ..Self::default() };
            (package.name.as_str(), alone)
        });
        let removals = self
            .removals
            .iter()
            .map(|name| (name.as_str(), Self { removals: vec![name.clone()], ..Self::default() }));
        installs.chain(removals)
    }

    /// Removes the packages that are as requested.
    fn remove_finished(&mut self, packages: &[DpkgPackage]) {
        let find = |name: &str| {
            let (name, architecture) = name.split_once(':').unwrap_or((name, ""));
            let is_named = |package: &&DpkgPackage| {
                package.name == name
                    && (architecture.is_empty() || package.architecture == architecture)
                    && package.is_present()
            };
            packages.iter().find(is_named)
        };
        self.installs.retain(|requested| {
            let package = find(&requested.name).filter(|package| package.is_settled());
            let version = requested.version.as_ref();
            package.is_none_or(|package| version.is_some_and(|version| *version != package.version))
        });
        self.removals.retain(|name| find(name).is_some());
    }

    fn remove(&mut self, name: &str) {
        self.installs.retain(|package| package.name != name);
        self.removals.retain(|removal| removal != name);
    }
}

impl NamedPackageChanger {
    pub fn new(tools: PackageTools, paths: AgentPaths, owner: Arc<Owner>) -> Self {
        Self { tools, paths, owner }
    }

    /// Changes the packages in one transaction. It can be repeated after an interruption: a dpkg
    /// that was interrupted is finished first. An installed package stays as it is unless another
    /// version is requested. Returns the packages that are not as requested afterwards.
    ///
    /// # Errors
    /// Nothing has changed.
    pub async fn change(&self, packages: &NamedPackages) -> Result<Vec<RefusedPackage>, Failure> {
        let limits = self.owner.limits();
        let limits =
            limits.map_err(|error| Failure::new(FailureKind::Limits, error.to_string()))?;
        if let Err(error) = self.tools.end_left_over_change().await {
            tracing::warn!(%error, "an earlier change of packages did not end in time");
            self.tools.forget_ended_change();
        }
        self.finish_interrupted_change().await?;
        if packages.update_lists {
            self.update_lists().await?;
        }
        let mut possible = packages.clone();
        possible.remove_finished(&self.tools.list_packages().await?);
        let mut refused = self.remove_impossible(&mut possible, &limits).await?;
        if possible.is_empty() {
            return Ok(refused);
        }
        if let Err(failure) = self.run_transaction(&possible).await {
            // A part may have changed.
            possible.remove_finished(&self.tools.list_packages().await?);
            refused.extend(possible.split().map(|(name, _)| RefusedPackage {
                name: name.to_owned(),
                reason: failure.reason.clone(),
            }));
        }
        Ok(refused)
    }

    /// Removes and returns the packages without which the transaction is possible.
    async fn remove_impossible(
        &self,
        packages: &mut NamedPackages,
        limits: &OwnerLimits,
    ) -> Result<Vec<RefusedPackage>, Failure> {
        let Err(failure) = self.check(packages, limits).await else { return Ok(Vec::new()) };
        let mut refused = Vec::new();
        for (name, alone) in packages.clone().split() {
            if let Err(Failure { reason, .. }) = self.check(&alone, limits).await {
                refused.push(RefusedPackage { name: name.to_owned(), reason });
                packages.remove(name);
            }
        }
        if refused.is_empty() {
            return Err(failure);
        }
        self.check(packages, limits).await?;
        Ok(refused)
    }

    /// Configures the packages that an interrupted dpkg has left half done.
    async fn finish_interrupted_change(&self) -> Result<(), Failure> {
        if self.tools.audit().await?.is_empty() && !has_dpkg_updates(&self.paths)? {
            return Ok(());
        }
        let wait = self.tools.timeouts().lock;
        let _lock = DpkgLock::acquire(&self.paths, wait, &WaitState::default())
            .await
            .map_err(lock_failure)?;
        // The transaction and the next check show whether it has worked.
        self.tools.configure_all().await.map(drop)
    }

    async fn update_lists(&self) -> Result<(), Failure> {
        let timeouts = self.tools.timeouts();
        wait_for_lists(&self.paths, timeouts.lock, &WaitState::default())
            .await
            .map_err(lock_failure)?;
        self.tools.update_lists(timeouts.refresh, AptView::default(), 0, None).await
    }

    /// Simulates a transaction. Fails if apt cannot do it, if it would remove other packages as
    /// well, or if the owner does not allow it.
    async fn check(&self, packages: &NamedPackages, limits: &OwnerLimits) -> Result<(), Failure> {
        if packages.is_empty() {
            return Ok(());
        }
        let options = ["--simulate", "--verbose-versions"];
        let command = self.command(packages, &options);
        let output = self.tools.run(&command, FailureKind::Plan).await?;
        if !output.succeeded() {
            return Err(tool_failure(FailureKind::Plan, "apt-get --simulate", &output));
        }
        let simulation = parse::parse_simulation(&output.stdout)
            .map_err(|line| unreadable_line(FailureKind::Plan, line))?;
        let others = other_removals(packages, &simulation);
        if !others.is_empty() {
            let reason = format!("apt would also remove {}", join_names(others));
            return Err(Failure::new(FailureKind::Plan, reason));
        }
        let refusal = match find_refusal(&simulation, limits) {
            None => self.find_refused_package(&simulation, limits).await?,
            refusal => refusal,
        };
        let Some(reason) = refusal else { return Ok(()) };
        let reason = format!("the machine's owner does not allow {reason}");
        Err(Failure::new(FailureKind::Limits, reason))
    }

    /// What the owner does not allow because of single packages: protected ones, and versions from
    /// other suites.
    async fn find_refused_package(
        &self,
        simulation: &Simulation,
        limits: &OwnerLimits,
    ) -> Result<Option<String>, Failure> {
        if !simulation.removals.is_empty() {
            let installed = self.tools.list_packages().await?;
            let protected = find_protected(&self.paths, &installed);
            let mut removals = simulation.removals.iter();
            let refusal = removals.find_map(|name| removal_refusal(name, limits, &protected));
            if let Some(reason) = refusal {
                return Ok(Some(format!("the removal of {reason}")));
            }
        }
        if limits.suites.is_empty() {
            return Ok(None);
        }
        let targets = self.tools.list_index_targets(AptView::default()).await?;
        let mut installs = simulation.installs.iter();
        let other =
            installs.find(|install| !allows_origins(&install.origins, &targets, &limits.suites));
        Ok(other.map(|install| {
            format!("{} {}, which is in none of the allowed suites", install.package, install.after)
        }))
    }

    async fn run_transaction(&self, packages: &NamedPackages) -> Result<(), Failure> {
        let command = self.command(packages, &[]).for_change();
        let output = match self.tools.run(&command, FailureKind::Apply).await {
            Err(failure) => {
                // It is not the end of an update, whose result a later process of the agent needs.
                self.tools.forget_ended_change();
                return Err(failure);
            }
            Ok(output) => output,
        };
        if output.succeeded() {
            return Ok(());
        }
        Err(tool_failure(FailureKind::Apply, "apt-get install", &output))
    }

    fn command(&self, packages: &NamedPackages, options: &[&str]) -> Command {
        let timeouts = self.tools.timeouts();
        self.tools
            .apt_get(timeouts.download + timeouts.apply, AptView::default())
            .with_arguments(rate_limit_options(self.tools.effective_rate(0)))
            .with_arguments(PackageTools::conffile_options())
            .with_arguments(options.iter().copied())
            .with_arguments(["--allow-downgrades", "--allow-change-held-packages"])
            .with_arguments(["install", "--"])
            .with_arguments(packages.apt_arguments())
    }
}

/// The removals that are not requested.
fn other_removals(packages: &NamedPackages, simulation: &Simulation) -> BTreeSet<String> {
    let requested: BTreeSet<&str> = packages.removals.iter().map(|name| base_name(name)).collect();
    let removals = simulation.removals.iter();
    removals.filter(|name| !requested.contains(base_name(name))).cloned().collect()
}

/// The name without the architecture.
fn base_name(name: &str) -> &str {
    name.split(':').next().unwrap_or_default()
}

/// What the owner does not allow at all.
fn find_refusal(simulation: &Simulation, limits: &OwnerLimits) -> Option<String> {
    if let Some(name) = simulation.removals.first().filter(|_| !limits.removals) {
        return Some(format!("removals, such as that of {name}"));
    }
    if let Some(name) = simulation.downgrades.first().filter(|_| !limits.downgrades) {
        return Some(format!("downgrades, such as that of {name}"));
    }
    let mut installs = simulation.installs.iter();
    let added = installs.find(|install| install.before.is_none())?;
    (!limits.new_packages).then(|| format!("new packages, such as {}", added.package))
}

fn lock_failure(error: DpkgLockError) -> Failure {
    match error {
        DpkgLockError::File(error) => storage_failure(error),
        timeout @ DpkgLockError::Timeout { .. } => {
            Failure::new(FailureKind::Apply, timeout.to_string()).into_temporary()
        }
    }
}

#[cfg(test)]
mod tests;
