//! Reads the bundles of a `<Configuration>`.

use std::collections::HashSet;

use super::entries::{
    read_action, read_package, read_service, read_user, read_user_group, unit_name,
};
use super::entry_reader::{EntryReader, refusal};
use super::paths::read_path;
use super::xml::XmlElement;
use crate::document::{Bundle, Component, Desired, Document, Entry};
use crate::origins::{BundleOrigin, Origins};
use crate::validation::{ErrorList, ReadError, excerpt, short};

/// Approximate limit of the memory for lists of files that restart a unit, in bytes.
const MAX_RESTART_LIST_BYTES: usize = 16 * 1024 * 1024;

/// Approximate memory overhead of a string, in bytes.
const OVERHEAD_BYTES: usize = 32;

/// Reads the root of a document.
pub(super) fn read_configuration(root: XmlElement) -> Result<(Document, Origins), ReadError> {
    let mut errors = ErrorList::default();
    check_root(&root, &mut errors);
    if !errors.is_empty() {
        return errors.into_result((Document::default(), Origins::default()));
    }
    let mut reader = StructureReader::default();
    reader.origins.root = "Configuration";
    for (name, value) in &root.attributes {
        match name.as_str() {
            // The revision of Bcfg2's repository does not identify the document.
            "revision" => {}
            "version" if value == "2.0" => {}
            "version" => {
                let message = format!("{} is not accepted; accepted: 2.0", excerpt(value));
                errors.add("Configuration/@version", message);
            }
            _ => {
                let path = format!("Configuration/@{}", short(name));
                errors.add_not_offered(&path, "not offered: remove the attribute");
            }
        }
    }
    if !root.text.trim().is_empty() {
        errors.add("Configuration", "text is not accepted outside of files");
    }
    for (index, element) in root.children.into_iter().enumerate() {
        reader.read_structure(element, index + 1, &mut errors);
    }
    let document = Document { bundles: reader.bundles, ..Document::default() };
    errors.into_result((document, reader.origins))
}

fn check_root(root: &XmlElement, errors: &mut ErrorList) {
    match root.name.as_str() {
        "Configuration" => {}
        "error" => errors.add("error", server_error(root)),
        name => {
            let name = short(name);
            let message = format!(
                "the document is <{name}>; accepted: <Configuration>, as bcfg2 -c FILE stores it"
            );
            errors.add("", message);
        }
    }
}

/// The message of a server of Bcfg2 that has no configuration for the client.
fn server_error(element: &XmlElement) -> String {
    let kind = element.attributes.iter().find(|(name, _)| name == "type");
    let kind = kind.map_or("error", |(_, kind)| kind);
    let text = short(element.text.trim());
    let text = if text.is_empty() { "no message" } else { &text };
    format!("the server of Bcfg2 reported a {}: {text}", short(kind))
}

/// An entry of a bundle.
struct ReadEntry {
    entry: Entry,
    /// Path of the element.
    origin: String,
    restarts_with_bundle: bool,
}

#[derive(Default)]
struct StructureReader {
    bundles: Vec<Bundle>,
    origins: Origins,
    bundle_names: HashSet<String>,
    restart_list_bytes: usize,
    /// Number of the last name that was made for a bundle.
    last_number: usize,
}

impl StructureReader {
    /// Reads a `Bundle` or an `Independent`.
    fn read_structure(&mut self, element: XmlElement, position: usize, errors: &mut ErrorList) {
        if element.name == "error" {
            errors.add("error", server_error(&element));
            return;
        }
        let mut reader = EntryReader::new(element, "", position, errors);
        let is_bundle = reader.element_name() == "Bundle";
        if !is_bundle && reader.element_name() != "Independent" {
            reader.refuse("accepted are Bundle and Independent");
            return;
        }
        let name = if is_bundle { reader.require("name") } else { reader.take("name") };
        let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| self.unused_name());
        let is_independent = reader.take_flag("independent") || !is_bundle;
        // Properties of the file in Bcfg2's repository.
        for attribute in ["description", "origin", "revision", "version"] {
            reader.take(attribute);
        }
        self.bundle_names.insert(name.clone());
        let children = reader.take_children();
        let mut entries = Vec::with_capacity(children.len());
        for (index, child) in children.into_iter().enumerate() {
            let entry = read_entry(reader.child(child, index + 1), is_independent);
            entries.extend(entry);
        }
        self.add_restart_paths(&mut reader, &mut entries);
        let path = reader.path().to_owned();
        reader.finish();
        let (paths, entries) = entries.into_iter().map(|read| (read.origin, read.entry)).unzip();
        self.origins.bundles.push(BundleOrigin { path, entries: paths });
        self.bundles.push(Bundle { name, entries });
    }

    /// A name for an `Independent` without one.
    fn unused_name(&mut self) -> String {
        let mut name = "independent".to_owned();
        while self.bundle_names.contains(&name) {
            self.last_number += 1;
            name = format!("independent-{}", self.last_number + 1);
        }
        name
    }

    /// A change of a file restarts the services of its bundle.
    fn add_restart_paths(&mut self, reader: &mut EntryReader<'_>, entries: &mut [ReadEntry]) {
        let is_file = |read: &&ReadEntry| read.entry.component() == Component::File;
        let files = entries.iter().filter(is_file).map(|read| read.entry.name.clone());
        let paths: Vec<String> = files.collect();
        let size: usize = paths.iter().map(|path| path.len() + OVERHEAD_BYTES).sum();
        for read in entries.iter_mut().filter(|read| read.restarts_with_bundle) {
            self.restart_list_bytes += size;
            if self.restart_list_bytes > MAX_RESTART_LIST_BYTES {
                reader.add_error(
                    "the bundles have too many pairs of a service and a file; divide the bundle, \
                     or write restart=\"false\"",
                );
                return;
            }
            if let Desired::Unit(state) = &mut read.entry.desired {
                state.file_paths.clone_from(&paths);
            }
        }
    }
}

/// Reads an entry. None if there is an error.
fn read_entry(mut reader: EntryReader<'_>, is_independent: bool) -> Option<ReadEntry> {
    if let Some(failure) = reader.take("failure") {
        let failure = short(&failure);
        reader.add_error(format!("the server of Bcfg2 could not bind the entry: {failure}"));
        return None;
    }
    // The name of the entry's source in Bcfg2's repository.
    reader.take("altsrc");
    let mut restarts_with_bundle = false;
    let tag = reader.element_name().to_owned();
    if !TAGS.contains(&tag.as_str()) {
        reader.refuse(refusal(&tag));
        return None;
    }
    let mut name = reader.require("name")?;
    let desired = match tag.as_str() {
        "Path" => read_path(&mut reader).map(Desired::File),
        "Package" => read_package(&mut reader).map(Desired::Package),
        "Service" => {
            name = unit_name(name);
            read_service(&mut reader).map(|service| {
                restarts_with_bundle = service.restarts_with_bundle && !is_independent;
                Desired::Unit(service.state)
            })
        }
        "Action" => read_action(&mut reader, is_independent).map(Desired::Action),
        "POSIXUser" => read_user(&mut reader, &name).map(Desired::User),
        _ => Some(Desired::UserGroup(read_user_group(&mut reader))),
    };
    // After an error in the state, attributes may be unread that are not wrong.
    let entry = Entry { name, desired: desired? };
    let origin = reader.path().to_owned();
    reader.finish().then_some(ReadEntry { entry, origin, restarts_with_bundle })
}

/// Elements of entries.
const TAGS: [&str; 6] = ["Path", "Package", "Service", "Action", "POSIXUser", "POSIXGroup"];
