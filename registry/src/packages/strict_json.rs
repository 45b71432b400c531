//! Checks that JSON can be stored unchanged and read by other programs.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Parses every value of a JSON text, also those that are not used here. Skipping a value accepts
/// what other parsers refuse: values nested 128 levels deep, unpaired surrogates (`"\ud800"`),
/// numbers out of range (`1e999`), and zero bytes (`"\u0000"`), which databases cannot store in a
/// text.
///
/// # Errors
/// The text has such a value. The error names its position.
pub(crate) fn check_json(text: &str) -> Result<(), serde_json::Error> {
    let StrictJson = serde_json::from_str(text)?;
    Ok(())
}

/// Any JSON value. It is parsed completely and dropped.
struct StrictJson;

impl<'de> Deserialize<'de> for StrictJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Ignoring a value would neither decode strings and numbers nor count the depth.
        deserializer.deserialize_any(StrictJsonVisitor)
    }
}

struct StrictJsonVisitor;

impl<'de> Visitor<'de> for StrictJsonVisitor {
    type Value = StrictJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<StrictJson, E> {
        Ok(StrictJson)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<StrictJson, E> {
        Ok(StrictJson)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<StrictJson, E> {
        Ok(StrictJson)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<StrictJson, E> {
        Ok(StrictJson)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<StrictJson, E> {
        Ok(StrictJson)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<StrictJson, E> {
        if text.contains('\0') {
            return Err(E::custom("a text contains a zero byte; remove it"));
        }
        Ok(StrictJson)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<StrictJson, A::Error> {
        while entries.next_element::<StrictJson>()?.is_some() {}
        Ok(StrictJson)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<StrictJson, A::Error> {
        while fields.next_entry::<StrictJson, StrictJson>()?.is_some() {}
        Ok(StrictJson)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn deep(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn strict_json_is_accepted() {
        let deep = deep(127);
        for text in [
            "null",
            " [true, -1, 18446744073709551615, 1e300, 1e-999, \"\"] ",
            r#"{"a":{"b":[{}]},"a":"\ud83d\ude00 \u00e9 \t"}"#,
            deep.as_str(),
        ] {
            assert!(check_json(text).is_ok(), "{text}");
            assert!(serde_json::from_str::<Value>(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn json_that_others_cannot_read_is_refused_with_a_reason() {
        let deep = deep(128);
        let deep_map = format!("{}1{}", "{\"a\":".repeat(128), "}".repeat(128));
        for (text, why) in [
            (deep.as_str(), "recursion limit"),
            (deep_map.as_str(), "recursion limit"),
            (r#"["\ud800"]"#, "hex escape"),
            (r#"["\ud800\ud800"]"#, "surrogate"),
            (r#"["\udc00"]"#, "surrogate"),
            (r#"{"\ud800":1}"#, "hex escape"),
            ("[1e999]", "out of range"),
            ("[-1e999]", "out of range"),
            (r#"["a\u0000"]"#, "zero byte"),
            (r#"{"\u0000":1}"#, "zero byte"),
            ("[1] x", "trailing"),
        ] {
            let error = check_json(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
