//! Requests to the admin listener of a running process.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::config::{Config, HttpSecurity};
use crate::shared_keys::KeyFolders;

/// Maximum duration of a request to the running process.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of its response in bytes.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;

/// Client of the admin listener of a process with the same configuration.
pub(super) struct AdminClient {
    address: SocketAddr,
    /// None for plain HTTP.
    tls: Option<TlsConnector>,
}

impl AdminClient {
    /// Creates a client. With TLS, it accepts only certificates that the configuration gives to the
    /// listener.
    pub(super) fn new(
        config: &Config,
        data_dir: &Path,
        address: SocketAddr,
    ) -> anyhow::Result<Self> {
        let builder = match config.admin_tls().security().map_err(anyhow::Error::msg)? {
            HttpSecurity::PlainHttp => return Ok(Self { address, tls: None }),
            HttpSecurity::OwnAuthority => {
                trust_authority(&KeyFolders::new(config, data_dir).ca.join("ca.pem"))?
            }
            HttpSecurity::Files { certificate, .. } => trust_certificate(certificate)?,
        };
        let tls = TlsConnector::from(Arc::new(builder.with_no_client_auth()));
        Ok(Self { address, tls: Some(tls) })
    }

    /// Sends a GET request and returns the whole response.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<String> {
        let address = self.address;
        let response = timeout(REQUEST_TIMEOUT, Box::pin(self.send(path))).await;
        let response = response.with_context(|| format!("{address} does not answer in time"))?;
        response.with_context(|| format!("cannot reach {address}; does evenkeeld run?"))
    }

    async fn send(&self, path: &str) -> io::Result<String> {
        let stream = TcpStream::connect(self.address).await?;
        match &self.tls {
            None => exchange(stream, path).await,
            Some(connector) => {
                // Each certificate of the server's own authority contains this name.
                let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
                exchange(connector.connect(name, stream).await?, path).await
            }
        }
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut response = Vec::new();
    stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut response).await?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

type TrustedBuilder = ConfigBuilder<ClientConfig, WantsClientCert>;

/// Trusts the certificates that an authority has issued.
fn trust_authority(ca: &Path) -> anyhow::Result<TrustedBuilder> {
    let mut roots = RootCertStore::empty();
    let added = roots.add(read_certificate(ca)?);
    added.with_context(|| format!("{} is not usable", ca.display()))?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().context("cannot configure TLS")?;
    Ok(builder.with_root_certificates(roots))
}

/// Trusts one certificate, whatever its issuer and its names are.
fn trust_certificate(path: &Path) -> anyhow::Result<TrustedBuilder> {
    let provider = ring::default_provider();
    let verifier = PinnedCertificate {
        certificate: read_certificate(path)?,
        algorithms: provider.signature_verification_algorithms,
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_safe_default_protocol_versions().context("cannot configure TLS")?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
}

/// Reads the first certificate of a file.
fn read_certificate(path: &Path) -> anyhow::Result<CertificateDer<'static>> {
    let certificate = CertificateDer::from_pem_file(path);
    certificate.with_context(|| format!("cannot read a certificate from {}", path.display()))
}

/// Accepts one certificate.
#[derive(Debug)]
struct PinnedCertificate {
    certificate: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *end_entity == self.certificate {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
