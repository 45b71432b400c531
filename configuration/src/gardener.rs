//! Reads `OperatingSystemConfig` of Gardener.
//!
//! The reader checks a resource by Gardener's own rules. Paths of errors are those of Kubernetes,
//! such as `spec.files[1].content.inline.encoding`.
//!
//! | Field of the resource | Field of the document |
//! | --- | --- |
//! | `metadata.name` | name of the only bundle; `gardener`, if it is absent |
//! | `spec.purpose` | `purpose`; `reconcile` with a warning, if it is absent |
//! | `spec.files`, `status.extensionFiles` | entries `File`, in the order of their paths |
//! | `spec.units`, `status.extensionUnits` | entries `Unit`, in the order of their names |
//! | `spec.type`, `spec.class`, others of `metadata` and `status` | none: they describe no node |
//! | `spec.reloadConfigFilePath`, `files[].encoding`, `status.command` | none, with a warning |
//!
//! Units with the same name are merged: the later `content`, `enable` and `command` win, drop-ins
//! and `filePaths` add up. An entry does not depend on whether it comes from the spec or the
//! status, so moving it between them changes nothing.
//!
//! A valid resource may use fields that the product does not offer: [`ReadError::NotOffered`].

mod conversion;
mod cri_rules;
mod manifest;
mod manifest_reader;
mod not_offered;
mod rules;
#[cfg(test)]
mod tests;

use self::conversion::Conversion;
use crate::document::Document;
use crate::validation::{self, ErrorList, ReadError};

/// A document that was read from a resource of Gardener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GardenerDocument {
    pub document: Document,
    /// What a user should know about the document, as sentences with the path of a field.
    pub warnings: Vec<String>,
}

/// Reads a resource in YAML or JSON.
///
/// # Errors
/// The text is not such a resource, a field breaks a rule, or a field is not offered.
pub fn read(text: &str) -> Result<GardenerDocument, ReadError> {
    let mut errors = ErrorList::default();
    let manifest = manifest_reader::read_manifest(text, &mut errors);
    if errors.is_empty() {
        rules::check(&manifest, &mut errors);
    }
    // An invalid resource has the errors that Gardener reports, and no others.
    if errors.is_empty() {
        not_offered::add(&manifest, &mut errors);
    }
    errors.into_result(())?;
    let Conversion { document, origins, warnings } = conversion::convert(manifest);
    let errors = validation::validate(&document);
    if !errors.is_empty() {
        let errors = errors.iter().map(|error| origins.locate(error, field_path)).collect();
        return Err(ReadError::Invalid(errors));
    }
    Ok(GardenerDocument { document, warnings })
}

/// Path of a field in the resource. `field` is its path in an entry, such as `desired.mode`.
fn field_path(origin: &str, field: &str) -> String {
    if field.is_empty() {
        return origin.to_owned();
    }
    let field = match field.strip_prefix("desired.").unwrap_or(field) {
        "name" if origin.starts_with("spec.files") => "path",
        "name" if origin.starts_with("status.extensionFiles") => "path",
        "mode" => "permissions",
        "content.inline" | "content.base64" => "content.inline.data",
        "content.secretRef.key" => "content.secretRef.dataKey",
        other => other,
    };
    format!("{origin}.{field}")
}
