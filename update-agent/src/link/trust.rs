//! The certification authorities that are trusted for the server.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tonic::transport::Uri;

use super::floor::{FloorVerifier, TimeFloor};
use super::proxy::{Proxy, unbracketed};
use super::token::JoinToken;
use super::{LinkError, pin};
use crate::durable::{self, FileError};
use crate::text::encode_pem;

/// The certification authorities that are trusted for the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Only this authority, as PEM.
    Ca(String),
    /// The authorities that the system trusts.
    System,
}

/// The trusted authority cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The server's address is invalid.
    #[error("{0:?} is not an address of a server; it must look like https://HOST:PORT")]
    Address(String),
    /// The host in the address is invalid.
    #[error("{0:?} is not a host name")]
    Host(String),
    /// The file with the authority cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file contains no certificate.
    #[error("{0} contains no certificate in PEM format")]
    NoCertificate(String),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    /// No connection, or no listener for nodes at its end.
    #[error("cannot reach {server}: {reason}")]
    Unreachable { server: String, reason: String },
    /// The server's certificate is not valid.
    #[error(
        "{server} did not prove that its certificate is issued by the authority in the join token"
    )]
    NotTrusted {
        server: String,
        #[source]
        source: io::Error,
    },
    /// The server's certificate is one of the authority, but for other names.
    #[error(
        "the certificate of {server} is not for this address: add the address to southbound.server_names of the server, or \
         use one that the certificate names"
    )]
    OtherName {
        server: String,
        #[source]
        source: io::Error,
    },
    /// The handshake completed without verification of a certificate.
    #[error("the server showed no certificate of the authority in the join token")]
    NotPinned,
}

impl Trust {
    /// Determines the trusted authority: the file if one is given; else the authority whose digest is in the token, fetched
    /// from the server (through the proxy if there is one) and compared; else those of the system.
    pub async fn resolve(
        server: &str,
        token: &JoinToken,
        ca: Option<&Path>,
        proxy: Option<&Proxy>,
    ) -> Result<Self, TrustError> {
        let (host, port) = parse_server_address(server)?;
        if let Some(path) = ca {
            let content = durable::read_file(path)?.unwrap_or_default();
            let text = String::from_utf8(content).unwrap_or_default();
            if !text.contains("-----BEGIN CERTIFICATE-----") {
                return Err(TrustError::NoCertificate(path.display().to_string()));
            }
            return Ok(Self::Ca(text));
        }
        match token.ca {
            Some(digest) => {
                let der = pin::fetch_ca(server, proxy, (&host, port), digest).await?;
                Ok(Self::Ca(encode_pem("CERTIFICATE", &der)))
            }
            None => Ok(Self::System),
        }
    }

    /// The verifier of the server's certificates for the link. Verifies at no earlier time than the floor.
    pub(super) fn verifier(
        &self,
        floor: Arc<TimeFloor>,
    ) -> Result<Arc<dyn ServerCertVerifier>, LinkError> {
        let roots = match self {
            Self::Ca(pem) => {
                let ders = CertificateDer::pem_slice_iter(pem.as_bytes());
                let ders: Result<Vec<_>, _> = ders.collect();
                let mut roots = RootCertStore::empty();
                // A damaged file gives no root.
                roots.add_parsable_certificates(ders.unwrap_or_default());
                roots
            }
            Self::System => system_roots(),
        };
        if roots.is_empty() {
            return Err(LinkError::Setup(self.no_root_reason().to_owned()));
        }
        build_verifier(roots, floor, true).map_err(|error| LinkError::Setup(error.to_string()))
    }

    fn no_root_reason(&self) -> &'static str {
        match self {
            Self::Ca(_) => {
                "the authority of the server (ca.pem, or the file of --ca) is not a valid certificate; enrol again"
            }
            Self::System => {
                "there is no ca.pem, and the system trusts no certificate authority; enrol again, or install ca-certificates"
            }
        }
    }
}

/// The authorities that the system trusts.
pub(crate) fn system_roots() -> RootCertStore {
    let native = rustls_native_certs::load_native_certs();
    if let Some(error) = native.errors.first() {
        tracing::debug!(%error, "cannot read all of the system's certification authorities");
    }
    let mut roots = RootCertStore::empty();
    // Some system certificates are too old or too unusual for TLS; they are ignored.
    roots.add_parsable_certificates(native.certs);
    roots
}

/// A verifier with these authorities that verifies at no earlier time than the floor. Fails if there is no authority.
pub(crate) fn floor_verifier(
    roots: RootCertStore,
    floor: Arc<TimeFloor>,
) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    build_verifier(roots, floor, false)
}

fn build_verifier(
    roots: RootCertStore,
    floor: Arc<TimeFloor>,
    is_own_server: bool,
) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    let provider = Arc::new(ring::default_provider());
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    Ok(Arc::new(FloorVerifier::new(inner, floor, is_own_server)))
}

/// Host and port of `https://HOST[:PORT]`. Only https is accepted: the node's credential must not be sent in the clear.
fn parse_server_address(server: &str) -> Result<(String, u16), TrustError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_https_with_a_host() {
        let good = |text: &str| parse_server_address(text).unwrap();
        assert_eq!(good("https://keel.example:50002"), ("keel.example".into(), 50002));
        assert_eq!(good("https://keel.example/"), ("keel.example".into(), 443));
        assert_eq!(good("https://[::1]:1"), ("::1".into(), 1));
        for bad in
            ["http://keel.example", "keel.example:1", "", "https://", "https://x/y", "https://x?y"]
        {
            let error = parse_server_address(bad).unwrap_err();
            assert!(error.to_string().contains("https://HOST:PORT"), "{bad}: {error}");
        }
    }

    #[tokio::test]
    async fn a_file_without_a_certificate_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let token = JoinToken::parse("ekj1..x").unwrap();
        let file = folder.path().join("ca.pem");
        for content in [None, Some("hello")] {
            if let Some(content) = content {
                std::fs::write(&file, content).unwrap();
            }
            let error = Trust::resolve("https://x", &token, Some(&file), None).await.unwrap_err();
            assert!(matches!(error, TrustError::NoCertificate(_)), "{error}");
        }
        assert_eq!(Trust::resolve("https://x", &token, None, None).await.unwrap(), Trust::System);
    }

    #[test]
    fn a_damaged_authority_is_named() {
        for pem in [
            "",
            "x",
            "-----BEGIN CERTIFICATE-----\nMIIB",
            "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        ] {
            let floor = Arc::new(TimeFloor::unset());
            let error = Trust::Ca(pem.to_owned()).verifier(floor).unwrap_err().to_string();
            assert!(error.contains("ca.pem"), "{pem:?}: {error}");
        }
    }
}
