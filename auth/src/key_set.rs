//! Keys of one issuer: read from a JSON Web Key Set (RFC 7517), and replaceable while tokens are
//! verified.

use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

use crate::keys::VerificationKey;

/// Shortest accepted RSA modulus, in bytes.
const MIN_RSA_MODULUS_BYTES: usize = 2048 / 8;

const RSA_ALGORITHMS: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// Keys of an issuer. None until they were fetched for the first time.
#[derive(Debug)]
pub(crate) struct KeySet {
    keys: RwLock<Option<Arc<[VerificationKey]>>>,
    refresh_requested: Notify,
}

impl KeySet {
    /// Keys that never change.
    pub(crate) fn fixed(keys: Vec<VerificationKey>) -> Self {
        Self { keys: RwLock::new(Some(keys.into())), refresh_requested: Notify::new() }
    }

    /// Keys that were not fetched yet.
    pub(crate) fn unfetched() -> Self {
        Self { keys: RwLock::new(None), refresh_requested: Notify::new() }
    }

    /// The current keys. None if they were never fetched.
    pub(crate) fn current(&self) -> Option<Arc<[VerificationKey]>> {
        let stored = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        stored.clone()
    }

    /// Replaces the keys. Returns whether one of the old keys is no longer valid.
    pub(crate) fn replace(&self, keys: Vec<VerificationKey>) -> bool {
        let mut stored = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let is_gone = |old: &VerificationKey| keys.iter().all(|new| !new.is_same_key(old));
        let lost = stored.as_deref().is_some_and(|old| old.iter().any(is_gone));
        *stored = Some(keys.into());
        lost
    }

    /// Requests another fetch of the keys.
    pub(crate) fn request_refresh(&self) {
        self.refresh_requested.notify_one();
    }

    /// Waits until a fetch is requested.
    pub(crate) async fn wait_for_refresh_request(&self) {
        self.refresh_requested.notified().await;
    }
}

/// The usable keys of a key set. Ignores keys for other uses, unknown kinds, and shared secrets,
/// which are never accepted from a key set.
pub(crate) fn parse(text: &str) -> Result<Vec<VerificationKey>, String> {
    #[derive(Deserialize)]
    struct JwksDocument {
        keys: Vec<Value>,
    }
    let document: JwksDocument = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let jwks = document.keys.into_iter();
    let jwks = jwks.filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    let keys: Vec<_> = jwks.filter_map(|jwk| parse_key(&jwk)).collect();
    if keys.is_empty() {
        return Err("it contains no RSA, EC or Ed25519 key for signatures".to_owned());
    }
    Ok(keys)
}

fn parse_key(jwk: &Jwk) -> Option<VerificationKey> {
    let length = |part: &str| URL_SAFE_NO_PAD.decode(part).map_or(0, |bytes| bytes.len());
    let possible: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(key) if length(&key.n) >= MIN_RSA_MODULUS_BYTES => RSA_ALGORITHMS,
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
    // A key that names its algorithm is valid for no other.
    let declared_algorithm = jwk.common.key_algorithm;
    let counts = |by: &Algorithm| {
        declared_algorithm.is_none_or(|declared| declared == KeyAlgorithm::from(*by))
    };
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

    fn ed25519_jwk(id: &str, byte: u8) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode([byte; 32]), "kid": id})
    }

    fn key_set_json(keys: &[Value]) -> String {
        json!({ "keys": keys }).to_string()
    }

    #[test]
    fn shared_secrets_are_not_taken_from_a_key_set() {
        let secret = json!({"kty": "oct", "k": "c2VjcmV0", "kid": "1", "alg": "HS256"});
        let error = parse(&key_set_json(&[secret])).unwrap_err();
        assert!(error.contains("no RSA, EC or Ed25519 key"), "{error}");
        assert!(parse("{").is_err());
    }

    #[test]
    fn unknown_keys_next_to_a_good_key_are_ignored() {
        let encrypts = json!({
            "kty": "RSA", "n": URL_SAFE_NO_PAD.encode([0xff; 256]), "e": "AQAB", "use": "enc", "alg": "RSA-OAEP",
        });
        let short = json!({"kty": "RSA", "n": URL_SAFE_NO_PAD.encode([0xff; 128]), "e": "AQAB"});
        let keys = parse(&key_set_json(&[
            encrypts,
            short,
            json!({"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}),
            json!({"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"}),
            json!({"kty": "AKP", "alg": "ML-DSA-44", "pub": "AA"}),
            json!("nonsense"),
            ed25519_jwk("good", 1),
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
        let mut with_algorithm = rsa.clone();
        with_algorithm["alg"] = json!("PS384");
        let keys = parse(&key_set_json(&[rsa, with_algorithm])).unwrap();
        assert_eq!(keys[0].algorithms, RSA_ALGORITHMS);
        assert_eq!(keys[1].algorithms, [Algorithm::PS384]);
    }

    #[test]
    fn replacing_keys_reports_whether_one_is_gone() {
        let keys = KeySet::unfetched();
        assert!(keys.current().is_none());
        let parse_all = |all: &[Value]| parse(&key_set_json(all)).unwrap();
        assert!(!keys.replace(parse_all(&[ed25519_jwk("1", 1)])), "there were no keys");
        assert!(
            !keys.replace(parse_all(&[ed25519_jwk("1", 1), ed25519_jwk("2", 2)])),
            "one key was added"
        );
        assert!(keys.replace(parse_all(&[ed25519_jwk("2", 2)])), "the first key is gone");
        assert!(keys.replace(parse_all(&[ed25519_jwk("2", 3)])), "another key has the same id");
        assert_eq!(keys.current().map(|keys| keys.len()), Some(1));
    }
}
