//! Available updates, and packages that are held back from them.

use super::FactsReader;
use crate::model::{HeldBackCause, HeldBackPackage};
use crate::modules::packages::{
    self, AllowedChanges, AptView, DpkgPackage, IndexTarget, InstalledPackages, PlannedInstall,
    PreferenceScope, Simulation, SimulationSet,
};

/// A package with a newer version, or a new package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AvailablePackage {
    /// Name of the Debian package.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The installed version; empty for a new package that others need.
    pub installed: String,
    /// The available version.
    pub available: String,
    /// Suites and codenames that contain the available version, sorted.
    pub suites: Vec<String>,
    /// Labels of the repositories that contain the available version, sorted.
    pub origins: Vec<String>,
}

/// A package that is held back, and where its newer version comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBackUpdate {
    pub package: HeldBackPackage,
    /// Suites and codenames that contain the newer version, sorted; empty if unknown.
    pub suites: Vec<String>,
    /// Labels of the repositories that contain the newer version, sorted; empty if unknown.
    pub origins: Vec<String>,
}

/// What an update of everything would do and not do.
#[derive(Clone, Debug, Default)]
pub struct UpdateFacts {
    pub available: Vec<AvailablePackage>,
    pub held_back: Vec<HeldBackUpdate>,
    /// Why apt could not determine them; empty if it could. They are then those of the last time.
    pub error: String,
}

impl FactsReader {
    /// The available updates and the packages that are held back. If apt fails, the result of the
    /// last time.
    pub(super) async fn available_updates(
        &self,
        packages: &[DpkgPackage],
        native: &str,
    ) -> UpdateFacts {
        let spec = packages::latest_spec();
        let view = AptView::default();
        // While the limits cannot be read, nothing is changed anyway.
        let limits = self.owner.limits().unwrap_or_default();
        let allowed = AllowedChanges { removals: false, new_packages: limits.new_packages };
        match self.tools.simulate(&spec, allowed, view).await {
            Ok(simulation) => {
                let installed = packages::index_by_apt_name(packages, native);
                let unpinned = self.simulate_unpinned(allowed).await;
                let targets = self.index_targets().await;
                let comparison = UpdateComparison {
                    simulation: &simulation,
                    unpinned: unpinned.as_ref(),
                    targets: &targets,
                    suites: &limits.suites,
                };
                let (available, mut held_back) = comparison.compare(&installed);
                self.add_version_sources(&mut held_back, &targets, native).await;
                UpdateFacts { available, held_back, error: String::new() }
            }
            Err(failure) => {
                tracing::warn!(error = %failure, "apt cannot determine the available updates");
                let last = self.last.as_ref().map(|last| &last.facts);
                UpdateFacts {
                    available: last.map(|facts| facts.available.clone()).unwrap_or_default(),
                    held_back: last.map(|facts| facts.held_back.clone()).unwrap_or_default(),
                    error: format!("apt cannot determine the available updates: {failure}"),
                }
            }
        }
    }

    /// Simulates an update of everything without the node's preferences; `None` if it has none.
    async fn simulate_unpinned(&self, allowed: AllowedChanges) -> Option<Simulation> {
        if !packages::has_preferences(&self.paths).unwrap_or(false) {
            return None;
        }
        let view = AptView::default().with_preferences(PreferenceScope::Disabled);
        let simulation = self.tools.simulate(&packages::latest_spec(), allowed, view).await;
        simulation
            .inspect_err(|failure| tracing::warn!(error = %failure, "cannot determine which packages are pinned"))
            .ok()
    }

    /// Adds the suites of versions that no simulation would install, for example of packages on hold.
    async fn add_version_sources(
        &self,
        held_back: &mut [HeldBackUpdate],
        targets: &[IndexTarget],
        native: &str,
    ) {
        let unknown = held_back.iter().filter(|update| update.suites.is_empty());
        let names = unknown.map(|update| match &update.package {
            package if package.architecture == native || package.architecture == "all" => {
                package.name.clone()
            }
            package => format!("{}:{}", package.name, package.architecture),
        });
        let names: Vec<_> = names.collect();
        let sources = match self.tools.list_version_sources(&names).await {
            Ok(sources) => sources,
            Err(failure) => {
                tracing::warn!(error = %failure, "cannot determine the suites of updates that are held back");
                return;
            }
        };
        for update in held_back.iter_mut().filter(|update| update.suites.is_empty()) {
            let version = (update.package.name.as_str(), update.package.available.as_str());
            let (suites, labels) = packages::suites_and_labels(&sources, version, targets);
            update.suites = suites.into_iter().collect();
            update.origins = labels.into_iter().collect();
        }
    }

    /// The package indexes of apt. Without them a suite is known by one name only.
    async fn index_targets(&self) -> Vec<IndexTarget> {
        let targets = self.tools.list_index_targets(AptView::default()).await;
        targets.unwrap_or_else(|failure| {
            tracing::warn!(error = %failure, "cannot determine the available suites");
            Vec::new()
        })
    }
}

/// A simulation, and the data to compare it with.
struct UpdateComparison<'a> {
    simulation: &'a Simulation,
    unpinned: Option<&'a Simulation>,
    targets: &'a [IndexTarget],
    /// Suites that the machine's owner allows; empty for any.
    suites: &'a [String],
}

impl UpdateComparison<'_> {
    /// The available updates and the packages that are held back.
    fn compare(
        &self,
        installed: &InstalledPackages<'_>,
    ) -> (Vec<AvailablePackage>, Vec<HeldBackUpdate>) {
        let allowed = Simulation {
            installs: self
                .simulation
                .installs
                .iter()
                .filter(|install| self.is_allowed(install))
                .cloned()
                .collect(),
            ..self.simulation.clone()
        };
        let available = allowed.installs.iter();
        let mut available: Vec<_> =
            available.map(|install| self.to_available(install, installed)).collect();
        available.sort();
        let simulations = SimulationSet {
            chosen: &allowed,
            unrestricted: Some(self.simulation),
            unpinned: self.unpinned,
        };
        let held_back =
            packages::find_held_back(installed, &simulations, |_| HeldBackCause::Limits);
        (available, held_back.into_iter().map(|package| self.to_held_back(package)).collect())
    }

    /// Adds the suites of the newer version, if a simulation would install it.
    fn to_held_back(&self, package: HeldBackPackage) -> HeldBackUpdate {
        let unpinned = self.unpinned.into_iter().flat_map(|simulation| &simulation.installs);
        let mut installs = self.simulation.installs.iter().chain(unpinned);
        let install = installs
            .find(|install| install.name() == package.name && install.after == package.available);
        let origins = install.map(|install| install.origins.as_slice()).unwrap_or_default();
        HeldBackUpdate {
            package,
            suites: packages::origin_suites(origins, self.targets).into_iter().collect(),
            origins: packages::origin_labels(origins, self.targets).into_iter().collect(),
        }
    }

    /// Whether the planned version is newer than the installed one and allowed by the owner.
    fn is_allowed(&self, install: &PlannedInstall) -> bool {
        packages::allows_origins(&install.origins, self.targets, self.suites)
            && !self.simulation.downgrades.contains(&install.package)
    }

    fn to_available(
        &self,
        install: &PlannedInstall,
        installed: &InstalledPackages<'_>,
    ) -> AvailablePackage {
        let package = installed.get(&install.package);
        let architecture = package.map_or(&install.architecture, |package| &package.architecture);
        AvailablePackage {
            name: install.name().to_owned(),
            architecture: architecture.clone(),
            installed: install.before.clone().unwrap_or_default(),
            available: install.after.clone(),
            suites: packages::origin_suites(&install.origins, self.targets).into_iter().collect(),
            origins: packages::origin_labels(&install.origins, self.targets).into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows only these suites; an empty list allows all.
    fn comparison<'a>(
        simulation: &'a Simulation,
        targets: &'a [IndexTarget],
        suites: &'a [String],
    ) -> UpdateComparison<'a> {
        UpdateComparison { simulation, unpinned: None, targets, suites }
    }

    fn index_target(suite: &str) -> IndexTarget {
        let line = format!("http://x/\t{suite}\t{suite}\t$(CODENAME)\tDebian\t12");
        packages::parse_targets(&line).unwrap().remove(0)
    }

    fn planned_install(package: &str, before: Option<&str>, suite: &str) -> PlannedInstall {
        PlannedInstall {
            package: package.into(),
            before: before.map(str::to_owned),
            after: "2".into(),
            architecture: "all".into(),
            origins: vec![format!("Debian:12/{suite}")],
        }
    }

    #[test]
    fn new_packages_are_reported_and_disallowed_ones_are_held_back() {
        let packages = ["app", "lib", "older"].map(|name| DpkgPackage {
            name: name.into(),
            architecture: "amd64".into(),
            version: "1".into(),
            want: "install".into(),
            state: "installed".into(),
            flag: "ok".into(),
            size: 0,
        });
        let installed = packages::index_by_apt_name(&packages, "amd64");
        let simulation = Simulation {
            installs: vec![
                planned_install("app", Some("1"), "stable"),
                planned_install("fresh", None, "stable"),
                planned_install("lib", Some("1"), "security"),
                planned_install("older", Some("3"), "stable"),
            ],
            downgrades: vec!["older".into()],
            ..Simulation::default()
        };
        let targets = ["stable", "security"].map(index_target);
        let report = |suites: &[String]| {
            let comparison = comparison(&simulation, &targets, suites);
            let (available, held_back) = comparison.compare(&installed);
            let available = available
                .iter()
                .map(|one| format!("{} {:?} {}", one.name, one.installed, one.suites.join(",")));
            let held_back = held_back.iter().map(|one| {
                let (package, suites) = (&one.package, one.suites.join(","));
                format!("{} {:?} {suites}", package.name, package.cause)
            });
            available.chain(held_back).collect::<Vec<_>>()
        };
        assert_eq!(report(&[]), ["app \"1\" stable", "fresh \"\" stable", "lib \"1\" security"]);
        assert_eq!(report(&["security".to_owned()]), ["lib \"1\" security", "app Limits stable"]);
    }
}
