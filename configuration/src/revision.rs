//! Canonical JSON of a document, and its digest.

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::document::{Bundle, Component, Document, Entry};

/// The document in the canonical order ([`sort_entries`]) as canonical JSON (RFC 8785). Documents
/// without a difference ([`crate::difference`]) have the same canonical JSON.
pub fn canonical_json(document: &Document) -> String {
    let mut document = document.clone();
    sort_entries(&mut document);
    to_canonical_json(&document)
}

/// SHA-256 of the canonical JSON, in 64 lower-case hexadecimal digits.
pub fn revision(document: &Document) -> String {
    hex_digest(&canonical_json(document))
}

/// Sorts the bundles and entries of a document, without a change of what it means.
///
/// A node takes its steps in a fixed order, so the order of entries matters only for actions: they
/// run in the order of the document. Bundles with actions come first and keep their order, and so
/// do the actions in a bundle. All others are sorted by name, and entries by component and name. A
/// bundle without entries is removed.
pub fn sort_entries(document: &mut Document) {
    document.bundles.retain(|bundle| !bundle.entries.is_empty());
    for bundle in &mut document.bundles {
        bundle.entries.sort_by(compare_entries);
    }
    document.bundles.sort_by(compare_bundles);
}

/// Actions are equal, because they keep their order.
fn compare_entries(a: &Entry, b: &Entry) -> Ordering {
    compare_actions(is_action(a), is_action(b)).unwrap_or_else(|| {
        let sort_key = |entry: &Entry| entry.component().name();
        sort_key(a).cmp(sort_key(b)).then_with(|| a.name.cmp(&b.name))
    })
}

/// The entries are sorted, so an action is the first one.
fn compare_bundles(a: &Bundle, b: &Bundle) -> Ordering {
    let has_action = |bundle: &Bundle| bundle.entries.first().is_some_and(is_action);
    compare_actions(has_action(a), has_action(b)).unwrap_or_else(|| a.name.cmp(&b.name))
}

/// None if neither has an action.
fn compare_actions(a: bool, b: bool) -> Option<Ordering> {
    (a || b).then(|| b.cmp(&a))
}

fn is_action(entry: &Entry) -> bool {
    entry.component() == Component::Action
}

/// A value as canonical JSON, with lists in their order.
pub(crate) fn to_canonical_json<T: Serialize>(value: &T) -> String {
    let value = serde_json::to_value(value).expect("a document has only text keys");
    let mut json = String::new();
    write_value(&mut json, &value);
    json
}

/// SHA-256 of a text, in 64 lower-case hexadecimal digits.
pub(crate) fn hex_digest(text: &str) -> String {
    let digest = Sha256::digest(text);
    let mut hex = String::with_capacity(2 * digest.len());
    for byte in digest {
        write!(hex, "{byte:02x}").expect("a String takes any text");
    }
    hex
}

/// Writes a value without whitespace, with the keys in the order of their UTF-16 code units.
fn write_value(json: &mut String, value: &Value) {
    match value {
        Value::Array(items) => {
            json.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    json.push(',');
                }
                write_value(json, item);
            }
            json.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            json.push('{');
            for (index, (key, field)) in fields.into_iter().enumerate() {
                if index > 0 {
                    json.push(',');
                }
                write_text(json, key);
                json.push(':');
                write_value(json, field);
            }
            json.push('}');
        }
        Value::String(text) => write_text(json, text),
        // Null, booleans and integers up to 2^53 - 1 have one form. A document has no fractions.
        value => write!(json, "{value}").expect("a String takes any text"),
    }
}

/// Writes a text. `serde_json` escapes the same characters in the same way as RFC 8785.
fn write_text(json: &mut String, text: &str) {
    json.push_str(&serde_json::to_string(text).expect("a text is JSON"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native;
    use serde_json::json;

    const ENTRIES: &str = "
      bundles:
      - {name: empty}
      - name: b
        entries:
        - {component: User, name: u}
        - {component: Action, name: z, desired: {command: z}}
        - {component: File, name: /b}
        - {component: Action, name: a, desired: {command: a}}
        - {component: File, name: /a}
      - {name: d, entries: [{component: Package, name: dd}]}
      - {name: c, entries: [{component: Package, name: cc}]}
      - {name: a, entries: [{component: Action, name: m, desired: {command: m}}]}
    ";

    #[test]
    fn entries_have_a_canonical_order_and_actions_keep_theirs() {
        let mut document = native::read(ENTRIES).unwrap();
        let unsorted = document.clone();
        sort_entries(&mut document);
        let names: Vec<_> =
            document.entries().map(|(bundle, entry)| bundle.name.clone() + &entry.name).collect();
        assert_eq!(names, ["bz", "ba", "b/a", "b/b", "bu", "am", "ccc", "ddd"]);
        assert_eq!(revision(&document), revision(&unsorted));
        document.bundles.swap(0, 1);
        assert_ne!(revision(&document), revision(&unsorted), "actions run in another order");
    }

    fn canonical(value: &Value) -> String {
        let mut json = String::new();
        write_value(&mut json, value);
        json
    }

    /// RFC 8785, 3.2.3.
    #[test]
    fn keys_are_in_the_order_of_utf_16_code_units() {
        let value = json!({
            "\u{20ac}": "Euro Sign",
            "\r": "Carriage Return",
            "\u{fb33}": "Hebrew Letter Dalet With Dagesh",
            "1": "One",
            "\u{1f600}": "Emoji: Grinning Face",
            "\u{80}": "Control",
            "\u{f6}": "Latin Small Letter O With Diaeresis",
        });
        let values = [
            "Carriage Return",
            "One",
            "Control",
            "Latin Small Letter O With Diaeresis",
            "Euro Sign",
            "Emoji: Grinning Face",
            "Hebrew Letter Dalet With Dagesh",
        ];
        let json = canonical(&value);
        let positions: Vec<_> = values.iter().map(|text| json.find(text)).collect();
        assert!(positions.is_sorted() && positions[0].is_some(), "{json}");
    }

    /// RFC 8785, 3.2.2.
    #[test]
    fn texts_are_escaped_as_the_standard_has_them() {
        let value = json!({
            "string": "\u{20ac}$\u{f}\nA'B\"\\\\\"/",
            "literals": [null, true, false],
            "numbers": [0, -7, 9_007_199_254_740_991_u64],
            "control": "\u{8}\t\u{c}\r\u{1f}\u{7f}\u{2028}",
        });
        assert_eq!(
            canonical(&value),
            concat!(
                r#"{"control":"\b\t\f\r\u001f"#,
                "\u{7f}\u{2028}",
                r#"","literals":[null,true,false],"numbers":[0,-7,9007199254740991],"#,
                r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#
            )
        );
    }
}
