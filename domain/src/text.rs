//! Texts that users enter, with the characters that EIM's clients allow.

use std::fmt;

use crate::invalid::Invalid;

/// Name of a resource: at most 50 letters, digits, spaces and `-_./:`; may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Name(String);

impl Name {
    /// Maximum length in bytes.
    pub const MAX_BYTES: usize = 50;

    /// Parses a name.
    ///
    /// # Errors
    /// The text is longer than [`Name::MAX_BYTES`] or has other characters.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        Self::parse_up_to(field, text, Self::MAX_BYTES)
    }

    /// Parses a name that must not be empty.
    ///
    /// # Errors
    /// As [`Name::parse`], and when it is empty.
    pub fn parse_given(field: &'static str, text: &str) -> Result<Self, Invalid> {
        if text.is_empty() {
            return Err(Invalid::new(field, "must not be empty"));
        }
        Self::parse(field, text)
    }

    /// Parses a name with another maximum length.
    ///
    /// # Errors
    /// The text is longer than `max` bytes or has other characters.
    pub fn parse_up_to(field: &'static str, text: &str, max: usize) -> Result<Self, Invalid> {
        check(field, text, max, "-_./: ").map(|()| Self(text.to_owned()))
    }

    /// Makes a name of any text: replaces characters that are not allowed by dashes and cuts the rest off.
    #[must_use]
    pub fn sanitized(text: &str) -> Self {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./: ".contains(c);
        let chars = text.trim().chars().take(Self::MAX_BYTES);
        Self(chars.map(|c| if allowed(c) { c } else { '-' }).collect())
    }

    /// A stored name. Another release may have allowed other characters: such a name is shown as
    /// [`Name::sanitized`] has it, because it must not hide what it names.
    #[must_use]
    pub fn from_stored(text: &str) -> Self {
        Self::parse("name", text).unwrap_or_else(|_| Self::sanitized(text))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks the length of a text in bytes, and that it holds only letters, digits and the characters in `extra`.
///
/// # Errors
/// Names the first character that is not allowed, or the limit.
pub fn check(
    field: &'static str,
    text: &str,
    max: usize,
    extra: &'static str,
) -> Result<(), Invalid> {
    if text.len() > max {
        return Err(Invalid::new(field, format!("longer than {max} bytes")));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || extra.contains(c);
    match text.chars().find(|c| !allowed(*c)) {
        None => Ok(()),
        Some(c) => Err(Invalid::new(
            field,
            format!("{c:?} is not allowed; letters, digits and {extra:?} are"),
        )),
    }
}

/// Checks the length of a text in characters, and that it holds no control characters other than those in `extra`.
///
/// # Errors
/// Names the first character that is not allowed, or the limit.
pub fn check_printable(
    field: &'static str,
    text: &str,
    max: usize,
    extra: &'static str,
) -> Result<(), Invalid> {
    if text.chars().count() > max {
        return Err(Invalid::new(field, format!("longer than {max} characters")));
    }
    match text.chars().find(|c| c.is_control() && !extra.contains(*c)) {
        None => Ok(()),
        Some(c) => Err(Invalid::new(field, format!("{c:?} is not allowed"))),
    }
}

/// Checks an identifier for use on a node: a lower-case letter, then at most 31 lower-case letters, digits and dashes.
///
/// # Errors
/// The text is not such an identifier.
pub fn check_identifier(field: &'static str, text: &str) -> Result<(), Invalid> {
    let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    if first && text.len() <= 32 && text.bytes().all(inside) {
        return Ok(());
    }
    Err(Invalid::new(
        field,
        "must be a lower-case letter and at most 31 lower-case letters, digits and dashes",
    ))
}

/// Characters besides letters and digits that EIM's API allows in longer texts.
pub const TEXT_PUNCTUATION: &str = "-_./:;=?@!#,<>*() ";

/// [`TEXT_PUNCTUATION`] and the double quote.
pub const TEXT_PUNCTUATION_AND_QUOTE: &str = "-_./:;=?@!#,<>*() \"";

/// A text that the database can store: without zero bytes, which Postgres rejects.
#[must_use]
pub fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Cuts a text to at most `max` bytes, at a character boundary, and marks the cut.
#[must_use]
pub fn cut(text: &str, max: usize) -> String {
    const MARK: &str = "… [cut]";
    if text.len() <= max {
        return text.to_owned();
    }
    let mut end = max.saturating_sub(MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", &text[..end])
}

/// The first `max_items` texts of a list, each cut to at most `max_bytes` bytes and storable in the database. If there
/// are more, the last item says how many are omitted.
#[must_use]
pub fn cut_list(texts: &[String], max_items: usize, max_bytes: usize) -> Vec<String> {
    let all = texts.len();
    let included = if all > max_items { max_items.saturating_sub(1) } else { all };
    let first = texts.iter().take(included);
    let mut list: Vec<_> = first.map(|text| cut(&storable(text), max_bytes)).collect();
    if included < all {
        list.push(format!("… and {} more [cut]", all - included));
    }
    list
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sanitized_name_is_valid(text in "\\PC{0,80}") {
            prop_assert!(Name::parse("name", Name::sanitized(&text).as_str()).is_ok());
        }

        #[test]
        fn a_cut_text_fits(text in "\\PC{0,80}", max in 20usize..60) {
            prop_assert!(cut(&text, max).len() <= max);
        }
    }

    #[test]
    fn a_stored_name_is_shown_even_if_this_release_would_refuse_it() {
        for (stored, shown) in
            [("edge 1 ", "edge 1 "), ("", ""), ("edge\u{1}1", "edge-1"), ("Fürth", "F-rth")]
        {
            assert_eq!(Name::from_stored(stored).as_str(), shown);
        }
        assert_eq!(Name::from_stored(&"e".repeat(90)).as_str().len(), Name::MAX_BYTES);
    }

    #[test]
    fn the_first_bad_character_is_named() {
        let error = Name::parse("name", "edge;01").expect_err("a semicolon");
        assert_eq!(
            error.to_string(),
            "name: ';' is not allowed; letters, digits and \"-_./: \" are"
        );
    }
}
