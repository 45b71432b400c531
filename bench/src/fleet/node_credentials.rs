//! Credentials and client certificates of nodes, issued with the keys of the server.
//!
//! All nodes with a client certificate have the same key: the server identifies a node by its host
//! and its key.

use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_auth::{Authority, CertificateAuthority, ClientKey, KeyFingerprint, Keys};
use evenkeel_domain::Time;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_store::testing::fill;
use evenkeel_test_support::{certificate_request, node_key};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::SigningKey;

use super::node_list::ListedNode;
use crate::bench_harness::BenchHarness;

/// Number of the key of the nodes with a client certificate.
const KEY_NUMBER: u8 = 1;

/// Validity of credentials.
const LIFETIME: TimeDelta = TimeDelta::days(90);

/// Issues what nodes identify themselves with.
pub struct CredentialIssuer {
    tenant: TenantId,
    authority: Authority,
    ca: CertificateAuthority,
    certified_key: ClientKey,
    now: Time,
}

impl CredentialIssuer {
    /// Opens the keys of the server.
    pub fn open(harness: &BenchHarness, tenant: TenantId) -> anyhow::Result<Self> {
        let keys = Keys::open(&harness.data_dir().join("keys"))?;
        Ok(Self {
            tenant,
            authority: Authority::new(keys, evenkeel_auth::Settings::default()),
            ca: harness.authority()?,
            certified_key: certified_key()?,
            now: SystemClock.now(),
        })
    }

    /// The credential of a node.
    pub fn issue_token(&self, member: &ListedNode) -> anyhow::Result<String> {
        let (tenant, host) = (self.tenant.uuid(), member.host.to_string());
        let issued = if member.uuid.is_some() {
            self.authority.issue_node(tenant, &host, LIFETIME, self.now)?
        } else {
            let key = if member.is_certified {
                self.certified_key.fingerprint()
            } else {
                KeyFingerprint::from_public_key(&fill::PUBLIC_KEY)
            };
            self.authority.issue_credential((tenant, host.as_str()), &key, LIFETIME, self.now)?
        };
        Ok(issued.token.reveal().to_owned())
    }

    /// The client certificate of a node, in DER.
    pub fn issue_certificate(&self, member: &ListedNode) -> anyhow::Result<Vec<u8>> {
        let host = member.host.to_string();
        let node = (self.tenant.uuid(), host.as_str());
        Ok(self.ca.issue_client_certificate(node, &self.certified_key, self.now)?)
    }
}

/// The key of the nodes with a client certificate, as their server knows it.
pub fn certified_key() -> anyhow::Result<ClientKey> {
    Ok(ClientKey::from_request(&certificate_request(&node_key(KEY_NUMBER)))?)
}

/// The private key of the nodes with a client certificate.
pub fn private_key() -> anyhow::Result<Arc<dyn SigningKey>> {
    let key = PrivatePkcs8KeyDer::from(node_key(KEY_NUMBER).serialize_der());
    Ok(any_supported_type(&PrivateKeyDer::from(key))?)
}
