//! The result of the check of one entry, for its report and for a plan.

use std::fmt;

use evenkeel_configuration::{Component, Entry, binding};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::report::{EntryReport, Verdict};

/// Component and name of an entry, or of an object of the machine.
///
/// In JSON it is one text, such as `File /etc/motd`, so that it can be the key of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct EntryKey {
    pub component: Component,
    pub name: String,
}

impl EntryKey {
    /// The key of an object.
    pub fn new(component: Component, name: impl Into<String>) -> Self {
        Self { component, name: name.into() }
    }

    /// The key of an entry.
    pub fn from_entry(entry: &Entry) -> Self {
        Self::new(entry.component(), &entry.name)
    }

    /// The key of a file.
    pub fn file(path: &str) -> Self {
        Self::new(Component::File, path)
    }

    /// The key of a unit.
    pub fn unit(name: &str) -> Self {
        Self::new(Component::Unit, name)
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.component, self.name)
    }
}

impl From<binding::EntryKey> for EntryKey {
    fn from(key: binding::EntryKey) -> Self {
        Self { component: key.component, name: key.name }
    }
}

impl From<EntryKey> for String {
    fn from(key: EntryKey) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for EntryKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.split_once(' ')
            .and_then(|(component, name)| Some(Self::new(Component::from_name(component)?, name)))
            .ok_or_else(|| format!("{text:?} is not a component and a name"))
    }
}

/// What differs between an entry and the machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Difference {
    /// The object does not exist and must, or exists and must not. Of a unit: its unit file in
    /// `/etc/systemd/system`. The node owns only objects that it has created because of this
    /// difference.
    Existence,
    /// Content, type, target, version or value; of a package also its state; of a directory with
    /// `prune` what else is in it. Of a unit: its unit file.
    Content,
    /// Mode, owner or group of a file; number, groups, home, shell or comment of an account.
    Attributes,
    /// A drop-in of a unit that the entry has.
    DropIn { name: String, is_missing: bool },
    /// Whether a unit starts at boot.
    Enablement,
    /// Whether a unit runs.
    Activity,
    /// systemd has not read the current unit files (`NeedDaemonReload`).
    Reload,
}

/// The result of the check of one entry: its report, and what a plan needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryCheck {
    pub report: EntryReport,
    /// What differs; empty if the entry is good. If it is bad and this is empty, the entry could
    /// not be checked, and no plan changes it.
    pub differences: Vec<Difference>,
}

/// The differences between the machine and an entry; none if the entry is good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deviation {
    pub reasons: Vec<String>,
    pub current: Map<String, Value>,
    pub differences: Vec<Difference>,
}

impl Deviation {
    /// An entry that cannot be checked.
    pub fn from_failure(reason: impl Into<String>) -> Self {
        Self { reasons: vec![reason.into()], ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.reasons.is_empty()
    }

    /// Adds something that cannot be checked, or that no plan can correct.
    pub fn add_failure(&mut self, reason: impl Into<String>) {
        self.reasons.push(reason.into());
    }

    /// Adds a difference that no field of the desired state names.
    pub fn add_difference(&mut self, difference: Difference, reason: impl Into<String>) {
        self.reasons.push(reason.into());
        if !self.differences.contains(&difference) {
            self.differences.push(difference);
        }
    }

    /// Adds a difference of a field, with its value on the machine.
    pub fn add_field(
        &mut self,
        difference: Difference,
        field: &str,
        current: impl Into<Value>,
        reason: impl Into<String>,
    ) {
        self.current.insert(field.to_owned(), current.into());
        self.add_difference(difference, reason);
    }

    pub fn into_check(self, component: Component, name: &str) -> EntryCheck {
        let report = EntryReport {
            component,
            name: name.to_owned(),
            verdict: if self.is_empty() { Verdict::Good } else { Verdict::Bad },
            modified: false,
            reason: self.reasons.join("; "),
            current: self.current,
        };
        EntryCheck { report, differences: self.differences }
    }
}
