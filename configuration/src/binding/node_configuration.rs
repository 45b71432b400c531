//! What a node gets: a document, and the keys of the entries that are not bound.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::document::{Component, Document, Entry};
use crate::limits::open_text;
use crate::revision::{sort_entries, to_canonical_json};
use crate::validation::{FieldError, ReadError, unique_name, validate};

const FAILED: &str = "failed";

/// Component and name of an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryKey {
    pub component: Component,
    pub name: String,
}

/// A bound document, as the server sends it to a node.
///
/// The node leaves alone what failed entries describe: the path of a file and everything below it,
/// and a kernel setting in both spellings of its key. It does not remove them because the document
/// does not have them any more, nor as extras, nor from a directory with `prune`. A unit does not
/// restart because the path of a failed file is missing in `filePaths`. The node reports failed
/// entries as bad.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConfiguration {
    /// In the canonical order.
    pub document: Document,
    /// The entries that cannot be bound, and those that are lost to them, sorted. The document does
    /// not have them.
    pub failed: Vec<EntryKey>,
}

impl NodeConfiguration {
    /// The fields of the document and, if there are any, the list `failed`, as canonical JSON.
    pub fn canonical_json(&self) -> String {
        let value = serde_json::to_value(&self.document);
        let mut value = value.expect("a document has only text keys");
        if !self.failed.is_empty()
            && let Value::Object(fields) = &mut value
        {
            let failed = serde_json::to_value(&self.failed).expect("keys have only text fields");
            fields.insert(FAILED.to_owned(), failed);
        }
        to_canonical_json(&value)
    }

    /// Reads the JSON of [`Self::canonical_json`], in any order.
    ///
    /// # Errors
    /// The text is not such JSON, the document breaks a rule, or it has an entry that failed.
    pub fn read(json: &str) -> Result<Self, ReadError> {
        let invalid = |message: String| ReadError::Invalid(vec![FieldError::new("", message)]);
        let json = open_text(json).map_err(invalid)?;
        let mut fields: Map<String, Value> =
            serde_json::from_str(json).map_err(|error| invalid(error.to_string()))?;
        let failed = fields.remove(FAILED).unwrap_or_else(|| Value::Array(Vec::new()));
        let mut failed: Vec<EntryKey> = serde_json::from_value(failed).map_err(|error| {
            ReadError::Invalid(vec![FieldError::new(FAILED, error.to_string())])
        })?;
        failed.sort();
        failed.dedup();
        let mut document: Document = serde_json::from_value(Value::Object(fields))
            .map_err(|error| invalid(error.to_string()))?;
        let mut errors = validate(&document);
        if let Some(key) = find_present(&document, &failed) {
            errors.push(FieldError::new(FAILED, format!("{key} is also in the document")));
        }
        if errors.is_empty() {
            sort_entries(&mut document);
            Ok(Self { document, failed })
        } else {
            Err(ReadError::Invalid(errors))
        }
    }
}

/// The first failed entry that the document has.
fn find_present<'a>(document: &Document, failed: &'a [EntryKey]) -> Option<&'a EntryKey> {
    let keys = document.entries().map(|(_, entry)| entry.key());
    let present: HashSet<(Component, Cow<'_, str>)> =
        keys.map(|(component, name)| (component, unique_name(component, name))).collect();
    let is_present =
        |key: &&EntryKey| present.contains(&(key.component, unique_name(key.component, &key.name)));
    failed.iter().find(is_present)
}

impl From<&Entry> for EntryKey {
    fn from(entry: &Entry) -> Self {
        Self { component: entry.component(), name: entry.name.clone() }
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.component, self.name)
    }
}
