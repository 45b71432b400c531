//! Updates of packages on a Debian system, with apt and dpkg.
//!
//! The files of the whole plan are fetched into a folder of the agent, checked and flushed before anything changes, and
//! installed from there without any source. They are retained until the new state is verified, so that the update can be
//! finished after a power cut. Exit statuses prove nothing here; the state of each package and dpkg's audit decide.

mod advice;
mod apt;
mod apt_cache;
mod apt_hooks;
mod apt_log;
mod audit;
mod baseline;
mod boot_loader;
mod boot_space;
mod broken_sources;
mod command;
#[cfg(test)]
mod derivatives_tests;
mod direct_change;
mod doctor;
mod dpkg;
mod dpkg_lock;
#[cfg(test)]
mod dpkg_samples;
mod fetch;
mod files;
#[cfg(test)]
mod fuzz;
mod held_back;
mod independent_groups;
mod index_targets;
mod install;
mod limits;
mod marks;
mod names;
mod needrestart;
mod observe;
mod parse;
mod plan;
mod plan_check;
mod protected;
mod providers;
mod refresh;
mod refusals;
mod repair;
mod report;
mod rules;
mod services;
mod sources;
mod space;
mod staging;
mod unused;
mod verify;
mod version_sources;
mod wire;

use std::future::ready;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use chrono::{DateTime, Utc};
use evenkeel_proto::agent as pb;

use self::apt::{AptTransaction, storage_failure, tool_failure};
use self::dpkg_lock::{DpkgLock, DpkgLockError, WaitState};
use self::files::Archives;
use self::refresh::LastRefresh;
use crate::cli::AgentCommand;
use crate::commands::doctor::DoctorFinding;
use crate::model::{Failure, FailureKind, PackageMode, PackageSpec};
use crate::module_registry::ModuleRegistry;
use crate::modules::{
    DownloadRetention, Draft, FetchProgress, Module, Readiness, RebootNeed, ReportText, TryKind,
    Verdict,
};
use crate::owner::Owner;
use crate::paths::AgentPaths;

pub use self::apt::{AllowedChanges, PackageToolTimeouts, PackageTools};
pub use self::apt_hooks::DEFAULT_HOOK_TIMEOUT;
pub use self::baseline::{PackageBaseline, RebootRequests};
pub use self::command::{PackagePlan, parse_packages, plan_packages, policy_spec};
pub use self::direct_change::{NamedPackageChanger, NamedPackages, RefusedPackage};
pub use self::files::{Deb, Digest, hex};
pub use self::held_back::{SimulationSet, find_held_back};
pub use self::index_targets::{
    IndexTarget, allows_origins, origin_labels, origin_suites, parse_targets,
};
pub use self::parse::{DpkgPackage, ExactVersion, HeldBackUpgrade, PlannedInstall, Simulation};
pub use self::plan::{
    InstalledPackages, PackageObservation, PackageStep, StepItem, index_by_apt_name,
};
pub use self::report::PackageReport;
pub(crate) use self::rules::matches_pattern;
pub use self::sources::{AptView, PreferenceScope, SourceScope, has_preferences};
pub use self::version_sources::suites_and_labels;
pub(crate) use self::wire::held_back_message;

/// The module for updates of packages.
#[derive(Debug)]
pub struct PackagesModule {
    tools: PackageTools,
    paths: AgentPaths,
    archives: Archives,
    owner: Arc<Owner>,
    services: bool,
    /// Download limit of the last planned policy in bytes per second; 0 for none. It also applies to
    /// the lists that are refreshed without an update.
    policy_rate: AtomicU64,
    wait_state: WaitState,
    lists_refreshed: LastRefresh,
}

impl PackagesModule {
    /// Creates the module. `services` says whether the running services belong to the managed root.
    pub fn new(tools: PackageTools, paths: AgentPaths, owner: Arc<Owner>, services: bool) -> Self {
        let archives = Archives::new(&paths);
        Self {
            tools,
            paths,
            archives,
            owner,
            services,
            policy_rate: AtomicU64::new(0),
            wait_state: WaitState::default(),
            lists_refreshed: LastRefresh::default(),
        }
    }

    /// Removes the files of ended attempts.
    fn remove_files(&self) -> Result<(), Failure> {
        if self.archives.other_user().is_some() {
            return Ok(());
        }
        // A dpkg that is still running may need the files; they are removed the next time.
        let is_used = self.archives.exists() || apt_hooks::exists(&self.paths);
        if is_used && DpkgLock::is_held(&self.paths).map_err(storage_failure)? {
            let reason = "the downloaded files are retained, because dpkg is still running";
            return Err(Failure::new(FailureKind::Apply, reason));
        }
        apt_hooks::remove(&self.paths).map_err(storage_failure)?;
        if !self.archives.is_retained() {
            self.archives.remove_all().map_err(storage_failure)?;
        }
        sources::remove_folders(&self.paths).map_err(storage_failure)
    }

    /// Waits for dpkg's lock as long as the settings allow. Before that, waits for a change of an earlier process of the agent,
    /// also if the journal of its attempt was lost.
    async fn wait_for_dpkg(&self) -> Result<DpkgLock, DpkgLockError> {
        // Whether it ended in time matters when its step is taken again.
        self.end_left_over_change().await.ok();
        DpkgLock::acquire(&self.paths, self.tools.timeouts().lock, &self.wait_state).await
    }

    async fn lock_dpkg(&self, wait: Duration) -> Result<DpkgLock, Failure> {
        let lock = DpkgLock::acquire(&self.paths, wait, &self.wait_state).await;
        lock.map_err(|error| match error {
            DpkgLockError::File(error) => storage_failure(error),
            timeout @ DpkgLockError::Timeout { .. } => {
                Failure::new(FailureKind::Apply, timeout.to_string())
            }
        })
    }

    /// The removals of a step that are still to be done. apt does not know every package that is already removed.
    async fn remaining_removals(&self, step: &PackageStep) -> Result<Vec<String>, Failure> {
        let mut removals: Vec<_> = step
            .items()
            .filter(|item| item.change.after.is_none())
            .map(|item| item.package.clone())
            .collect();
        if !removals.is_empty() {
            let installed = self.list_installed().await?;
            let is_there = |package: &String| {
                let dpkg_package = installed.get(package);
                dpkg_package.is_some_and(DpkgPackage::is_present)
            };
            removals.retain(is_there);
        }
        Ok(removals)
    }

    async fn configure_packages(&self) -> Result<(), Failure> {
        let start = apt_log::log_length(&self.paths);
        let _lock = self.lock_dpkg(self.tools.timeouts().lock).await?;
        let output = self.tools.configure_all().await?;
        if output.succeeded() {
            return Ok(());
        }
        let failed = tool_failure(FailureKind::Apply, "dpkg --configure", &output);
        Err(apt_log::add_log(failed, &apt_log::read_since(&self.paths, start)))
    }
}

/// The apt transaction of a step, with its remaining removals.
fn apt_transaction<'a>(step: &'a PackageStep, left: &'a [String]) -> AptTransaction<'a> {
    AptTransaction {
        debs: step.debs(),
        removals: left.iter().map(String::as_str).collect(),
        allow_downgrades: matches!(step, PackageStep::Install { downgrades, .. } if *downgrades),
    }
}

/// Retries for failures that may pass within seconds: a network problem, or lists that another apt has locked.
fn retry_backoff() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_secs(1))
        .with_max_delay(Duration::from_secs(10))
        .with_jitter()
        .with_max_times(2)
}

fn is_transient(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Refresh | FailureKind::Download)
}

impl Module for PackagesModule {
    const NAME: &'static str = "packages";
    const STEP_NAMES: &'static [&'static str] = PackageStep::NAMES;
    const WRITTEN_PATHS: &'static [&'static str] = &["/", "/usr", "/var", "/boot"];
    type Spec = PackageSpec;
    type Observation = PackageObservation;
    type Step = PackageStep;
    type Baseline = PackageBaseline;
    type Report = PackageReport;

    fn build(registry: &ModuleRegistry<'_>) -> Result<Option<Self>, Failure> {
        Ok(registry.has_packages().then(|| {
            let owner = Arc::clone(&registry.owner);
            let (tools, paths) = (registry.package_tools(), registry.paths.clone());
            Self::new(tools, paths, owner, registry.has_systemd())
        }))
    }

    fn parse_spec(message: &pb::target::Spec) -> Option<PackageSpec> {
        match message {
            pb::target::Spec::Packages(packages) => wire::parse_packages(packages.clone()),
            _ => None,
        }
    }

    fn check_allowed(&self, spec: &PackageSpec) -> Result<(), Failure> {
        self.owner.check_spec(spec)
    }

    async fn refresh(&self) -> Result<(), Failure> {
        let mut spec = latest_spec();
        spec.rules.download_bytes_per_second = self.policy_rate.load(Ordering::Relaxed);
        self.refresh_for_facts(&spec).await?;
        self.lists_refreshed.set();
        Ok(())
    }

    async fn observe(&self, spec: &PackageSpec) -> Result<PackageObservation, Failure> {
        names::validate(spec)?;
        self.policy_rate.store(spec.rules.download_bytes_per_second, Ordering::Relaxed);
        if let Some(state) = self.archives.other_user() {
            let state = state.display();
            let reason =
                format!("an update of the agent with the state directory {state} is in progress");
            return Err(Failure::new(FailureKind::Plan, reason));
        }
        let limits = self.owner_limits()?;
        let broken = match self.refresh_for(spec, &limits, self.lists_refreshed.take_recent()).await
        {
            Ok(()) => None,
            Err(failure) => self.exclude_broken_sources(spec, &limits, failure).await?,
        };
        let limits = self.owner_limits()?;
        self.observe_update(spec, limits, broken).await
    }

    fn plan(
        spec: &PackageSpec,
        observed: &PackageObservation,
    ) -> Result<Draft<PackageStep, PackageReport>, Failure> {
        let mut draft = plan::plan(spec, observed)?;
        draft.remarks.extend(observed.broken_sources.as_ref().map(broken_sources::remark));
        Ok(draft)
    }

    fn step_name(step: &PackageStep) -> &'static str {
        step.name()
    }

    async fn prepare(&self, step: &PackageStep) -> Result<FetchProgress, Failure> {
        let PackageStep::Install { debs, own_sources, bytes_per_second: pace, .. } = step else {
            return Ok(FetchProgress::Complete);
        };
        let view = AptView::from_sources(if *own_sources {
            SourceScope::Allowed
        } else {
            SourceScope::System
        });
        self.archives.create().map_err(storage_failure)?;
        (|| self.fetch_missing(debs, view, *pace))
            .retry(retry_backoff())
            .sleep(tokio::time::sleep)
            .when(is_transient)
            .await?;
        self.archives.flush(debs).map_err(storage_failure)?;
        Ok(FetchProgress::Complete)
    }

    async fn check(&self, steps: &[PackageStep]) -> Result<Readiness, Failure> {
        match self.wait_for_dpkg().await {
            Ok(_) => {}
            Err(timeout @ DpkgLockError::Timeout { .. }) => {
                return Ok(Readiness::NotYet(timeout.to_string()));
            }
            Err(DpkgLockError::File(error)) => return Err(storage_failure(error)),
        }
        // The limits may have changed since the plan was made. The removal of unused packages is checked when it is due, so
        // that it cannot delay the update.
        let is_needed = |step: &&PackageStep| !matches!(step, PackageStep::Remove { .. });
        let needed: Vec<_> = steps.iter().filter(is_needed).cloned().collect();
        if let Some(why) = self.limits_refusal(&needed).await? {
            return Ok(Readiness::NotYet(why));
        }
        self.check_unchanged(steps).await?;
        for step in steps {
            if matches!(step, PackageStep::Install { .. }) {
                self.check_simulation(step).await?;
            }
        }
        Ok(Readiness::Ready)
    }

    async fn take_baseline(&self, steps: &[PackageStep]) -> Result<PackageBaseline, Failure> {
        // It may be of an earlier attempt if the agent was killed at the end of that one.
        self.tools.forget_ended_change();
        self.observe_baseline(steps).await
    }

    fn current_wait(&self) -> Option<String> {
        self.wait_state.reason()
    }

    async fn find_concurrent_change(&self, trying: TryKind) -> Result<Option<String>, Failure> {
        let lock = match trying {
            TryKind::First => dpkg_lock::find_held_lock(&self.paths).map_err(storage_failure)?,
            TryKind::Again => match self.wait_for_dpkg().await {
                Ok(_) => None,
                Err(DpkgLockError::Timeout { lock, .. }) => Some(lock),
                Err(DpkgLockError::File(error)) => return Err(storage_failure(error)),
            },
        };
        Ok(lock.map(|lock| format!("another program holds {lock}")))
    }

    async fn apply(
        &self,
        step: &PackageStep,
        trying: TryKind,
        _start_deadline: Option<DateTime<Utc>>,
    ) -> Result<(), Failure> {
        let result = self.take_step(step, trying).await;
        if let (Err(_), PackageStep::Install { automatic, .. }) = (&result, step) {
            self.restore_marks(automatic).await;
        }
        result
    }

    async fn verify(
        &self,
        steps: &[PackageStep],
        baseline: &PackageBaseline,
        report: &mut PackageReport,
    ) -> Result<Verdict, Failure> {
        self.verify_packages(steps, baseline, report).await
    }

    fn find_reboot_need(
        &self,
        _steps: &[PackageStep],
        baseline: &PackageBaseline,
    ) -> impl Future<Output = Result<RebootNeed, Failure>> + Send {
        let reasons = baseline::reboot_reasons_since(&self.paths, &baseline.reboot_requests);
        let reasons = (!reasons.is_empty()).then_some(reasons);
        ready(Ok(RebootNeed { reasons, is_the_change: false }))
    }

    async fn post_apply(
        &self,
        steps: &[PackageStep],
        _baseline: &PackageBaseline,
        report: &mut PackageReport,
    ) -> Result<Vec<String>, Failure> {
        Ok(self.restart_stale_services(steps, report).await)
    }

    async fn post_failure(
        &self,
        steps: &[PackageStep],
        _baseline: &PackageBaseline,
        report: &mut PackageReport,
    ) -> Result<Vec<String>, Failure> {
        self.restart_after_failure(steps, report).await
    }

    async fn repair_unknown_change(&self) -> Result<(), Failure> {
        tracing::warn!(
            "an update stopped at an unknown point; letting dpkg configure all packages"
        );
        self.configure_packages().await
    }

    async fn is_untouched(&self, steps: &[PackageStep]) -> Result<bool, Failure> {
        if DpkgLock::is_held(&self.paths).map_err(storage_failure)?
            || repair::has_dpkg_updates(&self.paths)?
            || !self.is_consistent(steps).await?
        {
            return Ok(false);
        }
        let installed = self.list_installed().await?;
        let as_before = |item: &StepItem| {
            let package = installed.get(&item.package).filter(|package| package.is_present());
            let state = package.is_none_or(|package| package.state == "installed");
            state && package.map(|package| &package.version) == item.change.before.as_ref()
        };
        Ok(steps.iter().flat_map(PackageStep::items).all(as_before))
    }

    // There is no `undo`: older versions are rarely still available, and maintainer scripts do not
    // support the way back. But if a script failed before anything was unpacked, there is nothing
    // to undo.

    /// Removes all files: they are quickly fetched again.
    fn clean_up(
        &self,
        _keep: DownloadRetention<&PackageSpec>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        self.tools.forget_ended_change();
        ready(self.remove_files())
    }

    fn write_event(report: &PackageReport, event: &mut pb::Event) {
        wire::write_event(report, event);
    }

    fn describe(report: &PackageReport) -> ReportText {
        report.describe()
    }

    fn diagnose(registry: &ModuleRegistry<'_>) -> impl Future<Output = Vec<DoctorFinding>> {
        doctor::check_packages(registry)
    }

    fn run_command(
        command: &AgentCommand,
        mut out: &mut dyn Write,
    ) -> Option<anyhow::Result<ExitCode>> {
        match command {
            AgentCommand::Plan(arguments) => Some(command::print_plan(arguments, &mut out)),
            _ => None,
        }
    }
}

/// An update of everything to the newest version, as apt itself would do it. The node's facts are based on it.
pub fn latest_spec() -> PackageSpec {
    PackageSpec::new(PackageMode::Latest)
}
