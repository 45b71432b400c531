//! Keys of the test provider.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

pub const RSA: &str = include_str!("../keys/rsa.pem");

/// A key pair of a provider: the algorithm, the private key, and the public key that is published.
pub struct ProviderKey {
    pub algorithm: Algorithm,
    pub secret: EncodingKey,
    pub jwk: Value,
}

impl ProviderKey {
    pub fn generate(id: &str, algorithm: Algorithm) -> Self {
        let (secret, mut jwk) = match algorithm {
            Algorithm::EdDSA => ed25519_key(),
            Algorithm::ES256 => elliptic_curve_key("P-256", &rcgen::PKCS_ECDSA_P256_SHA256),
            Algorithm::ES384 => elliptic_curve_key("P-384", &rcgen::PKCS_ECDSA_P384_SHA384),
            _ => {
                let key = EncodingKey::from_rsa_pem(RSA.as_bytes()).unwrap();
                let jwk = Jwk::from_encoding_key(&key, algorithm).unwrap();
                (key, serde_json::to_value(jwk).unwrap())
            }
        };
        jwk["kid"] = json!(id);
        Self { algorithm, secret, jwk }
    }

    pub fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = self.jwk["kid"].as_str().map(str::to_owned);
        jsonwebtoken::encode(&header, claims, &self.secret).unwrap()
    }
}

fn ed25519_key() -> (EncodingKey, Value) {
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let x = URL_SAFE_NO_PAD.encode(pair.public_key_raw());
    let key = EncodingKey::from_ed_pem(pair.serialize_pem().as_bytes());
    (key.unwrap(), json!({"kty": "OKP", "crv": "Ed25519", "x": x, "use": "sig"}))
}

fn elliptic_curve_key(
    name: &str,
    kind: &'static rcgen::SignatureAlgorithm,
) -> (EncodingKey, Value) {
    let pair = rcgen::KeyPair::generate_for(kind).unwrap();
    let point = &pair.public_key_raw()[1..];
    let (x, y) = point.split_at(point.len() / 2);
    let [x, y] = [x, y].map(|half| URL_SAFE_NO_PAD.encode(half));
    let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes());
    (key.unwrap(), json!({"kty": "EC", "crv": name, "x": x, "y": y}))
}
