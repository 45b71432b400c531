//! Certificate requests (PKCS #10) of nodes.
//!
//! Only the public key is taken from a request. The signature of the request proves that the sender
//! has the private key.

use rcgen::{PublicKeyData, SubjectPublicKeyInfo};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA, OID_SIG_ED25519,
};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

use crate::key_fingerprint::KeyFingerprint;

/// Maximum size of a request, in bytes. A request for an RSA key of 4,096 bits has about 1,300.
const MAX_REQUEST_BYTES: usize = 8 * 1024;

/// Accepted sizes of an RSA key, in bits.
const MIN_RSA_BITS: usize = 2_048;
const MAX_RSA_BITS: usize = 4_096;

/// A certificate request is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadCertificateRequest {
    #[error("longer than {} bytes", MAX_REQUEST_BYTES)]
    TooLong,
    #[error("not a certificate request (PKCS #10) in DER")]
    Malformed,
    #[error("its key must be an Ed25519 key")]
    NotEd25519,
    #[error("its key must be an RSA key, and its signature PKCS #1 v1.5 with SHA-2")]
    NotRsa,
    #[error("its RSA key has {bits} bits; {} to {} are accepted", MIN_RSA_BITS, MAX_RSA_BITS)]
    RsaKeySize {
        /// Size of the key.
        bits: usize,
    },
    #[error("its signature is wrong")]
    BadSignature,
}

/// The Ed25519 key with which a node authenticates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientKey(SubjectPublicKeyInfo);

/// The RSA key with which a node decrypts secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecryptionKey(SubjectPublicKeyInfo);

impl ClientKey {
    /// The key of a request in DER, whose signature is verified.
    pub fn from_request(der: &[u8]) -> Result<Self, BadCertificateRequest> {
        let request = parse_request(der)?;
        let key = &request.certification_request_info.subject_pki;
        if key.algorithm.algorithm != OID_SIG_ED25519
            || request.signature_algorithm.algorithm != OID_SIG_ED25519
        {
            return Err(BadCertificateRequest::NotEd25519);
        }
        verified_key(&request).map(Self)
    }

    /// The key in DER (`SubjectPublicKeyInfo`).
    #[must_use]
    pub fn public_key(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }

    #[must_use]
    pub fn fingerprint(&self) -> KeyFingerprint {
        KeyFingerprint::from_public_key(&self.public_key())
    }

    pub(crate) fn info(&self) -> &SubjectPublicKeyInfo {
        &self.0
    }
}

impl DecryptionKey {
    /// The key of a request in DER, whose signature is verified.
    pub fn from_request(der: &[u8]) -> Result<Self, BadCertificateRequest> {
        let request = parse_request(der)?;
        let key = &request.certification_request_info.subject_pki;
        let Ok(PublicKey::RSA(rsa)) = key.parsed() else {
            return Err(BadCertificateRequest::NotRsa);
        };
        let signature = &request.signature_algorithm.algorithm;
        if *signature != OID_PKCS1_SHA256WITHRSA
            && *signature != OID_PKCS1_SHA384WITHRSA
            && *signature != OID_PKCS1_SHA512WITHRSA
        {
            return Err(BadCertificateRequest::NotRsa);
        }
        let bits = bit_length(rsa.modulus);
        if !(MIN_RSA_BITS..=MAX_RSA_BITS).contains(&bits) {
            return Err(BadCertificateRequest::RsaKeySize { bits });
        }
        verified_key(&request).map(Self)
    }

    pub(crate) fn info(&self) -> &SubjectPublicKeyInfo {
        &self.0
    }
}

fn parse_request(der: &[u8]) -> Result<X509CertificationRequest<'_>, BadCertificateRequest> {
    if der.len() > MAX_REQUEST_BYTES {
        return Err(BadCertificateRequest::TooLong);
    }
    match X509CertificationRequest::from_der(der) {
        Ok(([], request)) => Ok(request),
        _ => Err(BadCertificateRequest::Malformed),
    }
}

/// The key of a request after its signature was verified.
fn verified_key(
    request: &X509CertificationRequest<'_>,
) -> Result<SubjectPublicKeyInfo, BadCertificateRequest> {
    request.verify_signature().map_err(|_| BadCertificateRequest::BadSignature)?;
    let key = &request.certification_request_info.subject_pki;
    SubjectPublicKeyInfo::from_der(key.raw).map_err(|_| BadCertificateRequest::Malformed)
}

/// The number of bits of an unsigned number in big-endian order.
fn bit_length(number: &[u8]) -> usize {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let first_zeros = number.get(zeros).map_or(0, |first| first.leading_zeros());
    (number.len() - zeros) * 8 - first_zeros as usize
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{
        CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SignatureAlgorithm,
    };

    use super::*;
    use crate::certificate_request::BadCertificateRequest as Bad;

    fn request(algorithm: &'static SignatureAlgorithm) -> (KeyPair, Vec<u8>) {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let request = CertificateParams::default().serialize_request(&key).unwrap();
        (key, request.der().to_vec())
    }

    /// A request in PEM as DER.
    fn der(pem: &str) -> Vec<u8> {
        let lines = pem.lines().filter(|line| !line.starts_with('-'));
        STANDARD.decode(lines.collect::<String>()).unwrap()
    }

    #[test]
    fn the_key_of_a_client_request_is_taken() {
        let (key, request) = request(&PKCS_ED25519);
        let requested = ClientKey::from_request(&request).unwrap();
        assert_eq!(requested.public_key(), key.subject_public_key_info());
        assert!(requested.fingerprint().matches(&key.subject_public_key_info()));
    }

    #[test]
    fn a_client_request_with_another_kind_of_key_is_refused() {
        let (_, p256) = request(&PKCS_ECDSA_P256_SHA256);
        let rsa = der(include_str!("../tests/requests/rsa-2048.pem"));
        for request in [p256, rsa] {
            assert_eq!(ClientKey::from_request(&request), Err(Bad::NotEd25519));
        }
    }

    #[test]
    fn a_request_that_another_key_has_signed_is_refused() {
        let (_, mut forged) = request(&PKCS_ED25519);
        let (_, other) = request(&PKCS_ED25519);
        // The signature is at the end.
        let start = forged.len() - 64;
        forged[start..].copy_from_slice(&other[other.len() - 64..]);
        assert_eq!(ClientKey::from_request(&forged), Err(Bad::BadSignature));

        let mut rsa = der(include_str!("../tests/requests/rsa-2048.pem"));
        *rsa.last_mut().unwrap() ^= 1;
        assert_eq!(DecryptionKey::from_request(&rsa), Err(Bad::BadSignature));
    }

    #[test]
    fn only_an_rsa_key_of_a_usual_size_decrypts() {
        for good in [
            include_str!("../tests/requests/rsa-2048.pem"),
            include_str!("../tests/requests/rsa-4096.pem"),
        ] {
            DecryptionKey::from_request(&der(good)).unwrap();
        }
        let short = der(include_str!("../tests/requests/rsa-1024.pem"));
        assert_eq!(
            DecryptionKey::from_request(&short).map(drop),
            Err(Bad::RsaKeySize { bits: 1_024 })
        );
        let (_, ed25519) = request(&PKCS_ED25519);
        assert_eq!(DecryptionKey::from_request(&ed25519).map(drop), Err(Bad::NotRsa));
    }

    #[test]
    fn an_invalid_request_is_refused() {
        let (_, request) = request(&PKCS_ED25519);
        let mut longer = request.clone();
        longer.push(0);
        let cut = &request[..request.len() - 1];
        for bad in [b"".as_slice(), b"certificate".as_slice(), cut, longer.as_slice()] {
            assert_eq!(ClientKey::from_request(bad), Err(Bad::Malformed));
            assert_eq!(DecryptionKey::from_request(bad).map(drop), Err(Bad::Malformed));
        }
        let huge = vec![0x30; MAX_REQUEST_BYTES + 1];
        assert_eq!(ClientKey::from_request(&huge), Err(Bad::TooLong));
    }

    #[test]
    fn leading_zeros_do_not_count_as_bits() {
        let cases: [(&[u8], usize); 5] =
            [(&[], 0), (&[0, 0], 0), (&[1], 1), (&[0x80], 8), (&[0, 0x80, 0], 16)];
        for (number, bits) in cases {
            assert_eq!(bit_length(number), bits, "{number:?}");
        }
    }
}
