//! Errors of filters and orders.

use std::fmt;

use crate::text::cut;

/// A filter or an order that is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFilter {
    /// Position in characters from 0; the length of the text if its end is incomplete.
    pub position: usize,
    /// What is wrong at the position.
    pub message: String,
    /// Suggested replacement for the name or value at the position.
    pub hint: Option<String>,
}

impl BadFilter {
    pub(super) fn at(position: usize, why: impl Into<String>) -> Self {
        Self { position, message: why.into(), hint: None }
    }

    /// Adds a suggestion.
    pub(super) fn with_hint(self, hint: Option<String>) -> Self {
        Self { hint, ..self }
    }
}

impl fmt::Display for BadFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}: {}", self.position, self.message)?;
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

/// Refuses a filter that costs the database too much.
pub(super) fn check_cost(cost: usize, max: usize) -> Result<(), BadFilter> {
    if cost <= max {
        return Ok(());
    }
    let why = format!(
        "the filter is too expensive: its conditions cost {cost}, and at most {max} are allowed; use fewer conditions: \
         labels, paths, patterns with several stars and negations cost most"
    );
    Err(BadFilter::at(0, why))
}

/// An excerpt of the input for an error message.
pub(super) fn excerpt(text: &str) -> String {
    format!("`{}`", cut(text, 60))
}

/// The candidate that is most similar to the input, if any is similar enough.
pub(super) fn nearest_match(
    input: &str,
    candidates: impl IntoIterator<Item = String>,
) -> Option<String> {
    const MIN_SIMILARITY: f64 = 0.8;
    let input = normalize_name(input);
    let likeness =
        |candidate: String| (strsim::jaro_winkler(&input, &normalize_name(&candidate)), candidate);
    candidates
        .into_iter()
        .map(likeness)
        .filter(|(likeness, _)| *likeness >= MIN_SIMILARITY)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// A name without its most frequent misspellings: in lower case and without underscores.
pub(super) fn normalize_name(name: &str) -> String {
    name.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}
