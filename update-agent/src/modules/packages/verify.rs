//! Verifies the result of the steps: versions and states, dpkg's audit, services.

use std::collections::{BTreeMap, BTreeSet};

use super::advice::advice;
use super::baseline::PackageBaseline;
use super::parse::DpkgPackage;
use super::plan::{PackageStep, StepItem, join_names};
use super::report::{PackageReport, add_missing};
use super::services::{find_units, is_unit_of};
use super::{Deb, PackagesModule, apt_log, audit};
use crate::facts::{MANAGER_UNIT, find_stale_services};
use crate::model::{Failure, FailureKind, PackageResult, ServiceRule};
use crate::modules::Verdict;
use crate::paths::AgentPaths;

/// Most packages with advice in a reason; for more, a person needs the log anyway.
const MAX_ADVICE: usize = 5;

impl PackagesModule {
    /// The packages in dpkg's database, by their name in apt.
    pub(super) async fn list_installed(&self) -> Result<BTreeMap<String, DpkgPackage>, Failure> {
        let native = self.tools.architecture().await?;
        let packages = self.tools.list_packages().await?.into_iter();
        Ok(packages.map(|package| (package.apt_name(&native), package)).collect())
    }

    /// Verifies everything that the steps may have changed.
    pub(super) async fn verify_packages(
        &self,
        steps: &[PackageStep],
        baseline: &PackageBaseline,
        report: &mut PackageReport,
    ) -> Result<Verdict, Failure> {
        report.results.clear();
        let installed = self.list_installed().await?;
        // The last step names the kernels, too.
        let is_repeated = |step: &&PackageStep| {
            matches!(step, PackageStep::Remove { is_before_update: true, .. })
        };
        let items = steps.iter().filter(|step| !is_repeated(step)).flat_map(PackageStep::items);
        let items: Vec<_> = items.collect();
        let results = items.iter().map(|item| package_result(item, &installed)).collect();
        if !steps.is_empty() {
            self.retain_needed_files(&items, &installed);
        }
        let mut problem = self.find_package_problem(steps, &installed, baseline).await?;
        if problem.is_none() && self.services && !baseline.services.is_empty() {
            problem = self.find_service_problem(baseline).await?;
        }
        let retained = self.find_retained_conffiles(steps, baseline).await?;
        add_missing(&mut report.retained_conffiles, retained);
        report.results = results;
        Ok(Verdict { problem, is_final: false })
    }

    /// Describes the problems of packages, with advice for a person.
    pub(super) async fn find_package_problem(
        &self,
        steps: &[PackageStep],
        installed: &BTreeMap<String, DpkgPackage>,
        baseline: &PackageBaseline,
    ) -> Result<Option<Failure>, Failure> {
        let audit = self.tools.audit().await?;
        let mut new_findings = audit::new_findings(&audit, &baseline.audit);
        new_findings.retain(|(_, package)| !is_unused(steps, package));
        let wrong: Vec<_> = steps
            .iter()
            .filter(|step| !matches!(step, PackageStep::Remove { .. }))
            .flat_map(PackageStep::items)
            .filter_map(|item| {
                package_problem(item, installed).map(|problem_text| (item, problem_text))
            })
            .collect();
        if wrong.is_empty() && new_findings.is_empty() {
            return Ok(None);
        }
        let log = apt_log::read_since(&self.paths, baseline.log_length);
        let inconsistent = audit::affected_packages(&new_findings);
        let reason = if wrong.is_empty() {
            let names = join_names(inconsistent.iter().cloned());
            let colon = if names.is_empty() { "" } else { ": " };
            format!("dpkg reports inconsistent packages{colon}{names}")
        } else {
            join_names(wrong.iter().map(|(_, problem_text)| problem_text.clone()))
        };
        let unfinished = wrong.iter().map(|(item, _)| item.package.as_str());
        let unfinished = unfinished.chain(inconsistent.iter().map(String::as_str));
        let debs: Vec<&Deb> = steps.iter().flat_map(PackageStep::debs).collect();
        let advice = collect_advice(unfinished, installed, &debs, &log);
        let reason = [vec![reason], advice].concat().join("; ");
        let failure = Failure::with_log(FailureKind::Verify, reason, &audit);
        Ok(Some(apt_log::add_log(failure, &log)))
    }

    async fn find_service_problem(
        &self,
        baseline: &PackageBaseline,
    ) -> Result<Option<Failure>, Failure> {
        let lost = match self.tools.find_lost_services(&baseline.services).await {
            Ok(lost) => lost,
            Err(failure) => {
                tracing::warn!(error = %failure, "cannot determine the condition of the services");
                return Ok(None);
            }
        };
        if lost.is_empty() {
            return Ok(None);
        }
        let reason = format!(
            "these services were active before and are not active now: {}; check them with `systemctl status`",
            join_names(lost)
        );
        let log = apt_log::read_since(&self.paths, baseline.log_length);
        let failure = Failure::new(FailureKind::Verify, reason);
        Ok(Some(apt_log::add_log(failure, &log)))
    }

    /// Retains the files after the attempt if a package is half-installed: it can be repaired only from its file.
    fn retain_needed_files(&self, items: &[&StepItem], installed: &BTreeMap<String, DpkgPackage>) {
        let half_installed = items
            .iter()
            .any(|item| installed.get(&item.package).is_some_and(DpkgPackage::needs_reinstall));
        if let Err(error) = self.archives.set_retained(half_installed) {
            tracing::warn!(error = %evenkeel_kit::chain(&error), "cannot mark the files as needed");
        }
    }

    /// Whether dpkg has no work left for any package and its audit has no finding about the changed packages.
    pub(super) async fn is_consistent(&self, steps: &[PackageStep]) -> Result<bool, Failure> {
        let installed = self.list_installed().await?;
        if !installed.values().all(DpkgPackage::is_settled) {
            return Ok(false);
        }
        // The audit may have older findings about packages that the steps do not change.
        let findings: Vec<_> =
            audit::parse_findings(&self.tools.audit().await?).into_iter().collect();
        let inconsistent = audit::affected_packages(&findings);
        let mut items = steps.iter().flat_map(PackageStep::items);
        Ok(!items.any(|item| {
            inconsistent.contains(&item.package) || inconsistent.contains(&item.change.name)
        }))
    }

    /// Restarts services that use replaced files if the rules require it. Returns remarks.
    pub(super) async fn restart_stale_services(
        &self,
        steps: &[PackageStep],
        report: &mut PackageReport,
    ) -> Vec<String> {
        let should_restart = steps.iter().any(|step| {
            matches!(step, PackageStep::Install { services, .. } if *services == ServiceRule::Restart)
        });
        if !should_restart || !self.services {
            return Vec::new();
        }
        let stale = stale_service_names(&self.paths);
        let restarted = self.tools.restart_services(&self.paths, &stale).await;
        add_missing(&mut report.restarted_services, restarted.restarted);
        restarted.remarks
    }

    /// After a failure in minimal steps: restarts the stale services of the groups that are installed. The earlier groups stay
    /// installed, and no later step of the attempt restarts their services. Returns remarks.
    pub(super) async fn restart_after_failure(
        &self,
        steps: &[PackageStep],
        report: &mut PackageReport,
    ) -> Result<Vec<String>, Failure> {
        if !self.services || !steps.iter().any(restarts_groups) {
            return Ok(Vec::new());
        }
        let installed = self.list_installed().await?;
        let stale = stale_service_names(&self.paths);
        let services = self.restartable_after_failure(steps, &installed, stale);
        let restarted = self.tools.restart_services(&self.paths, &services).await;
        add_missing(&mut report.restarted_services, restarted.restarted);
        Ok(restarted.remarks)
    }

    /// The stale services that certainly use only complete files. Files of other packages than that of its unit may be
    /// necessary for a service, so none is restarted while any package is not completely unpacked. The service manager is
    /// not among them: if it cannot load its new files, the machine stops.
    fn restartable_after_failure(
        &self,
        steps: &[PackageStep],
        installed: &BTreeMap<String, DpkgPackage>,
        mut stale: Vec<String>,
    ) -> Vec<String> {
        if !steps.iter().any(|step| has_finished_group(step, installed))
            || !installed.values().all(DpkgPackage::has_complete_files)
        {
            return Vec::new();
        }
        let unsettled = installed.values().filter(|package| !package.is_settled());
        let units: BTreeSet<_> =
            unsettled.flat_map(|package| find_units(&self.paths, package)).collect();
        stale.retain(|service| service != MANAGER_UNIT && !is_unit_of(service, &units));
        stale
    }
}

fn stale_service_names(paths: &AgentPaths) -> Vec<String> {
    find_stale_services(paths).into_iter().map(|service| service.name).collect()
}

/// Whether a step has groups, and the services that use replaced files are restarted after it.
fn restarts_groups(step: &PackageStep) -> bool {
    matches!(step, PackageStep::Install { services: ServiceRule::Restart, groups, .. } if !groups.is_empty())
}

/// Whether at least a part of the groups of a step that restarts services is installed.
fn has_finished_group(step: &PackageStep, installed: &BTreeMap<String, DpkgPackage>) -> bool {
    restarts_groups(step) && step.items().any(|item| package_problem(item, installed).is_none())
}

/// Whether a step removes a package because no package needs it. The failure of such a removal is
/// only a remark.
fn is_unused(steps: &[PackageStep], package: &str) -> bool {
    steps.iter().any(|step| match step {
        PackageStep::Remove { removals, .. } => removals.iter().any(|item| item.package == package),
        _ => false,
    })
}

/// Advice for packages, without repetitions.
fn collect_advice<'a>(
    packages: impl Iterator<Item = &'a str>,
    installed: &BTreeMap<String, DpkgPackage>,
    debs: &[&Deb],
    log: &str,
) -> Vec<String> {
    let mut collected: Vec<String> = Vec::new();
    for package in packages {
        let Some(dpkg_package) = installed.get(package) else {
            continue;
        };
        let begin = format!("{package}=");
        let file = debs.iter().find(|deb| deb.apt_argument.starts_with(&begin));
        let text = advice(dpkg_package, file.copied(), log);
        if let Some(text) = text.filter(|text| !collected.contains(text)) {
            collected.push(text);
        }
    }
    collected.truncate(MAX_ADVICE);
    collected
}

/// State of a package of the plan.
fn package_result(item: &StepItem, installed: &BTreeMap<String, DpkgPackage>) -> PackageResult {
    let package = installed.get(&item.package);
    let architecture = package.map_or(&item.change.architecture, |package| &package.architecture);
    PackageResult {
        name: item.change.name.clone(),
        architecture: architecture.clone(),
        version: package
            .filter(|package| package.is_present())
            .map_or_else(String::new, |package| package.version.clone()),
        state: package.map_or_else(String::new, |package| package.state.clone()),
    }
}

/// Describes how a package differs from the plan.
fn package_problem(item: &StepItem, installed: &BTreeMap<String, DpkgPackage>) -> Option<String> {
    let package = installed.get(&item.package).filter(|package| package.is_present());
    match (item.change.after.as_deref(), package) {
        (Some(planned), Some(package))
            if package.version == planned && package.state == "installed" =>
        {
            None
        }
        (Some(planned), Some(package)) => Some(format!(
            "{} is {} and {} instead of {planned} and installed",
            item.package, package.version, package.state
        )),
        (Some(planned), None) => {
            Some(format!("{} is not installed instead of {planned}", item.package))
        }
        (None, Some(package)) => Some(format!(
            "{} is {} and {} instead of removed",
            item.package, package.version, package.state
        )),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::time::Duration;

    use chrono::DateTime;
    use evenkeel_kit::TestClock;

    use super::*;
    use crate::hooks::fake::FakeRunner;
    use crate::model::PackageChange;
    use crate::modules::packages::dpkg::DPKG_INFO_FOLDER;
    use crate::modules::packages::{Digest, PackageToolTimeouts, PackageTools};
    use crate::owner::Owner;

    fn module(root: &tempfile::TempDir) -> PackagesModule {
        let paths = AgentPaths::new(root.path(), None);
        let minute = Duration::from_mins(1);
        let timeouts = PackageToolTimeouts {
            query: minute,
            refresh: minute,
            download: minute,
            apply: minute,
            lock: minute,
        };
        let clock = Arc::new(TestClock::new(DateTime::UNIX_EPOCH));
        let owner = Arc::new(Owner::new(paths.clone(), clock));
        let tools = PackageTools::new(Arc::new(FakeRunner::default()), timeouts);
        PackagesModule::new(tools, paths, owner, true)
    }

    /// A step of the packages `demo` and `bad`.
    fn step_with_groups(services: ServiceRule, groups: &[&str]) -> PackageStep {
        let bad_item = StepItem { package: "bad".into(), ..item(Some("1.1")) };
        PackageStep::Install {
            items: vec![item(Some("1.1")), bad_item],
            debs: Vec::new(),
            own_sources: false,
            removals: Vec::new(),
            downgrades: false,
            services,
            bytes_per_second: 0,
            automatic: Vec::new(),
            groups: groups.iter().map(|&name| vec![name.to_owned()]).collect(),
        }
    }

    /// The services that are restarted after the failure of a step, with `demo` in this version and `bad` in this state.
    fn restartable(step: PackageStep, demo: &str, bad: DpkgPackage) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        let info = AgentPaths::new(root.path(), None).inside(DPKG_INFO_FOLDER);
        fs::create_dir_all(&info).unwrap();
        let list = "/.\n/lib/systemd/system/bad.service\n/lib/systemd/system/bad@.service\n\
                    /etc/init.d/bad-script\n";
        fs::write(info.join("bad.list"), list).unwrap();
        let bad = DpkgPackage { name: "bad".into(), ..bad };
        let demo = package(demo, "installed");
        let installed = BTreeMap::from([("demo".to_owned(), demo), ("bad".to_owned(), bad)]);
        let services = ["bad.service", "bad@one.service", "bad-script.service", "cron.service"];
        let stale = services.into_iter().chain([MANAGER_UNIT]).map(str::to_owned).collect();
        module(&root).restartable_after_failure(&[step], &installed, stale)
    }

    #[test]
    fn after_a_failed_group_the_services_of_the_installed_ones_are_restarted() {
        let groups = ["demo", "bad"];
        for (rule, groups, demo, expected) in [
            (ServiceRule::Restart, &groups[..], "1.1", vec!["cron.service"]),
            (ServiceRule::KeepRunning, &groups[..], "1.1", vec![]),
            (ServiceRule::Restart, &groups[..], "1.0", vec![]),
            (ServiceRule::Restart, &groups[..0], "1.1", vec![]),
        ] {
            let bad = package("1.1", "half-configured");
            let context = format!("{rule:?} {groups:?} {demo}");
            let restarted = restartable(step_with_groups(rule, groups), demo, bad);
            assert_eq!(restarted, expected, "{context}");
        }
    }

    /// A service may use files of any package, and the service manager cannot load half of its files.
    #[test]
    fn no_service_is_restarted_while_files_of_a_package_are_incomplete() {
        for (state, flag, expected) in [
            ("half-configured", "ok", vec!["cron.service"]),
            ("triggers-pending", "ok", vec!["cron.service"]),
            ("unpacked", "ok", vec![]),
            ("half-installed", "ok", vec![]),
            ("half-configured", "reinstreq", vec![]),
        ] {
            let bad = DpkgPackage { flag: flag.into(), ..package("1.1", state) };
            let step = step_with_groups(ServiceRule::Restart, &["demo", "bad"]);
            assert_eq!(restartable(step, "1.1", bad), expected, "{state} {flag}");
        }
    }

    fn package(version: &str, state: &str) -> DpkgPackage {
        DpkgPackage {
            name: "demo".into(),
            architecture: "all".into(),
            version: version.into(),
            want: "install".into(),
            state: state.into(),
            flag: "ok".into(),
            size: 0,
        }
    }

    fn item(after: Option<&str>) -> StepItem {
        StepItem {
            package: "demo".into(),
            change: PackageChange {
                name: "demo".into(),
                architecture: "all".into(),
                before: Some("1.0".into()),
                after: after.map(str::to_owned),
                ..PackageChange::default()
            },
        }
    }

    #[test]
    fn a_package_is_compared_with_the_plan() {
        let state = |package: DpkgPackage| BTreeMap::from([("demo".to_owned(), package)]);
        for (after, installed, expected) in [
            (Some("1.1"), state(package("1.1", "installed")), None),
            (
                Some("1.1"),
                state(package("1.0", "installed")),
                Some("demo is 1.0 and installed instead of 1.1 and installed"),
            ),
            (
                Some("1.1"),
                state(package("1.1", "half-configured")),
                Some("demo is 1.1 and half-configured instead of 1.1 and installed"),
            ),
            (Some("1.1"), BTreeMap::new(), Some("demo is not installed instead of 1.1")),
            (
                Some("1.1"),
                state(package("1.0", "config-files")),
                Some("demo is not installed instead of 1.1"),
            ),
            (None, BTreeMap::new(), None),
            (None, state(package("1.0", "config-files")), None),
            (
                None,
                state(package("1.0", "installed")),
                Some("demo is 1.0 and installed instead of removed"),
            ),
        ] {
            assert_eq!(package_problem(&item(after), &installed).as_deref(), expected);
        }
    }

    #[test]
    fn advice_is_given_once_per_package_and_names_the_retained_file() {
        let half_installed = package("1.1", "half-installed");
        let installed = BTreeMap::from([("demo".to_owned(), half_installed)]);
        let file = Deb {
            name: "demo_1.1_all.deb".into(),
            size: 1,
            digest: Digest::Sha256(String::new()),
            apt_argument: "demo=1.1".into(),
            uri: String::new(),
        };
        let collected =
            collect_advice(["demo", "demo", "unknown"].into_iter(), &installed, &[&file], "");
        assert_eq!(collected.len(), 1);
        assert!(collected[0].contains("archives/demo_1.1_all.deb"), "{}", collected[0]);
    }
}
