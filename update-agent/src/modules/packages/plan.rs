//! From what is wanted and what was seen to the steps. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::files::Deb;
use super::parse::{Install, Known, Simulation};
use crate::model::{Change, Failure, FailureKind, PackageMode, PackageWish};
use crate::modules::Draft;

/// At most so many packages are named in a reason.
const NAMED: usize = 10;

/// What is, and what apt says would be the way.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The architecture of dpkg itself.
    pub native: String,
    /// Every package that dpkg knows.
    pub known: Vec<Known>,
    /// What apt would do.
    pub simulation: Simulation,
    /// What apt would fetch for it.
    pub debs: Vec<Deb>,
    /// Packages that are there only because others need them.
    pub automatic: BTreeSet<String>,
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
        /// Whether the wish brought sources of its own.
        own_sources: bool,
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
            Self::Install { .. } => Self::NAMES[0],
            Self::Configure { .. } => Self::NAMES[1],
            Self::Mark { .. } => Self::NAMES[2],
        }
    }

    /// The packages that it changes.
    pub fn items(&self) -> &[Item] {
        match self {
            Self::Install { items, .. } | Self::Configure { items } => items,
            Self::Mark { .. } => &[],
        }
    }
}

/// What to do, or why there is no way.
pub fn plan(wanted: &PackageWish, observed: &Observed) -> Result<Draft<Step>, Failure> {
    refuse_removals(&observed.simulation)?;
    let installed = by_package(observed);
    refuse_broken(&installed, &observed.simulation)?;
    if let PackageMode::Exactly(_) = &wanted.mode {
        refuse_what_is_missing(wanted, observed, &installed)?;
    }
    let installs = install_items(&observed.simulation);
    let unfinished = unfinished_items(&installed, &observed.simulation);
    let automatic = automatic(wanted, observed);

    let mut changes: Vec<Change> = installs.iter().map(|item| item.change.clone()).collect();
    changes.extend(unfinished.iter().map(|item| item.change.clone()));
    changes.sort();
    let mut draft = Draft {
        changes,
        download_bytes: observed.debs.iter().map(|deb| deb.size).sum(),
        steps: Vec::new(),
    };
    if !installs.is_empty() {
        draft.steps.push(Step::Install {
            items: installs,
            debs: observed.debs.clone(),
            own_sources: !wanted.sources.is_empty(),
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

/// The packages that are there, by their name as apt says it.
fn by_package(observed: &Observed) -> BTreeMap<String, &Known> {
    let present = observed.known.iter().filter(|known| known.is_present());
    present
        .map(|known| (known.package(&observed.native), known))
        .collect()
}

fn refuse_removals(simulation: &Simulation) -> Result<(), Failure> {
    if simulation.removals.is_empty() {
        return Ok(());
    }
    let names = enumerate(simulation.removals.iter().cloned());
    Err(no_way(format!("it would remove {names}")))
}

/// A half-installed package must be unpacked again; if apt does not mean to, only a person knows where from.
fn refuse_broken(
    installed: &BTreeMap<String, &Known>,
    simulation: &Simulation,
) -> Result<(), Failure> {
    let broken = installed.iter().filter(|(package, known)| {
        let broken = known.state == "half-installed" || known.flag != "ok";
        let renewed = simulation
            .installs
            .iter()
            .any(|install| install.package == **package);
        broken && !renewed
    });
    let names: Vec<_> = broken.map(|(package, _)| package.clone()).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(no_way(format!(
        "these packages are half-installed and must be installed anew by hand: {}",
        enumerate(names)
    )))
}

fn refuse_what_is_missing(
    wanted: &PackageWish,
    observed: &Observed,
    installed: &BTreeMap<String, &Known>,
) -> Result<(), Failure> {
    let PackageMode::Exactly(packages) = &wanted.mode else {
        return Ok(());
    };
    let installs = &observed.simulation.installs;
    for package in packages {
        let name = named(&package.name, &observed.native);
        let install = installs.iter().find(|install| install.package == name);
        let version = match install {
            Some(install) => Some(install.after.as_str()),
            None => installed.get(name).map(|known| known.version.as_str()),
        };
        match (version, package.version.as_deref()) {
            (Some(_), None) => {}
            (Some(version), Some(wished)) if version == wished => {}
            (Some(version), Some(wished)) => {
                return Err(no_way(format!(
                    "{name} would be {version} and not {wished}"
                )));
            }
            (None, _) => return Err(no_way(format!("no source has the package {name}"))),
        }
    }
    Ok(())
}

/// A name as apt says it: without the architecture if that is dpkg's own.
fn named<'a>(name: &'a str, native: &str) -> &'a str {
    match name.split_once(':') {
        Some((short, architecture)) if architecture == native || architecture == "all" => short,
        _ => name,
    }
}

fn install_items(simulation: &Simulation) -> Vec<Item> {
    let item = |install: &Install| Item {
        package: install.package.clone(),
        change: Change {
            name: install.name().to_owned(),
            architecture: install.architecture.clone(),
            before: install.before.clone(),
            after: Some(install.after.clone()),
        },
    };
    simulation.installs.iter().map(item).collect()
}

fn unfinished_items(installed: &BTreeMap<String, &Known>, simulation: &Simulation) -> Vec<Item> {
    let renewed = |package: &str| {
        simulation
            .installs
            .iter()
            .any(|install| install.package == package)
    };
    installed
        .iter()
        .filter(|(package, known)| known.state != "installed" && !renewed(package))
        .map(|(package, known)| Item {
            package: package.clone(),
            change: Change {
                name: known.name.clone(),
                architecture: known.architecture.clone(),
                before: Some(known.version.clone()),
                after: Some(known.version.clone()),
            },
        })
        .collect()
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

fn no_way(reason: String) -> Failure {
    Failure::new(FailureKind::Plan, reason)
}

/// Names for a person to read, not too many.
pub fn enumerate(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    let shown = names[..names.len().min(NAMED)].join(", ");
    match names.len().checked_sub(NAMED) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
