//! Page keys: the position where a page ended, sent by clients as page tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

/// Where a page ended: the fingerprint of its list, then the order values of its last resource.
#[derive(Clone, Debug, PartialEq)]
pub struct PageKey(Vec<Value>);

impl PageKey {
    /// The length of the longest valid token.
    pub const MAX_TOKEN_BYTES: usize = 16_384;

    pub(super) fn new(mark: &str, values: &[Value]) -> Self {
        let mark = Value::from(mark);
        Self(std::iter::once(mark).chain(values.iter().cloned()).collect())
    }

    /// The key as text that is safe in URLs.
    #[must_use]
    pub fn token(&self) -> String {
        URL_SAFE_NO_PAD.encode(Value::from(self.0.clone()).to_string())
    }

    /// Parses a token; none if it is invalid.
    #[must_use]
    pub fn parse(token: &str) -> Option<Self> {
        if token.len() > Self::MAX_TOKEN_BYTES {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let values: Vec<Value> = serde_json::from_slice(&bytes).ok()?;
        values.first()?.as_str()?;
        Some(Self(values))
    }

    /// The order values of the last resource, if the key has this fingerprint.
    pub(super) fn values(&self, mark: &str) -> Option<&[Value]> {
        let (first, values) = self.0.split_first()?;
        (first.as_str() == Some(mark)).then_some(values)
    }
}

/// The fingerprint of a list: FNV-1a, 64 bits, of its text. It detects mistakes, not attacks.
pub(super) fn list_fingerprint(text: &str) -> String {
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
        let key = PageKey::new(
            &list_fingerprint("hosts by name"),
            &[json!("ä \"b\""), json!(4_294_967_295_u32)],
        );
        let token = key.token();
        assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)), "{token}");
        assert_eq!(PageKey::parse(&token), Some(key));
    }

    #[test]
    fn a_key_knows_its_list() {
        let key = PageKey::new(&list_fingerprint("hosts"), &[json!(1)]);
        assert_eq!(key.values(&list_fingerprint("hosts")), Some([json!(1)].as_slice()));
        assert_eq!(key.values(&list_fingerprint("sites")), None);
    }

    #[test]
    fn an_invalid_token_is_rejected() {
        let long = "A".repeat(PageKey::MAX_TOKEN_BYTES + 1);
        let empty = URL_SAFE_NO_PAD.encode("[]");
        let object = URL_SAFE_NO_PAD.encode("{\"a\":1}");
        for bad in ["", "%", "bm8", empty.as_str(), object.as_str(), long.as_str()] {
            assert_eq!(PageKey::parse(bad), None, "{bad:.20}");
        }
    }
}
