//! Who may vouch for a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_kit::chain;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::failure;
use crate::durable;
use crate::link::{Floor, above_floor, system_roots};
use crate::model::Failure;

/// Trusts the authorities in some files, or those of the system; `None` if the system trusts nobody. Certificates are
/// looked at no earlier than the floor: a node whose clock starts in the past must get an image as well.
pub fn tls(files: &[PathBuf], floor: Arc<Floor>) -> Result<Option<TlsConnector>, Failure> {
    let roots = if files.is_empty() {
        system_roots()
    } else {
        named(files)?
    };
    if roots.is_empty() {
        return Ok(None);
    }
    let cannot = |error: &dyn std::error::Error| failure(format!("TLS cannot be set up: {error}"));
    let verifier = above_floor(roots, floor).map_err(|error| cannot(&error))?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| cannot(&error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

/// The authorities in some files, each of which must have one.
fn named(files: &[PathBuf]) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for file in files {
        let found = certificates(file)?.ok_or_else(|| {
            failure(format!(
                "{}, which should say who may vouch for servers of images (image.web.roots), is not there",
                file.display()
            ))
        })?;
        if roots.add_parsable_certificates(found).0 == 0 {
            return Err(failure(format!(
                "{} holds no certificate of an authority in PEM form",
                file.display()
            )));
        }
    }
    Ok(roots)
}

/// The certificates in a file, without what is none; `None` if there is no such file.
fn certificates(file: &Path) -> Result<Option<Vec<CertificateDer<'static>>>, Failure> {
    let content = durable::read(file).map_err(|error| failure(chain(&error).to_string()))?;
    let found = content.map(|content| {
        CertificateDer::pem_slice_iter(&content)
            .filter_map(Result::ok)
            .collect()
    });
    Ok(found)
}
