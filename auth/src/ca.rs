//! The certificate authority and the server certificates of the listeners. The certificates of nodes
//! are in [`crate::node_certificate`].
//!
//! The first start creates the server's own certificate authority: `ca.pem`, which is public, and
//! `ca-key.pem`, mode 0600. It signs short-lived server certificates. They are not stored: each
//! process creates its own and renews it long before it expires. Replicas share the folder of the
//! authority.
//!
//! A node that joins takes the SHA-256 of the authority's certificate from its join token, so it
//! needs no certificate file.

use std::fmt::Write;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Secret;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType,
};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::file::{self, FileError};

/// Validity of the authority's certificate.
const AUTHORITY_LIFETIME: TimeDelta = TimeDelta::days(20 * 365);

/// Validity of a server certificate. It is renewed after two thirds of this time.
const SERVER_LIFETIME: TimeDelta = TimeDelta::days(90);

/// Certificates are valid this long before they are created, for nodes whose clock is slow.
pub(crate) const CLOCK_SKEW_ALLOWANCE: TimeDelta = TimeDelta::days(1);

/// Signs the server certificates of our listeners and the certificates of nodes.
pub struct CertificateAuthority {
    pem: String,
    der: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
    expires_at: DateTime<Utc>,
}

impl std::fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("digest", &self.digest())
            .field("expires_at", &self.expires_at)
            .finish()
    }
}

/// The certificate of a listener, with its key.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    /// The server certificate followed by the authority's, in PEM.
    pub chain_pem: String,
    /// The private key in PKCS #8, in PEM.
    pub key_pem: Secret,
    /// When to create a new certificate.
    pub renew_at: DateTime<Utc>,
    /// End of the certificate's validity.
    pub expires_at: DateTime<Utc>,
}

impl CertificateAuthority {
    /// Reads the authority in `folder`. Creates the folder and the authority if they do not exist.
    pub fn open(folder: &Path, now: DateTime<Utc>) -> Result<Self, FileError> {
        file::create_private_folder(folder)?;
        let key_path = folder.join("ca-key.pem");
        let certificate_path = folder.join("ca.pem");
        if file::read(&certificate_path)?.is_some() && file::read(&key_path)?.is_none() {
            let why = "its key is missing: restore `ca-key.pem` next to it, or remove this file to \
                       create a new authority, which enrolled nodes do not trust";
            return Err(FileError::content(&certificate_path, why));
        }
        let key = file::read_or_create(&key_path, 0o600, || {
            let key = KeyPair::generate().map_err(FileError::create("an authority's key"))?;
            Ok(key.serialize_pem())
        })?;
        file::warn_if_open(&key_path);
        let key = KeyPair::from_pem(&key).map_err(|error| FileError::content(&key_path, error))?;
        let pem = file::read_or_create(&certificate_path, 0o644, || {
            let certificate = authority_params(now).self_signed(&key);
            Ok(certificate.map_err(FileError::create("an authority's certificate"))?.pem())
        })?;
        Self::from_pem(pem, key, now).map_err(|why| FileError::content(&certificate_path, why))
    }

    fn from_pem(pem: String, key: KeyPair, now: DateTime<Utc>) -> Result<Self, String> {
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(to_text)?;
        let (_, certificate) = X509Certificate::from_der(&block.contents).map_err(to_text)?;
        if certificate.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err("its key `ca-key.pem` belongs to another certificate".to_owned());
        }
        let expires_at = certificate.validity().not_after.timestamp();
        let expires_at =
            DateTime::from_timestamp(expires_at, 0).unwrap_or(DateTime::<Utc>::MAX_UTC);
        if expires_at <= now {
            return Err(format!("it expired at {expires_at}"));
        }
        let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(to_text)?;
        Ok(Self { der: block.contents, pem, issuer, expires_at })
    }

    /// The authority's certificate, in PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// The authority's certificate, in DER.
    #[must_use]
    pub fn certificate_der(&self) -> &[u8] {
        &self.der
    }

    /// SHA-256 of the authority's certificate in DER, in lower-case hexadecimal.
    #[must_use]
    pub fn digest(&self) -> String {
        ca_digest(&self.der)
    }

    /// End of the validity of the authority's certificate.
    #[must_use]
    pub fn expires_at(&self) -> DateTime<Utc> {
        self.expires_at
    }

    /// Creates a certificate for a listener with these DNS names and IP addresses.
    pub fn issue_server(
        &self,
        names: &[String],
        now: DateTime<Utc>,
    ) -> Result<ServerCertificate, FileError> {
        let what = "a server certificate";
        let key = KeyPair::generate().map_err(FileError::create(what))?;
        let expires_at = (now + SERVER_LIFETIME).min(self.expires_at);
        let mut params = CertificateParams::default();
        for name in names {
            let name = match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => {
                    SanType::DnsName(name.as_str().try_into().map_err(FileError::create(what))?)
                }
            };
            params.subject_alt_names.push(name);
        }
        params.distinguished_name.push(DnType::CommonName, "Evenkeel server");
        params.not_before = convert_time(now - CLOCK_SKEW_ALLOWANCE);
        params.not_after = convert_time(expires_at);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).map_err(FileError::create(what))?;
        Ok(ServerCertificate {
            chain_pem: format!("{}{}", certificate.pem(), self.pem),
            key_pem: Secret::new(key.serialize_pem()),
            renew_at: now + (expires_at - now) * 2 / 3,
            expires_at,
        })
    }

    /// Signs a certificate for a key. Returns it in DER.
    pub(crate) fn sign(
        &self,
        params: &CertificateParams,
        key: &impl PublicKeyData,
        what: &'static str,
    ) -> Result<Vec<u8>, FileError> {
        let certificate = params.signed_by(key, &self.issuer).map_err(FileError::create(what))?;
        Ok(certificate.der().to_vec())
    }
}

/// When a certificate is valid, to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidityPeriod {
    /// Start of the validity.
    pub not_before: DateTime<Utc>,
    /// End of the validity.
    pub not_after: DateTime<Utc>,
}

impl ValidityPeriod {
    /// Reads the validity of a certificate in DER. `None` if it is no X.509 certificate, or if its
    /// times are outside of the calendar.
    #[must_use]
    pub fn parse(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let validity = certificate.validity();
        let time = |seconds| DateTime::from_timestamp(seconds, 0);
        let not_before = time(validity.not_before.timestamp())?;
        let not_after = time(validity.not_after.timestamp())?;
        Some(Self { not_before, not_after })
    }

    /// Why a certificate with this validity is not valid at a time. `None` if it is valid.
    #[must_use]
    pub fn fault_at(&self, now: DateTime<Utc>) -> Option<String> {
        if self.not_after <= now {
            return Some(format!("it expired at {}", self.not_after));
        }
        (now < self.not_before).then(|| format!("it is not valid before {}", self.not_before))
    }
}

/// SHA-256 of a certificate in DER, in lower-case hexadecimal.
#[must_use]
pub fn ca_digest(der: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(der) {
        write!(text, "{byte:02x}").ok();
    }
    text
}

/// Digest of the last certificate of a PEM chain, which must be the authority's.
pub fn chain_digest(path: &Path) -> Result<String, FileError> {
    let text = fs::read(path).map_err(FileError::io("read", path))?;
    let mut last = None;
    for block in x509_parser::pem::Pem::iter_from_buffer(&text) {
        let block = block.map_err(|error| FileError::content(path, error))?;
        last = Some(block.contents);
    }
    let last = last.ok_or_else(|| FileError::content(path, "it contains no certificate"))?;
    Ok(ca_digest(&last))
}

fn authority_params(now: DateTime<Utc>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Evenkeel certificate authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = convert_time(now - CLOCK_SKEW_ALLOWANCE);
    params.not_after = convert_time(now + AUTHORITY_LIFETIME);
    params
}

/// rcgen uses the time type of another crate.
pub(crate) fn convert_time<T>(at: DateTime<Utc>) -> T
where
    T: From<std::time::SystemTime>,
{
    T::from(std::time::SystemTime::from(at))
}

fn to_text(error: impl ToString) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();

    fn open(folder: &Path) -> Result<CertificateAuthority, FileError> {
        CertificateAuthority::open(folder, NOW)
    }

    #[test]
    fn the_authority_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path()).unwrap();
        let second = open(folder.path()).unwrap();
        assert_eq!(first.digest(), second.digest());
        assert_eq!(first.digest().len(), 64);
        assert!(first.certificate_pem().starts_with("-----BEGIN CERTIFICATE-----"));
        assert_eq!(first.expires_at(), NOW + AUTHORITY_LIFETIME);
    }

    #[test]
    fn the_digest_is_that_of_the_last_certificate_of_the_chain() {
        let folder = tempfile::tempdir().unwrap();
        let authority = open(folder.path()).unwrap();
        let server = authority.issue_server(&["localhost".to_owned()], NOW).unwrap();
        let path = folder.path().join("chain.pem");
        fs::write(&path, &server.chain_pem).unwrap();
        assert_eq!(server.chain_pem.matches("BEGIN CERTIFICATE").count(), 2);
        assert_eq!(chain_digest(&path).unwrap(), authority.digest());
        fs::write(&path, "").unwrap();
        assert!(chain_digest(&path).is_err());
    }

    #[test]
    fn a_server_certificate_has_its_names_and_is_renewed_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let authority = open(folder.path()).unwrap();
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let server = authority.issue_server(&names, NOW).unwrap();
        assert_eq!(server.renew_at, NOW + TimeDelta::days(60));
        assert_eq!(server.expires_at, NOW + TimeDelta::days(90));

        let (_, block) = x509_parser::pem::parse_x509_pem(server.chain_pem.as_bytes()).unwrap();
        let (_, certificate) = X509Certificate::from_der(&block.contents).unwrap();
        let alt_names = certificate.subject_alternative_name().unwrap().unwrap();
        assert_eq!(alt_names.value.general_names.len(), 3);
        assert!(!certificate.is_ca());
        assert_eq!(certificate.validity().not_after.timestamp(), server.expires_at.timestamp());
    }

    #[test]
    fn a_certificate_is_valid_only_in_its_period() {
        let folder = tempfile::tempdir().unwrap();
        let authority = open(folder.path()).unwrap();
        let server = authority.issue_server(&["localhost".to_owned()], NOW).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(server.chain_pem.as_bytes()).unwrap();
        let validity = ValidityPeriod::parse(&block.contents).unwrap();
        assert_eq!(validity.not_after, server.expires_at);
        assert_eq!(validity.fault_at(NOW), None);
        let early = validity.fault_at(NOW - TimeDelta::days(2)).unwrap();
        assert!(early.contains("not valid before"), "{early}");
        let late = validity.fault_at(server.expires_at).unwrap();
        assert!(late.contains("expired at"), "{late}");
        assert_eq!(ValidityPeriod::parse(b"no certificate"), None);
    }

    #[test]
    fn a_server_certificate_does_not_outlive_its_authority() {
        let folder = tempfile::tempdir().unwrap();
        let authority = open(folder.path()).unwrap();
        let late = authority.expires_at() - TimeDelta::days(10);
        let server = authority.issue_server(&["localhost".to_owned()], late).unwrap();
        assert_eq!(server.expires_at, authority.expires_at());
        assert!(server.renew_at < server.expires_at);
    }

    #[test]
    fn an_invalid_name_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let authority = open(folder.path()).unwrap();
        let error = authority.issue_server(&["schön.example".to_owned()], NOW).unwrap_err();
        assert!(error.to_string().starts_with("cannot create a server certificate"), "{error}");
    }

    #[test]
    fn a_certificate_without_its_key_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let digest = open(folder.path()).unwrap().digest();
        let key = folder.path().join("ca-key.pem");
        let original_key = fs::read(&key).unwrap();
        fs::remove_file(&key).unwrap();
        let error = open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("its key is missing"), "{error}");

        fs::write(&key, original_key).unwrap();
        assert_eq!(open(folder.path()).unwrap().digest(), digest);
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path()).unwrap();
        let other = KeyPair::generate().unwrap().serialize_pem();
        fs::write(folder.path().join("ca-key.pem"), other).unwrap();
        let error = open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("belongs to another certificate"), "{error}");
    }

    #[test]
    fn an_expired_authority_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let authority = open(folder.path()).unwrap();
        let error = CertificateAuthority::open(folder.path(), authority.expires_at()).unwrap_err();
        assert!(error.to_string().contains("it expired at"), "{error}");
    }
}
