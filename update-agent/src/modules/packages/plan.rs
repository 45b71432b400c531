//! From what is wanted and what was seen to the steps. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::files::Deb;
use super::parse::{Exact, Install, Known, Simulation};
use super::refusals::refuse;
use super::rules::{are_among, fits};
use super::targets::{self, Target};
use super::withheld::{Seen, withheld};
use crate::model::{
    Change, Failure, PackageMode, PackageWish, ServiceRule, Withheld, WithheldCause,
};
use crate::modules::Draft;
use crate::owner::OwnerLimits;

/// At most so many packages are named in a reason.
const NAMED: usize = 10;

/// Packages after which a system is to be rebooted: what they bring runs from the boot on, or everything runs on it.
const REBOOTERS: [&str; 12] = [
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

/// What is, and what apt says would be the way.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The architecture of dpkg itself.
    pub native: String,
    /// Every package that dpkg knows.
    pub known: Vec<Known>,
    /// What apt would do.
    pub simulation: Simulation,
    /// What apt would do if neither the policy nor the machine's owner left anything out; `None` if they do not.
    pub free: Option<Simulation>,
    /// What apt would do then without the node's own preferences; `None` if it has none.
    pub unpinned: Option<Simulation>,
    /// What apt would fetch for it, in the order of what would be unpacked.
    pub debs: Vec<Deb>,
    /// The bytes that new versions will take on the disk, as far as they say so.
    pub sizes: BTreeMap<Exact, u64>,
    /// Packages that are there only because others need them.
    pub automatic: BTreeSet<String>,
    /// The indexes of packages that apt has.
    pub targets: Vec<Target>,
    /// The codename of the release that is installed.
    pub codename: String,
    /// Packages that have asked for a reboot.
    pub rebooters: Vec<String>,
    /// What the machine's owner allows.
    pub limits: OwnerLimits,
}

/// A package that a step changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Its name as apt says it.
    pub package: String,
    /// Before and after.
    pub change: Change,
}

/// One change of packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do", deny_unknown_fields)]
pub enum Step {
    /// All in one transaction, so that apt can order them.
    Install {
        /// What will be there.
        items: Vec<Item>,
        /// The files that it is made of.
        debs: Vec<Deb>,
        /// Whether apt must be shown the agent's own folder of sources to find them.
        own_sources: bool,
        /// What will not be there any more.
        #[serde(default)]
        removals: Vec<Item>,
        /// Whether an older version replaces a newer one.
        #[serde(default)]
        downgrades: bool,
        /// What becomes of services that run what was replaced.
        #[serde(default)]
        services: ServiceRule,
        /// The most bytes to fetch in a second; 0 for no limit.
        #[serde(default)]
        pace: u64,
    },
    /// Finish packages that somebody left unpacked or half configured.
    Configure {
        /// Which.
        items: Vec<Item>,
    },
    /// Mark packages as there only because others need them, as they were.
    Mark {
        /// Their names as apt says them.
        automatic: Vec<String>,
    },
}

impl Step {
    /// The names of the steps, in the order in which they are taken.
    pub const NAMES: &'static [&'static str] = &["install", "configure", "mark"];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Install { .. } => "install",
            Self::Configure { .. } => "configure",
            Self::Mark { .. } => "mark",
        }
    }

    /// The packages that it changes.
    pub fn items(&self) -> impl Iterator<Item = &Item> {
        let none: &[Item] = &[];
        let (first, second) = match self {
            Self::Install {
                items, removals, ..
            } => (items.as_slice(), removals.as_slice()),
            Self::Configure { items } => (items.as_slice(), none),
            Self::Mark { .. } => (none, none),
        };
        first.iter().chain(second)
    }

    /// The files that it needs.
    pub fn debs(&self) -> &[Deb] {
        match self {
            Self::Install { debs, .. } => debs,
            Self::Configure { .. } | Self::Mark { .. } => &[],
        }
    }
}

/// What to do, or why there is no way.
pub fn plan(wanted: &PackageWish, observed: &Observed) -> Result<Draft<Step>, Failure> {
    let installed = by_package(&observed.known, &observed.native);
    refuse(wanted, observed, &installed)?;
    let installs = install_items(observed);
    let removals = removal_items(&installed, &observed.simulation);
    let unfinished = unfinished_items(&installed, &observed.simulation);
    let automatic = automatic(wanted, observed);

    let items = installs.iter().chain(&removals).chain(&unfinished);
    let mut changes: Vec<Change> = items.map(|item| item.change.clone()).collect();
    changes.sort();
    let mut draft = Draft {
        reboot_expected: reboot_is_expected(&changes, &observed.rebooters),
        changes,
        download_bytes: observed.debs.iter().map(|deb| deb.size).sum(),
        disk_bytes: disk_bytes(observed, &installed),
        withheld: withheld_from(wanted, observed, &installed),
        image: None,
        steps: Vec::new(),
    };
    if !installs.is_empty() || !removals.is_empty() {
        draft.steps.push(Step::Install {
            items: installs,
            debs: observed.debs.clone(),
            own_sources: !wanted.sources.is_empty()
                || !wanted.rules.suites.is_empty()
                || !observed.limits.suites.is_empty(),
            removals,
            downgrades: !observed.simulation.downgrades.is_empty(),
            services: wanted.rules.services,
            pace: wanted.rules.download_bytes_per_second,
        });
    }
    if !unfinished.is_empty() {
        draft.steps.push(Step::Configure { items: unfinished });
    }
    if !automatic.is_empty() {
        draft.steps.push(Step::Mark { automatic });
    }
    Ok(draft)
}

/// What is there, by its name as apt says it.
pub type Installed<'a> = BTreeMap<String, &'a Known>;

/// The packages of which something is there.
pub fn by_package<'a>(known: &'a [Known], native: &str) -> Installed<'a> {
    let present = known.iter().filter(|known| known.is_present());
    present
        .map(|known| (known.package(native), known))
        .collect()
}

/// A name as apt says it: without the architecture if that is dpkg's own.
pub fn named<'a>(name: &'a str, native: &str) -> &'a str {
    match name.split_once(':') {
        Some((short, architecture)) if architecture == native || architecture == "all" => short,
        _ => name,
    }
}

fn install_items(observed: &Observed) -> Vec<Item> {
    let item = |install: &Install| Item {
        package: install.package.clone(),
        change: Change {
            name: install.name().to_owned(),
            architecture: install.architecture.clone(),
            before: install.before.clone(),
            after: Some(install.after.clone()),
            suite: suite(install, &observed.targets),
            download_bytes: deb_of(install, &observed.debs).map_or(0, |deb| deb.size),
        },
    };
    observed.simulation.installs.iter().map(item).collect()
}

/// The suite that a version comes from: by its codename if that is known, since other names move on to other releases.
fn suite(install: &Install, targets: &[Target]) -> String {
    let codename = targets::codenames(&install.origins, targets).pop_first();
    let told = || targets::suites(&install.origins, targets).pop_first();
    codename.map_or_else(|| told().unwrap_or_default(), str::to_owned)
}

fn deb_of<'a>(install: &Install, debs: &'a [Deb]) -> Option<&'a Deb> {
    let order = install.order();
    debs.iter().find(|deb| deb.order == order)
}

fn removal_items(installed: &Installed<'_>, simulation: &Simulation) -> Vec<Item> {
    let removals = simulation.removals.iter();
    let items = removals.filter_map(|package| {
        let known = installed.get(package)?;
        Some(Item {
            package: package.clone(),
            change: Change {
                after: None,
                ..unchanged(known)
            },
        })
    });
    items.collect()
}

fn unfinished_items(installed: &Installed<'_>, simulation: &Simulation) -> Vec<Item> {
    let touched = |package: &String| {
        simulation.install(package).is_some() || simulation.removals.contains(package)
    };
    installed
        .iter()
        .filter(|(package, known)| known.state != "installed" && !touched(package))
        .map(|(package, known)| Item {
            package: package.clone(),
            change: unchanged(known),
        })
        .collect()
}

fn unchanged(known: &Known) -> Change {
    Change {
        name: known.name.clone(),
        architecture: known.architecture.clone(),
        before: Some(known.version.clone()),
        after: Some(known.version.clone()),
        suite: String::new(),
        download_bytes: 0,
    }
}

/// apt takes every file that it is given for a wish of a person; what was automatic must be marked so again, and what is
/// new and was not asked for as well.
fn automatic(wanted: &PackageWish, observed: &Observed) -> Vec<String> {
    let asked: BTreeSet<&str> = match &wanted.mode {
        PackageMode::Latest => BTreeSet::new(),
        PackageMode::Exactly(packages) => packages
            .iter()
            .map(|package| named(&package.name, &observed.native))
            .collect(),
    };
    let installs = observed.simulation.installs.iter();
    installs
        .filter(|install| match &install.before {
            Some(_) => observed.automatic.contains(&install.package),
            None => !asked.contains(install.package.as_str()),
        })
        .map(|install| install.package.clone())
        .collect()
}

/// By how many bytes what is installed grows. A version that does not say what it takes takes at least what its file does.
fn disk_bytes(observed: &Observed, installed: &Installed<'_>) -> i64 {
    let before = |package: &String| installed.get(package).map_or(0, |known| known.size);
    let after = |install: &Install| {
        let exact = (
            install.name().to_owned(),
            install.after.clone(),
            install.architecture.clone(),
        );
        let said = observed.sizes.get(&exact).copied();
        said.unwrap_or_else(|| deb_of(install, &observed.debs).map_or(0, |deb| deb.size))
    };
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let installs = observed.simulation.installs.iter();
    let grown = installs.fold(0_i64, |sum, install| {
        sum.saturating_add(signed(after(install)))
            .saturating_sub(signed(before(&install.package)))
    });
    let removals = observed.simulation.removals.iter();
    removals.fold(grown, |sum, package| {
        sum.saturating_sub(signed(before(package)))
    })
}

/// Whether a change will probably ask for a reboot.
fn reboot_is_expected(changes: &[Change], rebooters: &[String]) -> bool {
    let arrives = |change: &&Change| change.after.is_some() && change.after != change.before;
    changes.iter().filter(arrives).any(|change| {
        rebooters.contains(&change.name)
            || REBOOTERS.iter().any(|pattern| fits(pattern, &change.name))
    })
}

fn withheld_from(
    wanted: &PackageWish,
    observed: &Observed,
    installed: &Installed<'_>,
) -> Vec<Withheld> {
    if wanted.mode != PackageMode::Latest {
        return Vec::new();
    }
    let by_owner = &observed.limits.suites;
    let left_out = |install: &Install| {
        let suites = targets::suites(&install.origins, &observed.targets);
        if are_among(&suites, by_owner) {
            WithheldCause::Policy
        } else {
            WithheldCause::Limits
        }
    };
    let seen = Seen {
        chosen: &observed.simulation,
        free: observed.free.as_ref(),
        unpinned: observed.unpinned.as_ref(),
    };
    withheld(installed, &seen, left_out)
}

/// Names for a person to read, not too many.
pub fn enumerate(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    let shown: Vec<_> = names.iter().take(NAMED).map(String::as_str).collect();
    let shown = shown.join(", ");
    match names.len().checked_sub(NAMED) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
