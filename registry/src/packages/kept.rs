//! Whether JSON that is kept byte for byte can be read by everybody who reads it later.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Looks at every value of a JSON text, also at those that nobody here has a use for. What only skips a value lets pass
/// what others refuse who read it: values that lie 128 deep in each other, halves of characters (`"\ud800"`), numbers
/// that are none (`1e999`), and zero bytes (`"\u0000"`), which no database keeps in a text.
///
/// # Errors
/// Says what others would stumble over, and where it stands.
pub(crate) fn check(text: &str) -> Result<(), serde_json::Error> {
    let Kept = serde_json::from_str(text)?;
    Ok(())
}

/// Any value. It is read in full and not kept.
struct Kept;

impl<'de> Deserialize<'de> for Kept {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Only so are texts and numbers made, and depths counted: to ignore a value does neither.
        deserializer.deserialize_any(KeptVisitor)
    }
}

struct KeptVisitor;

impl<'de> Visitor<'de> for KeptVisitor {
    type Value = Kept;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Kept, E> {
        Ok(Kept)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Kept, E> {
        Ok(Kept)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Kept, E> {
        Ok(Kept)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Kept, E> {
        Ok(Kept)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Kept, E> {
        Ok(Kept)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Kept, E> {
        if text.contains('\0') {
            return Err(E::custom("a text has a zero byte in it; take it out"));
        }
        Ok(Kept)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Kept, A::Error> {
        while entries.next_element::<Kept>()?.is_some() {}
        Ok(Kept)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Kept, A::Error> {
        while fields.next_entry::<Kept, Kept>()?.is_some() {}
        Ok(Kept)
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
    fn what_others_can_read_is_kept() {
        let deep = deep(127);
        for text in [
            "null",
            " [true, -1, 18446744073709551615, 1e300, 1e-999, \"\"] ",
            r#"{"a":{"b":[{}]},"a":"\ud83d\ude00 \u00e9 \t"}"#,
            deep.as_str(),
        ] {
            assert!(check(text).is_ok(), "{text}");
            assert!(serde_json::from_str::<Value>(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_others_cannot_read_is_refused_with_a_reason() {
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
            let error = check(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
