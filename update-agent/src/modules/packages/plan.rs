//! Plans the steps of a package update from the spec and the observation. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::PackageReport;
use super::broken_sources::explain_failure;
use super::files::Deb;
use super::held_back::held_back_packages;
use super::independent_groups::{PackageRecords, find_groups};
use super::index_targets::{self, IndexTarget};
use super::marks::{PlannedMarks, plan_marks};
use super::parse::{DpkgPackage, ExactVersion, PlannedInstall, Simulation};
use super::protected::ProtectedPackage;
use super::providers::ProviderIndex;
use super::refusals::check_plan;
use super::rules::matches_pattern;
use super::unused::is_kernel_package;
use crate::model::{
    Failure, FailureKind, PackageChange, PackageMode, PackageSpec, ServiceRule, SpaceNeed,
    UpdatePlan,
};
use crate::modules::Draft;
use crate::owner::OwnerLimits;

/// Most package names in a reason.
const MAX_NAMES_IN_REASON: usize = 10;

/// Packages after whose update the system must reboot: they are in use from the boot on, or by every program.
const REBOOT_PACKAGES: [&str; 12] = [
    "linux-image-*",
    "linux-modules-*",
    "libc6",
    "systemd",
    "systemd-sysv",
    "dbus",
    "dbus-daemon",
    "dbus-broker",
    "udev",
    "*-microcode",
    "firmware-*",
    "grub-efi-*-signed",
];

/// The observed state, and what apt would do.
#[derive(Clone, Debug, Default)]
pub struct PackageObservation {
    /// dpkg's native architecture.
    pub native_architecture: String,
    /// Every package in dpkg's database.
    pub packages: Vec<DpkgPackage>,
    /// What apt would do under the rules.
    pub simulation: Simulation,
    /// What apt would do without the rules of policy and owner; `None` if they exclude nothing.
    pub unrestricted: Option<Simulation>,
    /// What apt would do without these rules and without the node's own preferences; `None` if it has none.
    pub unpinned: Option<Simulation>,
    /// The files of the planned installs, in the same order.
    pub debs: Vec<Deb>,
    /// The relations of the installed and of the planned versions; only read for minimal steps.
    pub records: PackageRecords,
    /// Names of the files that need no download, because apt has them in its cache.
    pub cached_files: BTreeSet<String>,
    /// Installed sizes of the new versions in bytes, if they declare them.
    pub sizes: BTreeMap<ExactVersion, u64>,
    /// Packages that are marked as automatically installed.
    pub automatic: BTreeSet<String>,
    /// apt's package indexes.
    pub targets: Vec<IndexTarget>,
    /// Addresses and suites of the node's own sources; `None` if the policy adds no source to them.
    pub own_suites: Option<Vec<(String, String)>>,
    /// Codename of the installed release.
    pub codename: String,
    /// Packages that have requested a reboot.
    pub reboot_requesters: Vec<String>,
    /// The limits of the machine's owner.
    pub owner_limits: OwnerLimits,
    /// Whether apt needs the agent's own folder of sources to find the files.
    pub own_sources: bool,
    /// Why some sources are not used; `None` if apt could fetch the lists of all.
    pub broken_sources: Option<Failure>,
    /// The packages that are protected by default.
    pub protected: Vec<ProtectedPackage>,
    /// Packages that no package needs after the update and that may be removed.
    pub unused: Vec<String>,
    /// What apt would do if the boot file systems had more space and were writable; `None` if everything fits.
    pub with_more_space: Option<Simulation>,
    /// What apt would do if GRUB could be updated; `None` if it can, or if there is no update of it.
    pub with_boot_loader: Option<Simulation>,
    /// Space that the planned installs need on the boot file systems.
    pub boot_space: Vec<SpaceNeed>,
    /// Providers of the required packages that are virtual.
    pub providers: ProviderIndex,
}

/// A package that a step changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepItem {
    /// Name in apt.
    pub package: String,
    /// Versions before and after.
    pub change: PackageChange,
}

/// A step of a package update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do", deny_unknown_fields)]
pub enum PackageStep {
    /// Installs and removals in one transaction, so that apt can order them.
    Install {
        /// Packages to install.
        items: Vec<StepItem>,
        /// The files of these packages.
        debs: Vec<Deb>,
        /// Whether apt needs the agent's own folder of sources to find them.
        own_sources: bool,
        /// Packages to remove.
        #[serde(default)]
        removals: Vec<StepItem>,
        /// Whether an older version replaces a newer one.
        #[serde(default)]
        downgrades: bool,
        /// What happens to services that use replaced files.
        #[serde(default)]
        services: ServiceRule,
        /// Limit of the download in bytes per second; 0 for no limit.
        #[serde(default)]
        bytes_per_second: u64,
        /// Packages that are marked as automatically installed if the step fails. If it succeeds,
        /// the step `mark` does so.
        #[serde(default)]
        automatic: Vec<String>,
        /// Names in apt of the packages that are installed together, one group after another; empty for one transaction.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        groups: Vec<Vec<String>>,
    },
    /// Configuration of packages that were left unpacked or half-configured.
    Configure { items: Vec<StepItem> },
    /// Sets the marks of automatically and manually installed packages, by their names in apt.
    Mark {
        automatic: Vec<String>,
        #[serde(default)]
        manual: Vec<String>,
    },
    /// Removal of packages that no package needs any more. Its failure does not matter.
    Remove {
        /// Packages to remove.
        removals: Vec<StepItem>,
        /// Whether the kernels are removed before all other steps, so that these have space in `/boot`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_before_update: bool,
    },
}

impl PackageStep {
    /// The names of the steps, in the order in which they are taken. A plan may also begin with the removal of kernels.
    pub const NAMES: &'static [&'static str] = &["install", "configure", "mark", "remove"];

    pub fn name(&self) -> &'static str {
        match self {
            Self::Install { .. } => "install",
            Self::Configure { .. } => "configure",
            Self::Mark { .. } => "mark",
            Self::Remove { .. } => "remove",
        }
    }

    /// The packages that the step changes.
    pub fn items(&self) -> impl Iterator<Item = &StepItem> {
        let none: &[StepItem] = &[];
        let (first, second) = match self {
            Self::Install { items, removals, .. } => (items.as_slice(), removals.as_slice()),
            Self::Configure { items } => (items.as_slice(), none),
            Self::Mark { .. } => (none, none),
            Self::Remove { removals, .. } => (none, removals.as_slice()),
        };
        first.iter().chain(second)
    }

    /// The parts of the step that are installed one after another. A part has no groups and no marks: with a copy of both in
    /// each of many parts, a large update would need hundreds of MiB.
    pub fn transactions(&self) -> Vec<Self> {
        let Self::Install {
            items,
            debs,
            own_sources,
            removals,
            downgrades,
            services,
            bytes_per_second,
            automatic: _,
            groups,
        } = self
        else {
            return vec![self.clone()];
        };
        if groups.is_empty() {
            return vec![self.clone()];
        }
        // The files are in the order of the packages.
        let files: BTreeMap<_, _> =
            items.iter().zip(debs).map(|pair| (&pair.0.package, pair)).collect();
        let part = |group: &Vec<String>| {
            let chosen = group.iter().filter_map(|package| files.get(package).copied());
            let (items, debs) = chosen.map(|(item, deb)| (item.clone(), deb.clone())).unzip();
            Self::Install {
                items,
                debs,
                own_sources: *own_sources,
                removals: removals.clone(),
                downgrades: *downgrades,
                services: *services,
                bytes_per_second: *bytes_per_second,
                automatic: Vec::new(),
                groups: Vec::new(),
            }
        };
        groups.iter().map(part).collect()
    }

    /// The files that the step needs.
    pub fn debs(&self) -> &[Deb] {
        match self {
            Self::Install { debs, .. } => debs,
            Self::Configure { .. } | Self::Mark { .. } | Self::Remove { .. } => &[],
        }
    }
}

/// Plans an update, or returns why it is not possible.
pub fn plan(
    spec: &PackageSpec,
    observed: &PackageObservation,
) -> Result<Draft<PackageStep, PackageReport>, Failure> {
    let installed = index_by_apt_name(&observed.packages, &observed.native_architecture);
    check_plan(spec, observed, &installed).map_err(|failure| match spec.mode {
        PackageMode::Exactly(_) if failure.kind == FailureKind::Plan => {
            explain_failure(failure, observed.broken_sources.as_ref())
        }
        _ => failure,
    })?;
    let installs = install_items(observed);
    let removals = removal_items(&installed, &observed.simulation.removals);
    let unfinished = unfinished_items(&installed, observed);
    let unused = removal_items(&installed, &observed.unused);
    let marks = plan_marks(spec, observed, &installed);

    let items = installs.iter().chain(&removals).chain(&unfinished).chain(&unused);
    let mut changes: Vec<PackageChange> = items.map(|item| item.change.clone()).collect();
    changes.sort();
    let disk_bytes = disk_growth(observed, &installed);
    let mut draft = Draft {
        plan: UpdatePlan {
            download_bytes: Deb::total_bytes(files_to_download(&observed.debs, observed)),
            disk_bytes,
            reboot_expected: expects_reboot(&changes, &observed.reboot_requesters),
            reboot: spec.rules.reboot,
            space: Vec::new(),
        },
        report: PackageReport {
            changes,
            held_back: held_back_packages(spec, observed, &installed),
            ..PackageReport::default()
        },
        ..Draft::default()
    };
    if !installs.is_empty() || !removals.is_empty() {
        let is_plain = removals.is_empty() && observed.simulation.downgrades.is_empty();
        let groups = if spec.rules.minimal_steps && is_plain {
            find_groups(&installs, &observed.records)
        } else {
            Vec::new()
        };
        draft.steps.push(PackageStep::Install {
            groups: if groups.len() > 1 { groups } else { Vec::new() },
            items: installs,
            debs: observed.debs.clone(),
            own_sources: observed.own_sources,
            removals,
            downgrades: !observed.simulation.downgrades.is_empty(),
            services: spec.rules.services,
            bytes_per_second: spec.rules.download_bytes_per_second,
            automatic: marks.automatic.clone(),
        });
    }
    if !unfinished.is_empty() {
        draft.steps.push(PackageStep::Configure { items: unfinished });
    }
    if marks != PlannedMarks::default() {
        let PlannedMarks { automatic, manual } = marks;
        draft.steps.push(PackageStep::Mark { automatic, manual });
    }
    // A removal needs no space.
    if !draft.steps.is_empty() {
        draft.plan.space = needed_space(disk_bytes);
        draft.plan.space.extend(observed.boot_space.iter().cloned());
    }
    if !unused.is_empty() {
        draft.steps.splice(0..0, kernels_before_update(&installed, &unused));
        draft.steps.push(PackageStep::Remove { removals: unused, is_before_update: false });
    }
    Ok(draft)
}

/// The removal of unused kernels before the update, if a package is not configured: perhaps `/boot` is full, so that it
/// can be configured only with more space. apt configures it before it installs others, and the update would fail.
fn kernels_before_update(
    installed: &InstalledPackages<'_>,
    unused: &[StepItem],
) -> Option<PackageStep> {
    if installed.values().all(|dpkg_package| dpkg_package.is_settled()) {
        return None;
    }
    let kernels = unused.iter().filter(|item| is_kernel_package(&item.package));
    let removals: Vec<_> = kernels.cloned().collect();
    (!removals.is_empty()).then_some(PackageStep::Remove { removals, is_before_update: true })
}

/// The present packages, by their name in apt.
pub type InstalledPackages<'a> = BTreeMap<String, &'a DpkgPackage>;

/// Indexes the present packages by their name in apt.
pub fn index_by_apt_name<'a>(packages: &'a [DpkgPackage], native: &str) -> InstalledPackages<'a> {
    let present = packages.iter().filter(|package| package.is_present());
    present.map(|package| (package.apt_name(native), package)).collect()
}

/// A name without the architecture if that is dpkg's own or means it: `:native` and `:any`.
pub fn strip_native_architecture<'a>(name: &'a str, native: &str) -> &'a str {
    match name.split_once(':') {
        Some((short, "all" | "native" | "any")) => short,
        Some((short, architecture)) if architecture == native => short,
        _ => name,
    }
}

fn install_items(observed: &PackageObservation) -> Vec<StepItem> {
    let item = |install: &PlannedInstall| StepItem {
        package: install.package.clone(),
        change: PackageChange {
            name: install.name().to_owned(),
            architecture: install.architecture.clone(),
            before: install.before.clone(),
            after: Some(install.after.clone()),
            suite: index_targets::origin_suite(&install.origins, &observed.targets),
            suites: index_targets::origin_suites(&install.origins, &observed.targets)
                .into_iter()
                .collect(),
            origins: index_targets::origin_labels(&install.origins, &observed.targets)
                .into_iter()
                .collect(),
            download_bytes: Deb::total_bytes(files_to_download(
                find_deb(install, &observed.debs),
                observed,
            )),
        },
    };
    observed.simulation.installs.iter().map(item).collect()
}

fn find_deb<'a>(install: &PlannedInstall, debs: &'a [Deb]) -> Option<&'a Deb> {
    let order = install.apt_argument();
    debs.iter().find(|deb| deb.apt_argument == order)
}

/// The files that are not in the cache of apt.
fn files_to_download<'a>(
    debs: impl IntoIterator<Item = &'a Deb>,
    observed: &PackageObservation,
) -> impl Iterator<Item = &'a Deb> {
    debs.into_iter().filter(|deb| !observed.cached_files.contains(&deb.name))
}

fn removal_items(installed: &InstalledPackages<'_>, removals: &[String]) -> Vec<StepItem> {
    let items = removals.iter().filter_map(|package| {
        let dpkg_package = installed.get(package)?;
        Some(StepItem {
            package: package.clone(),
            change: PackageChange { after: None, ..unchanged_package(dpkg_package) },
        })
    });
    items.collect()
}

fn unfinished_items(
    installed: &InstalledPackages<'_>,
    observed: &PackageObservation,
) -> Vec<StepItem> {
    let simulation = &observed.simulation;
    let is_touched = |package: &String| {
        simulation.install(package).is_some()
            || simulation.removals.contains(package)
            || observed.unused.contains(package)
    };
    installed
        .iter()
        .filter(|(package, dpkg_package)| {
            dpkg_package.state != "installed"
                && !dpkg_package.is_half_removed()
                && !is_touched(package)
        })
        .map(|(package, dpkg_package)| StepItem {
            package: package.clone(),
            change: unchanged_package(dpkg_package),
        })
        .collect()
}

fn unchanged_package(package: &DpkgPackage) -> PackageChange {
    PackageChange {
        name: package.name.clone(),
        architecture: package.architecture.clone(),
        before: Some(package.version.clone()),
        after: Some(package.version.clone()),
        ..PackageChange::default()
    }
}

/// Growth of the installed size in bytes. For a version without a declared size, the size of its file is used.
fn disk_growth(observed: &PackageObservation, installed: &InstalledPackages<'_>) -> i64 {
    let before =
        |package: &String| installed.get(package).map_or(0, |dpkg_package| dpkg_package.size);
    let after = |install: &PlannedInstall| {
        let exact =
            (install.name().to_owned(), install.after.clone(), install.architecture.clone());
        let installed_size = observed.sizes.get(&exact).copied();
        installed_size
            .unwrap_or_else(|| find_deb(install, &observed.debs).map_or(0, |deb| deb.size))
    };
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let installs = observed.simulation.installs.iter();
    let grown = installs.fold(0_i64, |sum, install| {
        sum.saturating_add(signed(after(install))).saturating_sub(signed(before(&install.package)))
    });
    let removals = observed.simulation.removals.iter();
    removals.fold(grown, |sum, package| sum.saturating_sub(signed(before(package))))
}

/// Space that a change needs. Packages are assumed to grow `/usr`; the configured minimum covers the
/// other file systems.
fn needed_space(disk_bytes: i64) -> Vec<SpaceNeed> {
    let need = |path: &str, bytes| SpaceNeed { path: path.to_owned(), bytes, max_free: None };
    let grows = u64::try_from(disk_bytes).unwrap_or(0);
    vec![need("/usr", grows), need("/var", 0), need("/", 0)]
}

/// Whether a change probably needs a reboot.
fn expects_reboot(changes: &[PackageChange], rebooters: &[String]) -> bool {
    let arrives = |change: &&PackageChange| change.after.is_some() && change.after != change.before;
    changes.iter().filter(arrives).any(|change| {
        rebooters.contains(&change.name)
            || REBOOT_PACKAGES.iter().any(|pattern| matches_pattern(pattern, &change.name))
    })
}

/// Joins names for a person, at most `MAX_NAMES_IN_REASON` of them.
pub fn join_names(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    let first: Vec<_> = names.iter().take(MAX_NAMES_IN_REASON).map(String::as_str).collect();
    let listed = first.join(", ");
    match names.len().checked_sub(MAX_NAMES_IN_REASON) {
        None | Some(0) => listed,
        Some(more) => format!("{listed} and {more} more"),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
