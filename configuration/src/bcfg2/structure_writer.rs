//! Writes a document as `<Configuration>`.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::xml::is_xml_char;
use super::xml_output::XmlOutput;
use crate::document::{ApplyMode, Bundle, Desired, Document, FailureMode, Purpose};
use crate::revision::revision;
use crate::validation::{ErrorList, FieldError, short};

/// Permissions of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathPermissions<'a> {
    pub mode: &'a str,
    pub owner: &'a str,
    pub group: &'a str,
}

/// Permissions of the files that load a setting.
pub(super) const SYSTEM_FILE: PathPermissions<'static> =
    PathPermissions { mode: "0644", owner: "root", group: "root" };

/// A `Path`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PathElement<'a> {
    pub name: &'a str,
    pub kind: &'a str,
    pub permissions: Option<PathPermissions<'a>>,
    /// The attribute that belongs to the type.
    pub further: Option<(&'a str, &'a str)>,
    pub text: &'a str,
}

/// Writes the document.
pub(super) fn write_configuration(document: &Document) -> Result<String, Vec<FieldError>> {
    let mut writer = StructureWriter::new(document);
    writer.refuse_modes(document);
    for (index, bundle) in document.bundles.iter().enumerate() {
        writer.write_bundle(index, bundle);
    }
    if writer.errors.is_empty() {
        Ok(writer.output.finish())
    } else {
        Err(writer.errors.into_errors())
    }
}

/// The state of an export.
#[derive(Debug)]
pub(super) struct StructureWriter {
    output: XmlOutput,
    errors: ErrorList,
    /// Elements and names that are written.
    names: HashSet<(&'static str, String)>,
    /// Path of the entry.
    path: String,
    /// Paths of the file entries of the bundle.
    pub bundle_files: HashSet<String>,
    /// Purposes and commands of actions that load changed files of the bundle.
    pub load_commands: Vec<(&'static str, &'static str)>,
}

impl StructureWriter {
    fn new(document: &Document) -> Self {
        let mut output = XmlOutput::new();
        let revision = revision(document);
        output.open("Configuration", &[("version", "2.0"), ("revision", &revision)]);
        Self {
            output,
            errors: ErrorList::default(),
            names: HashSet::new(),
            path: String::new(),
            bundle_files: HashSet::new(),
            load_commands: Vec::new(),
        }
    }

    /// Bcfg2 has these modes as options of its client, not in its document.
    fn refuse_modes(&mut self, document: &Document) {
        let mut refuse = |path: &str, message: &str| self.errors.add(path, message);
        if document.apply_mode == ApplyMode::Audit {
            refuse("applyMode", "Bcfg2's document has no audit; use the option -n of its client");
        }
        if !document.remove_extras.is_empty() {
            let message =
                "Bcfg2's document does not remove extras; use the option -r of its client";
            refuse("removeExtras", message);
        }
        if document.on_failure == FailureMode::Revert {
            refuse("onFailure", "Bcfg2 does not revert changes; accepted: keep");
        }
        if document.purpose == Purpose::Provision {
            refuse("purpose", "Bcfg2 configures running machines; accepted: reconcile");
        }
    }

    fn write_bundle(&mut self, index: usize, bundle: &Bundle) {
        self.path = format!("bundles[{index}]");
        self.check_attribute("name", &bundle.name);
        if !self.names.insert(("Bundle", bundle.name.clone())) {
            self.add_error("name", "the bundle is listed twice");
        }
        let files = bundle.entries.iter().filter(|e| matches!(e.desired, Desired::File(_)));
        self.bundle_files = files.map(|entry| entry.name.clone()).collect();
        self.load_commands.clear();
        self.output.open("Bundle", &[("name", &bundle.name)]);
        for (entry_index, entry) in bundle.entries.iter().enumerate() {
            self.path = format!("bundles[{index}].entries[{entry_index}]");
            self.write_entry(entry);
        }
        for (purpose, command) in std::mem::take(&mut self.load_commands) {
            let name = format!("{purpose} of {}", bundle.name);
            self.write_load_action(&name, command);
        }
        self.output.close();
    }

    /// Adds an error of a field of the entry.
    pub fn add_error(&mut self, field: &str, message: impl Into<String>) {
        let path = format!("{}.{field}", self.path);
        self.errors.add(&path, message);
    }

    /// Writes an element with a name, and refuses a second one with the same name.
    pub fn write_element(
        &mut self,
        tag: &'static str,
        name: &str,
        attributes: &[(&str, &str)],
        text: &str,
    ) {
        let attributes = self.named_attributes(tag, name, attributes);
        self.output.add(tag, &attributes, text);
    }

    /// Writes an element with elements that have only attributes.
    pub fn write_parent(
        &mut self,
        tag: &'static str,
        name: &str,
        attributes: &[(&str, &str)],
        children: &[(&'static str, Vec<(&str, &str)>)],
    ) {
        let attributes = self.named_attributes(tag, name, attributes);
        self.output.open(tag, &attributes);
        for (child, attributes) in children {
            for (name, value) in attributes {
                self.check_attribute(name, value);
            }
            self.output.add(child, attributes, "");
        }
        self.output.close();
    }

    fn named_attributes<'a>(
        &mut self,
        tag: &'static str,
        name: &'a str,
        attributes: &[(&'a str, &'a str)],
    ) -> Vec<(&'a str, &'a str)> {
        let mut all = vec![("name", name)];
        all.extend_from_slice(attributes);
        for (name, value) in &all {
            self.check_attribute(name, value);
        }
        if !self.names.insert((tag, name.to_owned())) {
            let message = format!("the document would have {tag} {} twice", short(name));
            self.add_error("name", message);
        }
        all
    }

    fn check_attribute(&mut self, name: &str, value: &str) {
        if let Some(c) = value.chars().find(|c| !is_xml_char(*c)) {
            self.add_error(name, format!("the character {c:?} has no form in XML"));
        }
    }

    /// Writes a file with a text.
    pub fn write_file(&mut self, name: &str, permissions: PathPermissions<'_>, text: &str) {
        // A reader of XML takes a carriage return as a line feed.
        if text.chars().all(|c| is_xml_char(c) && c != '\r') {
            self.write_content(name, permissions, None, text);
        } else {
            self.write_base64_file(name, permissions, &STANDARD.encode(text));
        }
    }

    /// Writes a file whose content is given in base64.
    pub fn write_base64_file(
        &mut self,
        name: &str,
        permissions: PathPermissions<'_>,
        digits: &str,
    ) {
        self.write_content(name, permissions, Some(("encoding", "base64")), digits);
    }

    fn write_content(
        &mut self,
        name: &str,
        permissions: PathPermissions<'_>,
        encoding: Option<(&str, &str)>,
        text: &str,
    ) {
        let further = if text.is_empty() { Some(("empty", "true")) } else { encoding };
        let permissions = Some(permissions);
        self.write_path(PathElement { name, kind: "file", permissions, further, text });
    }

    pub fn write_path(&mut self, path: PathElement<'_>) {
        let mut attributes = vec![("type", path.kind)];
        if let Some(PathPermissions { mode, owner, group }) = path.permissions {
            attributes.extend([("owner", owner), ("group", group), ("mode", mode)]);
        }
        attributes.extend(path.further);
        self.write_element("Path", path.name, &attributes, path.text);
    }

    /// Writes an action that loads changed files of the bundle.
    pub fn write_load_action(&mut self, name: &str, command: &str) {
        let attributes = [
            ("timing", "post"),
            ("when", "modified"),
            ("status", "check"),
            ("shell", "true"),
            ("command", command),
        ];
        self.write_element("Action", name, &attributes, "");
    }
}
