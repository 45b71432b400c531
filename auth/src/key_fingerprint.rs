//! Fingerprints of the public keys of nodes.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// SHA-256 of a public key in DER (`SubjectPublicKeyInfo`). It identifies the enrolment of a node:
/// certificates and credentials contain it, and the database stores the key. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeyFingerprint(Arc<[u8; 32]>);

impl KeyFingerprint {
    /// The fingerprint of a public key in DER.
    #[must_use]
    pub fn from_public_key(der: &[u8]) -> Self {
        Self(Arc::new(Sha256::digest(der).into()))
    }

    /// Parses the text of a fingerprint: 43 characters in base64url. None for other texts.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        <[u8; 32]>::try_from(bytes).ok().map(|bytes| Self(Arc::new(bytes)))
    }

    /// Whether this is the fingerprint of a public key in DER.
    #[must_use]
    pub fn matches(&self, der: &[u8]) -> bool {
        *self == Self::from_public_key(der)
    }
}

impl fmt::Display for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0.as_slice()))
    }
}

impl fmt::Debug for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFingerprint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_written_as_it_is_read() {
        let fingerprint = KeyFingerprint::from_public_key(b"key");
        let text = fingerprint.to_string();
        assert_eq!(text.len(), 43);
        assert_eq!(KeyFingerprint::parse(&text), Some(fingerprint.clone()));
        assert!(fingerprint.matches(b"key") && !fingerprint.matches(b"other"));
        for text in ["", "abc", &text[1..], &format!("{text}="), &format!("{text}AA")] {
            assert_eq!(KeyFingerprint::parse(text), None, "{text}");
        }
    }
}
