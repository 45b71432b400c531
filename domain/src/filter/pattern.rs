//! Substring patterns.

use super::token::unescape;

/// A pattern that a text must contain, ignoring case: pieces in this order, with any letters between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<String>);

impl Pattern {
    /// A pattern of these pieces; `None` if all of them are empty.
    #[must_use]
    pub fn new(pieces: impl IntoIterator<Item = String>) -> Option<Self> {
        let pieces: Vec<_> = pieces.into_iter().filter(|p| !p.is_empty()).collect();
        (!pieces.is_empty()).then_some(Self(pieces))
    }

    /// Parses a pattern as it is written in a filter, with stars between the pieces; `None` if it has only stars.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut pieces = vec![String::new()];
        for letter in unescape(text) {
            match (letter, pieces.last_mut()) {
                (Some(letter), Some(piece)) => piece.push(letter),
                _ => pieces.push(String::new()),
            }
        }
        Self::new(pieces)
    }

    /// The pieces: at least one, none of them empty.
    #[must_use]
    pub fn pieces(&self) -> &[String] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Option<Vec<String>> {
        Pattern::parse(text).map(|pattern| pattern.pieces().to_vec())
    }

    #[test]
    fn stars_separate_pieces() {
        let two = Some(vec!["edge".to_owned(), "01".to_owned()]);
        assert_eq!(pieces("edge*01"), two);
        assert_eq!(pieces("*edge**01*"), two);
    }

    #[test]
    fn stars_alone_are_no_pattern() {
        assert_eq!(pieces(""), None);
        assert_eq!(pieces("**"), None);
    }

    #[test]
    fn an_escaped_star_is_a_letter() {
        assert_eq!(pieces(r"a\*b"), Some(vec!["a*b".to_owned()]));
        assert_eq!(pieces(r"a\b%_"), Some(vec![r"a\b%_".to_owned()]));
    }
}
