//! Fields of entries that can have references to facts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::BindingError;
use super::template::{OPENING, SubstitutionError, TextPart, parse, substitute};
use crate::document::{Component, Desired, Entry};
use crate::validation::{ErrorList, FieldError, child_path, item_path};

const NOT_SUBSTITUTED: &str = "has a reference to a fact, which is not replaced here; facts are \
    accepted in the content and the target of files, in the content and the drop-ins of units, and \
    in the values of kernel settings";

/// Reads the references of entries.
#[derive(Debug)]
pub(super) struct ReferenceReader<'a> {
    pub facts: BTreeSet<String>,
    pub errors: &'a mut ErrorList,
}

impl ReferenceReader<'_> {
    /// Adds the facts of an entry. A reference in a field that accepts none is an error.
    pub fn read_entry(&mut self, path: &str, entry: &Entry) {
        let json = serde_json::to_value(entry).expect("an entry has only text keys");
        self.refuse_reference(&child_path(path, "name"), &entry.name);
        let path = child_path(path, "desired");
        self.read_value(entry.component(), &mut Vec::new(), &path, &json["desired"]);
    }

    /// A text that never has references.
    pub fn refuse_reference(&mut self, path: &str, text: &str) {
        if text.contains(OPENING) {
            self.errors.add(path, NOT_SUBSTITUTED);
        }
    }

    /// `keys` are those of the objects that the value is in.
    fn read_value(
        &mut self,
        component: Component,
        keys: &mut Vec<String>,
        path: &str,
        value: &Value,
    ) {
        match value {
            Value::String(text) if accepts_facts(component, keys) => self.read_text(path, text),
            Value::String(text) => self.refuse_reference(path, text),
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    keys.push(index.to_string());
                    self.read_value(component, keys, &item_path(path, index), item);
                    keys.pop();
                }
            }
            Value::Object(fields) => {
                for (key, field) in fields {
                    let path = child_path(path, key);
                    self.refuse_reference(&path, key);
                    keys.push(key.clone());
                    self.read_value(component, keys, &path, field);
                    keys.pop();
                }
            }
            _ => {}
        }
    }

    fn read_text(&mut self, path: &str, text: &str) {
        match parse(text) {
            Ok(parts) => {
                let names = parts.into_iter().filter_map(|part| match part {
                    TextPart::Fact(name) => Some(name.to_owned()),
                    TextPart::Literal(_) => None,
                });
                self.facts.extend(names);
            }
            Err(message) => self.errors.add(path, message),
        }
    }
}

/// Whether a field of the desired state can have references. [`visit_texts`] visits the same
/// fields.
fn accepts_facts(component: Component, keys: &[String]) -> bool {
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    match component {
        Component::File => matches!(keys[..], ["content", "inline"] | ["target"]),
        Component::Unit => matches!(keys[..], ["content"] | ["dropIns", _]),
        Component::Sysctl => keys == ["value"],
        _ => false,
    }
}

fn visit_texts(
    desired: &mut Desired,
    mut visit: impl FnMut(&str, &mut String) -> Result<(), BindingError>,
) -> Result<(), BindingError> {
    match desired {
        Desired::File(state) => {
            if let Some(text) = state.content.as_mut().and_then(|content| content.inline.as_mut()) {
                visit("desired.content.inline", text)?;
            }
            if let Some(target) = &mut state.target {
                visit("desired.target", target)?;
            }
        }
        Desired::Unit(state) => {
            if let Some(content) = &mut state.content {
                visit("desired.content", content)?;
            }
            for (name, content) in &mut state.drop_ins {
                visit(&child_path("desired.dropIns", name), content)?;
            }
        }
        Desired::Sysctl(state) => visit("desired.value", &mut state.value)?,
        Desired::Package(_)
        | Desired::PackageSource(_)
        | Desired::Action(_)
        | Desired::User(_)
        | Desired::UserGroup(_) => {}
    }
    Ok(())
}

/// Replaces the references of an entry. Returns the fields with facts that have no value.
///
/// # Errors
/// The texts with references have more than `max_bytes` after the replacement.
pub(super) fn substitute_facts(
    entry: &mut Entry,
    facts: &BTreeMap<String, String>,
    max_bytes: usize,
) -> Result<Vec<FieldError>, BindingError> {
    let mut errors = Vec::new();
    let mut bytes_left = max_bytes;
    visit_texts(&mut entry.desired, |path, text| {
        if !text.contains(OPENING) {
            return Ok(());
        }
        match substitute(text, facts, bytes_left) {
            Ok(replaced) => {
                bytes_left -= replaced.len();
                *text = replaced;
            }
            Err(SubstitutionError::Facts(messages)) => {
                errors.extend(messages.into_iter().map(|message| FieldError::new(path, message)));
            }
            Err(SubstitutionError::TooLong) => return Err(BindingError::TooLong),
        }
        Ok(())
    })?;
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Document;
    use crate::native;

    /// A document in which every text has a reference.
    const EVERYWHERE: &str = include_str!("tests/samples/references.yaml");

    fn read(document: &Document) -> (BTreeSet<String>, Vec<String>) {
        let mut errors = ErrorList::default();
        let mut reader = ReferenceReader { facts: BTreeSet::new(), errors: &mut errors };
        for (_, entry) in document.entries() {
            reader.read_entry("", entry);
        }
        let facts = reader.facts;
        (facts, errors.into_errors().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn references_are_accepted_where_they_are_replaced_and_refused_elsewhere() {
        let mut document = native::parse(EVERYWHERE).unwrap();
        let (facts, errors) = read(&document);
        assert_eq!(
            facts.iter().map(String::as_str).collect::<Vec<_>>(),
            ["content", "dropIn", "target", "unit", "value"]
        );
        let paths: Vec<&str> =
            errors.iter().map(|error| error.split(": has a reference").next().unwrap()).collect();
        assert_eq!(
            paths,
            [
                "name",
                "desired.group",
                "desired.owner",
                "desired.content.uri",
                "desired.content.secretRef.key",
                "desired.content.secretRef.name",
                "desired.filePaths[0]",
                "desired.dropIns[\"${fact.name}.conf\"]",
                "desired.version",
                "desired.key",
                "desired.source",
                "desired.command",
                "desired.comment",
                "desired.group",
                "desired.groups[0]",
                "desired.home",
                "desired.shell",
                "name",
                "name",
            ]
        );
        let values = facts.iter().map(|name| (name.clone(), "v".to_owned())).collect();
        for entry in document.bundles.iter_mut().flat_map(|bundle| &mut bundle.entries) {
            assert_eq!(substitute_facts(entry, &values, 1000), Ok(Vec::new()));
        }
        assert!(read(&document).0.is_empty());
    }
}
