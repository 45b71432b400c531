//! Certificate authorities that are trusted for image servers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_kit::chain;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::download_failure;
use crate::durable;
use crate::link::{TimeFloor, floor_verifier, system_roots};
use crate::model::Failure;

/// Opens TLS connections.
pub struct TlsConnectors {
    /// For the node's own server: shows the client certificate if the server requests it.
    pub own_server: TlsConnector,
    /// For all other servers: shows no certificate.
    pub others: TlsConnector,
}

/// Trusts the authorities in the files, or those of the system; `None` if the system has none.
/// Certificates are verified at a time that is not before the floor: a node whose clock starts in
/// the past must get an image as well.
pub fn build_connectors(
    files: &[PathBuf],
    floor: Arc<TimeFloor>,
    certificate: Option<Arc<dyn ResolvesClientCert>>,
) -> Result<Option<TlsConnectors>, Failure> {
    let roots = if files.is_empty() { system_roots() } else { load_roots(files)? };
    if roots.is_empty() {
        return Ok(None);
    }
    let cannot =
        |error: &dyn std::error::Error| download_failure(format!("TLS cannot be set up: {error}"));
    let verifier = floor_verifier(roots, floor).map_err(|error| cannot(&error))?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| cannot(&error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut own_config = config.clone();
    if let Some(certificate) = certificate {
        own_config.client_auth_cert_resolver = certificate;
        // A resumed session would show the certificate from before a renewal.
        own_config.resumption = Resumption::disabled();
    }
    Ok(Some(TlsConnectors {
        own_server: TlsConnector::from(Arc::new(own_config)),
        others: TlsConnector::from(Arc::new(config)),
    }))
}

/// Loads the authorities from files, each of which must contain one.
fn load_roots(files: &[PathBuf]) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for file in files {
        let certificates = read_certificates(file)?.ok_or_else(|| {
            download_failure(format!(
                "{} does not exist, but image.web.roots in agent.toml names it as a file of \
                 certificate authorities",
                file.display()
            ))
        })?;
        if roots.add_parsable_certificates(certificates).0 == 0 {
            return Err(download_failure(format!(
                "{} contains no certificate of an authority in PEM form",
                file.display()
            )));
        }
    }
    Ok(roots)
}

/// Reads the valid certificates of a file; `None` if the file does not exist.
fn read_certificates(file: &Path) -> Result<Option<Vec<CertificateDer<'static>>>, Failure> {
    let content =
        durable::read_file(file).map_err(|error| download_failure(chain(&error).to_string()))?;
    let certificates = content
        .map(|content| CertificateDer::pem_slice_iter(&content).filter_map(Result::ok).collect());
    Ok(certificates)
}
