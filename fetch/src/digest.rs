//! SHA-256 digests of content.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Why a text is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the digest is invalid: {0}")]
pub struct BadDigest(pub &'static str);

/// SHA-256 of content. It is written as `sha256:` and 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the digest of `content`.
    pub fn compute(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }

    /// Parses 64 lowercase hexadecimal digits, without the prefix `sha256:`.
    pub fn from_hex(hex: &str) -> Result<Self, BadDigest> {
        let bad = || BadDigest("it is not 64 lowercase hexadecimal digits");
        let digits = hex.as_bytes();
        if digits.len() != 64 {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let mut value = 0;
            for digit in pair {
                value = value * 16 + digit_value(*digit).ok_or_else(bad)?;
            }
            *byte = value;
        }
        Ok(Self(bytes))
    }

    /// The hexadecimal digits, without the prefix `sha256:`.
    pub fn hex(&self) -> String {
        use std::fmt::Write as _;

        self.0.iter().fold(String::with_capacity(64), |mut hex, b| {
            // Writing to a string cannot fail.
            let _ = write!(hex, "{b:02x}");
            hex
        })
    }

    /// The 32 bytes of the digest.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

const fn digit_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = text.strip_prefix("sha256:");
        Self::from_hex(hex.ok_or(BadDigest("it does not begin with sha256:"))?)
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Computes a digest incrementally.
#[derive(Clone, Debug, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds the next chunk.
    pub fn update(&mut self, chunk: &[u8]) {
        self.0.update(chunk);
    }

    /// The digest of all chunks.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest = Digest::compute(b"");
        assert_eq!(digest.to_string(), EMPTY);
        assert_eq!(EMPTY.parse::<Digest>().unwrap(), digest);
        assert_eq!(serde_json::to_string(&digest).unwrap(), format!("{EMPTY:?}"));
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        for text in [
            "",
            "sha256:",
            "sha512:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "sha256:E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855",
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b8555",
            "sha256:ééééééééééééééééééééééééééééééééé",
        ] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }

    #[test]
    fn pieces_give_the_digest_of_the_whole() {
        let mut hasher = Hasher::default();
        hasher.update(b"one ");
        hasher.update(b"and two");
        assert_eq!(hasher.finish(), Digest::compute(b"one and two"));
    }
}
