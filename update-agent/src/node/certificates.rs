//! The node's keys, and the certificates that its server issues for them.
//!
//! The state directory contains two pairs of PEM files: the Ed25519 key that identifies the node with its client
//! certificate, and the RSA key that decrypts secrets with its certificate. Keys are on the disk before a certificate is
//! requested, and each file is replaced atomically. So a power cut leaves either the old or the new certificate, and both
//! fit the key. A new key that identifies the node is in a file of its own until the server has accepted it. Nothing here
//! compares a certificate with the clock: the server decides whether it is still valid.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use chrono::{DateTime, Utc};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ED25519, PKCS_RSA_SHA256,
    SignatureAlgorithm,
};
use rsa::RsaPrivateKey;
use rsa::pkcs8::EncodePrivateKey as _;
use rsa::rand_core::OsRng;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use tonic::transport::Identity as TlsIdentity;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{Node, NodeError, corrupt_file};
use crate::durable;
use crate::paths::AgentPaths;
use crate::text::encode_pem;

/// Size of the key for decryption, in bits.
const DECRYPTION_KEY_BITS: usize = 2048;

/// PEM label of a certificate.
const CERTIFICATE: &str = "CERTIFICATE";

/// Certificate requests (PKCS #10, DER), each signed with its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateRequests {
    /// For the node's key.
    pub client: Vec<u8>,
    /// For the key for decryption; empty if the node has none.
    pub decryption: Vec<u8>,
}

/// Certificates (X.509, DER) from the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IssuedCertificates {
    /// For the node's key; empty if the server issued none.
    pub client: Vec<u8>,
    /// For the key for decryption; empty if the server issued none.
    pub decryption: Vec<u8>,
}

/// The node's certificates in the state directory. TLS connections to the node's server show the latest client
/// certificate.
pub struct NodeCertificates {
    paths: AgentPaths,
    client: RwLock<Option<ClientCertificate>>,
}

/// A client certificate that fits the node's key.
#[derive(Clone)]
struct ClientCertificate {
    for_grpc: TlsIdentity,
    for_files: Arc<CertifiedKey>,
}

impl fmt::Debug for NodeCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCertificates").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl NodeCertificates {
    /// The certificates of a machine that has none yet. Files of an earlier enrolment are not read.
    pub fn none(paths: &AgentPaths) -> Self {
        Self { paths: paths.clone(), client: RwLock::new(None) }
    }

    /// Loads the client certificate, if there is one. Fails if it is damaged or does not fit the key.
    pub fn load(paths: &AgentPaths) -> Result<Self, NodeError> {
        let certificates = Self::none(paths);
        if let Some(content) = durable::read_file(&paths.certificate())? {
            let client =
                ClientCertificate::new(&content, &read_client_key(paths, KeyFile::Client)?)
                    .map_err(|error| corrupt_file("certificate.pem", error))?;
            certificates.set_client(Some(client));
        }
        Ok(certificates)
    }

    /// Whether there is a client certificate.
    pub fn has_client(&self) -> bool {
        self.client().is_some()
    }

    /// When the client certificate expires, for people; `None` if there is none.
    pub fn client_expires(&self) -> Option<DateTime<Utc>> {
        let client = self.client()?;
        let (_, certificate) = X509Certificate::from_der(client.for_files.cert.first()?).ok()?;
        DateTime::from_timestamp(certificate.validity().not_after.timestamp(), 0)
    }

    /// The client certificate with its key for the connection over gRPC; `None` if there is none.
    pub fn tls_identity(&self) -> Option<TlsIdentity> {
        self.client().map(|client| client.for_grpc)
    }

    /// Makes the certificate requests. A node with a client certificate keeps its key, and a machine without one gets a
    /// key. A missing key for decryption is created, which takes about a minute on a slow machine; if that fails, no
    /// certificate is requested for it.
    pub async fn requests(&self) -> Result<CertificateRequests, NodeError> {
        let (paths, has_client) = (self.paths.clone(), self.has_client());
        let build = move || build_requests(&paths, has_client);
        match tokio::task::spawn_blocking(build).await {
            Ok(requests) => requests,
            Err(error) => Err(NodeError::Request(error.into())),
        }
    }

    /// Stores certificates and uses them from now on. Without a client certificate, the stored one is removed. Fails
    /// before it changes anything if the client certificate does not fit the node's key. A certificate that does not fit
    /// the key for decryption is not stored.
    pub fn store(&self, issued: &IssuedCertificates) -> Result<(), NodeError> {
        let client = if issued.client.is_empty() {
            None
        } else {
            let pem = encode_pem(CERTIFICATE, &issued.client);
            let key = match read_usable_key(&self.paths, KeyFile::Client)? {
                Some(key) => key,
                None => read_client_key(&self.paths, KeyFile::Enrolment)?,
            };
            let client = ClientCertificate::new(pem.as_bytes(), &key);
            Some((pem, client.map_err(|error| NodeError::Certificate(error.into()))?))
        };
        accept_new_key(&self.paths)?;
        if !issued.decryption.is_empty()
            && let Err(error) = store_decryption_certificate(&self.paths, &issued.decryption)
        {
            let error = evenkeel_kit::chain(&error);
            tracing::warn!(%error, "cannot store the certificate of the key for decryption");
        }
        let path = self.paths.certificate();
        match &client {
            Some((pem, _)) => durable::replace_file(&path, pem.as_bytes(), 0o600)?,
            None => durable::remove_file(&path)?,
        }
        self.set_client(client.map(|(_, client)| client));
        Ok(())
    }

    fn client(&self) -> Option<ClientCertificate> {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_client(&self, client: Option<ClientCertificate>) {
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
    }
}

impl ResolvesClientCert for NodeCertificates {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.client().map(|client| client.for_files)
    }

    fn has_certs(&self) -> bool {
        self.has_client()
    }
}

impl ClientCertificate {
    fn new(certificate_pem: &[u8], key: &KeyPair) -> Result<Self, PairError> {
        let for_files = Arc::new(check_pair(certificate_pem, key)?);
        Ok(Self {
            for_grpc: TlsIdentity::from_pem(certificate_pem, key.serialize_pem()),
            for_files,
        })
    }
}

/// A certificate cannot be used with a key.
#[derive(Debug, thiserror::Error)]
enum PairError {
    #[error("it is not a certificate in PEM format")]
    Pem,
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// Checks that a certificate can be parsed and is for this key.
fn check_pair(certificate_pem: &[u8], key: &KeyPair) -> Result<CertifiedKey, PairError> {
    let certificate =
        CertificateDer::from_pem_slice(certificate_pem).map_err(|_| PairError::Pem)?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok(CertifiedKey::from_der(vec![certificate], key, &ring::default_provider())?)
}

fn store_decryption_certificate(paths: &AgentPaths, der: &[u8]) -> Result<(), NodeError> {
    let pem = encode_pem(CERTIFICATE, der);
    let key = read_key(paths, KeyFile::Decryption)?.ok_or(NodeError::NotEnrolled)?;
    check_pair(pem.as_bytes(), &key).map_err(|error| NodeError::Certificate(error.into()))?;
    Ok(durable::replace_file(&paths.decryption_certificate(), pem.as_bytes(), 0o600)?)
}

fn build_requests(paths: &AgentPaths, has_client: bool) -> Result<CertificateRequests, NodeError> {
    let request =
        |key: &KeyPair| build_request(key).map_err(|error| NodeError::Request(error.into()));
    let client = if has_client {
        read_client_key(paths, KeyFile::Client)?
    } else {
        ensure_client_key(paths)?
    };
    let decryption = match ensure_decryption_key(paths).and_then(|key| request(&key)) {
        Ok(decryption) => decryption,
        Err(error) => {
            let error = evenkeel_kit::chain(&error);
            tracing::warn!(%error, "there is no key for decryption yet: the next renewal tries again");
            Vec::new()
        }
    };
    Ok(CertificateRequests { client: request(&client)?, decryption })
}

/// A request that contains only the key: the server decides about the rest of the certificate.
fn build_request(key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key)?.der().to_vec())
}

/// A file with a private key (PKCS #8, PEM).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyFile {
    /// The Ed25519 key that identifies the node.
    Client,
    /// A new key of this kind that the server has not accepted yet.
    Enrolment,
    /// The RSA key that decrypts secrets.
    Decryption,
}

impl KeyFile {
    fn name(self) -> &'static str {
        match self {
            Self::Client => "key.pem",
            Self::Enrolment => "enrolment-key.pem",
            Self::Decryption => "decryption-key.pem",
        }
    }

    fn algorithm(self) -> &'static SignatureAlgorithm {
        match self {
            Self::Client | Self::Enrolment => &PKCS_ED25519,
            Self::Decryption => &PKCS_RSA_SHA256,
        }
    }

    fn path(self, paths: &AgentPaths) -> PathBuf {
        match self {
            Self::Client => paths.key(),
            Self::Enrolment => paths.enrolment_key(),
            Self::Decryption => paths.decryption_key(),
        }
    }
}

/// Reads a private key; `None` if there is no file.
fn read_key(paths: &AgentPaths, file: KeyFile) -> Result<Option<KeyPair>, NodeError> {
    let Some(content) = durable::read_file(&file.path(paths))? else {
        return Ok(None);
    };
    let text = String::from_utf8(content).map_err(|error| corrupt_file(file.name(), error))?;
    let pair = KeyPair::from_pkcs8_pem_and_sign_algo(&text, file.algorithm());
    Ok(Some(pair.map_err(|error| corrupt_file(file.name(), error))?))
}

/// Reads a private key; `None` if there is no file, or a damaged one that must be replaced.
fn read_usable_key(paths: &AgentPaths, file: KeyFile) -> Result<Option<KeyPair>, NodeError> {
    match read_key(paths, file) {
        Err(error @ NodeError::Corrupt { .. }) => {
            tracing::warn!(error = %evenkeel_kit::chain(&error), "a damaged key is replaced");
            Ok(None)
        }
        result => result,
    }
}

/// Reads a key that identifies the node. Its file exists, unless it was lost.
fn read_client_key(paths: &AgentPaths, file: KeyFile) -> Result<KeyPair, NodeError> {
    if let Some(key) = read_key(paths, file)? {
        return Ok(key);
    }
    let host = Node::load(paths)?.host_id;
    Err(NodeError::MissingKey { file: file.path(paths).display().to_string(), host })
}

/// The key pair of a machine that enrols, which is created if it is missing or damaged. If the server refuses the machine,
/// its files are as before.
fn ensure_client_key(paths: &AgentPaths) -> Result<KeyPair, NodeError> {
    for file in [KeyFile::Client, KeyFile::Enrolment] {
        if let Some(pair) = read_usable_key(paths, file)? {
            return Ok(pair);
        }
    }
    let pair = KeyPair::generate_for(&PKCS_ED25519);
    let pair = pair.map_err(|error| NodeError::Request(error.into()))?;
    durable::replace_file(&paths.enrolment_key(), pair.serialize_pem().as_bytes(), 0o600)?;
    Ok(pair)
}

/// Replaces a missing or damaged key by the new one.
fn accept_new_key(paths: &AgentPaths) -> Result<(), NodeError> {
    if read_usable_key(paths, KeyFile::Client)?.is_none()
        && let Some(content) = durable::read_file(&paths.enrolment_key())?
    {
        // Its certificate is not for the new key.
        durable::remove_file(&paths.certificate())?;
        durable::replace_file(&paths.key(), &content, 0o600)?;
    }
    Ok(durable::remove_file(&paths.enrolment_key())?)
}

/// The key pair for decryption, which is created if it is missing or damaged.
fn ensure_decryption_key(paths: &AgentPaths) -> Result<KeyPair, NodeError> {
    if let Some(pair) = read_usable_key(paths, KeyFile::Decryption)? {
        return Ok(pair);
    }
    tracing::info!("creating the key for decryption; a slow machine needs about a minute");
    let pair = generate_decryption_key().map_err(NodeError::Request)?;
    // Its certificate is not for the new key.
    durable::remove_file(&paths.decryption_certificate())?;
    durable::replace_file(&paths.decryption_key(), pair.serialize_pem().as_bytes(), 0o600)?;
    Ok(pair)
}

fn generate_decryption_key() -> Result<KeyPair, Box<dyn std::error::Error + Send + Sync>> {
    let key = RsaPrivateKey::new(&mut OsRng, DECRYPTION_KEY_BITS)?;
    let der = key.to_pkcs8_der()?;
    let der = PrivatePkcs8KeyDer::from(der.as_bytes());
    Ok(KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_RSA_SHA256)?)
}

#[cfg(test)]
mod tests;
