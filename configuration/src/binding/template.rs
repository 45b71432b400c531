//! Texts with references to facts.

use std::collections::BTreeMap;

use crate::validation::{MAX_ERRORS, excerpt, short};

/// Longest name of a fact. The key of a label with its prefix fits.
pub const MAX_FACT_NAME_BYTES: usize = 400;

/// Longest value of a fact in a document. A DNS name fits.
pub const MAX_FACT_VALUE_BYTES: usize = 255;

/// Beginning of a reference to a fact.
pub(super) const OPENING: &str = "${fact.";

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextPart<'a> {
    Literal(&'a str),
    /// Name of a fact.
    Fact(&'a str),
}

/// Why a text has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SubstitutionError {
    /// One message for each fact, at most [`MAX_ERRORS`].
    Facts(Vec<String>),
    TooLong,
}

/// Splits a text at its references.
///
/// # Errors
/// A reference is malformed.
pub(super) fn parse(text: &str) -> Result<Vec<TextPart<'_>>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(OPENING) {
        let (before, reference) = rest.split_at(start);
        let after_opening = &reference[OPENING.len()..];
        if let Some(before) = before.strip_suffix('$') {
            parts.push(TextPart::Literal(before));
            parts.push(TextPart::Literal(OPENING));
            rest = after_opening;
            continue;
        }
        let named = after_opening.split_once('}').filter(|(name, _)| is_fact_name(name));
        let Some((name, after)) = named else {
            return Err(format!(
                "{} is not a reference to a fact; write ${{fact.NAME}}, where NAME has letters, \
                 digits, \".\", \"_\", \"-\" and \"/\"; or write $${{fact. for the text {OPENING}",
                excerpt(reference)
            ));
        };
        parts.push(TextPart::Literal(before));
        parts.push(TextPart::Fact(name));
        rest = after;
    }
    parts.push(TextPart::Literal(rest));
    Ok(parts)
}

/// Replaces the references of a text by the values of facts.
///
/// # Errors
/// A fact has no value that is safe in a document, or the result is longer than `max_bytes`.
pub(super) fn substitute(
    text: &str,
    facts: &BTreeMap<String, String>,
    max_bytes: usize,
) -> Result<String, SubstitutionError> {
    let parts = parse(text).map_err(|message| SubstitutionError::Facts(vec![message]))?;
    let mut result = String::with_capacity(text.len().min(max_bytes));
    let mut errors: Vec<String> = Vec::new();
    for part in parts {
        let value = match part {
            TextPart::Literal(text) => text,
            TextPart::Fact(name) => match find_value(name, facts) {
                Ok(value) => value,
                Err(message) => {
                    if errors.len() < MAX_ERRORS && !errors.contains(&message) {
                        errors.push(message);
                    }
                    continue;
                }
            },
        };
        if result.len() + value.len() > max_bytes {
            return Err(SubstitutionError::TooLong);
        }
        result.push_str(value);
    }
    if errors.is_empty() { Ok(result) } else { Err(SubstitutionError::Facts(errors)) }
}

/// The value of a fact, if it is safe in every text: in a script, a unit, a URL, or a line of
/// settings. The message does not have the value.
fn find_value<'a>(name: &str, facts: &'a BTreeMap<String, String>) -> Result<&'a str, String> {
    let name_excerpt = short(name);
    let Some(value) = facts.get(name) else {
        return Err(format!("the fact {name_excerpt} of the node is unknown"));
    };
    if value.is_empty() {
        return Err(format!("the fact {name_excerpt} of the node is empty"));
    }
    if value.len() > MAX_FACT_VALUE_BYTES {
        return Err(format!(
            "the fact {name_excerpt} of the node is longer than {MAX_FACT_VALUE_BYTES} bytes"
        ));
    }
    // No space, slash, quote, line break or dollar sign: the value stays one word in a shell, one
    // name in a path and one part of a host in a URL. With a letter or digit first it is no option.
    let is_accepted = |b: u8| b.is_ascii_alphanumeric() || b"._:+-".contains(&b);
    if !value.bytes().all(is_accepted) || !value.as_bytes()[0].is_ascii_alphanumeric() {
        return Err(format!(
            "the fact {name_excerpt} of the node has a value that is not accepted in documents; \
             accepted are letters, digits, \".\", \"_\", \":\", \"+\" and \"-\", with a letter or \
             digit first"
        ));
    }
    Ok(value)
}

fn is_fact_name(name: &str) -> bool {
    let is_accepted = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
    (1..=MAX_FACT_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn references_are_replaced_and_everything_else_is_text() {
        let facts = facts(&[("host.name", "n1"), ("label.example.org/rack", "r-7"), ("a", "1")]);
        for (text, expected) in [
            ("", ""),
            ("${fact.host.name}", "n1"),
            ("x${fact.a}${fact.a}y", "x11y"),
            ("rack ${fact.label.example.org/rack};", "rack r-7;"),
            (
                "${HOME} $HOME ${fact} ${facts.a} ${fact:-x} $fact.a",
                "${HOME} $HOME ${fact} ${facts.a} ${fact:-x} $fact.a",
            ),
            ("$${HOME} $$", "$${HOME} $$"),
            ("$${fact.a}", "${fact.a}"),
            ("$$${fact.a}", "$${fact.a}"),
            ("$${fact.", "${fact."),
            ("$${fact.${fact.a}", "${fact.1"),
            ("${fact.a}$${fact.a}", "1${fact.a}"),
        ] {
            assert_eq!(substitute(text, &facts, 1000), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_malformed_reference_is_refused() {
        let long = format!("${{fact.{}}}", "a".repeat(MAX_FACT_NAME_BYTES + 1));
        for text in ["${fact.", "${fact.}", "${fact.a b}", "a ${fact.a\n}", "${fact.ä}", &long] {
            let message = parse(text).unwrap_err();
            let reason = "is not a reference to a fact; write ${fact.NAME}";
            assert!(message.contains(reason), "{message}");
        }
    }

    #[test]
    fn only_values_that_are_safe_in_every_text_are_accepted() {
        let long = "a".repeat(MAX_FACT_VALUE_BYTES + 1);
        let check = |value: &str| substitute("${fact.f}", &facts(&[("f", value)]), 1000);
        for value in ["a", "0", "web-1.example.org", "fe80::1", "1.2+b_3", &long[1..]] {
            assert_eq!(check(value), Ok(value.to_owned()));
        }
        for value in [
            "",
            " ",
            "a b",
            "-a",
            ".a",
            "..",
            "../a",
            "/a",
            "a/b",
            "a\nb",
            "a\n",
            "a\0",
            "a;b",
            "$(a)",
            "`a`",
            "${fact.f}",
            "a'b",
            "a\"b",
            "a%b",
            "a\\b",
            "a=b",
            "a,b",
            "a@b",
            "~a",
            "a#b",
            "é",
            "\u{202e}a",
            &long,
        ] {
            let Err(SubstitutionError::Facts(messages)) = check(value) else {
                panic!("{value:?} is accepted");
            };
            assert!(messages[0].starts_with("the fact f of the node "), "{messages:?}");
            assert!(value.len() < 5 || !messages[0].contains(value), "{messages:?}");
        }
    }

    #[test]
    fn each_unknown_fact_is_listed_once() {
        let result = substitute("${fact.a}${fact.b}${fact.a}", &facts(&[]), 1000);
        let message = |name| format!("the fact {name} of the node is unknown");
        assert_eq!(result, Err(SubstitutionError::Facts(vec![message("a"), message("b")])));
    }

    #[test]
    fn a_short_text_does_not_become_a_huge_one() {
        let facts = facts(&[("f", "a".repeat(255).as_str())]);
        let text = "${fact.f}".repeat(100);
        assert_eq!(substitute(&text, &facts, 25_499), Err(SubstitutionError::TooLong));
        assert_eq!(substitute(&text, &facts, 25_500).unwrap().len(), 25_500);
    }
}
