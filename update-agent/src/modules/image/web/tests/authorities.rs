//! Which authorities of TLS servers are trusted, and when.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;

use super::*;
use crate::paths::AgentPaths;

/// An authority, and a server for 127.0.0.1 with a certificate from it.
fn authority() -> (String, ServerConfig) {
    authority_with(|_| ())
}

/// The same, with a changed server certificate.
fn authority_with(change: impl FnOnce(&mut CertificateParams)) -> (String, ServerConfig) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let ca = CertifiedIssuer::self_signed(params, key).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into())];
    change(&mut params);
    let certificate = params.signed_by(&key, &ca).expect("a certificate");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::from(key))
        .expect("a certificate with its key");
    (ca.pem(), config)
}

#[tokio::test]
async fn the_configured_authority_is_trusted_and_the_token_is_sent_to_the_own_server() {
    let folder = tempfile::tempdir().unwrap();
    let (pem, config) = authority();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, pem).unwrap();
    let server =
        TestFileServer::start_with_tls(config, |_, _| TestReply::whole_file(b"image", "\"a\""));
    let web = client(WebSettings {
        roots: vec![file],
        own_server: server.address.to_string(),
        ..WebSettings::default()
    });
    web.set_credential(&Secret::new("token"));
    let address = format!("https://{}/a", server.address);
    assert_eq!(read_body(&web, &address).await, b"image");
    let requests = server.requests();
    assert_eq!(requests[0].header("authorization"), Some("Bearer token"));
    assert_eq!(requests[0].header("host"), Some(&*server.address.to_string()));
}

#[tokio::test]
async fn a_clock_in_the_past_does_not_prevent_a_download_after_a_contact() {
    let folder = tempfile::tempdir().unwrap();
    // Valid in 2101 only: for this server every current clock starts in the past.
    let (pem, config) = authority_with(|params| {
        params.not_before = date_time_ymd(2101, 1, 1);
        params.not_after = date_time_ymd(2102, 1, 1);
    });
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, pem).unwrap();
    let server =
        TestFileServer::start_with_tls(config, |_, _| TestReply::whole_file(b"image", "\"a\""));
    let address = format!("https://{}/a", server.address);
    let above = |floor: Arc<TimeFloor>| {
        let settings = WebSettings { roots: vec![file.clone()], ..WebSettings::default() };
        WebClient::new(settings, None, floor, None).expect("valid settings")
    };
    let Err(DownloadError::Transient { reason, .. }) = open(&above(no_floor()), &address).await
    else {
        panic!("a certificate that is not valid yet was accepted");
    };
    assert!(reason.contains("cannot be reached"), "{reason}");

    let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
    std::fs::write(folder.path().join("last-contact"), "2101-06-01T00:00:00Z\n").unwrap();
    let floor = Arc::new(TimeFloor::load(&paths));
    assert_eq!(read_body(&above(floor), &address).await, b"image");
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (_, config) = authority();
    let (other, _) = authority();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, other).unwrap();
    let server =
        TestFileServer::start_with_tls(config, |_, _| TestReply::whole_file(b"image", "\"a\""));
    let web = client(WebSettings { roots: vec![file], ..WebSettings::default() });
    let address = format!("https://{}/a", server.address);
    let Err(DownloadError::Transient { reason, .. }) = open(&web, &address).await else {
        panic!("the certificate was accepted");
    };
    assert!(reason.contains("cannot be reached"), "{reason}");
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn an_invalid_file_of_authorities_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("roots.pem");
    for content in [None, Some("hello")] {
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        let settings = WebSettings { roots: vec![file.clone()], ..WebSettings::default() };
        let reason = WebClient::new(settings, None, no_floor(), None).unwrap_err().reason;
        assert!(reason.contains("roots.pem"), "{reason}");
    }
}
