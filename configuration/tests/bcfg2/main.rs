//! The literal configuration of Bcfg2, read and written.

#![expect(clippy::unwrap_used, reason = "a test fails when it cannot go on")]

mod accepted;
mod export;
mod group_files;
mod group_includes;
mod group_model;
mod group_rules;
mod hostile;
mod refused;
mod round_trip;

use evenkeel_configuration::{Document, bcfg2};

/// Reads a document with one bundle.
fn read_bundle(entries: &str) -> Result<Document, Vec<String>> {
    read(&format!(
        "<Configuration version='2.0'><Bundle name='b'>{entries}</Bundle></Configuration>"
    ))
}

/// Reads a document. Errors are texts with the path.
fn read(text: &str) -> Result<Document, Vec<String>> {
    bcfg2::read(text).map_err(|error| error.fields().iter().map(ToString::to_string).collect())
}

/// Writes a document. Errors are texts with the path.
fn write(document: &Document) -> Result<String, Vec<String>> {
    bcfg2::write(document).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}
