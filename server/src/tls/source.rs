//! Where the certificate of a listener comes from.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use evenkeel_auth::{CertificateAuthority, ValidityPeriod};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::file_state::FileStamp;

#[derive(Debug)]
pub(super) enum CertificateSource {
    Authority { ca: Arc<CertificateAuthority>, names: Vec<String> },
    Files { certificate: PathBuf, key: PathBuf, ca: Option<PathBuf> },
}

#[derive(Clone, Debug)]
pub(super) struct CurrentCertificate {
    pub(super) key: Arc<CertifiedKey>,
    /// Validity of the listener's own certificate, without its chain.
    pub(super) validity: ValidityPeriod,
    /// None for files: their owner renews them.
    pub(super) renew_at: Option<DateTime<Utc>>,
}

impl CurrentCertificate {
    fn new(key: CertifiedKey, renew_at: Option<DateTime<Utc>>) -> anyhow::Result<Self> {
        let leaf = key.end_entity_cert().context("the chain contains no certificate")?;
        let validity = ValidityPeriod::parse(leaf);
        let validity = validity.context("the validity of the certificate cannot be read")?;
        Ok(Self { key: Arc::new(key), validity, renew_at })
    }

    /// Returns the certificate if it is valid at a time.
    pub(super) fn require_valid(self, now: DateTime<Utc>) -> anyhow::Result<Self> {
        match self.validity.fault_at(now) {
            None => Ok(self),
            Some(fault) => bail!("the certificate is not valid: {fault}"),
        }
    }
}

impl CertificateSource {
    pub(super) fn load(&self, now: DateTime<Utc>) -> anyhow::Result<CurrentCertificate> {
        match self {
            Self::Authority { ca, names } => {
                let issued = ca.issue_server(names, now).context("cannot issue a certificate")?;
                let key = issued.key_pem.reveal().as_bytes();
                let key = certified_key(issued.chain_pem.as_bytes(), key)?;
                CurrentCertificate::new(key, Some(issued.renew_at))
            }
            Self::Files { certificate, key, ca } => {
                let mut chain = read(certificate)?;
                if let Some(ca) = ca {
                    // An agent that knows only the digest needs the certificate of the authority in
                    // the chain.
                    chain.push(b'\n');
                    chain.extend(read(ca)?);
                }
                let certified = certified_key(&chain, &read(key)?);
                certified.and_then(|key| CurrentCertificate::new(key, None)).with_context(|| {
                    format!("{} and {} are not usable", certificate.display(), key.display())
                })
            }
        }
    }

    /// State of the files; empty if the certificate comes from no file.
    pub(super) fn file_stamps(&self) -> Vec<Option<FileStamp>> {
        match self {
            Self::Authority { .. } => Vec::new(),
            Self::Files { certificate, key, ca } => {
                let files = [Some(certificate), Some(key), ca.as_ref()];
                files.into_iter().flatten().map(|path| FileStamp::read(path)).collect()
            }
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn certified_key(chain: &[u8], key: &[u8]) -> anyhow::Result<CertifiedKey> {
    let mut certificates: Vec<CertificateDer<'static>> = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(chain) {
        let certificate = certificate.context("the certificates are not PEM")?;
        if !certificates.contains(&certificate) {
            certificates.push(certificate);
        }
    }
    let key = PrivateKeyDer::from_pem_slice(key).context("the key is not PEM")?;
    let provider: CryptoProvider = ring::default_provider();
    let certified = CertifiedKey::from_der(certificates, key, &provider);
    certified.context("the key does not fit the certificate")
}
