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
//!
//! Units with the same name are merged: the later `content`, `enable` and `command` win, drop-ins
//! and `filePaths` add up. An entry does not depend on whether it comes from the spec or the
//! status, so moving it between them changes nothing.
//!
//! A valid resource may use fields that the product does not offer: [`ReadError::NotOffered`].

mod conversion;
mod cri_rules;
mod manifest;
mod not_offered;
mod rules;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::document::Document;
use crate::validation::{self, FieldError};

/// A document that was read from a resource of Gardener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GardenerDocument {
    pub document: Document,
    /// What a user should know about the document, as sentences with the path of a field.
    pub warnings: Vec<String>,
}

/// A resource that is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// Fields break a rule of the format.
    Invalid(Vec<FieldError>),
    /// All fields are valid, but these are not offered.
    NotOffered(Vec<FieldError>),
}

impl ReadError {
    /// The fields, in the order of the resource.
    pub fn fields(&self) -> &[FieldError] {
        match self {
            Self::Invalid(fields) | Self::NotOffered(fields) => fields,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, field) in self.fields().iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{field}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ReadError {}

/// Reads a resource in YAML or JSON.
///
/// # Errors
/// The text is not such a resource, a field breaks a rule, or a field is not offered.
pub fn read(text: &str) -> Result<GardenerDocument, ReadError> {
    let manifest = manifest::parse(text).map_err(|error| ReadError::Invalid(vec![error]))?;
    let errors = rules::check(&manifest);
    if !errors.is_empty() {
        return Err(ReadError::Invalid(errors));
    }
    let fields = not_offered::find(&manifest);
    if !fields.is_empty() {
        return Err(ReadError::NotOffered(fields));
    }
    let conversion = conversion::convert(manifest);
    let errors = validation::validate(&conversion.document);
    if !errors.is_empty() {
        let origins = &conversion.origins;
        let errors = errors.into_iter().map(|error| locate(error, origins)).collect();
        return Err(ReadError::Invalid(errors));
    }
    Ok(GardenerDocument { document: conversion.document, warnings: conversion.warnings })
}

/// Path of an entry of the only bundle, without its index.
const ENTRY_PATH: &str = "bundles[0].entries[";

/// Replaces the paths of entries in the document with their paths in the resource.
fn locate(error: FieldError, origins: &[String]) -> FieldError {
    let message = replace_paths(&error.message, origins);
    let origin = error.path.strip_prefix(ENTRY_PATH).and_then(|rest| split_index(rest, origins));
    match origin {
        Some((origin, "")) => FieldError::new(origin, message),
        Some((origin, rest)) => FieldError::new(field_path(origin, rest), message),
        None if error.path == "bundles[0].name" => FieldError::new("metadata.name", message),
        None => FieldError::new(error.path, message),
    }
}

/// Path of a field in the resource. `field` is its path in an entry, such as `.desired.mode`.
fn field_path(origin: &str, field: &str) -> String {
    let field = field.trim_start_matches('.');
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

fn replace_paths(message: &str, origins: &[String]) -> String {
    let mut parts = message.split(ENTRY_PATH);
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match split_index(part, origins) {
            Some((origin, rest)) => replaced.extend([origin, rest]),
            None => replaced.extend([ENTRY_PATH, part]),
        }
    }
    replaced
}

/// Splits `3].desired` into the origin of entry 3 and `.desired`.
fn split_index<'a>(text: &'a str, origins: &'a [String]) -> Option<(&'a str, &'a str)> {
    let (index, rest) = text.split_once(']')?;
    Some((origins.get(index.parse::<usize>().ok()?)?, rest))
}
