//! Reads a configuration document from a file or from standard input.

use std::io::Read;
use std::path::PathBuf;

use evenkeel_configuration::format::DocumentFormat;
use evenkeel_configuration::source::{DocumentText, SourceError, UnreadableReason};
use evenkeel_configuration::{Document, FieldError, ReadError};
use evenkeel_reconcile::scope::EntryScope;

/// Exit status if a document, or the secrets for it, cannot be read.
pub const EXIT_UNREADABLE: u8 = 2;

/// Exit status if a document has an entry that is not offered.
const EXIT_NOT_OFFERED: u8 = 3;

/// Where a document is, and what of it is used.
#[derive(Clone, Debug)]
pub struct DocumentSource {
    /// Path of the file; `-` is standard input.
    pub path: PathBuf,
    /// None: by the content.
    pub format: Option<DocumentFormat>,
    /// The only bundle that is checked or applied.
    pub only_bundle: Option<String>,
}

/// A valid document.
#[derive(Clone, Debug)]
pub struct DocumentFile {
    pub document: Document,
    pub scope: EntryScope,
    /// What a user should know about the document, as sentences with the name of the file.
    pub warnings: Vec<String>,
}

/// A document is not used.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("cannot read {name}: {reason}")]
    Unreadable { name: String, reason: String },
    #[error("{name} is invalid:{}", list_fields(name, fields))]
    Invalid { name: String, fields: Vec<FieldError> },
    #[error("{name} has entries or fields that are not offered:{}", list_fields(name, fields))]
    NotOffered { name: String, fields: Vec<FieldError> },
    #[error(
        "the document has `purpose: provision` and is for new machines; `evenkeel configuration \
         render` writes user-data for them"
    )]
    ForNewMachines,
    #[error("{name} has no bundle {bundle:?}; it has {bundles}")]
    UnknownBundle { name: String, bundle: String, bundles: String },
}

impl DocumentError {
    /// The exit status of a command that ends with this error.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Unreadable { .. }
            | Self::Invalid { .. }
            | Self::ForNewMachines
            | Self::UnknownBundle { .. } => EXIT_UNREADABLE,
            Self::NotOffered { .. } => EXIT_NOT_OFFERED,
        }
    }
}

impl DocumentSource {
    /// Reads and validates the document. `input` is standard input.
    ///
    /// # Errors
    /// The document cannot be read, is invalid, or has something that is not offered.
    pub fn load(&self, input: &mut dyn Read) -> Result<DocumentFile, DocumentError> {
        let DocumentText { name, text } =
            DocumentText::read(&self.path, input).map_err(DocumentError::from)?;
        let format = self.format.unwrap_or_else(|| DocumentFormat::detect(&text));
        let (document, warnings) = match format.read(&text) {
            Ok(read) => read,
            Err(ReadError::Invalid(fields)) => {
                return Err(DocumentError::Invalid { name, fields });
            }
            Err(ReadError::NotOffered(fields)) => {
                return Err(DocumentError::NotOffered { name, fields });
            }
        };
        drop(text);
        self.check_bundle(&name, &document)?;
        let scope = EntryScope { only_bundle: self.only_bundle.clone(), ..EntryScope::default() };
        let warnings = warnings.iter().map(|warning| format!("{name}: {warning}")).collect();
        Ok(DocumentFile { document, scope, warnings })
    }

    fn check_bundle(&self, name: &str, document: &Document) -> Result<(), DocumentError> {
        let Some(bundle) = &self.only_bundle else { return Ok(()) };
        let mut names = document.bundles.iter().map(|bundle| bundle.name.as_str());
        if names.clone().any(|name| name == bundle) {
            return Ok(());
        }
        let bundles = match names.next() {
            None => "none".to_owned(),
            Some(first) => names.fold(first.to_owned(), |list, name| list + ", " + name),
        };
        Err(DocumentError::UnknownBundle { name: name.to_owned(), bundle: bundle.clone(), bundles })
    }
}

impl From<SourceError> for DocumentError {
    fn from(SourceError { name, reason }: SourceError) -> Self {
        let advice = match reason {
            UnreadableReason::File(_) => "",
            UnreadableReason::TooLarge => {
                "; for large files, write their `uri` and `sha256` in place of their content"
            }
            UnreadableReason::NotUtf8 { .. } => "; write content that is not text as `base64`",
        };
        Self::Unreadable { name, reason: format!("{reason}{advice}") }
    }
}

/// One line for each field, with the name of the document, so that each line can be searched for.
fn list_fields(name: &str, fields: &[FieldError]) -> String {
    let lines = fields.iter().map(|field| ["\n", name, ": ", &field.to_string()].concat());
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &[u8], only_bundle: Option<&str>) -> Result<DocumentFile, DocumentError> {
        let only_bundle = only_bundle.map(str::to_owned);
        let source = DocumentSource { path: "-".into(), format: None, only_bundle };
        source.load(&mut &*text)
    }

    fn failure(text: &[u8], only_bundle: Option<&str>) -> (u8, String) {
        let error = load(text, only_bundle).unwrap_err();
        (error.exit_status(), error.to_string())
    }

    const TWO_BUNDLES: &[u8] = b"bundles: [{name: web, entries: []}, {name: base, entries: []}]";

    #[test]
    fn each_reason_has_its_exit_status() {
        let extension = b"bundles: [{name: a, entries: [{component: Extension, name: disk}]}]";
        for (text, status, part) in [
            (&b"bundles: [{name: \xff}]"[..], 2, "line 1 is not UTF-8 (byte 18 of the file); "),
            (b"bundles: {", 2, "standard input is invalid:\n"),
            (
                b"bundles: [{name: a, entries: [{component: File}]}]",
                2,
                "\nstandard input: bundles[0].entries[0].name: ",
            ),
            (b"<Configuration", 2, "is invalid"),
            (extension, 3, "\"Extension\" is not a component (entry \"disk\")"),
        ] {
            let (found, message) = failure(text, None);
            assert_eq!(found, status, "{message}");
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_bundle_that_the_document_does_not_have_is_an_error() {
        let file = load(TWO_BUNDLES, Some("base")).unwrap();
        assert_eq!(file.scope.only_bundle.as_deref(), Some("base"));
        let expected = "standard input has no bundle \"bas\"; it has web, base";
        assert_eq!(failure(TWO_BUNDLES, Some("bas")), (2, expected.to_owned()));
        let expected = "standard input has no bundle \"bas\"; it has none";
        assert_eq!(failure(b"bundles: []", Some("bas")), (2, expected.to_owned()));
    }

    #[test]
    fn a_document_of_gardener_without_purpose_has_a_warning() {
        let text = b"apiVersion: extensions.gardener.cloud/v1alpha1\nkind: OperatingSystemConfig\n\
                     metadata: {name: worker}\nspec: {type: debian}\n";
        let file = load(text, None).unwrap();
        let [warning] = &file.warnings[..] else { panic!("{:?}", file.warnings) };
        assert!(warning.starts_with("standard input: spec.purpose"), "{warning}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error_with_advice() {
        let source = DocumentSource { path: "-".into(), format: None, only_bundle: None };
        let error = source.load(&mut std::io::repeat(b' ')).unwrap_err();
        let start = "cannot read standard input: it is larger than 16 MiB; for large files, ";
        assert!(error.to_string().starts_with(start), "{error}");
        assert_eq!(error.exit_status(), 2);
    }
}
