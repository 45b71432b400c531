//! Client certificates of nodes in TLS handshakes.
//!
//! A listener asks for a client certificate and does not require one. Only certificates that the
//! server's own authority has issued to nodes are accepted, also if the listener uses certificate
//! files.
//!
//! A resumed session (`rustls` keeps the last ones in memory) has the certificate of the handshake
//! that began it. It needs no new verification: the authority does not change while the process
//! runs, and each call checks the validity and the key again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};
use evenkeel_auth::{CertificateAuthority, NodeCertificate};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore,
    ServerConnection, SignatureScheme,
};

/// Verifies client certificates of nodes. Accepts certificates outside of their validity period,
/// because a node renews over such a connection a certificate that has expired, or one of a server
/// whose clock was ahead. The services check the validity.
#[derive(Debug)]
pub(crate) struct NodeCertificateVerifier {
    /// Verifies the signature of the authority and the purpose of a certificate.
    verifier: Arc<dyn ClientCertVerifier>,
}

impl NodeCertificateVerifier {
    pub(crate) fn new(ca: &CertificateAuthority) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from(ca.certificate_der().to_vec());
        roots.add(root).context("the certificate authority is not usable")?;
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build()
            .context("the certificate authority is not usable")?;
        Ok(Self { verifier })
    }
}

impl ClientCertVerifier for NodeCertificateVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let node = NodeCertificate::parse(end_entity)
            .map_err(|error| CertificateError::Other(OtherError(Arc::new(error))))?;
        let time = |at: DateTime<Utc>| {
            let seconds = u64::try_from(at.timestamp()).unwrap_or_default();
            UnixTime::since_unix_epoch(Duration::from_secs(seconds))
        };
        let valid = now.max(time(node.valid_from())).min(time(node.expires_at));
        self.verifier.verify_client_cert(end_entity, intermediates, valid)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// The certificate of the node at the other end of a connection, if it has shown one. The handshake
/// has verified it.
pub(crate) fn peer_certificate(connection: &ServerConnection) -> Option<Arc<NodeCertificate>> {
    let chain = connection.peer_certificates()?;
    NodeCertificate::parse(chain.first()?).ok().map(Arc::new)
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use evenkeel_auth::ClientKey;
    use evenkeel_test_support::{certificate_request, node_key};
    use rustls::pki_types::pem::PemObject;
    use uuid::Uuid;

    use super::*;

    const NOW: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();

    fn authority() -> (tempfile::TempDir, CertificateAuthority) {
        let folder = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::open(folder.path(), NOW).unwrap();
        (folder, authority)
    }

    fn issue(authority: &CertificateAuthority) -> CertificateDer<'static> {
        let key = ClientKey::from_request(&certificate_request(&node_key(1))).unwrap();
        let node = (Uuid::from_u128(1), "host-0a1b2c3d");
        authority.issue_client_certificate(node, &key, NOW).unwrap().into()
    }

    fn verify(
        verifier: &NodeCertificateVerifier,
        certificate: &CertificateDer<'_>,
        at: DateTime<Utc>,
    ) -> Result<(), rustls::Error> {
        let seconds = u64::try_from(at.timestamp()).unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        verifier.verify_client_cert(certificate, &[], at).map(drop)
    }

    #[test]
    fn a_certificate_of_a_node_is_accepted_also_before_its_start_and_after_its_end() {
        let (_folder, authority) = authority();
        let verifier = NodeCertificateVerifier::new(&authority).unwrap();
        let certificate = issue(&authority);
        for days in [-400, -2, -1, 0, 29, 30, 31, 400] {
            verify(&verifier, &certificate, NOW + TimeDelta::days(days)).unwrap();
        }
        assert!(!verifier.client_auth_mandatory() && verifier.offer_client_auth());
    }

    #[test]
    fn a_certificate_of_another_authority_or_another_kind_is_refused() {
        let (_folder, ours) = authority();
        let (_other_folder, other) = authority();
        let verifier = NodeCertificateVerifier::new(&ours).unwrap();
        let foreign = verify(&verifier, &issue(&other), NOW).unwrap_err();
        assert!(matches!(foreign, rustls::Error::InvalidCertificate(_)), "{foreign}");

        let server = ours.issue_server(&["localhost".to_owned()], NOW).unwrap();
        let server = CertificateDer::from_pem_slice(server.chain_pem.as_bytes()).unwrap();
        let refused = verify(&verifier, &server, NOW).unwrap_err();
        assert!(
            matches!(refused, rustls::Error::InvalidCertificate(CertificateError::Other(_))),
            "{refused}"
        );
    }
}
