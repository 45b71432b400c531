//! Fetches the certification authority whose digest is in the join token.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use sha2::{Digest as _, Sha256};
use tokio_rustls::TlsConnector;

use super::connect_error;
use super::proxy::{self, Proxy};
use super::trust::TrustError;

/// Time to connect and to receive the server's certificates.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Connects once and returns the authority as DER. The server's certificate is fully verified against it.
pub async fn fetch_ca(
    server: &str,
    proxy: Option<&Proxy>,
    (host, port): (&str, u16),
    digest: [u8; 32],
) -> Result<Vec<u8>, TrustError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(PinnedVerifier {
        digest,
        provider: Arc::clone(&provider),
        pinned_ca: OnceLock::new(),
    });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TrustError::Tls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name =
        ServerName::try_from(host.to_owned()).map_err(|_| TrustError::Host(host.to_owned()))?;
    let unreachable =
        |reason: String| TrustError::Unreachable { server: server.to_owned(), reason };
    let explained = |error: &io::Error| connect_error::explain(error).map(str::to_owned);
    let connect = async {
        let stream = proxy::connect(proxy, host, port).await;
        let stream = stream
            .map_err(|error| unreachable(explained(&error).unwrap_or_else(|| error.to_string())))?;
        let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        connected.map_err(|source| match explained(&source) {
            Some(reason) => unreachable(reason),
            None if is_for_other_name(&source) => {
                TrustError::OtherName { server: server.to_owned(), source }
            }
            None => TrustError::NotTrusted { server: server.to_owned(), source },
        })
    };
    if let Ok(connected) = tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
        connected.map(drop)?;
    } else {
        let seconds = CONNECT_TIMEOUT.as_secs();
        return Err(unreachable(format!("no answer within {seconds} seconds")));
    }
    let pinned_ca = verifier.pinned_ca.get();
    pinned_ca.cloned().ok_or(TrustError::NotPinned)
}

/// Whether the certificate was refused only because of the names in it.
fn is_for_other_name(error: &io::Error) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    let error = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(
        error,
        Some(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
    )
}

/// Accepts a chain only if it contains a certificate with the digest and is valid with that certificate as its only root.
#[derive(Debug)]
struct PinnedVerifier {
    digest: [u8; 32],
    provider: Arc<CryptoProvider>,
    pinned_ca: OnceLock<Vec<u8>>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pinned = |der: &&CertificateDer<'_>| Sha256::digest(der.as_ref())[..] == self.digest;
        let ca = intermediates.iter().find(pinned);
        let ca = ca.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|error| Error::General(error.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        self.pinned_ca.get_or_init(|| ca.to_vec());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
