//! Reads a document from a file or from standard input.

use std::io::{self, Read};
use std::path::Path;

use clap::ValueEnum;
use evenkeel_configuration::format::DocumentFormat;
use evenkeel_configuration::source::{DocumentText, SourceError, UnreadableReason};

use crate::Failure;

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

/// Reads a file, or `input` if the path is `-`.
///
/// # Errors
/// It cannot be read, is too large, or is not UTF-8.
pub fn read_text(path: &Path, input: &mut dyn Read) -> Result<DocumentText, Failure> {
    DocumentText::read(path, input).map_err(|error| unreadable(&error))
}

fn unreadable(error: &SourceError) -> Failure {
    let SourceError { name, reason } = error;
    let (reason, hint) = match reason {
        UnreadableReason::TooLarge => (
            reason.to_string(),
            "check that it is the right file; in a configuration document, write `uri` and `sha256` \
             in place of the content of a large file",
        ),
        UnreadableReason::NotUtf8 { .. } => (
            reason.to_string(),
            "save the file as UTF-8; in a configuration document, write content that is not text as \
             `base64`",
        ),
        UnreadableReason::File(error) => match error.kind() {
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
        },
    };
    Failure::usage_with(format!("cannot read {name}: {reason}"), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_stream_is_not_read_to_its_end() {
        let failure = read_text(Path::new("-"), &mut io::repeat(b' '));
        let failure = failure.expect_err("too large");
        assert_eq!(failure.to_string(), "cannot read standard input: it is larger than 16 MiB");
    }
}
