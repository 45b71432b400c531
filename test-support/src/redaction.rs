//! Stable texts for the parts of a response that differ in each run.

use std::collections::HashMap;

use serde_json::Value;
use uuid::Uuid;

/// Replaces random ids for a snapshot: the first host becomes `host-1`, the second one `host-2`, so
/// that a snapshot still shows which ids are equal. Replaces random UUIDs in the same way. Times
/// stay, because tests set the clock.
pub fn redact(value: &Value) -> Value {
    let mut value = value.clone();
    Redaction::default().visit(&mut value);
    value
}

#[derive(Default)]
struct Redaction {
    names: HashMap<String, String>,
    counts: HashMap<String, usize>,
}

impl Redaction {
    fn visit(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.rename_all(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.visit(item)),
            Value::Object(members) => members.values_mut().for_each(|member| self.visit(member)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Replaces each id within a text.
    fn rename_all(&mut self, text: &str) -> String {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let mut renamed = String::new();
        for piece in text.split_inclusive(|c| !is_part(c)) {
            let word = piece.trim_end_matches(|c| !is_part(c));
            match random_kind(word) {
                None => renamed.push_str(piece),
                Some(kind) => {
                    renamed.push_str(&self.rename(word, kind));
                    renamed.push_str(&piece[word.len()..]);
                }
            }
        }
        renamed
    }

    fn rename(&mut self, id: &str, kind: &str) -> String {
        let count = self.counts.entry(kind.to_owned()).or_default();
        let new_name = || {
            *count += 1;
            format!("{kind}-{count}")
        };
        self.names.entry(id.to_owned()).or_insert_with(new_name).clone()
    }
}

/// The kind of a random id: the part before its eight hexadecimal digits, or `uuid`.
fn random_kind(word: &str) -> Option<&str> {
    if word.len() == 36 {
        let version = Uuid::parse_str(word).ok()?.get_version_num();
        return [4, 7].contains(&version).then_some("uuid");
    }
    let (kind, digits) = word.rsplit_once('-')?;
    let is_kind = !kind.is_empty() && kind.bytes().all(|c| c.is_ascii_lowercase());
    let is_random = digits.len() == 8 && digits.bytes().all(|c| c.is_ascii_hexdigit());
    (is_kind && is_random).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_ids_get_equal_names() {
        let random = "9f5c0b1a-7d1e-4a52-9a53-0e7f0c4b8d11";
        let body = json!({
            "a": "host-0badcafe", "b": ["site-00000001", "host-00000002", "host-0badcafe"],
            "text": "host-0badcafe is at site-00000001.", "uuid": random, "attempt": Uuid::from_u128(7),
        });
        let redacted = json!({
            "a": "host-1", "b": ["site-1", "host-2", "host-1"],
            "text": "host-1 is at site-1.", "uuid": "uuid-1", "attempt": Uuid::from_u128(7),
        });
        assert_eq!(redact(&body), redacted);
    }

    #[test]
    fn other_texts_stay() {
        for text in ["edge-01", "2026-03-01T12:00:00Z", "ssh-ed25519 AAAA", "-00000001", ""] {
            assert_eq!(redact(&json!(text)), text);
        }
    }
}
