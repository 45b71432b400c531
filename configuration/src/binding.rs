//! Binds the profiles that are assigned to a node to one document.
//!
//! A profile is a document with a name and versions. The module combines the profiles along the
//! chain of the targets that contain a node, replaces references to facts, and adds the versions of
//! secrets. The result has the revision that the node gets. The same input gives the same result,
//! whatever the order of its lists.
//!
//! - All profiles add up. If several have an entry of one component and name, the profile of the
//!   nearest target wins; at one target, the profile of the higher priority, then the first by
//!   name. The entries of the other profiles are listed as lost.
//! - A profile is used once, at its nearest target.
//! - Bundles of one name are one bundle, because its actions and restarts are for all its entries.
//!   An entry takes the position of the one that lost to it in a bundle of the same name. Bundles
//!   of farther targets come first; at one target, those of the higher priority.
//! - An entry is also lost if its path cannot exist together with the path of an entry of a nearer
//!   profile, for example a file below a symbolic link.
//! - The document has the most careful `applyMode` of all profiles (`audit`, then `window`, then
//!   `continuous`), `onFailure: revert` if one profile has it, and all kinds of `removeExtras`.
//! - An entry with an unknown or unsafe fact or a missing secret fails. A farther entry that is
//!   lost to it does not replace it. The node leaves alone what both describe
//!   ([`NodeConfiguration`]).
//!
//! A text refers to a fact by `${fact.NAME}`; `$${fact.` is the text `${fact.`. All other uses of
//! `$` are text, so scripts keep their variables: names in `sh` and `bash` have no dots. Facts come
//! from nodes, so they are hostile. Only the texts that [`Profile::new`] lists accept references;
//! the fields for names, accounts, versions, addresses and commands accept none. Values have a
//! strict set of characters in all texts, because the server cannot know whether a file is a
//! script.

mod conflicts;
mod entry_size;
mod fact_fields;
mod key;
mod merge;
mod node_configuration;
mod path_claims;
mod precedence;
mod profile;
mod secrets;
mod settings;
mod template;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::document::{Bundle, Component, Desired, Document, Entry};
use crate::limits::MAX_DOCUMENT_BYTES;
use crate::revision::{hex_digest, sort_entries};
use crate::validation::{FieldError, MAX_ENTRIES, short, validate, validate_entry};

use self::entry_size::json_length;
use self::fact_fields::substitute_facts;
use self::merge::{Candidate, MergedProfiles};
use self::precedence::ProfileSelection;
use self::secrets::set_secret_version;

pub use self::conflicts::{ConflictingEntries, ProfileConflict, find_conflicts};
pub use self::key::BindingKey;
pub use self::node_configuration::{EntryKey, NodeConfiguration};
pub use self::profile::{MAX_FACTS_PER_PROFILE, Profile, ProfileVersion};
pub use self::secrets::SecretVersions;
pub use self::template::{MAX_FACT_NAME_BYTES, MAX_FACT_VALUE_BYTES};

/// Most warnings of one result. Further warnings are only counted.
const MAX_WARNINGS: usize = 100;

/// A target that contains a node and has profiles. The nearest target is the least.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainTarget {
    Instance,
    Host,
    /// A group of the host. That of the higher priority is nearer, then the first by name.
    Group {
        priority: Reverse<i32>,
        name: String,
    },
    Site,
    /// A region: 0 is that of the site, 1 its parent, and so on.
    Region {
        distance: u32,
    },
    Project,
}

/// A profile that is assigned to a target.
#[derive(Clone, Debug)]
pub struct AssignedProfile {
    pub profile: Arc<Profile>,
    pub target: ChainTarget,
    /// The higher one wins at one target.
    pub priority: i32,
}

/// The profiles, facts and secrets of one node.
#[derive(Clone, Copy, Debug)]
pub struct BindingInput<'a> {
    /// The profiles of all targets that contain the node, in any order.
    pub profiles: &'a [AssignedProfile],
    /// Facts of the node by their names: `host.name` for `${fact.host.name}`.
    pub facts: &'a BTreeMap<String, String>,
    /// Secrets of the project by their names.
    pub secrets: &'a BTreeMap<String, SecretVersions>,
}

/// The document of a node, and the entries of its profiles that the document does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundDocument {
    /// It is valid, has no references to facts, and is in the canonical order.
    pub document: Document,
    /// Canonical JSON of the [`NodeConfiguration`]: the document and the keys of failed entries.
    pub json: String,
    /// SHA-256 of `json`. Without failed entries it is the revision of the document.
    pub revision: String,
    /// Entries that lose to entries of other profiles: entries of the nearest profile first.
    pub lost: Vec<LostEntry>,
    /// Entries that cannot be bound, by component and name.
    pub failed: Vec<FailedEntry>,
    /// Sentences for operators, at most 100 and the number of the others.
    pub warnings: Vec<String>,
}

/// An entry that loses to an entry of another profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LostEntry {
    #[serde(flatten)]
    pub key: EntryKey,
    pub profile: ProfileVersion,
    /// The entry that it loses to. It has another key if both cannot exist on one machine, such as
    /// a file and a file below it. The winner can be lost to a third entry, which the list has too.
    pub winner: EntryKey,
    pub winner_profile: ProfileVersion,
    /// Whether both profiles have the same target. [`find_conflicts`] finds these.
    pub is_conflict: bool,
}

/// An entry that cannot be bound for this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedEntry {
    #[serde(flatten)]
    pub key: EntryKey,
    pub profile: ProfileVersion,
    /// The reasons. Paths begin in the entry, such as `desired.content.inline`. The values of facts
    /// are not in the messages.
    pub errors: Vec<FieldError>,
}

/// Why profiles cannot be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindingError {
    /// Number of entries.
    TooManyEntries(usize),
    /// The document is longer than [`MAX_DOCUMENT_BYTES`].
    TooLong,
    /// The entries are valid, and the document is not.
    Invalid(Vec<FieldError>),
}

impl fmt::Display for BindingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyEntries(count) => write!(
                f,
                "the profiles of the node have {count} entries; a document has at most \
                 {MAX_ENTRIES}; assign fewer profiles"
            ),
            Self::TooLong => write!(
                f,
                "the document of the node is longer than {MAX_DOCUMENT_BYTES} bytes; assign fewer \
                 profiles, or write large files with uri"
            ),
            Self::Invalid(errors) => {
                f.write_str("the profiles of the node form no valid document: ")?;
                errors.first().map_or(Ok(()), |error| error.fmt(f))
            }
        }
    }
}

impl std::error::Error for BindingError {}

impl BindingInput<'_> {
    /// Binds the profiles.
    ///
    /// # Errors
    /// The document is larger than a document may be.
    pub fn bind(&self) -> Result<BoundDocument, BindingError> {
        let selection = ProfileSelection::select(self.profiles);
        let merged = MergedProfiles::merge(&selection);
        let count = merged.entry_count();
        if count > MAX_ENTRIES {
            return Err(BindingError::TooManyEntries(count));
        }
        let mut warnings = selection.warnings();
        let mut document = settings::combine(&selection.by_precedence, &mut warnings);
        let mut failed = Vec::new();
        document.bundles = self.bind_entries(&merged, &mut failed)?;
        warnings.extend(merged.warnings());
        remove_missing_file_paths(&mut document, &mut warnings);
        limit_warnings(&mut warnings);
        let lost = merged.into_lost();
        add_lost_to_failed(&lost, &mut failed);
        sort_entries(&mut document);
        failed.sort_by_cached_key(|entry: &FailedEntry| entry.key.clone());
        let errors = validate(&document);
        if !errors.is_empty() {
            return Err(BindingError::Invalid(errors));
        }
        let failed_keys = failed.iter().map(|entry| entry.key.clone()).collect();
        let configuration = NodeConfiguration { document, failed: failed_keys };
        let json = configuration.canonical_json();
        if json.len() > MAX_DOCUMENT_BYTES {
            return Err(BindingError::TooLong);
        }
        let revision = hex_digest(&json);
        let document = configuration.document;
        Ok(BoundDocument { document, json, revision, lost, failed, warnings })
    }

    /// Identifies all input that the document depends on. Nodes with equal keys have equal
    /// [`BoundDocument`]s, so the server binds once for each key.
    pub fn key(&self) -> BindingKey {
        BindingKey::digest(self, &ProfileSelection::select(self.profiles))
    }

    fn bind_entries(
        &self,
        merged: &MergedProfiles<'_>,
        failed: &mut Vec<FailedEntry>,
    ) -> Result<Vec<Bundle>, BindingError> {
        let mut bytes_left = MAX_DOCUMENT_BYTES;
        let mut bundles = Vec::new();
        for (name, candidates) in merged.bundles() {
            let mut bundle = Bundle { name: name.to_owned(), entries: Vec::new() };
            for candidate in candidates {
                let mut entry = candidate.entry.clone();
                let errors = self.bind_entry(&mut entry, bytes_left)?;
                if errors.is_empty() {
                    let bytes_after = bytes_left.checked_sub(json_length(&entry));
                    bytes_left = bytes_after.ok_or(BindingError::TooLong)?;
                    bundle.entries.push(entry);
                } else {
                    failed.push(FailedEntry::new(candidate, errors));
                }
            }
            bundles.push(bundle);
        }
        Ok(bundles)
    }

    /// Replaces facts and adds the version of a secret. The entry fails if there is an error.
    fn bind_entry(
        &self,
        entry: &mut Entry,
        max_bytes: usize,
    ) -> Result<Vec<FieldError>, BindingError> {
        let mut errors = substitute_facts(entry, self.facts, max_bytes)?;
        errors.extend(set_secret_version(entry, self.secrets));
        if errors.is_empty() {
            errors = validate_entry(entry);
        }
        Ok(errors)
    }
}

impl FailedEntry {
    fn new(candidate: &Candidate<'_>, errors: Vec<FieldError>) -> Self {
        let profile = candidate.profile().version().clone();
        Self { key: EntryKey::from(candidate.entry), profile, errors }
    }
}

/// Names of the facts that the profiles refer to.
pub fn used_facts(profiles: &[AssignedProfile]) -> BTreeSet<&str> {
    let selection = ProfileSelection::select(profiles);
    let profiles = selection.by_precedence.into_iter();
    profiles.flat_map(|assigned| assigned.profile.facts()).map(String::as_str).collect()
}

/// Adds the lost entries whose winner fails and has another key, such as a file below a symbolic
/// link. The document has neither of the two, so the node must leave both alone.
fn add_lost_to_failed(lost: &[LostEntry], failed: &mut Vec<FailedEntry>) {
    let mut keys: HashSet<EntryKey> = failed.iter().map(|entry| entry.key.clone()).collect();
    // The list has a winner before the entries that lose to it, in case the winner is lost as well.
    for LostEntry { key, profile, winner, winner_profile, .. } in lost {
        if keys.contains(winner) && keys.insert(key.clone()) {
            let message = format!(
                "the entry is lost to {} {} of the profile {}, which fails",
                winner.component,
                short(&winner.name),
                winner_profile.name
            );
            let errors = vec![FieldError::new("", message)];
            failed.push(FailedEntry { key: key.clone(), profile: profile.clone(), errors });
        }
    }
}

/// Replaces the warnings above [`MAX_WARNINGS`] by their number.
fn limit_warnings(warnings: &mut Vec<String>) {
    let omitted = warnings.len().saturating_sub(MAX_WARNINGS);
    if omitted > 0 {
        warnings.truncate(MAX_WARNINGS);
        warnings.push(format!("{omitted} further warnings are not listed"));
    }
}

/// Removes the paths of files that failed or are lost, so that the units stay valid.
fn remove_missing_file_paths(document: &mut Document, warnings: &mut Vec<String>) {
    let keys = document.entries().map(|(_, entry)| entry.key());
    let files = keys.filter(|(component, _)| *component == Component::File);
    let files: HashSet<String> = files.map(|(_, name)| name.to_owned()).collect();
    for entry in document.bundles.iter_mut().flat_map(|bundle| &mut bundle.entries) {
        if let Desired::Unit(state) = &mut entry.desired {
            let name = &entry.name;
            state.file_paths.retain(|path| {
                let is_present = files.contains(path);
                if !is_present {
                    warnings.push(format!(
                        "no change of File {} restarts Unit {name}, because the document does not \
                         have the file",
                        short(path)
                    ));
                }
                is_present
            });
        }
    }
}
