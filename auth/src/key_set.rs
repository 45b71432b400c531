//! The keys of one issuer: read from a JSON Web Key Set (RFC 7517), and replaced while tokens are verified.

use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

use crate::keys::VerificationKey;

/// The shortest RSA modulus that counts, in bytes.
const SHORTEST_MODULUS: usize = 2048 / 8;

const BY_RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// The keys of an issuer, as far as they are known.
#[derive(Debug)]
pub(crate) struct KeySet {
    known: RwLock<Option<Arc<[VerificationKey]>>>,
    wanted: Notify,
}

impl KeySet {
    /// Keys that stay as they are.
    pub(crate) fn fixed(keys: Vec<VerificationKey>) -> Self {
        Self {
            known: RwLock::new(Some(keys.into())),
            wanted: Notify::new(),
        }
    }

    /// Keys that nobody has asked for yet.
    pub(crate) fn unknown() -> Self {
        Self {
            known: RwLock::new(None),
            wanted: Notify::new(),
        }
    }

    /// The keys as they are now; none if they were never known.
    pub(crate) fn now(&self) -> Option<Arc<[VerificationKey]>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    /// Puts other keys in the place of those that were known. Says whether one of these does not count any more.
    pub(crate) fn replace(&self, keys: Vec<VerificationKey>) -> bool {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let is_gone = |old: &VerificationKey| keys.iter().all(|new| !new.is(old));
        let lost = known.as_deref().is_some_and(|old| old.iter().any(is_gone));
        *known = Some(keys.into());
        lost
    }

    /// Asks for the keys of the issuer once more.
    pub(crate) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Waits until somebody asks.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }
}

/// The keys of a key set that count here. What else is in it is left out: keys for other uses, kinds that are not known,
/// and shared secrets, which are never taken from one.
pub(crate) fn read(text: &str) -> Result<Vec<VerificationKey>, String> {
    #[derive(Deserialize)]
    struct Document {
        keys: Vec<Value>,
    }
    let document: Document = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let jwks = document.keys.into_iter();
    let jwks = jwks.filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    let keys: Vec<_> = jwks.filter_map(|jwk| usable(&jwk)).collect();
    if keys.is_empty() {
        return Err("there is no RSA, EC or Ed25519 key for signatures in this key set".to_owned());
    }
    Ok(keys)
}

fn usable(jwk: &Jwk) -> Option<VerificationKey> {
    let length = |part: &str| URL_SAFE_NO_PAD.decode(part).map_or(0, |bytes| bytes.len());
    let possible: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(key) if length(&key.n) >= SHORTEST_MODULUS => BY_RSA,
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => &[Algorithm::ES256],
            EllipticCurve::P384 => &[Algorithm::ES384],
            _ => &[],
        },
        AlgorithmParameters::OctetKeyPair(key)
            if key.curve == EllipticCurve::Ed25519 && length(&key.x) == 32 =>
        {
            &[Algorithm::EdDSA]
        }
        _ => &[],
    };
    // A key that names its algorithm signs by no other.
    let named = jwk.common.key_algorithm;
    let counts = |by: &Algorithm| named.is_none_or(|named| named == KeyAlgorithm::from(*by));
    let algorithms: Vec<Algorithm> = possible.iter().copied().filter(counts).collect();
    if algorithms.is_empty() || jwk.common.public_key_use == Some(PublicKeyUse::Encryption) {
        return None;
    }
    Some(VerificationKey {
        id: jwk.common.key_id.clone(),
        key: DecodingKey::from_jwk(jwk).ok()?,
        algorithms,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ed(id: &str, byte: u8) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode([byte; 32]), "kid": id})
    }

    fn set(keys: &[Value]) -> String {
        json!({ "keys": keys }).to_string()
    }

    #[test]
    fn shared_secrets_are_not_taken_from_a_key_set() {
        let secret = json!({"kty": "oct", "k": "c2VjcmV0", "kid": "1", "alg": "HS256"});
        let error = read(&set(&[secret])).unwrap_err();
        assert!(error.contains("no RSA, EC or Ed25519 key"), "{error}");
        assert!(read("{").is_err());
    }

    #[test]
    fn what_is_not_known_beside_a_good_key_does_no_harm() {
        let encrypts = json!({
            "kty": "RSA", "n": URL_SAFE_NO_PAD.encode([0xff; 256]), "e": "AQAB", "use": "enc", "alg": "RSA-OAEP",
        });
        let short = json!({"kty": "RSA", "n": URL_SAFE_NO_PAD.encode([0xff; 128]), "e": "AQAB"});
        let keys = read(&set(&[
            encrypts,
            short,
            json!({"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}),
            json!({"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"}),
            json!({"kty": "AKP", "alg": "ML-DSA-44", "pub": "AA"}),
            json!("nonsense"),
            ed("good", 1),
        ]));
        let keys = keys.unwrap();
        assert_eq!(keys.len(), 1);
        assert_eq!(keys[0].id.as_deref(), Some("good"));
        assert_eq!(keys[0].algorithms, [Algorithm::EdDSA]);
    }

    #[test]
    fn a_key_signs_by_what_its_kind_and_its_name_allow() {
        let n = URL_SAFE_NO_PAD.encode([0xff; 256]);
        let rsa = json!({"kty": "RSA", "n": n, "e": "AQAB"});
        let mut named = rsa.clone();
        named["alg"] = json!("PS384");
        let keys = read(&set(&[rsa, named])).unwrap();
        assert_eq!(keys[0].algorithms, BY_RSA);
        assert_eq!(keys[1].algorithms, [Algorithm::PS384]);
    }

    #[test]
    fn it_is_noticed_when_a_key_does_not_count_any_more() {
        let keys = KeySet::unknown();
        assert!(keys.now().is_none());
        let of = |all: &[Value]| read(&set(all)).unwrap();
        assert!(!keys.replace(of(&[ed("1", 1)])), "there was none");
        assert!(!keys.replace(of(&[ed("1", 1), ed("2", 2)])), "one more");
        assert!(keys.replace(of(&[ed("2", 2)])), "the first is gone");
        assert!(keys.replace(of(&[ed("2", 3)])), "another of the same name");
        assert_eq!(keys.now().map(|keys| keys.len()), Some(1));
    }
}
