//! Errors of the configuration, without its values: a URL may contain a password.

use figment::error::{Actual, Error, Kind};

/// The texts of an error and of the errors before it.
pub(super) fn describe_without_secrets(error: Error) -> anyhow::Error {
    let texts = error.into_iter().map(|mut error| {
        error.kind = match error.kind {
            Kind::InvalidType(found, expected) => Kind::InvalidType(hide_url(found), expected),
            Kind::InvalidValue(found, expected) => Kind::InvalidValue(hide_url(found), expected),
            Kind::Message(text) => Kind::Message(remove_excerpt(&text)),
            other => other,
        };
        error.to_string()
    });
    anyhow::Error::msg(texts.collect::<Vec<_>>().join("\n"))
}

fn hide_url(found: Actual) -> Actual {
    match found {
        Actual::Str(text) if text.contains("://") => Actual::Other("a URL".to_owned()),
        other => other,
    }
}

/// Removes the lines of a file from the message of the TOML parser: `2 | url = …`.
fn remove_excerpt(text: &str) -> String {
    let is_excerpt = |line: &&str| {
        line.trim_start_matches(|char: char| char.is_ascii_digit() || char == ' ').starts_with('|')
    };
    text.lines().filter(|line| !is_excerpt(line)).collect::<Vec<_>>().join("\n")
}
