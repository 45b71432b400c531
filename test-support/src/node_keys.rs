//! Keys of nodes, and the certificate requests that they sign.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;

/// PKCS #8 of an Ed25519 key up to its secret (RFC 8410).
const ED25519_PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The Ed25519 key of a node. The same number always gives the same key.
#[must_use]
pub fn node_key(number: u8) -> KeyPair {
    node_key_from_secret([number; 32])
}

/// The Ed25519 key with this secret.
#[must_use]
pub fn node_key_from_secret(secret: [u8; 32]) -> KeyPair {
    let pkcs8 = [ED25519_PKCS8_PREFIX.as_slice(), &secret].concat();
    KeyPair::try_from(pkcs8).expect("an Ed25519 key")
}

/// A certificate request (PKCS #10, DER) for a key, signed with it.
#[must_use]
pub fn certificate_request(key: &KeyPair) -> Vec<u8> {
    let request = CertificateParams::default().serialize_request(key);
    request.expect("a request").der().to_vec()
}

/// A certificate request (PKCS #10, DER) for an RSA key of 2,048 bits, signed with it.
#[must_use]
pub fn decryption_certificate_request() -> Vec<u8> {
    let pem = include_str!("../../auth/tests/requests/rsa-2048.pem");
    let request = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes());
    request.expect("a request").to_vec()
}

/// A certificate in DER as PEM.
#[must_use]
pub fn certificate_pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}
