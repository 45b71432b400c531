//! Packages whose newer version is not installed, and why. Pure.

use std::collections::BTreeMap;

use super::index_targets;
use super::parse::{PlannedInstall, Simulation};
use super::plan::{InstalledPackages, PackageObservation};
use super::rules::{AgedVersions, AllowedSuites, is_excluded};
use crate::model::{HeldBackCause, HeldBackPackage, PackageMode, PackageSpec};

/// Simulations with fewer and fewer restrictions.
#[derive(Clone, Copy, Debug)]
pub struct SimulationSet<'a> {
    /// What the plan does.
    pub chosen: &'a Simulation,
    /// Without the rules of policy and owner; `None` if they exclude nothing.
    pub unrestricted: Option<&'a Simulation>,
    /// Without these rules and without the node's own preferences; `None` if it has none.
    pub unpinned: Option<&'a Simulation>,
}

/// The packages that are held back, sorted by name, then architecture. `left_out` returns the cause for a version that only
/// the rules exclude.
pub fn find_held_back(
    installed: &InstalledPackages<'_>,
    simulations: &SimulationSet<'_>,
    left_out: impl Fn(&PlannedInstall) -> HeldBackCause,
) -> Vec<HeldBackPackage> {
    let mut causes: BTreeMap<&str, (&str, HeldBackCause)> = BTreeMap::new();
    let free = simulations.unrestricted.unwrap_or(simulations.chosen);
    for install in newer_installs(free, simulations.chosen) {
        let cause = left_out(install);
        causes.insert(&install.package, (install.after.as_str(), cause));
    }
    for upgrade in free.held_back.iter().chain(&simulations.chosen.held_back) {
        let cause = match (installed.get(&upgrade.package), upgrade.phased) {
            (Some(dpkg_package), _) if dpkg_package.want == "hold" => HeldBackCause::Hold,
            (_, true) => HeldBackCause::Phased,
            (_, false) => HeldBackCause::Dependencies,
        };
        causes.entry(&upgrade.package).or_insert((upgrade.available.as_str(), cause));
    }
    for install in simulations.unpinned.into_iter().flat_map(|all| newer_installs(all, free)) {
        causes.entry(&install.package).or_insert((install.after.as_str(), HeldBackCause::Pinned));
    }
    let held_back = causes.into_iter().filter_map(|(package, (available, cause))| {
        let dpkg_package = installed.get(package)?;
        Some(HeldBackPackage {
            name: dpkg_package.name.clone(),
            architecture: dpkg_package.architecture.clone(),
            installed: dpkg_package.version.clone(),
            available: available.to_owned(),
            cause,
        })
    });
    let mut held_back: Vec<_> = held_back.collect();
    held_back.sort();
    held_back
}

/// The installs of present packages that only the less restricted simulation contains. Downgrades are omitted: they happen
/// only because of preferences.
fn newer_installs<'a>(
    more: &'a Simulation,
    less: &'a Simulation,
) -> impl Iterator<Item = &'a PlannedInstall> {
    more.installs.iter().filter(|install| {
        let other = less.install(&install.package);
        install.before.is_some()
            && !more.downgrades.contains(&install.package)
            && other.is_none_or(|other| other.after != install.after)
    })
}

/// The packages that an update of everything holds back.
pub fn held_back_packages(
    spec: &PackageSpec,
    observed: &PackageObservation,
    installed: &InstalledPackages<'_>,
) -> Vec<HeldBackPackage> {
    if spec.mode != PackageMode::Latest {
        return Vec::new();
    }
    let aged_versions = AgedVersions::new(spec);
    let contains = |simulation: Option<&Simulation>, install: &PlannedInstall| {
        let other = simulation.and_then(|simulation| simulation.install(&install.package));
        other.is_some_and(|other| other.after == install.after)
    };
    let left_out = |install: &PlannedInstall| {
        if contains(observed.with_more_space.as_ref(), install) {
            HeldBackCause::Space
        } else if contains(observed.with_boot_loader.as_ref(), install) {
            HeldBackCause::BootLoader
        } else {
            rule_cause(spec, observed, &aged_versions, install)
        }
    };
    let simulations = SimulationSet {
        chosen: &observed.simulation,
        unrestricted: observed.unrestricted.as_ref(),
        unpinned: observed.unpinned.as_ref(),
    };
    find_held_back(installed, &simulations, left_out)
}

/// Why the rules of the owner or the policy exclude a version.
fn rule_cause(
    spec: &PackageSpec,
    observed: &PackageObservation,
    aged_versions: &AgedVersions<'_>,
    install: &PlannedInstall,
) -> HeldBackCause {
    let PackageObservation { targets, owner_limits, .. } = observed;
    let suites = AllowedSuites::new(&spec.rules, owner_limits);
    if !index_targets::allows_origins(&install.origins, targets, &owner_limits.suites) {
        HeldBackCause::Limits
    } else if is_excluded(&spec.rules, &install.package) {
        HeldBackCause::Excluded
    } else if !suites.policy_allows(&index_targets::origin_suites(&install.origins, targets)) {
        HeldBackCause::Suite
    } else if aged_versions.is_too_young(install) {
        HeldBackCause::TooYoung
    } else {
        HeldBackCause::Policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::packages::parse::{DpkgPackage, HeldBackUpgrade};
    use crate::modules::packages::plan::index_by_apt_name;

    fn package(name: &str, want: &str) -> DpkgPackage {
        DpkgPackage {
            name: name.into(),
            architecture: "all".into(),
            version: "1".into(),
            want: want.into(),
            state: "installed".into(),
            flag: "ok".into(),
            size: 0,
        }
    }

    /// `NAME=VERSION` would be unpacked, `NAME=VERSION?` is held back, `NAME=VERSION%` is phased.
    fn simulation(what: &[&str]) -> Simulation {
        let mut simulation = Simulation::default();
        for text in what {
            let (package, version) = text.split_once('=').unwrap();
            let plain = version.trim_end_matches(['?', '%']);
            if plain == version {
                simulation.installs.push(PlannedInstall {
                    package: package.into(),
                    before: (package != "fresh").then(|| "1".into()),
                    after: version.into(),
                    architecture: "all".into(),
                    origins: Vec::new(),
                });
            } else {
                simulation.held_back.push(HeldBackUpgrade {
                    package: package.into(),
                    available: plain.into(),
                    phased: version.ends_with('%'),
                });
            }
        }
        simulation
    }

    fn describe(chosen: &[&str], free: Option<&[&str]>, unpinned: Option<&[&str]>) -> Vec<String> {
        let packages = ["a", "b", "c", "owned"].map(|name| package(name, "install"));
        let mut packages = packages.to_vec();
        packages.push(package("held", "hold"));
        let installed = index_by_apt_name(&packages, "amd64");
        let (chosen, free, unpinned) =
            (simulation(chosen), free.map(simulation), unpinned.map(simulation));
        let simulations = SimulationSet {
            chosen: &chosen,
            unrestricted: free.as_ref(),
            unpinned: unpinned.as_ref(),
        };
        let left_out = |install: &PlannedInstall| match install.package.as_str() {
            "owned" => HeldBackCause::Limits,
            _ => HeldBackCause::Policy,
        };
        let held_back = find_held_back(&installed, &simulations, left_out).into_iter();
        held_back.map(|one| format!("{} {} {:?}", one.name, one.available, one.cause)).collect()
    }

    type PackageList<'a> = &'a [&'a str];

    /// Simulations: chosen, without rules, without preferences; and the expected result.
    type HeldBackCase<'a> =
        (PackageList<'a>, Option<PackageList<'a>>, Option<PackageList<'a>>, PackageList<'a>);

    #[test]
    fn each_held_back_package_has_a_cause() {
        let cases: [HeldBackCase<'_>; 5] = [
            (&["a=2"], None, None, &[]),
            (
                &["a=2?", "b=2%", "held=2?", "gone=2?"],
                None,
                None,
                &["a 2 Dependencies", "b 2 Phased", "held 2 Hold"],
            ),
            // apt keeps back a package whose dependency is excluded; the exclusion is the reported cause.
            (
                &["a=2", "c=2?"],
                Some(&["a=3", "b=2", "c=2", "owned=2", "fresh=1", "held=2?"]),
                None,
                &["a 3 Policy", "b 2 Policy", "c 2 Policy", "held 2 Hold", "owned 2 Limits"],
            ),
            (&["a=2"], None, Some(&["a=2", "b=2", "c=2?", "held=2?"]), &["b 2 Pinned"]),
            (&[], Some(&["a=2"]), Some(&["a=3", "b=2"]), &["a 2 Policy", "b 2 Pinned"]),
        ];
        for (chosen, free, unpinned, expected) in cases {
            assert_eq!(describe(chosen, free, unpinned), expected, "{chosen:?}");
        }
    }

    #[test]
    fn an_older_version_is_not_held_back() {
        let packages = [package("a", "install")];
        let installed = index_by_apt_name(&packages, "amd64");
        let free = Simulation { downgrades: vec!["a".into()], ..simulation(&["a=0"]) };
        let simulations = SimulationSet {
            chosen: &Simulation::default(),
            unrestricted: Some(&free),
            unpinned: None,
        };
        assert!(find_held_back(&installed, &simulations, |_| HeldBackCause::Policy).is_empty());
    }
}
