//! Compares a machine with a document.
//!
//! [`check_machine`] changes nothing on the machine. An entry that cannot be checked is bad, with the
//! reason; the other entries are checked all the same.
//!
//! | Component | What is compared |
//! | --- | --- |
//! | `File` | type, content, mode, owner and group; of a directory with `prune` also what is in it |
//! | `Unit` | unit file and drop-ins of the entry, whether the unit is enabled, whether it runs |
//! | `Package` | the state and the version in dpkg's database |
//! | `PackageSource` | the files of the source and of its key in `/etc/apt` |
//! | `User`, `UserGroup` | `/etc/passwd` and `/etc/group`; NSS is not queried |
//! | `Sysctl` | [`SYSCTL_FILE`](crate::names::SYSCTL_FILE) and the value of the running kernel |
//! | `Action` | nothing: an action is not part of a report |
//!
//! Paths are resolved inside the root folder of the machine, and only links that nobody but root
//! could have made are followed; see [`files`](crate::files). The modules of the components have
//! the rules.

mod extras;
mod groups;
mod own_text;
mod packages;
mod read;
mod sources;
mod stanzas;
mod sysctl;
#[cfg(test)]
mod test_machine;
#[cfg(test)]
mod tests;
mod unit_links;
mod unit_properties;
mod units;
mod users;

use std::fmt;

use evenkeel_configuration::Component;
use evenkeel_configuration::document::{Desired, Document, Entry};

use crate::files::{
    AccountDatabase, ContentSource, CreatedAccounts, FileContext, FileError, ManagedPaths,
    RootFolder, check_file,
};
use crate::finding::{Deviation, EntryCheck, EntryKey};
use crate::machine::Machine;
use crate::names::package_base_name;
use crate::protection::refuse_entry;
use crate::report::{ComplianceState, EntryReport, Report, Verdict};
use crate::scope::EntryScope;

use extras::ExtraScope;
use packages::PackageDatabase;
use sysctl::SysctlSettings;
use unit_links::UnitLinks;
use units::UnitObservation;

pub use sources::render_source;
pub(crate) use sysctl::{has_running_value, read_kernel_value, read_stored_settings};
pub(crate) use unit_links::has_package_file;
pub(crate) use units::{must_be_enabled, must_run};

/// What a check needs besides the document and the machine.
#[derive(Clone, Copy)]
pub struct CheckOptions<'a> {
    /// Secrets and downloads.
    pub contents: &'a dyn ContentSource,
    pub scope: &'a EntryScope,
}

impl fmt::Debug for CheckOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckOptions").field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// The result of a check, with what a plan needs to correct the entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineCheck {
    /// The entries in the order of the document, without actions.
    pub entries: Vec<EntryCheck>,
    /// Entries that the server could not bind. No plan has them.
    pub failed: Vec<EntryReport>,
    /// By component and name.
    pub extras: Vec<EntryReport>,
    /// Whether systemd runs on the machine. Otherwise units neither run nor restart.
    pub has_systemd: bool,
}

impl From<MachineCheck> for Report {
    fn from(check: MachineCheck) -> Self {
        let mut entries: Vec<EntryReport> =
            check.entries.into_iter().map(|entry| entry.report).collect();
        entries.extend(check.failed);
        let is_bad = entries.iter().any(|entry| entry.verdict == Verdict::Bad);
        let state = if is_bad { ComplianceState::Dirty } else { ComplianceState::Clean };
        entries.extend(check.extras);
        Self { state, entries }
    }
}

/// Compares a machine with the entries of a document, and lists what the machine has in addition.
///
/// Extras are packages, units and users. They are listed if the document has an entry of the
/// component, or if `removeExtras` names their kind: a document without packages does not describe
/// which packages a node has.
///
/// # Errors
/// The root folder of the machine cannot be opened.
pub fn check_machine(
    document: &Document,
    machine: &Machine,
    options: &CheckOptions<'_>,
) -> Result<MachineCheck, FileError> {
    let EntryScope { failed_entries, .. } = options.scope;
    let checked =
        document.entries().filter(|(bundle, _)| options.scope.covers_bundle(&bundle.name));
    let checked: Vec<&Entry> = checked.map(|(_, entry)| entry).collect();
    let scope = if options.scope.is_whole() {
        ExtraScope::from_document(document)
    } else {
        ExtraScope::default()
    };
    let root = RootFolder::open(&machine.root)?;
    let mut managed = ManagedPaths::from_document(document);
    managed.insert_failed_entries(failed_entries);
    let files = FileContext::new(&root, options.contents, &managed);
    let created = CreatedAccounts::from_document(document);
    let observation = MachineObservation::read(&checked, scope, (machine, &root));
    let entries = checked.iter().filter_map(|entry| match &entry.desired {
        Desired::File(state) if refuse_entry(entry).is_none() => Some(match &files {
            Ok(files) => check_file(files, &created, (&entry.name, state)),
            Err(error) => {
                let failure = Deviation::from_failure(error.to_string());
                failure.into_check(Component::File, &entry.name)
            }
        }),
        _ => observation.check_entry(entry, &files),
    });
    let entries = entries.collect();
    let mut extras = extras::list_extras(&checked, scope, &observation);
    let is_failed = |extra: &EntryReport| {
        // The name of an extra may have the architecture of the package.
        let name = package_base_name(&extra.name);
        let names = [extra.name.as_str(), name].map(|name| EntryKey::new(extra.component, name));
        names.iter().any(|key| failed_entries.contains(key))
    };
    extras.retain(|extra| !is_failed(extra));
    let is_whole = options.scope.is_whole();
    let failed = failed_entries.iter().filter(|_| is_whole).map(report_failed_entry);
    let has_systemd = units::is_systemd_running(&root);
    Ok(MachineCheck { entries, failed: failed.collect(), extras, has_systemd })
}

fn report_failed_entry(key: &EntryKey) -> EntryReport {
    let reason = "the server could not bind the entry";
    Deviation::from_failure(reason).into_check(key.component, &key.name).report
}

/// The data of the machine that several entries need. Each database is read once, and each program
/// runs once.
#[derive(Debug)]
struct MachineObservation<'a> {
    root: &'a RootFolder,
    units: UnitObservation,
    unit_links: Result<UnitLinks, String>,
    packages: Result<PackageDatabase, String>,
    accounts: AccountDatabase,
    sysctl: Result<SysctlSettings, String>,
}

impl<'a> MachineObservation<'a> {
    fn read(
        checked: &[&Entry],
        scope: ExtraScope,
        (machine, root): (&Machine, &'a RootFolder),
    ) -> Self {
        let names = |component: Component| -> Vec<&str> {
            let entries = checked.iter().filter(|entry| entry.component() == component);
            entries.map(|entry| entry.name.as_str()).collect()
        };
        let units = names(Component::Unit);
        let unit_links = if units.is_empty() && !scope.services {
            Ok(UnitLinks::default())
        } else {
            UnitLinks::read(root)
        };
        Self {
            root,
            units: UnitObservation::read(machine, root, &units),
            unit_links,
            packages: PackageDatabase::read(root, &names(Component::Package), scope.packages),
            accounts: AccountDatabase::read(root),
            sysctl: SysctlSettings::read(root, &names(Component::Sysctl)),
        }
    }

    /// The result for an entry that is no file; none for an action.
    fn check_entry(
        &self,
        entry: &Entry,
        files: &Result<FileContext<'_>, FileError>,
    ) -> Option<EntryCheck> {
        let (component, name) = entry.key();
        let root = self.root;
        if let Some(reason) = refuse_entry(entry) {
            return Some(Deviation::from_failure(reason).into_check(component, name));
        }
        let deviation = match &entry.desired {
            Desired::Action(_) | Desired::File(_) => return None,
            Desired::Unit(state) => {
                units::check_unit((root, files), (name, state), &self.units, &self.unit_links)
            }
            Desired::Package(state) => packages::check_package(name, state, &self.packages),
            Desired::PackageSource(state) => sources::check_source(root, name, state),
            Desired::User(state) => users::check_user(name, state, &self.accounts),
            Desired::UserGroup(state) => groups::check_group(name, state, &self.accounts),
            Desired::Sysctl(state) => sysctl::check_sysctl(root, name, state, &self.sysctl),
        };
        Some(deviation.into_check(component, name))
    }
}
