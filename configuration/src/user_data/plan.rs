//! What a machine does with a document, and the entries that a format cannot express.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::unit_syntax::check_unit_syntax;
use super::{UserDataFormat, contains_placeholder};
use crate::document::{
    Desired, Document, FileContent, FileKind, FileState, UnitCommand, UnitState,
};
use crate::validation::{ErrorList, FieldError, child_path, is_template};

/// Highest mode that Ignition 3.3.0 sets.
const MAX_IGNITION_MODE: u32 = 0o777;
const DEFAULT_OWNER: &str = "root";

/// Paths and units in the order of the document.
#[derive(Debug, Default)]
pub(super) struct ProvisionPlan<'a> {
    pub paths: Vec<PlannedPath<'a>>,
    pub units: Vec<PlannedUnit<'a>>,
}

#[derive(Debug)]
pub(super) struct PlannedPath<'a> {
    pub path: &'a str,
    pub owner: &'a str,
    pub group: &'a str,
    pub object: PlannedObject<'a>,
}

/// What is created at a path.
#[derive(Debug)]
pub(super) enum PlannedObject<'a> {
    File { mode: u32, content: PlannedContent<'a> },
    Directory { mode: u32 },
    Symlink { target: &'a str },
}

#[derive(Debug)]
pub(super) enum PlannedContent<'a> {
    Text(PlannedText<'a>),
    Binary(Vec<u8>),
    Download { uri: &'a str, sha256: &'a str },
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlannedText<'a> {
    pub text: &'a str,
    /// Whether it has a placeholder, which must be readable.
    pub is_readable: bool,
}

#[derive(Debug)]
pub(super) struct PlannedUnit<'a> {
    pub name: &'a str,
    pub content: Option<PlannedText<'a>>,
    /// Name and content.
    pub drop_ins: Vec<(&'a str, PlannedText<'a>)>,
    pub activation: PlannedActivation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlannedActivation {
    /// It starts at boot, and after the machine has applied the document.
    Enabled,
    /// It starts at boot, and is stopped now.
    Stopped,
    /// It does not start at boot, and is stopped now.
    Disabled,
    /// It only has files: systemd starts instances of it.
    Template,
}

/// Plans a document.
///
/// # Errors
/// The fields that the format cannot express.
pub(super) fn plan(
    document: &Document,
    format: UserDataFormat,
) -> Result<ProvisionPlan<'_>, Vec<FieldError>> {
    let mut planner = Planner { format, errors: ErrorList::default() };
    let mut plan = ProvisionPlan::default();
    if !document.remove_extras.is_empty() {
        planner.refuse("removeExtras", "user-data removes nothing");
    }
    for (bundle_index, bundle) in document.bundles.iter().enumerate() {
        for (entry_index, entry) in bundle.entries.iter().enumerate() {
            let path = format!("bundles[{bundle_index}].entries[{entry_index}]");
            match &entry.desired {
                Desired::File(state) => {
                    plan.paths.extend(planner.plan_path(&path, &entry.name, state));
                }
                Desired::Unit(state) => {
                    plan.units.push(planner.plan_unit(&path, &entry.name, state));
                }
                _ => {
                    let (component, name) = entry.key();
                    let message = format!(
                        "user-data has only entries File and Unit; move {component} {name} to a \
                         document of purpose reconcile"
                    );
                    planner.refuse(&format!("{path}.component"), &message);
                }
            }
        }
    }
    if planner.errors.is_empty() { Ok(plan) } else { Err(planner.errors.into_errors()) }
}

struct Planner {
    format: UserDataFormat,
    errors: ErrorList,
}

impl Planner {
    fn refuse(&mut self, path: &str, message: &str) {
        self.errors.add(path, message);
    }

    fn plan_path<'a>(
        &mut self,
        entry: &str,
        path: &'a str,
        state: &'a FileState,
    ) -> Option<PlannedPath<'a>> {
        if state.prune {
            self.refuse(&format!("{entry}.desired.prune"), "user-data removes nothing");
        }
        let object = match state.kind {
            FileKind::File => {
                let mode = self.plan_mode(entry, state);
                let content = match &state.content {
                    Some(content) => self.plan_content(entry, content)?,
                    None => PlannedContent::Text(PlannedText::default()),
                };
                PlannedObject::File { mode, content }
            }
            FileKind::Directory => {
                let mode = self.plan_mode(entry, state);
                PlannedObject::Directory { mode }
            }
            FileKind::Symlink => {
                PlannedObject::Symlink { target: state.target.as_deref().unwrap_or_default() }
            }
            FileKind::Absent | FileKind::Permissions => {
                let message = "user-data has only the types file, directory and symlink";
                self.refuse(&format!("{entry}.desired.type"), message);
                return None;
            }
        };
        let owner = state.owner.as_deref().unwrap_or(DEFAULT_OWNER);
        let group = state.group.as_deref().unwrap_or(DEFAULT_OWNER);
        Some(PlannedPath { path, owner, group, object })
    }

    fn plan_mode(&mut self, entry: &str, state: &FileState) -> u32 {
        let mode = state.mode.unwrap_or_else(|| state.default_mode()).0;
        if self.format == UserDataFormat::Ignition && mode > MAX_IGNITION_MODE {
            let message = format!(
                "Ignition 3.3.0 does not set mode {mode:04o}: the set-user-ID, set-group-ID and \
                 sticky bits are not available"
            );
            self.refuse(&format!("{entry}.desired.mode"), &message);
        }
        mode
    }

    fn plan_content<'a>(
        &mut self,
        entry: &str,
        content: &'a FileContent,
    ) -> Option<PlannedContent<'a>> {
        let path = format!("{entry}.desired.content");
        if let Some(text) = &content.inline {
            return Some(PlannedContent::Text(self.plan_text(&format!("{path}.inline"), text)));
        }
        if let Some(digits) = &content.base64 {
            return match STANDARD.decode(digits) {
                Ok(bytes) => Some(PlannedContent::Binary(bytes)),
                Err(error) => {
                    self.refuse(&format!("{path}.base64"), &format!("it is not base64: {error}"));
                    None
                }
            };
        }
        if content.secret_ref.is_some() {
            let message = "user-data cannot have secrets, because a cloud stores it as plain \
                           text; move the file to a document of purpose reconcile";
            self.refuse(&format!("{path}.secretRef"), message);
            return None;
        }
        match (&content.uri, &content.sha256) {
            (Some(uri), Some(sha256)) if self.format == UserDataFormat::Ignition => {
                Some(PlannedContent::Download { uri, sha256 })
            }
            (Some(_), _) => {
                let message = "only Ignition downloads files; write the content, or move the \
                               file to a document of purpose reconcile";
                self.refuse(&format!("{path}.uri"), message);
                None
            }
            (None, _) => Some(PlannedContent::Text(PlannedText::default())),
        }
    }

    fn plan_text<'a>(&mut self, path: &str, text: &'a str) -> PlannedText<'a> {
        let is_readable = contains_placeholder(text);
        let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
        let is_script = self.format != UserDataFormat::Ignition;
        if is_readable && is_script && text.contains(is_control) {
            let message = "a text with a placeholder is part of a script, and must not have \
                           control characters other than tabs and line breaks";
            self.refuse(path, message);
        }
        PlannedText { text, is_readable }
    }

    fn plan_unit<'a>(
        &mut self,
        entry: &str,
        name: &'a str,
        state: &'a UnitState,
    ) -> PlannedUnit<'a> {
        let activation = self.plan_activation(entry, name, state);
        let content = state.content.as_deref();
        let content = content.map(|text| {
            let path = format!("{entry}.desired.content");
            self.check_unit_text(&path, text);
            self.plan_text(&path, text)
        });
        let drop_ins = state.drop_ins.iter().map(|(drop_in, text)| {
            let path = child_path(&format!("{entry}.desired.dropIns"), drop_in);
            self.check_unit_text(&path, text);
            (drop_in.as_str(), self.plan_text(&path, text))
        });
        let drop_ins = drop_ins.collect();
        PlannedUnit { name, content, drop_ins, activation }
    }

    fn check_unit_text(&mut self, path: &str, text: &str) {
        if self.format == UserDataFormat::Ignition
            && let Err(message) = check_unit_syntax(text)
        {
            self.refuse(path, &format!("Ignition refuses the unit: {message}"));
        }
    }

    fn plan_activation(&mut self, entry: &str, name: &str, state: &UnitState) -> PlannedActivation {
        if is_template(name) {
            if state.enable.is_some() {
                let message = "user-data only writes the files of a template; remove the field, \
                               or add a unit for an instance, such as name@instance.service";
                self.refuse(&format!("{entry}.desired.enable"), message);
            }
            return PlannedActivation::Template;
        }
        match (state.enable, state.command) {
            (Some(false), _) => PlannedActivation::Disabled,
            (_, Some(UnitCommand::Stop)) => {
                if self.format == UserDataFormat::Ignition {
                    let message = "Ignition starts every enabled unit; set enable to false, or \
                                   remove the command";
                    self.refuse(&format!("{entry}.desired.command"), message);
                }
                PlannedActivation::Stopped
            }
            _ => PlannedActivation::Enabled,
        }
    }
}
