//! Join tokens: the credential of a machine that is not enrolled yet.
//!
//! A token has the form `ekj1.<digest>.<secret>`. The digest is the SHA-256 of the certificate
//! authority's certificate in hexadecimal, so that the machine can verify the server; it may be
//! empty. The secret is 32 random bytes in base64url. Only the hash of the secret is stored.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_kit::Secret;
use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const VERSION: &str = "ekj1";
const SECRET_BYTES: usize = 32;

/// A join token in clear text, as it is given to the operator and to the machine.
#[derive(Clone, Debug)]
pub struct JoinToken {
    ca_digest: Option<String>,
    secret: Secret,
}

/// The text is not a join token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadJoinToken {
    /// The text does not have three parts separated by dots.
    #[error("a join token has the form ekj1.<digest>.<secret>")]
    Form,
    /// The first part is not `ekj1`.
    #[error("the version of this join token is unknown; it must begin with `ekj1.`")]
    Version,
    /// The middle part is not a digest.
    #[error(
        "the middle part of a join token is the SHA-256 of a certificate in 64 lower-case hexadecimal digits, or empty"
    )]
    CaDigest,
    /// The last part is not a secret.
    #[error("the last part of a join token is 32 bytes in base64url")]
    Secret,
}

/// The operating system returned no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("the operating system returned no random numbers: {0}")]
pub struct NoRandomness(pub(crate) String);

impl JoinToken {
    /// A new token with a random secret.
    pub fn generate(ca_digest: Option<&str>) -> Result<Self, NoRandomness> {
        let mut secret = [0; SECRET_BYTES];
        OsRng.try_fill_bytes(&mut secret).map_err(|error| NoRandomness(error.to_string()))?;
        Ok(Self {
            ca_digest: ca_digest.map(str::to_owned),
            secret: Secret::new(URL_SAFE_NO_PAD.encode(secret)),
        })
    }

    /// Parses the text form. The error never repeats the text, which is a secret.
    pub fn parse(text: &str) -> Result<Self, BadJoinToken> {
        let mut parts = text.trim().split('.');
        let (Some(version), Some(digest), Some(secret), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(BadJoinToken::Form);
        };
        if version != VERSION {
            return Err(BadJoinToken::Version);
        }
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if !digest.is_empty() && (digest.len() != 64 || !digest.bytes().all(is_digit)) {
            return Err(BadJoinToken::CaDigest);
        }
        let bytes = URL_SAFE_NO_PAD.decode(secret).map_err(|_| BadJoinToken::Secret)?;
        if bytes.len() != SECRET_BYTES {
            return Err(BadJoinToken::Secret);
        }
        Ok(Self {
            ca_digest: Some(digest.to_owned()).filter(|digest| !digest.is_empty()),
            secret: Secret::new(secret),
        })
    }

    /// The text form. It is shown once, in the response that creates the token.
    #[must_use]
    pub fn text(&self) -> Secret {
        let digest = self.ca_digest.as_deref().unwrap_or_default();
        Secret::new(format!("{VERSION}.{digest}.{}", self.secret.reveal()))
    }

    /// SHA-256 of the certificate authority's certificate, in hexadecimal.
    #[must_use]
    pub fn ca_digest(&self) -> Option<&str> {
        self.ca_digest.as_deref()
    }

    /// Hash of the secret, to be stored.
    #[must_use]
    pub fn secret_hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.secret.reveal().as_bytes()).into())
    }
}

/// SHA-256 of a join token's secret. It is compared in constant time.
#[derive(Clone, Copy)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// A stored hash. None if it does not have 32 bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The bytes to store.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for SecretHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for SecretHash {}

impl fmt::Display for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretHash({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    const SECRET: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

    #[test]
    fn a_token_is_read_as_it_was_written() {
        for digest in [Some(DIGEST), None] {
            let token = JoinToken::generate(digest).unwrap();
            let read = JoinToken::parse(token.text().reveal()).unwrap();
            assert_eq!(read.ca_digest(), digest);
            assert_eq!(read.secret_hash(), token.secret_hash());
        }
    }

    #[test]
    fn two_tokens_have_different_secrets() {
        let hash = || JoinToken::generate(None).unwrap().secret_hash();
        assert_ne!(hash(), hash());
    }

    #[test]
    fn a_token_does_not_show_its_secret_by_debug() {
        let token = JoinToken::parse(&format!("ekj1.{DIGEST}.{SECRET}")).unwrap();
        assert!(!format!("{token:?}").contains(SECRET));
    }

    #[test]
    fn a_hash_is_stored_as_bytes_and_printed_as_hexadecimal() {
        let hash = JoinToken::parse(&format!("ekj1..{SECRET}")).unwrap().secret_hash();
        assert_eq!(SecretHash::from_bytes(hash.as_bytes()), Some(hash));
        assert_eq!(SecretHash::from_bytes(b"short"), None);
        assert_eq!(
            hash.to_string(),
            "ea866a757e4c38babfa8127cbe9a409d3e1f93a00ff1488ff735fcf917afffd0"
        );
    }

    #[test]
    fn each_fault_has_its_error() {
        use BadJoinToken as B;
        for (text, error) in [
            (String::new(), B::Form),
            ("ekj1".to_owned(), B::Form),
            (format!("ekj1..{SECRET}.more"), B::Form),
            (format!("ekj2..{SECRET}"), B::Version),
            (format!("ekj1.{}.{SECRET}", &DIGEST[1..]), B::CaDigest),
            (format!("ekj1.{}.{SECRET}", DIGEST.to_uppercase()), B::CaDigest),
            ("ekj1..".to_owned(), B::Secret),
            ("ekj1..AAAA".to_owned(), B::Secret),
            (format!("ekj1..{SECRET}="), B::Secret),
            (format!("ekj1..{}+", &SECRET[1..]), B::Secret),
        ] {
            assert_eq!(JoinToken::parse(&text).unwrap_err(), error, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,200}") {
            _ = JoinToken::parse(&text);
            _ = JoinToken::parse(&format!("ekj1.{text}"));
        }
    }
}
