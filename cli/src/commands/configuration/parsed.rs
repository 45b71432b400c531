//! Reads and validates a document in one of its formats.

use std::path::Path;

use evenkeel_configuration::source::DocumentText;
use evenkeel_configuration::{Document, FieldError};

use super::source::{InputFormat, read_text};
use crate::page::sanitize_text;
use crate::{Failure, System};

/// A document that was read, or what is wrong with it.
#[derive(Debug)]
pub struct ParsedDocument {
    /// Path of the file, or "standard input".
    pub name: String,
    pub format: InputFormat,
    /// The valid document, or at least one error.
    pub result: Result<Document, Vec<FieldError>>,
}

impl ParsedDocument {
    /// Reads a document from a file, or from standard input if the path is `-`. Prints warnings.
    ///
    /// # Errors
    /// The file cannot be read. An invalid document is no error here.
    pub fn load(
        path: &Path,
        format: Option<InputFormat>,
        system: &mut System<'_>,
    ) -> Result<Self, Failure> {
        let DocumentText { name, text } = read_text(path, &mut *system.input)?;
        let format = format.unwrap_or_else(|| InputFormat::detect(&text));
        let (document, warnings) = match format.document_format().read(&text) {
            Ok(read) => read,
            Err(error) => return Ok(Self { name, format, result: Err(error.into_fields()) }),
        };
        for warning in warnings {
            writeln!(system.notes, "warning: {name}: {}", sanitize_text(&warning))?;
        }
        Ok(Self { name, format, result: Ok(document) })
    }
}

/// Reads a document that must be valid.
pub fn load_valid(
    path: &Path,
    format: Option<InputFormat>,
    system: &mut System<'_>,
) -> Result<Document, Failure> {
    let ParsedDocument { name, result, .. } = ParsedDocument::load(path, format, system)?;
    result.map_err(|errors| Failure::InvalidDocument { name, errors: to_lines(&errors) })
}

/// One line for each error.
pub fn to_lines(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}
