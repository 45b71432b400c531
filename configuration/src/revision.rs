//! Canonical JSON of a document, and its digest.

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::document::Document;

/// The document as canonical JSON (RFC 8785). Documents that are equal have the same canonical
/// JSON.
pub fn canonical_json(document: &Document) -> String {
    let value = serde_json::to_value(document).expect("a document has only text keys");
    let mut json = String::new();
    write_value(&mut json, &value);
    json
}

/// SHA-256 of the canonical JSON, in 64 lower-case hexadecimal digits.
pub fn revision(document: &Document) -> String {
    let digest = Sha256::digest(canonical_json(document));
    let mut revision = String::with_capacity(2 * digest.len());
    for byte in digest {
        write!(revision, "{byte:02x}").expect("a String takes any text");
    }
    revision
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
    use serde_json::json;

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
