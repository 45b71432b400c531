//! Reads a configuration document from a file or from standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use evenkeel_configuration::format::DocumentFormat;
use evenkeel_configuration::{Document, ReadError, limits};
use evenkeel_reconcile::scope::EntryScope;

/// Largest document.
const MAX_DOCUMENT_BYTES: u64 = limits::MAX_DOCUMENT_BYTES as u64;

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
    #[error("{name} is invalid:\n{error}")]
    Invalid { name: String, error: ReadError },
    #[error("{name} has entries or fields that are not offered:\n{error}")]
    NotOffered { name: String, error: ReadError },
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
        let is_input = self.path.as_os_str() == "-";
        let name =
            if is_input { "standard input".to_owned() } else { self.path.display().to_string() };
        let bytes = if is_input { read_bounded(input) } else { read_file(&self.path) };
        let text = bytes.map_err(|error| error.to_string()).and_then(into_text);
        let text = match text {
            Ok(text) => text,
            Err(reason) => return Err(DocumentError::Unreadable { name, reason }),
        };
        let format = self.format.unwrap_or_else(|| DocumentFormat::detect(&text));
        let (document, warnings) = match format.read(&text) {
            Ok(read) => read,
            Err(error @ ReadError::Invalid(_)) => {
                return Err(DocumentError::Invalid { name, error });
            }
            Err(error @ ReadError::NotOffered(_)) => {
                return Err(DocumentError::NotOffered { name, error });
            }
        };
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

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if metadata.len() > MAX_DOCUMENT_BYTES {
        return Err(too_large());
    }
    read_bounded(&mut file)
}

/// The content of a stream. A pipe and a device do not know their size.
fn read_bounded(input: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Read::take(input, MAX_DOCUMENT_BYTES + 1).read_to_end(&mut bytes)?;
    let fits = u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_DOCUMENT_BYTES);
    if fits { Ok(bytes) } else { Err(too_large()) }
}

fn too_large() -> io::Error {
    io::Error::other(format!(
        "it is larger than {} MiB; for large files, write their `uri` and `sha256` in place of \
         their content",
        MAX_DOCUMENT_BYTES >> 20
    ))
}

fn into_text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].split(|byte| *byte == b'\n').count();
        format!(
            "line {line} is not UTF-8 (byte {}); write content that is not text as `base64`",
            valid + 1
        )
    })
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
            (&b"bundles: [{name: \xff}]"[..], 2, "line 1 is not UTF-8 (byte 18)"),
            (b"bundles: {", 2, "standard input is invalid:\n"),
            (
                b"bundles: [{name: a, entries: [{component: File}]}]",
                2,
                "bundles[0].entries[0].name",
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
    fn a_document_is_read_up_to_16_mib() {
        let source = DocumentSource { path: "-".into(), format: None, only_bundle: None };
        let error = source.load(&mut io::repeat(b' ')).unwrap_err();
        let start = "cannot read standard input: it is larger than 16 MiB; ";
        assert!(error.to_string().starts_with(start), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.yaml");
        File::create(&path).unwrap().set_len(20_000_000).unwrap();
        let error = DocumentSource { path, ..source.clone() }.load(&mut io::empty()).unwrap_err();
        assert!(error.to_string().contains("large.yaml: it is larger than 16 MiB"), "{error}");
        assert_eq!(error.exit_status(), 2);
        for path in [folder.path().to_owned(), folder.path().join("none")] {
            let error = DocumentSource { path, ..source.clone() }.load(&mut io::empty());
            let error = error.unwrap_err();
            assert!(error.to_string().starts_with("cannot read /"), "{error}");
        }
    }
}
