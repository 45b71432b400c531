//! Lists what the machine has and the document does not.
//!
//! - `Package`: packages that are installed by name and that no other package needs. The module
//!   [`packages`](super::packages) has the rules.
//! - `Unit`: services, sockets, timers and paths with a link in a folder `*.wants`, `*.requires` or
//!   `*.upholds` of `/etc/systemd/system`.
//! - `User`: users with a login shell and a number from 1000.
//!
//! An operator should see what a person has added. So these units are no extras, although they are
//! enabled: units that a package has enabled when it was installed, as Debian's
//! `deb-systemd-helper` records it, because the package belongs to the document or is an extra; and
//! units that the presets of systemd's vendor name. The package and the unit of the agent are never
//! extras.
//!
//! There are no extras of the other components: each package brings files, groups and accounts.
//!
//! A report has at most [`MAX_EXTRAS_PER_COMPONENT`] extras of a component, the first by name. If
//! the data for extras cannot be read, there are none; entries that need the same data are bad.

use std::collections::HashSet;

use evenkeel_configuration::Component;
use evenkeel_configuration::document::{Document, Entry, ExtraKind};
use serde_json::Map;

use super::MachineObservation;
use crate::report::{EntryReport, Verdict};

/// Most extras of a component in a report.
const MAX_EXTRAS_PER_COMPONENT: usize = 200;

/// The kinds of extras that a document searches for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExtraScope {
    pub packages: bool,
    pub services: bool,
    pub users: bool,
}

impl ExtraScope {
    /// The kinds that the document describes by an entry, or removes.
    pub fn from_document(document: &Document) -> Self {
        let components: HashSet<Component> =
            document.entries().map(|(_, entry)| entry.component()).collect();
        let is_listed = |component: Component, kind: ExtraKind| {
            components.contains(&component) || document.remove_extras.contains(&kind)
        };
        Self {
            packages: is_listed(Component::Package, ExtraKind::Packages),
            services: is_listed(Component::Unit, ExtraKind::Services),
            users: is_listed(Component::User, ExtraKind::Users),
        }
    }
}

/// The extras by component and name.
pub(super) fn list_extras(
    checked: &[&Entry],
    scope: ExtraScope,
    observation: &MachineObservation<'_>,
) -> Vec<EntryReport> {
    let documented: HashSet<(Component, &str)> = checked.iter().map(|entry| entry.key()).collect();
    let mut extras = Vec::new();
    if scope.services
        && let Ok(links) = &observation.unit_links
    {
        let units = links.list_extras(observation.root).into_iter();
        let units = units.filter(|unit| {
            !documented.contains(&(Component::Unit, unit.as_str()))
                && !observation.units.has_name(unit)
        });
        let reason = "the unit is enabled, and the document does not have it";
        add_extras((Component::Unit, reason), units, &mut extras);
    }
    if scope.packages
        && let Ok(packages) = &observation.packages
    {
        let names = packages.extras.iter().cloned();
        let reason = "the package is installed, and the document does not have it";
        add_extras((Component::Package, reason), names, &mut extras);
    }
    if scope.users
        && let Ok(users) = &observation.accounts.users
    {
        let names = users.people().map(str::to_owned);
        let names = names.filter(|name| !documented.contains(&(Component::User, name.as_str())));
        let reason = "the user has a login shell, and the document does not have it";
        add_extras((Component::User, reason), names, &mut extras);
    }
    extras
}

fn add_extras(
    (component, reason): (Component, &str),
    names: impl Iterator<Item = String>,
    extras: &mut Vec<EntryReport>,
) {
    extras.extend(names.take(MAX_EXTRAS_PER_COMPONENT).map(|name| EntryReport {
        component,
        name,
        verdict: Verdict::Extra,
        modified: false,
        reason: reason.to_owned(),
        current: Map::new(),
    }));
}
