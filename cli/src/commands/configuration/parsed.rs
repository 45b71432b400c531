//! Reads and validates a document in one of its formats.

use std::path::Path;

use evenkeel_configuration::{Document, Entry, FieldError, bcfg2, gardener, native, validation};

use super::source::{DocumentSource, InputFormat};
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
        let DocumentSource { name, text } = DocumentSource::read(path, &mut *system.input)?;
        let format = format.unwrap_or_else(|| InputFormat::detect(&text));
        let (result, warnings) = parse(&text, format);
        for warning in warnings {
            writeln!(system.notes, "warning: {name}: {}", sanitize_text(&warning))?;
        }
        let result = result.and_then(|document| {
            let errors = validation::validate(&document);
            if errors.is_empty() {
                return Ok(document);
            }
            // The reader of Gardener's format converts paths by itself.
            if format == InputFormat::Bcfg2 {
                return Err(errors.into_iter().map(|error| name_entry(error, &document)).collect());
            }
            Err(errors)
        });
        Ok(Self { name, format, result })
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

/// The document of a text, or its errors, and the warnings.
fn parse(text: &str, format: InputFormat) -> (Result<Document, Vec<FieldError>>, Vec<String>) {
    match format {
        InputFormat::Native => (native::read(text), Vec::new()),
        InputFormat::Bcfg2 => (bcfg2::read(text), Vec::new()),
        InputFormat::Gardener => match gardener::read(text) {
            Ok(read) => (Ok(read.document), read.warnings),
            Err(error) => (Err(error.fields().to_vec()), Vec::new()),
        },
    }
}

/// Adds the entry to an error, for documents in a format that has no such paths.
fn name_entry(error: FieldError, document: &Document) -> FieldError {
    let FieldError { path, message } = error;
    let message = match find_entry(document, &path) {
        Some(entry) => format!("{message} ({} {})", entry.component(), entry.name),
        None => message,
    };
    FieldError { path, message }
}

/// The entry of a path such as `bundles[0].entries[2].desired.mode`.
fn find_entry<'a>(document: &'a Document, path: &str) -> Option<&'a Entry> {
    let (bundle, rest) = path.strip_prefix("bundles[")?.split_once("].entries[")?;
    let (entry, _) = rest.split_once(']')?;
    let bundle = document.bundles.get(bundle.parse::<usize>().ok()?)?;
    bundle.entries.get(entry.parse::<usize>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_converted_document_names_its_entry() {
        let text = "bundles: [{name: a}, {name: b, entries: [{component: Package, name: jq}]}]";
        let document = native::read(text).expect("a document");
        for (path, message) in [
            ("bundles[1].entries[0].desired.version", "is wrong (Package jq)"),
            ("bundles[1].entries[1].name", "is wrong"),
            ("bundles[1].name", "is wrong"),
            ("", "is wrong"),
        ] {
            let error = name_entry(FieldError::new(path, "is wrong"), &document);
            assert_eq!(error, FieldError::new(path, message));
        }
    }
}
