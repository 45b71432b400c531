//! Reads a document from a file or from standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use clap::ValueEnum;
use evenkeel_configuration::format::DocumentFormat;
use evenkeel_configuration::limits;

use crate::Failure;

/// Largest document.
const MAX_DOCUMENT_BYTES: u64 = limits::MAX_DOCUMENT_BYTES as u64;

/// Format of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    /// Format of Evenkeel, in YAML or JSON.
    Native,
    /// Literal `<Configuration>` of Bcfg2.
    Bcfg2,
    /// `OperatingSystemConfig` of Gardener, in YAML or JSON.
    Gardener,
}

impl InputFormat {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Bcfg2 => "bcfg2",
            Self::Gardener => "gardener",
        }
    }

    /// The format that a text has by its content.
    pub fn detect(text: &str) -> Self {
        match DocumentFormat::detect(text) {
            DocumentFormat::Native => Self::Native,
            DocumentFormat::Bcfg2 => Self::Bcfg2,
            DocumentFormat::Gardener => Self::Gardener,
        }
    }

    /// The format for the reader.
    pub const fn document_format(self) -> DocumentFormat {
        match self {
            Self::Native => DocumentFormat::Native,
            Self::Bcfg2 => DocumentFormat::Bcfg2,
            Self::Gardener => DocumentFormat::Gardener,
        }
    }
}

/// The text of a document and the name of its source in messages.
#[derive(Debug)]
pub struct DocumentSource {
    /// Path of the file, or "standard input".
    pub name: String,
    pub text: String,
}

impl DocumentSource {
    /// Reads a file, or `input` if the path is `-`.
    ///
    /// # Errors
    /// It cannot be read, is too large, or is not UTF-8.
    pub fn read(path: &Path, input: &mut dyn Read) -> Result<Self, Failure> {
        let (name, bytes) = if is_standard_input(path) {
            let name = "standard input".to_owned();
            let bytes = read_bounded(input).map_err(|error| unreadable(&name, &error))?;
            (name, bytes)
        } else {
            let name = path.display().to_string();
            let bytes = read_file(path).map_err(|error| unreadable(&name, &error))?;
            (name, bytes)
        };
        let bytes = bytes.ok_or_else(|| too_large(&name))?;
        let text = String::from_utf8(bytes).map_err(|error| not_text(&name, &error))?;
        Ok(Self { name, text })
    }
}

/// Whether a path stands for standard input.
pub fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The content of a file; none if it is too large.
fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if metadata.len() > MAX_DOCUMENT_BYTES {
        return Ok(None);
    }
    read_bounded(&mut file)
}

/// The content of a stream; none if it is too large. A pipe and a device do not know their size.
fn read_bounded(input: &mut dyn Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    Read::take(input, MAX_DOCUMENT_BYTES + 1).read_to_end(&mut bytes)?;
    let fits = u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_DOCUMENT_BYTES);
    Ok(fits.then_some(bytes))
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    let (reason, hint) = match error.kind() {
        io::ErrorKind::NotFound => (
            "there is no such file".to_owned(),
            "check the path; `-` reads the document from standard input",
        ),
        io::ErrorKind::IsADirectory => {
            ("it is a directory".to_owned(), "give the file with the document")
        }
        io::ErrorKind::PermissionDenied => {
            (error.to_string(), "check who may read the file: `ls -l` shows it")
        }
        _ => (error.to_string(), "check that the file can be read"),
    };
    Failure::usage_with(format!("cannot read {name}: {reason}"), hint)
}

fn too_large(name: &str) -> Failure {
    Failure::usage_with(
        format!("cannot read {name}: it is larger than {} MiB", MAX_DOCUMENT_BYTES >> 20),
        "a document has the desired state of one node; for large files, write their `uri` and \
         `sha256` in place of their content",
    )
}

fn not_text(name: &str, error: &std::string::FromUtf8Error) -> Failure {
    let valid = error.utf8_error().valid_up_to();
    let line = error.as_bytes()[..valid].split(|byte| *byte == b'\n').count();
    Failure::usage_with(
        format!("cannot read {name}: line {line} is not UTF-8 (byte {} of the file)", valid + 1),
        "save the document as UTF-8; write content that is not text as `base64`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_stream_is_not_read_to_its_end() {
        let failure = DocumentSource::read(Path::new("-"), &mut io::repeat(b' '));
        let failure = failure.expect_err("too large");
        assert_eq!(failure.to_string(), "cannot read standard input: it is larger than 16 MiB");
    }
}
