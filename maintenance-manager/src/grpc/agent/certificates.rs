//! The certificates of a node: requests and issued certificates.

use evenkeel_auth::{
    BadCertificateRequest, CertificateAuthority, ClientKey, DecryptionKey, FileError,
};
use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::{StoreError, Tx, hosts};
use tonic::Status;

/// The keys for which a node requests certificates. The requests have proved that it has them.
pub struct RequestedKeys {
    pub client: ClientKey,
    pub decryption: Option<DecryptionKey>,
}

impl RequestedKeys {
    /// Reads the requests of a message. Without a decryption key, the second one is empty.
    pub fn parse(request: &[u8], decryption_request: &[u8]) -> Result<Self, Invalid> {
        let invalid =
            |field| move |why: BadCertificateRequest| Invalid::new(field, why.to_string());
        let decryption = (!decryption_request.is_empty())
            .then(|| DecryptionKey::from_request(decryption_request));
        Ok(Self {
            client: ClientKey::from_request(request).map_err(invalid("certificate_request"))?,
            decryption: decryption
                .transpose()
                .map_err(invalid("decryption_certificate_request"))?,
        })
    }

    /// Issues the client certificate, in DER.
    pub fn issue_client(
        &self,
        ca: &CertificateAuthority,
        (tenant, host): (TenantId, HostId),
        now: Time,
    ) -> Result<Vec<u8>, Status> {
        let host = host.to_string();
        let issued = ca.issue_client_certificate((tenant.uuid(), &host), &self.client, now);
        issued.map_err(from_issue_error)
    }

    /// Issues the decryption certificate, in DER; empty if the node requested none.
    pub fn issue_decryption(
        &self,
        ca: &CertificateAuthority,
        (tenant, host): (TenantId, HostId),
        now: Time,
    ) -> Result<Vec<u8>, Status> {
        let Some(key) = &self.decryption else {
            return Ok(Vec::new());
        };
        let host = host.to_string();
        let issued = ca.issue_decryption_certificate((tenant.uuid(), &host), key, now);
        issued.map_err(from_issue_error)
    }

    /// Stores a decryption certificate, unless it is empty. The host must be enrolled with the client
    /// key.
    pub async fn store_decryption(
        &self,
        tx: &Tx,
        host: HostId,
        certificate: &[u8],
    ) -> Result<(), StoreError> {
        if certificate.is_empty() {
            return Ok(());
        }
        let public_key = self.client.public_key();
        hosts::store_decryption_certificate(tx, host, &public_key, certificate).await
    }
}

fn from_issue_error(error: FileError) -> Status {
    tracing::error!(%error, "cannot issue a certificate of a node");
    Status::internal("the certificate could not be issued")
}
