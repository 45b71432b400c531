//! The certificates of a node: what it requests, and what it gets.

use evenkeel_auth::{BadCertificateRequest, CertificateAuthority, ClientKey, DecryptionKey};
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

/// New certificates of a node, in DER.
pub struct IssuedCertificates {
    pub client: Vec<u8>,
    /// Empty if the node requested none.
    pub decryption: Vec<u8>,
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

    /// Issues the requested certificates.
    pub fn issue(
        &self,
        ca: &CertificateAuthority,
        (tenant, host): (TenantId, HostId),
        now: Time,
    ) -> Result<IssuedCertificates, Status> {
        let host = host.to_string();
        let node = (tenant.uuid(), host.as_str());
        let client = ca.issue_client_certificate(node, &self.client, now);
        let decryption =
            self.decryption.as_ref().map(|key| ca.issue_decryption_certificate(node, key, now));
        match (client, decryption.transpose()) {
            (Ok(client), Ok(decryption)) => {
                Ok(IssuedCertificates { client, decryption: decryption.unwrap_or_default() })
            }
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(%error, "cannot issue the certificates of a node");
                Err(Status::internal("the certificates could not be issued"))
            }
        }
    }

    /// Stores the decryption certificate, if the node requested one. The host must be enrolled with
    /// the client key.
    pub async fn store(
        &self,
        tx: &Tx,
        host: HostId,
        issued: &IssuedCertificates,
    ) -> Result<(), StoreError> {
        if issued.decryption.is_empty() {
            return Ok(());
        }
        let public_key = self.client.public_key();
        hosts::store_decryption_certificate(tx, host, &public_key, &issued.decryption).await
    }
}
