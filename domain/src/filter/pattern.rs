//! What a text must contain.

use super::token::letters;

/// What a text must contain somewhere, whatever the case: pieces in this order, with any letters between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<String>);

impl Pattern {
    /// A pattern of these pieces; none if there is no letter in them.
    #[must_use]
    pub fn new(pieces: impl IntoIterator<Item = String>) -> Option<Self> {
        let pieces: Vec<_> = pieces.into_iter().filter(|p| !p.is_empty()).collect();
        (!pieces.is_empty()).then_some(Self(pieces))
    }

    /// Reads a pattern as it stands in a filter, a star between two pieces; none if there is nothing but stars.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut pieces = vec![String::new()];
        for letter in letters(text) {
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
    fn stars_stand_between_pieces() {
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
    fn a_star_after_a_backslash_is_a_letter() {
        assert_eq!(pieces(r"a\*b"), Some(vec!["a*b".to_owned()]));
        assert_eq!(pieces(r"a\b%_"), Some(vec![r"a\b%_".to_owned()]));
    }
}
