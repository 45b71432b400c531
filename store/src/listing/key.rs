//! Where a page ended, as clients carry it to the next one.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

/// Where a page ended: the mark of its list, then what its last resource is ordered by.
#[derive(Clone, Debug, PartialEq)]
pub struct Key(Vec<Value>);

impl Key {
    /// The longest token that is read.
    pub const MAX: usize = 16_384;

    pub(super) fn new(mark: &str, values: &[Value]) -> Self {
        let mark = Value::from(mark);
        Self(
            std::iter::once(mark)
                .chain(values.iter().cloned())
                .collect(),
        )
    }

    /// The key as text that can stand in a URL.
    #[must_use]
    pub fn token(&self) -> String {
        URL_SAFE_NO_PAD.encode(Value::from(self.0.clone()).to_string())
    }

    /// Reads a token; none if it is not one.
    #[must_use]
    pub fn parse(token: &str) -> Option<Self> {
        if token.len() > Self::MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let values: Vec<Value> = serde_json::from_slice(&bytes).ok()?;
        values.first()?.as_str()?;
        Some(Self(values))
    }

    /// What the last resource is ordered by, if the key has this mark.
    pub(super) fn values(&self, mark: &str) -> Option<&[Value]> {
        let (first, values) = self.0.split_first()?;
        (first.as_str() == Some(mark)).then_some(values)
    }
}

/// The mark of a list: 64 bits of its text (FNV-1a). It guards against mistakes, not against anybody.
pub(super) fn mark(text: &str) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let key = Key::new(
            &mark("hosts by name"),
            &[json!("ä \"b\""), json!(4_294_967_295_u32)],
        );
        let token = key.token();
        assert!(
            token
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)),
            "{token}"
        );
        assert_eq!(Key::parse(&token), Some(key));
    }

    #[test]
    fn a_key_knows_its_list() {
        let key = Key::new(&mark("hosts"), &[json!(1)]);
        assert_eq!(key.values(&mark("hosts")), Some([json!(1)].as_slice()));
        assert_eq!(key.values(&mark("sites")), None);
    }

    #[test]
    fn what_is_no_token_is_none() {
        let long = "A".repeat(Key::MAX + 1);
        let empty = URL_SAFE_NO_PAD.encode("[]");
        let object = URL_SAFE_NO_PAD.encode("{\"a\":1}");
        for bad in [
            "",
            "%",
            "bm8",
            empty.as_str(),
            object.as_str(),
            long.as_str(),
        ] {
            assert_eq!(Key::parse(bad), None, "{bad:.20}");
        }
    }
}
