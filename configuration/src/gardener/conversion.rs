//! Converts a valid resource to a document.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::manifest::{
    InlineContent, Manifest, ManifestContent, ManifestFile, ManifestUnit, with_paths,
};
use crate::document::{
    Bundle, Desired, Document, Entry, FileContent, FileState, Purpose, SecretRef, UnitCommand,
    UnitState,
};
use crate::origins::{BundleOrigin, Origins};
use crate::user_data::contains_placeholder;

/// Name of the bundle of a resource without a name.
const DEFAULT_BUNDLE_NAME: &str = "gardener";

/// A document and where its entries come from.
pub(super) struct Conversion {
    pub document: Document,
    pub origins: Origins,
    pub warnings: Vec<String>,
}

/// A unit with all its parts, and the path of the first.
struct MergedUnit {
    origin: String,
    state: UnitState,
    file_paths: BTreeSet<String>,
}

/// Converts a resource that breaks no rule and uses no field that is not offered.
pub(super) fn convert(manifest: Manifest) -> Conversion {
    let mut warnings = find_unused_fields(&manifest);
    let purpose = match manifest.purpose() {
        Some("provision") => Purpose::Provision,
        Some(_) => Purpose::Reconcile,
        None => {
            let warning =
                "spec.purpose is absent: the document is read as one of purpose reconcile";
            warnings.push(warning.to_owned());
            Purpose::Reconcile
        }
    };
    let mut files = BTreeMap::new();
    for (origin, file) in with_paths(manifest.files()) {
        if purpose == Purpose::Provision && is_needlessly_unencoded(file) {
            warnings.push(format!(
                "{origin}.content.transmitUnencoded has no effect: user-data shows the content of \
                 files that contain <<BOOTSTRAP_TOKEN>> or <<MACHINE_NAME>>, and of no others"
            ));
        }
        let state = file_state(file);
        files.insert(file.path.clone().unwrap_or_default(), (origin, state));
    }
    let units = merge_units(&manifest);
    let files = files
        .into_iter()
        .map(|(name, (origin, state))| (origin, Entry { name, desired: Desired::File(state) }));
    let units = units.into_iter().map(|(name, unit)| {
        let file_paths = unit.file_paths.into_iter().collect();
        let state = UnitState { file_paths, ..unit.state };
        (unit.origin, Entry { name, desired: Desired::Unit(state) })
    });
    let (paths, entries) = files.chain(units).unzip();
    let origin = BundleOrigin { path: "metadata".to_owned(), entries: paths };
    let origins = Origins { root: "spec", bundles: vec![origin] };
    let name = manifest.name;
    let bundle = Bundle { name: name.unwrap_or_else(|| DEFAULT_BUNDLE_NAME.to_owned()), entries };
    let document = Document { purpose, bundles: vec![bundle], ..Document::default() };
    Conversion { document, origins, warnings }
}

/// Warnings of fields that Gardener's own examples have and that describe no node.
fn find_unused_fields(manifest: &Manifest) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut add = |path: &str, reason: &str| warnings.push(format!("{path} {reason}"));
    let by_agent = "has no effect: the agent applies the files and units itself";
    if let Some(spec) = &manifest.spec {
        if spec.kind.as_deref().is_none_or(str::is_empty) {
            add("spec.type", "is absent: Gardener requires it");
        }
        if spec.has_reload_path {
            add("spec.reloadConfigFilePath", by_agent);
        }
    }
    for (path, file) in with_paths(manifest.files()) {
        if file.has_encoding {
            let reason = "has no effect: the encoding of a file is content.inline.encoding";
            add(&format!("{path}.encoding"), reason);
        }
    }
    for field in manifest.status.iter().flat_map(|status| &status.old_fields) {
        add(&format!("status.{field}"), by_agent);
    }
    warnings
}

fn is_needlessly_unencoded(file: &ManifestFile) -> bool {
    let Some(content) = &file.content else {
        return false;
    };
    let data = content.inline.as_ref().map(decode_inline).unwrap_or_default();
    let text = String::from_utf8(data).unwrap_or_default();
    content.transmit_unencoded == Some(true) && !contains_placeholder(&text)
}

fn file_state(file: &ManifestFile) -> FileState {
    FileState {
        mode: file.permissions,
        content: file.content.as_ref().map(file_content),
        ..FileState::default()
    }
}

fn file_content(content: &ManifestContent) -> FileContent {
    if let Some(secret) = &content.secret_ref {
        let reference = SecretRef {
            name: secret.name.clone().unwrap_or_default(),
            key: secret.data_key.clone().unwrap_or_default(),
            version: None,
        };
        return FileContent { secret_ref: Some(reference), ..FileContent::default() };
    }
    let bytes = content.inline.as_ref().map(decode_inline).unwrap_or_default();
    match String::from_utf8(bytes) {
        // Databases do not store a NUL in JSON.
        Ok(text) if !text.contains('\0') => {
            FileContent { inline: Some(text), ..FileContent::default() }
        }
        Ok(text) => encoded_content(text.as_bytes()),
        Err(error) => encoded_content(error.as_bytes()),
    }
}

fn encoded_content(bytes: &[u8]) -> FileContent {
    FileContent { base64: Some(STANDARD.encode(bytes)), ..FileContent::default() }
}

fn decode_inline(inline: &InlineContent) -> Vec<u8> {
    let data = inline.data.as_deref().unwrap_or_default();
    if inline.encoding.as_deref() == Some("b64") {
        decode_base64(data).unwrap_or_default()
    } else {
        data.as_bytes().to_vec()
    }
}

/// Decodes base64. Line breaks between the digits are accepted, as Gardener accepts them.
///
/// # Errors
/// The text has other characters or an incomplete end.
pub(super) fn decode_base64(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    let digits: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    STANDARD.decode(digits)
}

fn merge_units(manifest: &Manifest) -> BTreeMap<String, MergedUnit> {
    let mut merged = BTreeMap::new();
    for (origin, unit) in with_paths(manifest.units()) {
        let name = unit.name.clone().unwrap_or_default();
        let target = merged.entry(name).or_insert_with(|| MergedUnit {
            origin,
            state: UnitState::default(),
            file_paths: BTreeSet::new(),
        });
        merge_unit(target, unit);
    }
    merged
}

fn merge_unit(target: &mut MergedUnit, unit: &ManifestUnit) {
    let state = &mut target.state;
    if let Some(content) = &unit.content {
        state.content = Some(content.clone());
    }
    state.enable = unit.enable.or(state.enable);
    state.command = match unit.command.as_deref() {
        // Gardener restarts a unit with the command `start` after a change as well.
        Some("start" | "restart") => Some(UnitCommand::Restart),
        Some("stop") => Some(UnitCommand::Stop),
        _ => state.command,
    };
    for drop_in in &unit.drop_ins {
        let name = drop_in.name.clone().unwrap_or_default();
        state.drop_ins.insert(name, drop_in.content.clone().unwrap_or_default());
    }
    target.file_paths.extend(unit.file_paths.iter().cloned());
}
