//! What is said about a filter or an order that cannot be.

use std::fmt;

use crate::text::cut;

/// A filter or an order that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFilter {
    /// Where, in characters from 0; the length of the text if something is missing at its end.
    pub position: usize,
    /// What is wrong there.
    pub why: String,
    /// What was probably meant instead of the word that stands there.
    pub hint: Option<String>,
}

impl BadFilter {
    /// Says what is wrong at a place.
    pub(super) fn at(position: usize, why: impl Into<String>) -> Self {
        Self {
            position,
            why: why.into(),
            hint: None,
        }
    }

    /// Says what was probably meant.
    pub(super) fn hinting(self, hint: Option<String>) -> Self {
        Self { hint, ..self }
    }
}

impl fmt::Display for BadFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}: {}", self.position, self.why)?;
        match &self.hint {
            Some(hint) => write!(f, "; did you mean `{hint}`?"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for BadFilter {}

/// Refuses a text that is too long.
pub(super) fn check_length(text: &str, max: usize) -> Result<(), BadFilter> {
    match text.chars().nth(max) {
        None => Ok(()),
        Some(_) => Err(BadFilter::at(max, format!("longer than {max} characters"))),
    }
}

/// A part of what was given, as an error shows it.
pub(super) fn excerpt(text: &str) -> String {
    format!("`{}`", cut(text, 60))
}

/// The candidate that a word resembles most, if it resembles any.
pub(super) fn nearest(word: &str, candidates: impl IntoIterator<Item = String>) -> Option<String> {
    const ALIKE: f64 = 0.8;
    let word = squash(word);
    let likeness =
        |candidate: String| (strsim::jaro_winkler(&word, &squash(&candidate)), candidate);
    candidates
        .into_iter()
        .map(likeness)
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// A name without what people get wrong most often: its case and its underscores.
pub(super) fn squash(name: &str) -> String {
    name.chars()
        .filter(|c| *c != '_')
        .map(|c| c.to_ascii_lowercase())
        .collect()
}
