//! Checks units of systemd.
//!
//! **Files.** The unit file in `/etc/systemd/system` is compared if the entry has a `content`, and
//! each drop-in of the entry. They must be files of root with the mode 0644, and no symbolic links.
//! Other drop-ins do not matter.
//!
//! **Whether systemd has read them.** If the entry has a content or drop-ins, systemd must have
//! read the current files.
//!
//! **Enabled.** `enable` is true if an entry does not have it.
//!
//! | State in systemd | `enable: true` | `enable: false` |
//! | --- | --- | --- |
//! | `enabled` | good | bad |
//! | `enabled-runtime` | bad: only until the next boot | bad |
//! | `disabled`, `linked`, `linked-runtime` | bad | good |
//! | `masked`, `masked-runtime` | bad | good |
//! | `static`, `indirect`, `generated`, `alias`, or no state | good: it cannot be enabled | good |
//! | `transient` | bad: it exists only until the next boot | good |
//! | the unit does not exist | bad | good |
//! | `bad`, `invalid` and others | bad | bad |
//!
//! **Running.** A unit must run if it is to be enabled and its command is not `stop`; otherwise it
//! must not run.
//!
//! | State in systemd | The unit must run | The unit must not run |
//! | --- | --- | --- |
//! | `active`, `reloading`, `refreshing`, `activating` | good | bad |
//! | `activating` (`auto-restart`): the unit fails and systemd restarts it | bad | bad |
//! | `inactive` | bad, with the exceptions below | good |
//! | `failed`, `maintenance` | bad | good |
//! | `deactivating` | bad | good |
//!
//! An inactive unit that must run is good if it is a service of the type `oneshot`, if a socket, a
//! timer or a path starts it, or if a condition of the unit has skipped its last start. A unit that
//! must run must also be loaded without an error.
//!
//! **Templates** such as `getty@.service` do not run. If the entry has `enable`, an instance of the
//! template must be enabled, or none.
//!
//! **Without systemd** (`/run/systemd/system` is missing, as in an image), a unit is enabled if
//! there is a link for it in `/etc/systemd/system`, in a folder `*.wants`, `*.requires` or
//! `*.upholds` or as an alias. A unit without such a link is `static` if its unit file has no
//! `[Install]` section. Whether units run is not checked.

use std::collections::HashMap;
use std::time::Duration;

use evenkeel_configuration::document::{UnitCommand, UnitState};
use serde_json::{Map, Value};

use super::own_text::{OwnTextDifference, compare_own_text};
use super::read;
use super::unit_links::{InstallSection, UnitLinks, find_install_section};
use super::unit_properties::{PROPERTY_ARGUMENT, UnitProperties, parse_properties};
use crate::files::{FileContext, FileError, RootFolder};
use crate::finding::{Deviation, Difference};
use crate::machine::{Machine, Program};
use crate::names::{drop_in_path, is_template, unit_file_path};
use crate::text::clean_text;

/// The folder exists while systemd runs (`sd_booted`).
const SYSTEMD_RUNTIME_FOLDER: &str = "/run/systemd/system";

/// Bounds the command line, whose limit in Linux is 128 KiB or more.
const MAX_UNITS_PER_CALL: usize = 400;

const SHOW_TIMEOUT: Duration = Duration::from_mins(1);

/// Whether systemd runs on the machine.
pub(super) fn is_systemd_running(root: &RootFolder) -> bool {
    read::is_folder(root, SYSTEMD_RUNTIME_FOLDER)
}

/// What systemd reports about the units of a document.
#[derive(Debug)]
pub(super) enum UnitObservation {
    Running(ReportedUnits),
    /// systemd does not run.
    Offline,
}

/// The units that systemd has reported.
#[derive(Debug, Default)]
pub(super) struct ReportedUnits {
    units: Vec<UnitProperties>,
    /// Index of a unit by each of its names.
    names: HashMap<String, usize>,
    /// The reason of units that systemd has not reported.
    failure: Option<String>,
}

impl UnitObservation {
    /// Queries systemd for these units, with one call for up to 400 of them.
    pub fn read(machine: &Machine, root: &RootFolder, names: &[&str]) -> Self {
        if !is_systemd_running(root) {
            return Self::Offline;
        }
        // systemctl fails for all units if one is a template.
        let names: Vec<&str> = names.iter().copied().filter(|name| !is_template(name)).collect();
        let mut reported = ReportedUnits::default();
        for names in names.chunks(MAX_UNITS_PER_CALL) {
            reported.query(machine, names);
        }
        Self::Running(reported)
    }

    /// Whether a name is one of a unit of the document: in the document, or as an alias.
    pub fn has_name(&self, name: &str) -> bool {
        match self {
            Self::Running(reported) => reported.names.contains_key(name),
            Self::Offline => false,
        }
    }
}

impl ReportedUnits {
    fn query(&mut self, machine: &Machine, names: &[&str]) {
        let options = ["show", "--no-pager", PROPERTY_ARGUMENT, "--"];
        let program = Program {
            name: "systemctl".to_owned(),
            arguments: options.iter().chain(names).map(|text| (*text).to_owned()).collect(),
            timeout: SHOW_TIMEOUT,
        };
        match machine.programs.run(&program) {
            Ok(output) => {
                self.add(parse_properties(&output.stdout));
                if output.status != 0 {
                    let error = String::from_utf8_lossy(&output.stderr);
                    let error = error.trim().lines().last().unwrap_or_default();
                    let error = clean_text(error);
                    let status = output.status;
                    self.failure =
                        Some(format!("systemctl show failed with status {status}: {error}"));
                }
            }
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    fn add(&mut self, units: Vec<UnitProperties>) {
        for unit in units {
            let index = self.units.len();
            for name in &unit.names {
                self.names.entry(name.clone()).or_insert(index);
            }
            self.units.push(unit);
        }
    }

    fn find(&self, name: &str) -> Result<&UnitProperties, String> {
        let index = self.names.get(name);
        let unit = index.and_then(|index| self.units.get(*index));
        unit.ok_or_else(|| match &self.failure {
            Some(failure) => failure.clone(),
            None => "systemctl show does not report the unit".to_owned(),
        })
    }
}

/// Compares a unit with its desired state.
pub(super) fn check_unit(
    (root, files): (&RootFolder, &Result<FileContext<'_>, FileError>),
    (name, desired): (&str, &UnitState),
    observation: &UnitObservation,
    links: &Result<UnitLinks, String>,
) -> Deviation {
    let mut deviation = Deviation::default();
    match files {
        Ok(files) => compare_files(files, (name, desired), &mut deviation),
        Err(error) => deviation.add_failure(error.to_string()),
    }
    if is_template(name) {
        compare_template(name, desired, links, &mut deviation);
        return deviation;
    }
    match observation {
        UnitObservation::Running(reported) => match reported.find(name) {
            Ok(unit) => compare_reported(unit, desired, &mut deviation),
            Err(reason) => deviation.add_failure(reason),
        },
        UnitObservation::Offline => match links {
            Ok(links) => {
                let enablement = Enablement::from_files(root, name, links);
                enablement.compare(must_be_enabled(desired), &mut deviation);
            }
            Err(reason) => deviation.add_failure(reason),
        },
    }
    deviation
}

pub(crate) fn must_be_enabled(desired: &UnitState) -> bool {
    desired.enable != Some(false)
}

pub(crate) fn must_run(desired: &UnitState) -> bool {
    must_be_enabled(desired) && desired.command != Some(UnitCommand::Stop)
}

fn compare_files(
    files: &FileContext<'_>,
    (name, desired): (&str, &UnitState),
    deviation: &mut Deviation,
) {
    if let Some(content) = &desired.content {
        match compare_own_text(files, &unit_file_path(name), content, "the unit file") {
            Ok(None) => {}
            Ok(Some(OwnTextDifference { is_missing, current, reason })) => {
                let difference =
                    if is_missing { Difference::Existence } else { Difference::Content };
                deviation.add_field(difference, "content", current, reason);
            }
            Err(reason) => deviation.add_failure(reason),
        }
    }
    let mut drop_ins = Map::new();
    for (drop_in, content) in &desired.drop_ins {
        let label = format!("the drop-in {drop_in}");
        match compare_own_text(files, &drop_in_path(name, drop_in), content, &label) {
            Ok(None) => {}
            Ok(Some(OwnTextDifference { is_missing, current, reason })) => {
                drop_ins.insert(drop_in.clone(), current);
                let difference = Difference::DropIn { name: drop_in.clone(), is_missing };
                deviation.add_difference(difference, reason);
            }
            Err(reason) => deviation.add_failure(reason),
        }
    }
    if !drop_ins.is_empty() {
        deviation.current.insert("dropIns".to_owned(), Value::Object(drop_ins));
    }
}

fn compare_template(
    name: &str,
    desired: &UnitState,
    links: &Result<UnitLinks, String>,
    deviation: &mut Deviation,
) {
    let Some(enable) = desired.enable else { return };
    match links {
        Ok(links) if links.has_enabled_instance(name) == enable => {}
        Ok(_) => {
            let word = if enable { "no" } else { "an" };
            let reason = format!("{word} instance of the template is enabled");
            deviation.add_field(Difference::Enablement, "enable", !enable, reason);
        }
        Err(reason) => deviation.add_failure(reason),
    }
}

fn compare_reported(unit: &UnitProperties, desired: &UnitState, deviation: &mut Deviation) {
    let has_files = desired.content.is_some() || !desired.drop_ins.is_empty();
    if has_files && unit.needs_reload {
        let reason = "systemd has not read the changed files of the unit";
        deviation.add_difference(Difference::Reload, reason);
    }
    Enablement::from_properties(unit).compare(must_be_enabled(desired), deviation);
    let reason = if must_run(desired) {
        missing_activity(unit)
    } else {
        is_up(unit).then(|| "the unit is running".to_owned())
    };
    if let Some(reason) = reason {
        deviation.add_difference(Difference::Activity, reason);
    }
}

fn is_up(unit: &UnitProperties) -> bool {
    matches!(unit.active_state.as_str(), "active" | "reloading" | "refreshing" | "activating")
}

/// The reason why a unit that must run does not; none if it does.
fn missing_activity(unit: &UnitProperties) -> Option<String> {
    let is_loaded = matches!(unit.load_state.as_str(), "loaded" | "not-found" | "masked");
    if !is_loaded {
        return Some(format!("systemd cannot load the unit: {}", unit.load_state));
    }
    if unit.sub_state.starts_with("auto-restart") {
        return Some("the unit fails and systemd restarts it".to_owned());
    }
    if is_up(unit) || may_be_inactive(unit) {
        return None;
    }
    Some(match unit.active_state.as_str() {
        "failed" => "the unit has failed".to_owned(),
        "inactive" => "the unit is not running".to_owned(),
        state => format!("the unit is not running: {state}"),
    })
}

/// Whether the unit is in order although it does not run now.
fn may_be_inactive(unit: &UnitProperties) -> bool {
    unit.active_state == "inactive"
        && (unit.service_type == "oneshot" || unit.is_triggered || unit.is_skipped)
}

/// Whether a unit starts at boot.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Enablement {
    Enabled,
    UntilReboot,
    Disabled,
    Masked,
    /// It can neither be enabled nor disabled.
    Fixed,
    Transient,
    Missing,
    Invalid(String),
}

impl Enablement {
    fn from_properties(unit: &UnitProperties) -> Self {
        match (unit.load_state.as_str(), unit.unit_file_state.as_str()) {
            ("not-found", _) => Self::Missing,
            ("masked", _) | (_, "masked" | "masked-runtime") => Self::Masked,
            (_, "enabled") => Self::Enabled,
            (_, "enabled-runtime") => Self::UntilReboot,
            (_, "disabled" | "linked" | "linked-runtime") => Self::Disabled,
            (_, "static" | "indirect" | "generated" | "alias" | "") => Self::Fixed,
            (_, "transient") => Self::Transient,
            (_, state) => Self::Invalid(state.to_owned()),
        }
    }

    fn from_files(root: &RootFolder, name: &str, links: &UnitLinks) -> Self {
        if links.is_masked(name) {
            return Self::Masked;
        }
        if links.is_enabled(name) {
            return Self::Enabled;
        }
        match find_install_section(root, name) {
            InstallSection::Present => Self::Disabled,
            InstallSection::Absent => Self::Fixed,
            InstallSection::NoFile => Self::Missing,
        }
    }

    fn compare(&self, enable: bool, deviation: &mut Deviation) {
        let reason = match (self, enable) {
            (Self::Invalid(state), _) => {
                let reason = format!("systemd reports the state {state} of the unit file");
                deviation.add_failure(reason);
                return;
            }
            (Self::Enabled, false) => "the unit is enabled",
            (Self::UntilReboot, false) => "the unit is enabled until the next boot",
            (Self::UntilReboot, true) => "the unit is enabled only until the next boot",
            (Self::Disabled, true) => "the unit is not enabled",
            (Self::Masked, true) => "the unit is masked",
            (Self::Transient, true) => "the unit exists only until the next boot",
            (Self::Missing, true) => "the unit does not exist",
            (Self::Enabled | Self::Fixed, true)
            | (
                Self::Disabled | Self::Masked | Self::Fixed | Self::Transient | Self::Missing,
                false,
            ) => return,
        };
        deviation.add_field(Difference::Enablement, "enable", !enable, reason);
    }
}

#[cfg(test)]
mod tests;
