//! Installs and removes packages that a configuration document names: one transaction of apt,
//! without an update policy.

mod lists;
mod selection;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_kit::Clock;

use super::apt::{PackageTools, storage_failure, tool_failure};
use super::dpkg_lock::{DpkgLock, DpkgLockError, WaitState, wait_for_lists};
use super::fetch::rate_limit_options;
use super::parse::DpkgPackage;
use super::plan::strip_native_architecture;
use super::repair::has_dpkg_updates;
use super::sources::AptView;
use super::{apt_hooks, apt_log};
use crate::model::{Failure, FailureKind, PackageRequirement};
use crate::owner::{Owner, OwnerLimits};
use crate::paths::AgentPaths;
use crate::runner::Command;

use lists::has_current_lists;
use selection::RequestChecker;

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
    clock: Arc<dyn Clock>,
    max_list_age: Duration,
    /// Whether this process has refreshed the package lists.
    has_refreshed: AtomicBool,
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

    /// The names of the packages.
    fn names(&self) -> impl Iterator<Item = &str> {
        let installs = self.installs.iter().map(|package| package.name.as_str());
        installs.chain(self.removals.iter().map(String::as_str))
    }

    /// Each package alone.
    fn split(&self) -> Vec<Self> {
        let installs = self
            .installs
            .iter()
            .map(|package| Self { installs: vec![package.clone()], ..Self::default() });
        let removals = self
            .removals
            .iter()
            .map(|name| Self { removals: vec![name.clone()], ..Self::default() });
        installs.chain(removals).collect()
    }

    fn join(&self, others: &[Self]) -> Self {
        let mut all = self.clone();
        for other in others {
            all.installs.extend_from_slice(&other.installs);
            all.removals.extend_from_slice(&other.removals);
        }
        all
    }

    /// Removes the packages that are as requested. A name without an architecture means the one
    /// that apt takes: the native one.
    fn remove_finished(&mut self, packages: &[DpkgPackage], native: &str) {
        let find = |name: &str| {
            let name = strip_native_architecture(name, native);
            let mut present = packages.iter().filter(|package| package.is_present());
            present.find(|package| package.apt_name(native) == name)
        };
        self.installs.retain(|requested| {
            let package = find(&requested.name).filter(|package| package.is_settled());
            let version = requested.version.as_ref();
            package.is_none_or(|package| version.is_some_and(|version| *version != package.version))
        });
        self.removals.retain(|name| find(name).is_some());
    }
}

impl NamedPackageChanger {
    /// `max_list_age`: older package lists are refreshed before a change.
    pub fn new(
        tools: PackageTools,
        paths: AgentPaths,
        owner: Arc<Owner>,
        (clock, max_list_age): (Arc<dyn Clock>, Duration),
    ) -> Self {
        let has_refreshed = AtomicBool::new(false);
        Self { tools, paths, owner, clock, max_list_age, has_refreshed }
    }

    /// Changes the packages in one transaction. It can be repeated after an interruption: a dpkg
    /// that was interrupted is finished first. An installed package stays as it is unless another
    /// version is requested. Returns the packages that are not as requested afterwards.
    ///
    /// The package lists are refreshed before if they are old or missing, and once more if a package
    /// fails with lists that were not refreshed. A refresh that fails is part of the reasons: other
    /// sources may have what is requested.
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
        let mut unfinished = self.unfinished(packages).await?;
        let is_old = || !has_current_lists(&self.paths, self.clock.now(), self.max_list_age);
        let mut refresh = Ok(());
        if packages.update_lists || (!unfinished.is_empty() && !self.is_refreshed() && is_old()) {
            refresh = self.update_lists().await;
        }
        if unfinished.is_empty() {
            return refresh.map(|()| Vec::new());
        }
        let mut changed = self.change_possible(unfinished, &limits).await;
        let has_failed = !matches!(&changed, Ok(refused) if refused.is_empty());
        if has_failed && !self.is_refreshed() {
            refresh = self.update_lists().await;
            unfinished = self.unfinished(packages).await?;
            changed = self.change_possible(unfinished, &limits).await;
        }
        explain_refusals(changed, refresh)
    }

    fn is_refreshed(&self) -> bool {
        self.has_refreshed.load(Ordering::Relaxed)
    }

    async fn unfinished(&self, packages: &NamedPackages) -> Result<NamedPackages, Failure> {
        let native = self.tools.architecture().await?;
        let mut unfinished = packages.clone();
        unfinished.remove_finished(&self.tools.list_packages().await?, &native);
        Ok(unfinished)
    }

    /// Changes the packages that can be changed, and returns the others.
    async fn change_possible(
        &self,
        packages: NamedPackages,
        limits: &OwnerLimits,
    ) -> Result<Vec<RefusedPackage>, Failure> {
        if packages.is_empty() {
            return Ok(Vec::new());
        }
        let checker = RequestChecker::load(&self.tools, &self.paths, limits).await?;
        let (possible, mut refused) = checker.select_possible(packages).await?;
        if !possible.is_empty()
            && let Err(failure) = self.run_transaction(&possible).await
        {
            // A part may have changed.
            let left = self.unfinished(&possible).await?;
            refused.extend(left.names().map(|name| RefusedPackage {
                name: name.to_owned(),
                reason: failure.reason.clone(),
            }));
        }
        Ok(refused)
    }

    /// Configures the packages that an interrupted dpkg has left half done.
    async fn finish_interrupted_change(&self) -> Result<(), Failure> {
        if self.tools.audit().await?.is_empty() && !has_dpkg_updates(&self.paths)? {
            return Ok(());
        }
        // The transaction and the next check show whether it has worked.
        self.configure_remaining().await
    }

    async fn configure_remaining(&self) -> Result<(), Failure> {
        let wait = self.tools.timeouts().lock;
        let _lock = DpkgLock::acquire(&self.paths, wait, &WaitState::default())
            .await
            .map_err(lock_failure)?;
        self.tools.configure_all().await.map(drop)
    }

    /// Refreshes the package lists. apt refreshes the lists of the other sources if one fails.
    async fn update_lists(&self) -> Result<(), Failure> {
        self.has_refreshed.store(true, Ordering::Relaxed);
        let timeouts = self.tools.timeouts();
        wait_for_lists(&self.paths, timeouts.lock, &WaitState::default())
            .await
            .map_err(lock_failure)?;
        self.tools.update_lists(timeouts.refresh, AptView::default(), 0, None).await
    }

    /// Changes the packages as an update does: with limits for the hooks of apt, and with its output
    /// in the log of apt. After a failure, what is left unpacked is configured.
    async fn run_transaction(&self, packages: &NamedPackages) -> Result<(), Failure> {
        let hooks = self.tools.list_hooks().await;
        let settings = hooks.write(&self.paths).unwrap_or_else(|error| {
            let error = evenkeel_kit::chain(&error);
            tracing::warn!(%error, "cannot limit the time of the hooks of apt");
            None
        });
        let timeouts = self.tools.timeouts();
        let command = install_command(&self.tools, timeouts.download + timeouts.apply)
            .with_arguments(settings.map(|file| format!("--config-file={file}")))
            // The lists may have changed since the simulation.
            .with_arguments(packages.removals.is_empty().then_some("--no-remove"))
            .with_arguments(["install", "--"])
            .with_arguments(packages.apt_arguments())
            .for_change();
        let mut result = self.tools.run(&command, FailureKind::Apply).await;
        let text = match &mut result {
            Ok(output) => &mut output.stdout,
            Err(failure) => &mut failure.log,
        };
        *text = hooks.restore_commands(text);
        apt_log::append(&self.paths, text);
        let ended_hooks = apt_hooks::describe_ended(text);
        let failure = match (result, ended_hooks) {
            (Ok(output), None) if output.succeeded() => return Ok(()),
            (_, Some(reason)) => Failure::new(FailureKind::Apply, reason),
            (Ok(output), None) => tool_failure(FailureKind::Apply, "apt-get install", &output),
            (Err(failure), None) => {
                // It is not the end of an update, whose result a later process of the agent needs.
                self.tools.forget_ended_change();
                failure
            }
        };
        if let Err(error) = self.configure_remaining().await {
            tracing::warn!(error = %error.reason, "cannot configure the packages that are left");
        }
        Err(failure)
    }
}

/// `apt-get` with the options for a change of named packages.
fn install_command(tools: &PackageTools, deadline: Duration) -> Command {
    tools
        .apt_get(deadline, AptView::default())
        .with_arguments(rate_limit_options(tools.effective_rate(0)))
        .with_arguments(PackageTools::conffile_options())
        .with_arguments(["--allow-downgrades"])
}

/// Adds to the reasons that the package lists may be old.
fn explain_refusals(
    changed: Result<Vec<RefusedPackage>, Failure>,
    refresh: Result<(), Failure>,
) -> Result<Vec<RefusedPackage>, Failure> {
    let Err(refresh) = refresh else { return changed };
    let explain = |reason: &str| {
        format!("{reason}; the package lists could not be refreshed: {}", refresh.reason)
    };
    match changed {
        Ok(mut refused) => {
            for package in &mut refused {
                package.reason = explain(&package.reason);
            }
            Ok(refused)
        }
        Err(failure) => Err(Failure { reason: explain(&failure.reason), ..failure }),
    }
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
