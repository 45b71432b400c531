//! Texts that people give, with the letters that the ancestor's clients allow (northbound section 1.3).

use std::fmt;

use crate::invalid::Invalid;

/// The name of a resource: at most 50 letters, digits, spaces and `-_./:`; may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Name(String);

impl Name {
    /// The greatest length in bytes.
    pub const MAX: usize = 50;

    /// Reads a name.
    ///
    /// # Errors
    /// It is longer than [`Name::MAX`] or has other characters.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        Self::parse_up_to(field, text, Self::MAX)
    }

    /// Reads a name that must not be empty.
    ///
    /// # Errors
    /// As [`Name::parse`], and when it is empty.
    pub fn parse_given(field: &'static str, text: &str) -> Result<Self, Invalid> {
        if text.is_empty() {
            return Err(Invalid::new(field, "must not be empty"));
        }
        Self::parse(field, text)
    }

    /// Reads a name with a limit of its own.
    ///
    /// # Errors
    /// It is longer than `max` bytes or has other characters.
    pub fn parse_up_to(field: &'static str, text: &str, max: usize) -> Result<Self, Invalid> {
        check(field, text, max, "-_./: ").map(|()| Self(text.to_owned()))
    }

    /// A name made from any text: what is not allowed becomes a dash, what is too long is cut.
    #[must_use]
    pub fn tidy(text: &str) -> Self {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./: ".contains(c);
        let chars = text.trim().chars().take(Self::MAX);
        Self(chars.map(|c| if allowed(c) { c } else { '-' }).collect())
    }

    /// The text.
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

/// Checks a text against a length and a set of characters besides letters and digits.
///
/// # Errors
/// Names the first character that is not allowed, or the limit.
pub fn check(
    field: &'static str,
    text: &str,
    max: usize,
    besides: &'static str,
) -> Result<(), Invalid> {
    if text.len() > max {
        return Err(Invalid::new(field, format!("longer than {max} bytes")));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || besides.contains(c);
    match text.chars().find(|c| !allowed(*c)) {
        None => Ok(()),
        Some(c) => Err(Invalid::new(
            field,
            format!("{c:?} is not allowed; letters, digits and {besides:?} are"),
        )),
    }
}

/// Checks a text against a length in characters, and for control characters other than these.
///
/// # Errors
/// Names the first character that is not allowed, or the limit.
pub fn check_printable(
    field: &'static str,
    text: &str,
    max: usize,
    besides: &'static str,
) -> Result<(), Invalid> {
    if text.chars().count() > max {
        return Err(Invalid::new(field, format!("longer than {max} characters")));
    }
    match text
        .chars()
        .find(|c| c.is_control() && !besides.contains(*c))
    {
        None => Ok(()),
        Some(c) => Err(Invalid::new(field, format!("{c:?} is not allowed"))),
    }
}

/// Checks a word that names something on a node: a lower-case letter, then at most 31 lower-case letters, digits and
/// dashes.
///
/// # Errors
/// It is no such word.
pub fn check_word(field: &'static str, text: &str) -> Result<(), Invalid> {
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

/// What a longer text of the ancestor's API may hold besides letters and digits.
pub const TEXT: &str = "-_./:;=?@!#,<>*() ";

/// [`TEXT`] and the double quote.
pub const TEXT_WITH_QUOTE: &str = "-_./:;=?@!#,<>*() \"";

/// A text as a database can keep it: without the zero byte, which Postgres takes in no text.
#[must_use]
pub fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Cuts a text to at most `max` bytes, at a character, and marks the cut.
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

/// The first texts of a list, each cut to at most `longest` bytes, as a database can keep them. If there are more than
/// `most`, the last one says how many are left out.
#[must_use]
pub fn cut_list(texts: &[String], most: usize, longest: usize) -> Vec<String> {
    let all = texts.len();
    let kept = if all > most {
        most.saturating_sub(1)
    } else {
        all
    };
    let first = texts.iter().take(kept);
    let mut list: Vec<_> = first.map(|text| cut(&storable(text), longest)).collect();
    if kept < all {
        list.push(format!("… and {} more [cut]", all - kept));
    }
    list
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_tidy_name_is_a_name(text in "\\PC{0,80}") {
            prop_assert!(Name::parse("name", Name::tidy(&text).as_str()).is_ok());
        }

        #[test]
        fn a_cut_text_fits(text in "\\PC{0,80}", max in 20usize..60) {
            prop_assert!(cut(&text, max).len() <= max);
        }
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
