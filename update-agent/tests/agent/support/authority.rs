//! The authority of a test server: it certifies the server and the nodes.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, IsCa,
    KeyPair, SanType, date_time_ymd,
};
use rustls::pki_types::CertificateSigningRequestDer;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

pub struct ServerAuthority {
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl ServerAuthority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { ca }
    }

    pub fn pem(&self) -> String {
        self.ca.pem()
    }

    pub fn der(&self) -> &[u8] {
        self.ca.der()
    }

    /// The certificate (DER) for a request; nothing for no request.
    pub fn issue(&self, request: &[u8]) -> Vec<u8> {
        if request.is_empty() {
            return Vec::new();
        }
        let request = CertificateSigningRequestDer::from(request);
        let request = CertificateSigningRequestParams::from_der(&request).unwrap();
        request.signed_by(&self.ca).unwrap().der().to_vec()
    }

    /// TLS of a server for `host` that requests client certificates and does not require them.
    pub fn server_tls(&self, host: SanType) -> ServerTlsConfig {
        self.tls_with(host, CertificateParams::default())
    }

    /// As above, with a certificate that is not valid yet.
    pub fn future_server_tls(&self, host: SanType) -> ServerTlsConfig {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2100, 1, 1);
        self.tls_with(host, params)
    }

    fn tls_with(&self, host: SanType, mut params: CertificateParams) -> ServerTlsConfig {
        let key = KeyPair::generate().unwrap();
        params.subject_alt_names = vec![host];
        let certificate = params.signed_by(&key, &self.ca).unwrap();
        let chain = format!("{}{}", certificate.pem(), self.ca.pem());
        ServerTlsConfig::new()
            .identity(Identity::from_pem(chain, key.serialize_pem()))
            .client_ca_root(Certificate::from_pem(self.ca.pem()))
            .client_auth_optional(true)
    }
}
