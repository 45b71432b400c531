//! Certificates of nodes, which the server's own authority issues.
//!
//! | | client certificate | decryption certificate |
//! | --- | --- | --- |
//! | key | Ed25519 | RSA, 2,048 to 4,096 bits |
//! | common name | id of the host | id of the host |
//! | alternative name (URI) | `urn:evenkeel:node:PROJECT:HOST` | `urn:evenkeel:node-decryption:PROJECT:HOST` |
//! | key usage | digital signature | key encipherment |
//! | extended key usage | client authentication | e-mail protection (encrypted messages, CMS) |
//!
//! `PROJECT` is the UUID of the project, `HOST` the id of the host. Both are valid from one day
//! before they are issued, for clocks that are slow, to 30 days after. A server certificate is only
//! for server authentication, so none of the three can be used as another.

use chrono::{DateTime, TimeDelta, Utc};
use rcgen::string::Ia5String;
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyUsagePurpose, SanType, SerialNumber,
};
use uuid::Uuid;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::ca::{CLOCK_SKEW_ALLOWANCE, CertificateAuthority, convert_time};
use crate::certificate_request::{ClientKey, DecryptionKey};
use crate::file::FileError;
use crate::key_fingerprint::KeyFingerprint;

/// Validity of a certificate of a node after it is issued.
pub const NODE_CERTIFICATE_LIFETIME: TimeDelta = TimeDelta::days(30);

/// Start of the alternative name of a client certificate.
const CLIENT_URI_PREFIX: &str = "urn:evenkeel:node:";

/// Start of the alternative name of a decryption certificate.
const DECRYPTION_URI_PREFIX: &str = "urn:evenkeel:node-decryption:";

/// The content of a client certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCertificate {
    /// The project of the node.
    pub project: Uuid,
    /// The id of its host, as text.
    pub host: String,
    pub key: KeyFingerprint,
    pub issued_at: DateTime<Utc>,
    /// End of the certificate's validity.
    pub expires_at: DateTime<Utc>,
}

/// A client certificate is not valid at this time. Its node must renew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateNotValid {
    #[error("the certificate expired at {at}: renew it")]
    Expired {
        /// End of its validity.
        at: DateTime<Utc>,
    },
    /// The clock of the server that issued it was ahead.
    #[error("the certificate is not valid before {from}: renew it")]
    NotYetValid {
        /// Start of its validity.
        from: DateTime<Utc>,
    },
}

/// A certificate is no client certificate of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a client certificate of a node: {0}")]
pub struct BadNodeCertificate(&'static str);

impl NodeCertificate {
    /// Reads a certificate in DER. Verifies neither its signature nor its validity.
    pub fn parse(der: &[u8]) -> Result<Self, BadNodeCertificate> {
        let ([], certificate) =
            X509Certificate::from_der(der).map_err(|_| BadNodeCertificate("it is not X.509"))?
        else {
            return Err(BadNodeCertificate("bytes follow it"));
        };
        let key = certificate.public_key();
        if key.algorithm.algorithm != OID_SIG_ED25519 {
            return Err(BadNodeCertificate("its key is not an Ed25519 key"));
        }
        let usage = certificate.extended_key_usage().ok().flatten();
        let is_client = usage.is_some_and(|usage| usage.value.client_auth);
        if !is_client || certificate.is_ca() {
            return Err(BadNodeCertificate("it is not for client authentication"));
        }
        let (project, host) =
            named_host(&certificate).ok_or(BadNodeCertificate("it names no node"))?;
        let validity = certificate.validity();
        let time = |seconds| DateTime::from_timestamp(seconds, 0);
        let start = time(validity.not_before.timestamp());
        let times = start
            .and_then(|start| start.checked_add_signed(CLOCK_SKEW_ALLOWANCE))
            .zip(time(validity.not_after.timestamp()));
        let (issued_at, expires_at) =
            times.ok_or(BadNodeCertificate("its validity period is invalid"))?;
        let key = KeyFingerprint::from_public_key(key.raw);
        Ok(Self { project, host, key, issued_at, expires_at })
    }

    /// Start of the certificate's validity.
    #[must_use]
    pub fn valid_from(&self) -> DateTime<Utc> {
        self.issued_at - CLOCK_SKEW_ALLOWANCE
    }

    /// Checks whether the certificate is valid at a time.
    pub fn check_validity(&self, now: DateTime<Utc>) -> Result<(), CertificateNotValid> {
        if self.expires_at <= now {
            return Err(CertificateNotValid::Expired { at: self.expires_at });
        }
        let from = self.valid_from();
        if now < from { Err(CertificateNotValid::NotYetValid { from }) } else { Ok(()) }
    }
}

/// The project and the host in the only alternative name of a certificate.
fn named_host(certificate: &X509Certificate<'_>) -> Option<(Uuid, String)> {
    let names = certificate.subject_alternative_name().ok()??;
    let [GeneralName::URI(uri)] = names.value.general_names.as_slice() else {
        return None;
    };
    let (project, host) = uri.strip_prefix(CLIENT_URI_PREFIX)?.split_once(':')?;
    let project = Uuid::try_parse(project).ok()?;
    (!host.is_empty()).then(|| (project, host.to_owned()))
}

impl CertificateAuthority {
    /// Issues a client certificate of a node, in DER. `host` is the id of its host, as text.
    pub fn issue_client_certificate(
        &self,
        (project, host): (Uuid, &str),
        key: &ClientKey,
        now: DateTime<Utc>,
    ) -> Result<Vec<u8>, FileError> {
        let mut params = self.node_params((CLIENT_URI_PREFIX, project, host), now)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params, key.info(), WHAT)
    }

    /// Issues a decryption certificate of a node, in DER. `host` is the id of its host, as text.
    pub fn issue_decryption_certificate(
        &self,
        (project, host): (Uuid, &str),
        key: &DecryptionKey,
        now: DateTime<Utc>,
    ) -> Result<Vec<u8>, FileError> {
        let mut params = self.node_params((DECRYPTION_URI_PREFIX, project, host), now)?;
        params.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
        // Some verifiers take a certificate without extended usages for any purpose.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::EmailProtection];
        self.sign(&params, key.info(), WHAT)
    }

    fn node_params(
        &self,
        (uri_prefix, project, host): (&str, Uuid, &str),
        now: DateTime<Utc>,
    ) -> Result<CertificateParams, FileError> {
        let uri = format!("{uri_prefix}{project}:{host}");
        let mut params = CertificateParams::default();
        let uri = Ia5String::try_from(uri).map_err(FileError::create(WHAT))?;
        params.subject_alt_names.push(SanType::URI(uri));
        params.distinguished_name.push(DnType::CommonName, host);
        params.serial_number = Some(random_serial_number());
        params.not_before = convert_time(now - CLOCK_SKEW_ALLOWANCE);
        let expires_at = (now + NODE_CERTIFICATE_LIFETIME).min(self.expires_at());
        params.not_after = convert_time(expires_at);
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}

/// What could not be created, for errors.
const WHAT: &str = "a certificate of a node";

/// A positive number with 122 random bits.
fn random_serial_number() -> SerialNumber {
    let mut bytes = Uuid::new_v4().into_bytes();
    bytes[0] &= 0x7f;
    SerialNumber::from_slice(&bytes)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rcgen::{KeyPair, PKCS_ED25519};

    use super::*;

    const NOW: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();
    const PROJECT: Uuid = Uuid::from_u128(7);
    const NODE: (Uuid, &str) = (PROJECT, "host-0a1b2c3d");

    fn authority(folder: &Path) -> CertificateAuthority {
        CertificateAuthority::open(folder, NOW).unwrap()
    }

    fn client_key() -> ClientKey {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let request = CertificateParams::default().serialize_request(&key).unwrap();
        ClientKey::from_request(request.der()).unwrap()
    }

    fn decryption_key() -> DecryptionKey {
        let pem = include_str!("../tests/requests/rsa-2048.pem");
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        DecryptionKey::from_request(&block.contents).unwrap()
    }

    #[test]
    fn a_client_certificate_names_its_node_and_its_times() {
        let folder = tempfile::tempdir().unwrap();
        let key = client_key();
        let issued = authority(folder.path()).issue_client_certificate(NODE, &key, NOW).unwrap();
        let expected = NodeCertificate {
            project: PROJECT,
            host: "host-0a1b2c3d".to_owned(),
            key: key.fingerprint(),
            issued_at: NOW,
            expires_at: NOW + TimeDelta::days(30),
        };
        assert_eq!(NodeCertificate::parse(&issued), Ok(expected));

        let (_, certificate) = X509Certificate::from_der(&issued).unwrap();
        assert_eq!(certificate.validity().not_before.timestamp(), NOW.timestamp() - 86_400);
        assert_eq!(certificate.subject().to_string(), "CN=host-0a1b2c3d");
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth && !usage.any);
    }

    #[test]
    fn a_client_certificate_is_valid_from_a_day_before_it_was_issued_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let issued = authority(folder.path()).issue_client_certificate(NODE, &client_key(), NOW);
        let certificate = NodeCertificate::parse(&issued.unwrap()).unwrap();
        let (from, at) = (NOW - TimeDelta::days(1), NOW + TimeDelta::days(30));
        let second = TimeDelta::seconds(1);
        for (now, expected) in [
            (from - second, Err(CertificateNotValid::NotYetValid { from })),
            (from, Ok(())),
            (at - second, Ok(())),
            (at, Err(CertificateNotValid::Expired { at })),
        ] {
            assert_eq!(certificate.check_validity(now), expected, "{now}");
        }
    }

    #[test]
    fn each_certificate_has_its_own_serial_number() {
        let folder = tempfile::tempdir().unwrap();
        let (authority, key) = (authority(folder.path()), client_key());
        let serial = || {
            let issued = authority.issue_client_certificate(NODE, &key, NOW).unwrap();
            X509Certificate::from_der(&issued).unwrap().1.raw_serial_as_string()
        };
        assert_ne!(serial(), serial());
    }

    #[test]
    fn a_certificate_of_a_node_does_not_outlive_its_authority() {
        let folder = tempfile::tempdir().unwrap();
        let authority = authority(folder.path());
        let late = authority.expires_at() - TimeDelta::days(10);
        let issued = authority.issue_client_certificate(NODE, &client_key(), late).unwrap();
        let certificate = NodeCertificate::parse(&issued).unwrap();
        assert_eq!(certificate.expires_at, authority.expires_at());
        assert_eq!(certificate.issued_at, late);
    }

    #[test]
    fn a_decryption_certificate_never_authenticates() {
        let folder = tempfile::tempdir().unwrap();
        let authority = authority(folder.path());
        let issued = authority.issue_decryption_certificate(NODE, &decryption_key(), NOW).unwrap();
        assert!(NodeCertificate::parse(&issued).is_err());
        let (_, certificate) = X509Certificate::from_der(&issued).unwrap();
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(!usage.client_auth && !usage.server_auth && !usage.any);
        let usage = certificate.key_usage().unwrap().unwrap().value;
        assert!(usage.key_encipherment() && !usage.digital_signature());
    }

    #[test]
    fn a_server_certificate_is_not_one_of_a_node() {
        let folder = tempfile::tempdir().unwrap();
        let server = authority(folder.path()).issue_server(&["localhost".to_owned()], NOW).unwrap();
        for block in x509_parser::pem::Pem::iter_from_buffer(server.chain_pem.as_bytes()) {
            assert!(NodeCertificate::parse(&block.unwrap().contents).is_err());
        }
        assert!(NodeCertificate::parse(b"certificate").is_err());
    }
}
