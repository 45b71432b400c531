//! The entries and settings in which two documents differ.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::document::{Component, Document, Entry};
use crate::validation::child_path;

/// A difference between two documents in one entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryDifference {
    pub component: Component,
    pub name: String,
    pub change: EntryChange,
    /// The fields that differ. Empty if the entry is added or removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldChange>,
}

/// How an entry differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryChange {
    Added,
    Removed,
    Changed,
}

/// A field with different values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldChange {
    /// Path in the document or in the entry, such as `applyMode` or `desired.content.inline`.
    /// `bundle` is the bundle of an entry, and `actionOrder` has the names of the actions of both
    /// documents in the order in which they run.
    pub field: String,
    /// Absent if the old document does not have the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    /// Absent if the new document does not have the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

/// The entries that differ: added and changed entries in the order of the new document, then
/// removed entries in the order of the old one. The order of entries is no difference, except that
/// of actions ([`compare_settings`]).
pub fn compare(old: &Document, new: &Document) -> Vec<EntryDifference> {
    let old_entries = index_entries(old);
    let new_entries = index_entries(new);
    let mut differences = Vec::new();
    for (bundle, entry) in new.entries() {
        match old_entries.get(&entry.key()) {
            None => differences.push(difference(entry, EntryChange::Added, Vec::new())),
            Some((old_bundle, old_entry)) => {
                let fields = compare_entry((old_bundle, old_entry), (&bundle.name, entry));
                if !fields.is_empty() {
                    differences.push(difference(entry, EntryChange::Changed, fields));
                }
            }
        }
    }
    let removed = old.entries().filter(|(_, entry)| !new_entries.contains_key(&entry.key()));
    differences
        .extend(removed.map(|(_, entry)| difference(entry, EntryChange::Removed, Vec::new())));
    differences
}

/// The settings that differ: `applyMode`, `removeExtras`, `onFailure`, `purpose`, and the order of
/// actions.
pub fn compare_settings(old: &Document, new: &Document) -> Vec<FieldChange> {
    let settings = |document: &Document| {
        to_fields(&Document {
            apply_mode: document.apply_mode,
            remove_extras: document.remove_extras.clone(),
            on_failure: document.on_failure,
            purpose: document.purpose,
            bundles: Vec::new(),
        })
    };
    let mut changes = Vec::new();
    compare_fields("", &settings(old), &settings(new), &mut changes);
    changes.extend(compare_action_order(old, new));
    changes
}

/// The actions that both documents have, if they run in different orders.
fn compare_action_order(old: &Document, new: &Document) -> Option<FieldChange> {
    let old_names = action_names(old);
    let new_names = action_names(new);
    let old_set: HashSet<&str> = old_names.iter().copied().collect();
    let new_set: HashSet<&str> = new_names.iter().copied().collect();
    let in_both = |name: &&str| old_set.contains(name) && new_set.contains(name);
    let old: Vec<&str> = old_names.into_iter().filter(in_both).collect();
    let new: Vec<&str> = new_names.into_iter().filter(in_both).collect();
    (old != new).then(|| FieldChange {
        field: "actionOrder".to_owned(),
        old: Some(Value::from(old)),
        new: Some(Value::from(new)),
    })
}

fn action_names(document: &Document) -> Vec<&str> {
    let keys = document.entries().map(|(_, entry)| entry.key());
    keys.filter(|(component, _)| *component == Component::Action).map(|(_, name)| name).collect()
}

type EntryMap<'a> = HashMap<(Component, &'a str), (&'a str, &'a Entry)>;

fn index_entries(document: &Document) -> EntryMap<'_> {
    let entries = document.entries();
    entries.map(|(bundle, entry)| (entry.key(), (bundle.name.as_str(), entry))).collect()
}

fn difference(entry: &Entry, change: EntryChange, fields: Vec<FieldChange>) -> EntryDifference {
    EntryDifference { component: entry.component(), name: entry.name.clone(), change, fields }
}

fn compare_entry(old: (&str, &Entry), new: (&str, &Entry)) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    if old.0 != new.0 {
        changes.push(FieldChange {
            field: "bundle".to_owned(),
            old: Some(Value::from(old.0)),
            new: Some(Value::from(new.0)),
        });
    }
    if old.1.desired != new.1.desired {
        compare_fields("", &to_fields(old.1), &to_fields(new.1), &mut changes);
    }
    changes
}

fn to_fields<T: Serialize>(value: &T) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => unreachable!("documents and entries are structs whose keys are strings"),
    }
}

/// Adds the fields that differ, with those of inner objects. Lists are compared as a whole.
fn compare_fields(
    path: &str,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    changes: &mut Vec<FieldChange>,
) {
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let field = child_path(path, key);
        match (old.get(key), new.get(key)) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => {
                compare_fields(&field, old, new, changes);
            }
            (old, new) if old != new => {
                changes.push(FieldChange { field, old: old.cloned(), new: new.cloned() });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native;
    use crate::revision::revision;

    fn document(text: &str) -> Document {
        native::read(text).unwrap()
    }

    #[test]
    fn documents_differ_in_added_removed_and_changed_entries() {
        let old = document(
            r#"
            bundles:
            - name: web
              entries:
              - {component: Package, name: nginx, desired: {version: any}}
              - {component: File, name: /etc/motd, desired: {mode: "0644", content: {inline: a}}}
              - {component: Sysctl, name: vm.swappiness, desired: {value: 10}}
              - component: Unit
                name: nginx.service
                desired: {dropIns: {10-a.conf: "[Service]", 20-b.conf: "[Unit]"}}
            "#,
        );
        let new = document(
            r#"
            bundles:
            - name: base
              entries:
              - {component: Sysctl, name: vm.swappiness, desired: {value: 10}}
            - name: web
              entries:
              - component: Unit
                name: nginx.service
                desired: {dropIns: {10-a.conf: "[Install]"}}
              - component: File
                name: /etc/motd
                desired: {mode: 0644, owner: www-data, content: {base64: YQ==}}
              - {component: User, name: deploy}
            "#,
        );
        let differences = compare(&old, &new);
        let lines: Vec<String> = differences.iter().flat_map(describe).collect();
        assert_eq!(
            lines,
            [
                "Changed Sysctl vm.swappiness",
                r#"bundle "web" -> "base""#,
                "Changed Unit nginx.service",
                r#"desired.dropIns["10-a.conf"] "[Service]" -> "[Install]""#,
                r#"desired.dropIns["20-b.conf"] "[Unit]" -> -"#,
                "Changed File /etc/motd",
                r#"desired.content.base64 - -> "YQ==""#,
                r#"desired.content.inline "a" -> -"#,
                r#"desired.owner - -> "www-data""#,
                "Added User deploy",
                "Removed Package nginx",
            ]
        );
        assert!(compare(&new, &new).is_empty());
        assert!(compare_settings(&old, &new).is_empty());
    }

    #[test]
    fn documents_differ_in_settings() {
        let old = document("{applyMode: audit, removeExtras: [users], bundles: []}");
        let new = document("{onFailure: revert, purpose: provision, bundles: []}");
        let changes = compare_settings(&old, &new);
        let lines: Vec<String> = changes.iter().map(describe_field).collect();
        assert_eq!(
            lines,
            [
                r#"applyMode "audit" -> "window""#,
                r#"onFailure "keep" -> "revert""#,
                r#"purpose "reconcile" -> "provision""#,
                r#"removeExtras ["users"] -> -"#,
            ]
        );
        assert!(compare(&old, &new).is_empty());
    }

    #[test]
    fn documents_without_a_difference_have_one_revision() {
        let old = document(
            "bundles:
            - {name: a, entries: [{component: User, name: u}, {component: User, name: v}]}
            - name: b
              entries:
              - {component: Action, name: x, desired: {command: x}}
              - {component: Action, name: y, desired: {command: y}}
            - {name: empty}",
        );
        let mut new = old.clone();
        new.bundles.rotate_left(1);
        new.bundles.last_mut().unwrap().entries.reverse();
        assert!(compare(&old, &new).is_empty());
        assert!(compare_settings(&old, &new).is_empty());
        assert_eq!(revision(&old), revision(&new));
    }

    #[test]
    fn another_order_of_actions_is_a_difference() {
        let actions = |names: &[&str]| {
            let action = |name: &&str| {
                format!("{{component: Action, name: {name}, desired: {{command: c}}}}")
            };
            let entries: Vec<String> = names.iter().map(action).collect();
            document(&format!("bundles: [{{name: b, entries: [{}]}}]", entries.join(", ")))
        };
        let old = actions(&["x", "gone", "y"]);
        let new = actions(&["y", "added", "x"]);
        let changes = compare_settings(&old, &new);
        let lines: Vec<String> = changes.iter().map(describe_field).collect();
        assert_eq!(lines, [r#"actionOrder ["x","y"] -> ["y","x"]"#]);
        assert_ne!(revision(&actions(&["x", "y"])), revision(&actions(&["y", "x"])));
        assert!(compare_settings(&old, &actions(&["added", "x", "y"])).is_empty());
    }

    /// The entry and each field, one a line.
    fn describe(difference: &EntryDifference) -> Vec<String> {
        let EntryDifference { component, name, change, fields } = difference;
        let entry = format!("{change:?} {component} {name}");
        std::iter::once(entry).chain(fields.iter().map(describe_field)).collect()
    }

    fn describe_field(change: &FieldChange) -> String {
        let value = |value: &Option<Value>| value.as_ref().map_or("-".to_owned(), Value::to_string);
        format!("{} {} -> {}", change.field, value(&change.old), value(&change.new))
    }
}
