//! Reads JSON faster than the reader of YAML does.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::tree::Node;
use super::{MAX_DEPTH, MAX_VALUES};

/// Parses JSON. None if it is not JSON, exceeds a limit, repeats a key, or has a number that is not
/// an integer: then the reader of YAML reads it, and has the message.
pub(super) fn parse_json(text: &str) -> Option<Node> {
    let count = Cell::new(0);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let node = JsonSeed { count: &count, depth: 0 }.deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(node)
}

/// Reads one value.
#[derive(Clone, Copy)]
struct JsonSeed<'c> {
    /// Number of values of the document.
    count: &'c Cell<usize>,
    depth: usize,
}

impl JsonSeed<'_> {
    fn inner(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }
}

impl<'de> DeserializeSeed<'de> for JsonSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        self.count.set(self.count.get() + 1);
        if self.count.get() > MAX_VALUES || self.depth > MAX_DEPTH {
            return Err(de::Error::custom("a limit"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonSeed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value with no other numbers than integers")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        Ok(Node::Plain("null".to_owned()))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Plain(value.to_string()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Plain(value.to_string()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Plain(value.to_string()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(self.inner())? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = access.next_key::<String>()? {
            self.count.set(self.count.get() + 1);
            fields.push((key, access.next_value_seed(self.inner())?));
        }
        let names: HashSet<&str> = fields.iter().map(|(key, _)| key.as_str()).collect();
        if names.len() < fields.len() {
            return Err(de::Error::custom("a repeated key"));
        }
        Ok(Node::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_like_yaml() {
        for text in [
            "{}",
            r#"{"a": [1, -2, true, null, "x\n\u00e9\/", {"b": "0644"}], "<<": {}, "c": ""}"#,
            r#" {"18446744073709551615": 18446744073709551615} "#,
        ] {
            let json = parse_json(text).expect("JSON");
            assert_eq!(Node::parse(text, 0).as_ref(), Ok(&json), "{text}");
        }
    }

    #[test]
    fn other_texts_are_left_to_the_reader_of_yaml() {
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        let wide = format!("[{}1]", "1,".repeat(MAX_VALUES));
        for text in
            ["", "{a: b}", r#"{"a": 1, "a": 2}"#, r#"{"a": 1.10}"#, "{} {}", "-0", &deep, &wide]
        {
            assert_eq!(parse_json(text), None);
        }
    }
}
