//! Who may vouch for the server.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::RootCertStore;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tonic::transport::Uri;

use super::floor::{AboveFloor, Floor};
use super::proxy::{Proxy, unbracketed};
use super::token::JoinToken;
use super::{LinkError, pin};
use crate::durable::{self, FileError};

/// Who may vouch for the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// This authority and no other, as PEM.
    Ca(String),
    /// The authorities that the system trusts.
    System,
}

/// It cannot be settled who vouches for the server.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The address is none.
    #[error("{0:?} is no address of a server; it must look like https://HOST:PORT")]
    Address(String),
    /// The host in the address is none.
    #[error("{0:?} is no name of a host")]
    Host(String),
    /// The file with the authority cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file holds no certificate.
    #[error("{0} holds no certificate in PEM form")]
    NoCertificate(String),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    /// The server did not prove itself, or was not there.
    #[error("the server did not prove that the join token's authority vouches for it")]
    Connect(#[source] std::io::Error),
    /// The handshake was done without a look at the certificate.
    #[error("the server showed no certificate of the join token's authority")]
    NotPinned,
}

impl Trust {
    /// Settles who vouches for the server: the file if one is given, else the authority that the token names (fetched from
    /// the server, through the proxy if there is one, and compared), else the system.
    pub async fn settle(
        server: &str,
        token: &JoinToken,
        ca: Option<&Path>,
        proxy: Option<&Proxy>,
    ) -> Result<Self, TrustError> {
        let (host, port) = address(server)?;
        if let Some(path) = ca {
            let content = durable::read(path)?.unwrap_or_default();
            let text = String::from_utf8(content).unwrap_or_default();
            if !text.contains("-----BEGIN CERTIFICATE-----") {
                return Err(TrustError::NoCertificate(path.display().to_string()));
            }
            return Ok(Self::Ca(text));
        }
        match token.ca {
            Some(digest) => {
                let der = pin::fetch_ca(proxy, &host, port, digest).await?;
                Ok(Self::Ca(pem(&der)))
            }
            None => Ok(Self::System),
        }
    }

    /// Looks at the server's certificates for the link, at no earlier a time than the floor's.
    pub(super) fn verifier(
        &self,
        floor: Arc<Floor>,
    ) -> Result<Arc<dyn ServerCertVerifier>, LinkError> {
        let setup = |error: &dyn std::error::Error| LinkError::Setup(error.to_string());
        let roots = match self {
            Self::Ca(pem) => {
                let ders = CertificateDer::pem_slice_iter(pem.as_bytes());
                let ders: Result<Vec<_>, _> = ders.collect();
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(ders.map_err(|error| setup(&error))?);
                roots
            }
            Self::System => system_roots(),
        };
        looked_at(roots, floor, true).map_err(|error| setup(&error))
    }
}

/// The authorities that the system trusts.
pub(crate) fn system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    if let Some(error) = found.errors.first() {
        tracing::debug!(%error, "not all authorities of the system can be read");
    }
    let mut roots = RootCertStore::empty();
    // Some of them are always too old or too odd for TLS: they vouch for nobody.
    roots.add_parsable_certificates(found.certs);
    roots
}

/// Looks at certificates for which some authorities may vouch, at no earlier a time than the floor's. Fails without an
/// authority.
pub(crate) fn above_floor(
    roots: RootCertStore,
    floor: Arc<Floor>,
) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    looked_at(roots, floor, false)
}

fn looked_at(
    roots: RootCertStore,
    floor: Arc<Floor>,
    is_own_server: bool,
) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    let provider = Arc::new(ring::default_provider());
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    Ok(Arc::new(AboveFloor::new(inner, floor, is_own_server)))
}

/// Host and port of `https://HOST[:PORT]`. Nothing else will do: the node's credential must not travel in the clear.
fn address(server: &str) -> Result<(String, u16), TrustError> {
    let wrong = || TrustError::Address(server.to_owned());
    let uri: Uri = server.parse().map_err(|_| wrong())?;
    let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
    match (uri.scheme_str(), uri.host()) {
        (Some("https"), Some(host)) if bare => {
            Ok((unbracketed(host).to_owned(), uri.port_u16().unwrap_or(443)))
        }
        _ => Err(wrong()),
    }
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<_> = text
        .as_bytes()
        .chunks(64)
        .map(String::from_utf8_lossy)
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_https_with_a_host_and_nothing_else() {
        let good = |text: &str| address(text).unwrap();
        assert_eq!(
            good("https://keel.example:50002"),
            ("keel.example".into(), 50002)
        );
        assert_eq!(good("https://keel.example/"), ("keel.example".into(), 443));
        assert_eq!(good("https://[::1]:1"), ("::1".into(), 1));
        for bad in [
            "http://keel.example",
            "keel.example:1",
            "",
            "https://",
            "https://x/y",
            "https://x?y",
        ] {
            let error = address(bad).unwrap_err();
            assert!(
                error.to_string().contains("https://HOST:PORT"),
                "{bad}: {error}"
            );
        }
    }

    #[tokio::test]
    async fn a_file_without_a_certificate_vouches_for_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let token = JoinToken::parse("ekj1..x").unwrap();
        let file = folder.path().join("ca.pem");
        for content in [None, Some("hello")] {
            if let Some(content) = content {
                std::fs::write(&file, content).unwrap();
            }
            let error = Trust::settle("https://x", &token, Some(&file), None)
                .await
                .unwrap_err();
            assert!(matches!(error, TrustError::NoCertificate(_)), "{error}");
        }
        assert_eq!(
            Trust::settle("https://x", &token, None, None)
                .await
                .unwrap(),
            Trust::System
        );
    }
}
