//! Profiles: documents with a name and versions.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::fact_fields::ReferenceReader;
use crate::document::{Desired, Document, Purpose, SecretRef};
use crate::limits::MAX_DOCUMENT_BYTES;
use crate::revision::{hex_digest, sort_entries, to_canonical_json};
use crate::validation::{ErrorList, FieldError, child_path, item_path, validate};

/// Most facts that a profile refers to.
pub const MAX_FACTS_PER_PROFILE: usize = 1_000;

/// Name of a profile, which is unique in its project, and its version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ProfileVersion {
    pub name: String,
    pub version: u64,
}

impl fmt::Display for ProfileVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (version {})", self.name, self.version)
    }
}

/// A profile that can be bound. Nodes share it.
#[derive(Clone, Debug)]
pub struct Profile {
    version: ProfileVersion,
    document: Document,
    revision: String,
    facts: BTreeSet<String>,
    secrets: BTreeSet<SecretRef>,
}

impl Profile {
    /// Checks a profile. The document is valid as it is, with its references to facts. They are
    /// accepted in the content and the target of files, in the content and the drop-ins of units,
    /// and in the values of kernel settings.
    ///
    /// # Errors
    /// The fields that break a rule of documents, `purpose: provision`, references that are
    /// malformed or in a field that accepts none, and a document that is too long or refers to too
    /// many facts.
    pub fn new(
        name: impl Into<String>,
        version: u64,
        mut document: Document,
    ) -> Result<Self, Vec<FieldError>> {
        let errors = validate(&document);
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut errors = ErrorList::default();
        if document.purpose == Purpose::Provision {
            errors.add(
                "purpose",
                "a document of purpose provision is user-data of a new machine, and cannot be \
                 assigned; write reconcile",
            );
        }
        let facts = read_facts(&document, &mut errors);
        if facts.len() > MAX_FACTS_PER_PROFILE {
            let count = facts.len();
            let message =
                format!("refers to {count} facts; at most {MAX_FACTS_PER_PROFILE} are accepted");
            errors.add("bundles", message);
        }
        sort_entries(&mut document);
        let json = to_canonical_json(&document);
        if json.len() > MAX_DOCUMENT_BYTES {
            let message =
                format!("has {} bytes; at most {MAX_DOCUMENT_BYTES} are accepted", json.len());
            errors.add("", message);
        }
        let errors = errors.into_errors();
        if !errors.is_empty() {
            return Err(errors);
        }
        let version = ProfileVersion { name: name.into(), version };
        let secrets = read_secrets(&document);
        Ok(Self { version, document, revision: hex_digest(&json), facts, secrets })
    }

    pub fn name(&self) -> &str {
        &self.version.name
    }

    pub fn version(&self) -> &ProfileVersion {
        &self.version
    }

    /// The document in the canonical order, with references to facts.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// The revision of the document.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Names of the facts that the document refers to.
    pub fn facts(&self) -> &BTreeSet<String> {
        &self.facts
    }

    /// References to secrets.
    pub fn secrets(&self) -> &BTreeSet<SecretRef> {
        &self.secrets
    }
}

fn read_facts(document: &Document, errors: &mut ErrorList) -> BTreeSet<String> {
    let mut reader = ReferenceReader { facts: BTreeSet::new(), errors };
    for (index, bundle) in document.bundles.iter().enumerate() {
        let path = item_path("bundles", index);
        reader.refuse_reference(&child_path(&path, "name"), &bundle.name);
        let entries_path = child_path(&path, "entries");
        for (index, entry) in bundle.entries.iter().enumerate() {
            reader.read_entry(&item_path(&entries_path, index), entry);
        }
    }
    reader.facts
}

fn read_secrets(document: &Document) -> BTreeSet<SecretRef> {
    let references = document.entries().filter_map(|(_, entry)| match &entry.desired {
        Desired::File(state) => state.content.as_ref()?.secret_ref.clone(),
        _ => None,
    });
    references.collect()
}
