//! Which servers get the node's client certificate, and which one.

use std::net::Ipv4Addr;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ED25519, SanType,
};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SignatureScheme};

use super::*;

/// An authority for servers and nodes.
struct ClientAuthority(CertifiedIssuer<'static, KeyPair>);

impl ClientAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    /// A server for 127.0.0.1 that requests client certificates and does not require them.
    fn server_config(&self) -> ServerConfig {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress(Ipv4Addr::LOCALHOST.into())];
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("an authority");
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()
                .expect("a verifier");
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::from(key))
            .expect("a certificate with its key")
    }

    fn node_certificate(&self) -> Arc<CertifiedKey> {
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        let certificate = CertificateParams::default().signed_by(&key, &self.0);
        let certificate = certificate.expect("a certificate").der().clone();
        let key = PrivateKeyDer::from(key);
        let certified = CertifiedKey::from_der(vec![certificate], key, &ring::default_provider());
        Arc::new(certified.expect("a certificate with its key"))
    }
}

/// A node's certificate that can be renewed.
#[derive(Debug)]
struct Renewable(RwLock<Arc<CertifiedKey>>);

impl ResolvesClientCert for Renewable {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().expect("a certificate")))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn der(certified: &CertifiedKey) -> Vec<u8> {
    certified.cert[0].to_vec()
}

#[tokio::test]
async fn only_the_own_server_gets_the_latest_client_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let authority = ClientAuthority::new();
    let roots = folder.path().join("ca.pem");
    std::fs::write(&roots, authority.0.pem()).unwrap();
    let whole_file = |_, _: &TestRequest| TestReply::whole_file(b"image", "\"a\"");
    let other = TestFileServer::start_with_tls(authority.server_config(), whole_file);
    let location = format!("location: https://{}/a", other.address);
    let own = TestFileServer::start_with_tls(authority.server_config(), move |_, request| {
        if request.path() == "/moved" {
            return TestReply::status("302 Found", &[&location]);
        }
        TestReply::whole_file(b"image", "\"a\"")
    });
    let first = authority.node_certificate();
    let certificate = Arc::new(Renewable(RwLock::new(Arc::clone(&first))));
    let settings = WebSettings {
        roots: vec![roots],
        hosts: vec!["127.0.0.1".to_owned()],
        own_server: own.address.to_string(),
        ..WebSettings::default()
    };
    let shown = Arc::clone(&certificate) as Arc<dyn ResolvesClientCert>;
    let web = WebClient::new(settings, None, no_floor(), Some(shown)).expect("valid settings");
    let address = |server: &TestFileServer, path: &str| format!("https://{}{path}", server.address);

    read_body(&web, &address(&own, "/a")).await;
    let second = authority.node_certificate();
    *certificate.0.write().unwrap() = Arc::clone(&second);
    read_body(&web, &address(&own, "/a")).await;
    read_body(&web, &address(&own, "/moved")).await;
    read_body(&web, &address(&other, "/a")).await;

    let shown = |server: &TestFileServer| -> Vec<_> {
        let requests = server.requests().into_iter();
        requests.map(|request| request.client_certificate).collect()
    };
    let expected = [&first, &second, &second].map(|certified| Some(der(certified)));
    assert_eq!(shown(&own), expected);
    assert_eq!(shown(&other), [None, None]);
}
