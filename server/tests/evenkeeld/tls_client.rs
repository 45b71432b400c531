//! TLS clients of the tests.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// A client certificate and its private key, both in DER.
pub type ClientCertificate = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// Begins a TLS session of a client that trusts an authority.
pub fn tls_session(protocol: &[u8], ca: &Path, name: &str) -> ClientConnection {
    tls_session_with(client_config(protocol, ca, None), name)
}

pub fn tls_session_with(config: Arc<ClientConfig>, name: &str) -> ClientConnection {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    ClientConnection::new(config, name).unwrap()
}

/// The TLS configuration of a client that trusts an authority and uses one protocol.
pub fn client_config(
    protocol: &[u8],
    ca: &Path,
    certificate: Option<ClientCertificate>,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match certificate {
        Some((certificate, key)) => config.with_client_auth_cert(vec![certificate], key).unwrap(),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config)
}
