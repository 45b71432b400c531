//! Limits of all formats.

/// Longest document in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 16 << 20;

/// Checks the length of a text, and removes the byte order mark that some editors write.
///
/// # Errors
/// The text is longer than [`MAX_DOCUMENT_BYTES`].
pub(crate) fn open_text(text: &str) -> Result<&str, String> {
    let length = text.len();
    if length > MAX_DOCUMENT_BYTES {
        return Err(format!(
            "the document has {length} bytes; at most {MAX_DOCUMENT_BYTES} are accepted"
        ));
    }
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}
