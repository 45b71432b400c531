//! Finds the packages of a request that can be changed together.

use std::collections::BTreeSet;

use super::super::apt::{PackageTools, tool_failure, unreadable_line};
use super::super::index_targets::allows_origins;
use super::super::parse::{self, Simulation};
use super::super::plan::{PackageObservation, index_by_apt_name, join_names};
use super::super::protected::{find_protected, is_running_kernel};
use super::super::refusals::{RELEASE_PACKAGE, check_plan};
use super::super::sources::AptView;
use super::{NamedPackages, RefusedPackage, install_command};
use crate::model::{Failure, FailureKind, PackageMode, PackageRules, PackageSpec};
use crate::os::OsRelease;
use crate::owner::OwnerLimits;
use crate::paths::AgentPaths;

/// Begins what apt prints about a package that no source has.
const UNKNOWN_PACKAGE: &str = "E: Unable to locate package ";

/// What apt prints if it takes a name as a pattern of names.
const SELECTIONS: [&str; 3] = [" for regex '", " for glob '", " for task '"];

/// Most simulations for one request. A simulation takes up to a second.
const MAX_SIMULATIONS: usize = 200;

/// Most refused packages of which each is left out once.
const MAX_LEFT_OUT: usize = 10;

/// A part of a request, and why it is refused.
type RefusedPart = (NamedPackages, String);

/// Checks parts of a request with what the machine has, which is read once.
pub(super) struct RequestChecker<'a> {
    tools: &'a PackageTools,
    spec: PackageSpec,
    observed: PackageObservation,
    simulations_left: usize,
}

impl<'a> RequestChecker<'a> {
    pub(super) async fn load(
        tools: &'a PackageTools,
        paths: &AgentPaths,
        limits: &OwnerLimits,
    ) -> Result<Self, Failure> {
        let packages = tools.list_packages().await?;
        let mut protected = find_protected(paths, &packages);
        if !paths.is_own_system() {
            // The kernel that runs is not the one of the image.
            protected.retain(|package| !is_running_kernel(package));
        }
        let rules = PackageRules {
            allow_removals: true,
            allow_downgrades: true,
            ..PackageRules::default()
        };
        let observed = PackageObservation {
            native_architecture: tools.architecture().await?,
            codename: OsRelease::read(paths).version_codename,
            owner_limits: limits.clone(),
            packages,
            protected,
            ..PackageObservation::default()
        };
        let spec = PackageSpec { rules, ..PackageSpec::new(PackageMode::Latest) };
        Ok(Self { tools, spec, observed, simulations_left: MAX_SIMULATIONS })
    }

    /// Splits a request into the packages that can be changed in one transaction, and the others.
    ///
    /// # Errors
    /// apt does not work.
    pub(super) async fn select_possible(
        mut self,
        packages: NamedPackages,
    ) -> Result<(NamedPackages, Vec<RefusedPackage>), Failure> {
        let Err(failure) = self.check(&packages).await? else { return Ok((packages, Vec::new())) };
        let mut parts = packages.split();
        // apt names all packages that no source has.
        let unknown: BTreeSet<&str> = unknown_packages(&failure.log).collect();
        let is_unknown = |part: &mut NamedPackages| part.names().any(|name| unknown.contains(name));
        let unknown_parts: Vec<_> = parts.extract_if(.., is_unknown).collect();
        let mut possible = NamedPackages::default();
        let mut refused = self.add_possible(&mut possible, parts).await?;
        if refused.len() > 1 || (refused.len() == 1 && !possible.is_empty()) {
            refused = self.retry_refused(&mut possible, refused).await?;
        }
        let no_source = |part| (part, "no package source has it".to_owned());
        let refused = unknown_parts.into_iter().map(no_source).chain(refused);
        let refused = refused.flat_map(|(part, reason): RefusedPart| {
            let names: Vec<_> = part.names().map(str::to_owned).collect();
            names.into_iter().map(move |name| RefusedPackage { name, reason: reason.clone() })
        });
        Ok((possible, refused.collect()))
    }

    /// Adds the parts to a possible request with which it stays possible, and returns the others.
    /// The number of simulations grows with that of the others.
    async fn add_possible(
        &mut self,
        possible: &mut NamedPackages,
        parts: Vec<NamedPackages>,
    ) -> Result<Vec<RefusedPart>, Failure> {
        let mut refused = Vec::new();
        let mut groups = vec![parts];
        while let Some(mut group) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            let candidate = possible.join(&group);
            match self.check(&candidate).await? {
                Ok(()) => *possible = candidate,
                Err(Failure { reason, .. }) if group.len() == 1 || self.simulations_left == 0 => {
                    refused.extend(group.into_iter().map(|part| (part, reason.clone())));
                }
                Err(_) => {
                    let other_half = group.split_off(group.len() / 2);
                    groups.extend([other_half, group]);
                }
            }
        }
        Ok(refused)
    }

    /// Tries the refused parts again: one may need another one that is possible now, and two may
    /// need each other.
    async fn retry_refused(
        &mut self,
        possible: &mut NamedPackages,
        mut refused: Vec<RefusedPart>,
    ) -> Result<Vec<RefusedPart>, Failure> {
        let parts: Vec<_> = refused.iter().map(|(part, _)| part.clone()).collect();
        if parts.len() <= MAX_LEFT_OUT {
            for omitted in 0..parts.len() {
                let others = [&parts[..omitted], &parts[omitted + 1..]].concat();
                let candidate = possible.join(&others);
                if !others.is_empty() && self.check(&candidate).await?.is_ok() {
                    *possible = candidate;
                    return Ok(vec![refused.swap_remove(omitted)]);
                }
            }
        }
        self.add_possible(possible, parts).await
    }

    /// Simulates a request. Inside: why it must not be carried out, because apt cannot do it, or
    /// for the reasons of an update. The document names all packages that may be removed.
    async fn check(&mut self, packages: &NamedPackages) -> Result<Result<(), Failure>, Failure> {
        self.simulations_left = self.simulations_left.saturating_sub(1);
        let command = install_command(self.tools, self.tools.timeouts().query)
            .with_arguments(["--simulate", "--verbose-versions", "--allow-change-held-packages"])
            .with_arguments(["install", "--"])
            .with_arguments(packages.apt_arguments());
        let output = self.tools.run(&command, FailureKind::Plan).await?;
        if !output.succeeded() {
            return Ok(Err(tool_failure(FailureKind::Plan, "apt-get --simulate", &output)));
        }
        if SELECTIONS.iter().any(|selection| output.combined_output().contains(selection)) {
            let reason = "apt knows no package with this name, and would select others";
            return Ok(Err(Failure::new(FailureKind::Plan, reason)));
        }
        let simulation = parse::parse_simulation(&output.stdout)
            .map_err(|line| unreadable_line(FailureKind::Plan, line))?;
        let others = other_removals(packages, &simulation);
        if !others.is_empty() {
            let reason = format!("apt would also remove {}", join_names(others));
            return Ok(Err(Failure::new(FailureKind::Plan, reason)));
        }
        let release = simulation.install(RELEASE_PACKAGE).cloned();
        let release: Vec<_> = release.into_iter().collect();
        let view = AptView::default();
        let needs_targets = !release.is_empty() || !self.observed.owner_limits.suites.is_empty();
        if needs_targets && self.observed.targets.is_empty() {
            self.observed.targets = self.tools.list_index_targets(view).await?;
        }
        self.observed.debs = self.tools.resolve_files(&release, view).await?;
        self.observed.simulation = simulation;
        Ok(self.refuse_plan())
    }

    /// The rules of updates, without those of an update policy.
    fn refuse_plan(&self) -> Result<(), Failure> {
        let observed = &self.observed;
        let installed = index_by_apt_name(&observed.packages, &observed.native_architecture);
        check_plan(&self.spec, observed, &installed)?;
        let suites = &observed.owner_limits.suites;
        let mut installs = observed.simulation.installs.iter();
        let other =
            installs.find(|install| !allows_origins(&install.origins, &observed.targets, suites));
        let Some(install) = other else { return Ok(()) };
        let reason = format!(
            "it would install {} {}, which is in none of the suites that the machine's owner allows",
            install.package, install.after
        );
        Err(Failure::new(FailureKind::Limits, reason))
    }
}

/// The names of packages in apt's errors.
fn unknown_packages(output: &str) -> impl Iterator<Item = &str> {
    output.lines().filter_map(|line| line.trim().strip_prefix(UNKNOWN_PACKAGE))
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
