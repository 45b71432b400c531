//! Reads the text of a document from a file or from standard input.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::limits;

/// Largest document.
const MAX_DOCUMENT_BYTES: u64 = limits::MAX_DOCUMENT_BYTES as u64;

/// The text of a document and the name of its source in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentText {
    /// Path of the file, or "standard input".
    pub name: String,
    pub text: String,
}

/// The text of a document cannot be read.
#[derive(Debug)]
pub struct SourceError {
    /// Path of the file, or "standard input".
    pub name: String,
    pub reason: UnreadableReason,
}

/// Why the text of a document cannot be read.
#[derive(Debug)]
pub enum UnreadableReason {
    File(io::Error),
    /// It is larger than [`limits::MAX_DOCUMENT_BYTES`].
    TooLarge,
    /// The position of the first byte that is not UTF-8, counted from 1.
    NotUtf8 {
        line: usize,
        byte: usize,
    },
}

impl DocumentText {
    /// Reads a file, or `input` if the path is `-`. At most [`limits::MAX_DOCUMENT_BYTES`] are
    /// read: a pipe and a device do not know their size.
    ///
    /// # Errors
    /// It cannot be read, is too large, or is not UTF-8.
    pub fn read(path: &Path, input: &mut dyn Read) -> Result<Self, SourceError> {
        let (name, bytes) = if is_standard_input(path) {
            ("standard input".to_owned(), read_bounded(input, 0))
        } else {
            (path.display().to_string(), read_file(path))
        };
        match bytes.and_then(into_text) {
            Ok(text) => Ok(Self { name, text }),
            Err(reason) => Err(SourceError { name, reason }),
        }
    }
}

/// Whether a path stands for standard input.
pub fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn read_file(path: &Path) -> Result<Vec<u8>, UnreadableReason> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(UnreadableReason::File(io::ErrorKind::IsADirectory.into()));
    }
    if metadata.len() > MAX_DOCUMENT_BYTES {
        return Err(UnreadableReason::TooLarge);
    }
    read_bounded(&mut file, metadata.len())
}

/// Reads a stream whose size is about `size`. A buffer that grows takes more memory.
fn read_bounded(input: &mut dyn Read, size: u64) -> Result<Vec<u8>, UnreadableReason> {
    let mut bytes = Vec::with_capacity(usize::try_from(size).map_or(0, |size| size + 1));
    Read::take(input, MAX_DOCUMENT_BYTES + 1).read_to_end(&mut bytes)?;
    let fits = u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_DOCUMENT_BYTES);
    if fits { Ok(bytes) } else { Err(UnreadableReason::TooLarge) }
}

fn into_text(bytes: Vec<u8>) -> Result<String, UnreadableReason> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].split(|byte| *byte == b'\n').count();
        UnreadableReason::NotUtf8 { line, byte: valid + 1 }
    })
}

impl From<io::Error> for UnreadableReason {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl fmt::Display for UnreadableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::TooLarge => write!(f, "it is larger than {} MiB", MAX_DOCUMENT_BYTES >> 20),
            Self::NotUtf8 { line, byte } => {
                write!(f, "line {line} is not UTF-8 (byte {byte} of the file)")
            }
        }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {}: {}", self.name, self.reason)
    }
}

impl std::error::Error for SourceError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(bytes: impl Read) -> String {
        let mut bytes = bytes;
        DocumentText::read(Path::new("-"), &mut bytes).unwrap_err().to_string()
    }

    #[test]
    fn a_text_is_read_up_to_16_mib() {
        let read = DocumentText::read(Path::new("-"), &mut &b"bundles: []"[..]).unwrap();
        assert_eq!((read.name.as_str(), read.text.as_str()), ("standard input", "bundles: []"));
        let large = "cannot read standard input: it is larger than 16 MiB";
        assert_eq!(error(io::repeat(b' ')), large);
        let text = "cannot read standard input: line 2 is not UTF-8 (byte 4 of the file)";
        assert_eq!(error(&b"a:\n\xff"[..]), text);
        let missing = DocumentText::read(Path::new("/no/file"), &mut io::empty()).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read /no/file: No such file"));
        let folder = DocumentText::read(Path::new("/"), &mut io::empty()).unwrap_err();
        let UnreadableReason::File(error) = folder.reason else { panic!("{folder}") };
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }
}
