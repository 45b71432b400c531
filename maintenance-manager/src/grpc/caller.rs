//! Authentication of the calling node.

use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_auth::{AuthError, Authority, Caller, KeyFingerprint, NodeCertificate, NodeSubject};
use evenkeel_domain::Time;
use evenkeel_domain::host::{Host, parse_uuid};
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::Tx;
use evenkeel_store::node_tokens::{self, NodeToken, SubjectDigest};
use evenkeel_store::nodes::{self, MachineKey};
use sha2::{Digest as _, Sha256};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use uuid::Uuid;

use crate::admission::concurrency::{CallKind, Overloaded};
use crate::admission::connection::ConnectionState;
use crate::admission::peer::Peer;
use crate::manager::MaintenanceManager;
use crate::node_transaction::none_if_missing;
use crate::status;

/// Why a node of ours without a client certificate is refused.
const NO_CERTIFICATE: &str = "the connection has no client certificate: enrol this machine \
    (`evenkeel-agent enroll`). If a proxy terminates TLS in front of the server, set \
    maintenance_manager.bearer_credentials on the server";

/// Why a credential of an earlier release is refused: it does not name the key of its node.
const NO_KEY: &str = "the credential names no key: it is of an earlier release, or for EIM's agents. \
    Enrol this machine again (`evenkeel-agent enroll`)";

/// One of our own nodes, as its client certificate or its credential names it. Whether its host was
/// enrolled with the same key is checked when the host is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The project of the node.
    pub tenant: TenantId,
    pub host: HostId,
    pub key: KeyFingerprint,
    pub proof: NodeProof,
}

/// The age of a certificate or a credential at which its node should renew it.
pub const RENEWAL_AGE: TimeDelta = TimeDelta::days(1);

/// How a node of ours authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeProof {
    /// The client certificate of the connection.
    Certificate { issued_at: Time },
    /// A bearer credential.
    Credential { issued_at: Time },
}

/// The client certificate of the connection, which the server verified in the handshake.
fn peer_certificate<T>(request: &Request<T>) -> Option<&NodeCertificate> {
    request.extensions().get::<Arc<NodeCertificate>>().map(AsRef::as_ref)
}

/// Identifies one of our own nodes by its client certificate, whose validity is not checked.
fn node_from_certificate(certificate: &NodeCertificate) -> Result<Node, Status> {
    let host: HostId = certificate
        .host
        .parse()
        .map_err(|_| Status::permission_denied("the certificate names no host"))?;
    Ok(Node {
        tenant: TenantId::new(certificate.project),
        host,
        key: certificate.key.clone(),
        proof: NodeProof::Certificate { issued_at: certificate.issued_at },
    })
}

/// Identifies one of our own nodes by its credential.
fn node_from_credential(caller: &Caller) -> Result<Node, Status> {
    let denied = || Status::permission_denied("this credential is not one of a node");
    let project = caller.node_project().ok_or_else(denied)?;
    let key = match &caller.node_key {
        Some(key) => key.clone(),
        None if caller.issued_by_us => return Err(Status::permission_denied(NO_KEY)),
        // An external issuer names no key.
        None => return Err(denied()),
    };
    Ok(Node {
        tenant: TenantId::new(project),
        host: caller.subject.parse().map_err(|_| denied())?,
        key,
        // Our own tokens say when they were issued.
        proof: NodeProof::Credential { issued_at: caller.issued_at.unwrap_or(Time::UNIX_EPOCH) },
    })
}

/// A node with EIM's agents. Its token names its project; the node itself names its UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EimNode {
    /// The project of the node.
    pub tenant: TenantId,
    /// The host that the token is bound to: named in our own tokens, otherwise the first host that
    /// used the token or its subject. None if the token names the UUID of its host, which is
    /// checked instead.
    pub bound_host: Option<HostId>,
    /// The UUID that the node claims.
    pub uuid: Uuid,
    /// The peer as far as the token proves it.
    pub holder: Peer,
    /// The token, if an external issuer signed it and it is bound to the host that uses it first.
    pub external_token: Option<NodeToken>,
    /// The UUID of the host, if the token names it.
    pub named_uuid: Option<Uuid>,
}

impl EimNode {
    /// The peer of the node, used once its host was found.
    pub fn peer(&self) -> Peer {
        self.holder.with_uuid(self.uuid)
    }
}

/// Rejects a token that is bound to another host. Does not check whether the host is trusted.
pub fn check_token_binding(eim_node: &EimNode, host: HostId) -> Result<(), Status> {
    if eim_node.bound_host.is_some_and(|bound_host| bound_host != host) {
        return Err(Status::permission_denied("the token belongs to another host"));
    }
    Ok(())
}

/// Rejects a call for a host that the token is not bound to or that is not trusted.
pub fn check_may_speak_for(eim_node: &EimNode, host: &Host) -> Result<(), Status> {
    check_token_binding(eim_node, host.id)?;
    if !host.is_trusted() {
        return Err(Status::unauthenticated("the host was invalidated"));
    }
    Ok(())
}

impl MaintenanceManager {
    /// Authenticates one of our own nodes and applies the rate limit. Also returns the peer for the
    /// log.
    pub(crate) fn authenticate_node<T>(
        &self,
        request: &Request<T>,
    ) -> (Peer, Result<Node, Status>) {
        self.admit_node(request, self.identify_node(request))
    }

    /// Like [`Self::authenticate_node`], for renewals: the client certificate or the credential need
    /// not be valid at this time. The caller must check that the node has its key.
    pub(crate) fn authenticate_renewal<T>(
        &self,
        request: &Request<T>,
    ) -> (Peer, Result<Node, Status>) {
        let node = match peer_certificate(request) {
            Some(certificate) => node_from_certificate(certificate),
            None if self.settings.bearer_credentials => {
                let verified =
                    self.authority.verify_expired_header(authorization(request.metadata()));
                let verified = verified.map_err(status::from_auth_error);
                verified.and_then(|caller| node_from_credential(&caller))
            }
            None => Err(Status::unauthenticated(NO_CERTIFICATE)),
        };
        self.admit_node(request, node)
    }

    fn identify_node<T>(&self, request: &Request<T>) -> Result<Node, Status> {
        let now = self.now();
        let Some(certificate) = peer_certificate(request) else {
            if !self.settings.bearer_credentials {
                return Err(Status::unauthenticated(NO_CERTIFICATE));
            }
            let caller = verify(&self.authority, request.metadata(), now);
            let caller = caller.map_err(status::from_auth_error)?;
            return node_from_credential(&caller);
        };
        let valid = certificate.check_validity(now);
        valid.map_err(|why| Status::unauthenticated(why.to_string()))?;
        node_from_certificate(certificate)
    }

    /// Applies the rate limit to a node, or to the address of a refused caller.
    fn admit_node<T>(
        &self,
        request: &Request<T>,
        node: Result<Node, Status>,
    ) -> (Peer, Result<Node, Status>) {
        let node = match node {
            Ok(node) => node,
            Err(refused) => return self.refuse_unauthenticated(request, refused),
        };
        ConnectionState::mark_authenticated(request, node.tenant);
        let peer = Peer::Host(node.tenant, node.host);
        let admitted = self.rate_limiter.admit(&peer);
        (peer, admitted.map(|()| node))
    }

    /// Authenticates one of EIM's nodes and applies the rate limit. Also returns the peer for the
    /// log.
    pub(crate) async fn authenticate_eim_node<T>(
        &self,
        request: &Request<T>,
        guid: &str,
    ) -> (Peer, Result<EimNode, Status>) {
        let (peer, called) = self.identify_eim_node(request, guid);
        match called {
            Ok(eim_node) => (peer, self.resolve_token_binding(eim_node).await),
            Err(refused) => (peer, Err(refused)),
        }
    }

    /// Resolves the host of an external token: the first host that used it or its subject. Each
    /// process loads the binding once and caches it.
    async fn resolve_token_binding(&self, eim_node: EimNode) -> Result<EimNode, Status> {
        let Some(token) = eim_node.external_token else {
            return Ok(eim_node);
        };
        let mut bound_host = self.token_bindings.get(&token.digest);
        if bound_host.is_none() {
            // It comes before calls of each kind, so it has the limit of the most important one.
            let guard = self.load.admit_to_database(eim_node.tenant, CallKind::Write);
            let _guard = guard.map_err(Overloaded::status)?;
            bound_host = status::with_database_timeout(async {
                let tx = self.store.tenant(eim_node.tenant).await;
                let tx = tx.map_err(status::from_store_error)?;
                self.bind_token(tx, token, eim_node.uuid).await
            })
            .await?;
        }
        Ok(EimNode { bound_host, ..eim_node })
    }

    /// Binds a token to the host with the UUID, unless it is bound already. A missing or untrusted
    /// host is not bound.
    ///
    /// A host with an agent of ours is refused, unless the token or its subject was bound before:
    /// then it belongs to EIM's agent that ours has replaced, which may still report a result.
    /// Otherwise another node could report runs and hardware of this host.
    async fn bind_token(
        &self,
        tx: Tx,
        token: NodeToken,
        uuid: Uuid,
    ) -> Result<Option<HostId>, Status> {
        let read = nodes::find_with_host(&tx, MachineKey::Uuid(uuid)).await;
        let read = none_if_missing(read).map_err(status::from_store_error)?;
        let Some((host, _)) = read.filter(|(host, _)| host.is_trusted()) else {
            // The token may still be bound to another host.
            let bound = node_tokens::find(&tx, &token.digest).await;
            return bound.map_err(status::from_store_error);
        };
        if !host.public_key.is_empty() {
            let bound = node_tokens::find_with_subject(&tx, &token).await;
            if bound.map_err(status::from_store_error)?.is_none() {
                return Err(Status::permission_denied(
                    "the host has an Evenkeel agent, and the token was not used for it before",
                ));
            }
        }
        let bound_host = node_tokens::bind(&tx, &token, host.id, tx.database_time()).await;
        let bound_host = bound_host.map_err(status::from_store_error)?;
        tx.commit().await.map_err(status::from_store_error)?;
        self.token_bindings.insert(token.digest, bound_host, token.expires_at);
        Ok(Some(bound_host))
    }

    /// Identifies one of EIM's nodes by its token and the UUID that it claims.
    fn identify_eim_node<T>(
        &self,
        request: &Request<T>,
        guid: &str,
    ) -> (Peer, Result<EimNode, Status>) {
        let agent = match eim_node_from_token(&self.authority, request.metadata(), self.now()) {
            Ok(agent) => agent,
            Err(refused) => return self.refuse_unauthenticated(request, refused),
        };
        ConnectionState::mark_authenticated(request, agent.tenant);
        let holder = agent.holder.clone();
        let uuid = match parse_guid(guid) {
            Ok(uuid) => uuid,
            Err(refused) => {
                let admitted = self.rate_limiter.admit(&holder);
                return (holder, admitted.and(Err(refused)));
            }
        };
        if agent.named_uuid.is_some_and(|named| named != uuid) {
            let refused = Status::permission_denied("the token belongs to another host");
            let admitted = self.rate_limiter.admit(&holder);
            return (holder, admitted.and(Err(refused)));
        }
        let eim_node = EimNode { uuid, ..agent };
        let node = eim_node.peer();
        if let Some(admitted) = self.rate_limiter.admit_existing(&node) {
            return (node, admitted.map(|()| eim_node));
        }
        let admitted = self.rate_limiter.admit(&holder);
        (holder, admitted.map(|()| eim_node))
    }

    /// Records the result of a call of one of EIM's nodes. A node is tracked by its UUID only once
    /// its host was found, because the UUID is only a claim. So a refusal of one node does not
    /// affect others that share its token.
    pub(crate) fn note_eim_call<T>(
        &self,
        (peer, eim_node): (Peer, Option<&EimNode>),
        call: &'static str,
        answer: &Result<T, Status>,
    ) {
        let claimant = eim_node.filter(|_| answer.is_err());
        let claimed_uuid = claimant.map(|eim_node| eim_node.uuid);
        self.note_with_uuid((&peer, claimed_uuid), call, answer);
        let Some(eim_node) = eim_node else {
            return;
        };
        if let Err(refused) = answer {
            // The host and its binding may have been deleted, so the next call loads the binding
            // again.
            let token = eim_node.external_token;
            if let Some(token) = token.filter(|_| refused.code() == Code::PermissionDenied) {
                self.token_bindings.remove(&token.digest);
            }
            return;
        }
        let node = eim_node.peer();
        if peer != node {
            self.rate_limiter.grant_own_bucket(&peer, &node);
        }
    }

    /// Refuses a caller without a valid credential and counts it for the rate limit of its address.
    fn refuse_unauthenticated<T, N>(
        &self,
        request: &Request<T>,
        refused: Status,
    ) -> (Peer, Result<N, Status>) {
        let peer = Peer::from_request(request);
        let admitted = self.rate_limiter.admit(&peer);
        (peer, admitted.and(Err(refused)))
    }
}

fn parse_guid(text: &str) -> Result<Uuid, Status> {
    let uuid = parse_uuid("host_guid", text).map_err(status::from_invalid)?;
    uuid.ok_or_else(|| Status::invalid_argument("host_guid: must not be empty"))
}

/// Identifies one of EIM's agents by its token. Only the token determines the project, no header
/// does. Only our own tokens name the host. The UUID and the binding of an external token are
/// filled in later.
fn eim_node_from_token(
    authority: &Authority,
    metadata: &MetadataMap,
    now: Time,
) -> Result<EimNode, Status> {
    let caller = verify(authority, metadata, now).map_err(status::from_auth_error)?;
    if caller.node_key.is_some() {
        // The database compares its key only for calls of our own agents.
        return Err(Status::permission_denied("the credential is that of an Evenkeel agent"));
    }
    let unauthenticated =
        || Status::unauthenticated("the token must name exactly one project of a node");
    let project = caller.node_project().ok_or_else(unauthenticated)?;
    let tenant = TenantId::new(project);
    let bound_host: Option<HostId> =
        if caller.issued_by_us { caller.subject.parse().ok() } else { None };
    let named_uuid = match &caller.node_subject {
        Some(NodeSubject::Uuid(uuid)) => Some(*uuid),
        _ => None,
    };
    let needs_binding = !caller.issued_by_us && named_uuid.is_none();
    Ok(EimNode {
        tenant,
        bound_host,
        uuid: Uuid::nil(),
        holder: match bound_host {
            Some(host) => Peer::Host(tenant, host),
            None => Peer::holder(tenant, &caller.subject),
        },
        external_token: needs_binding.then(|| NodeToken {
            digest: token_digest(metadata),
            subject: subject_digest(&caller),
            expires_at: caller.expires_at,
        }),
        named_uuid,
    })
}

/// The SHA-256 of the issuer and the subject of a token whose subject belongs to one host.
fn subject_digest(caller: &Caller) -> Option<SubjectDigest> {
    let Some(NodeSubject::FirstHost(subject)) = &caller.node_subject else {
        return None;
    };
    let issuer = Sha256::digest(caller.issuer.as_bytes());
    Some(Sha256::new().chain_update(issuer).chain_update(subject.as_bytes()).finalize().into())
}

/// The SHA-256 of the signed part of a verified token. The signature is excluded, because some
/// kinds of keys allow several signatures of the same content.
fn token_digest(metadata: &MetadataMap) -> node_tokens::TokenDigest {
    let bearer = authorization(metadata).unwrap_or_default().trim();
    let token = bearer.split_once(' ').map_or("", |(_, token)| token.trim());
    let signed = token.rsplit_once('.').map_or(token, |(signed, _)| signed);
    Sha256::digest(signed.as_bytes()).into()
}

fn verify(
    authority: &Authority,
    metadata: &MetadataMap,
    now: Time,
) -> Result<std::sync::Arc<Caller>, AuthError> {
    authority.verify_header(authorization(metadata), now)
}

fn authorization(metadata: &MetadataMap) -> Option<&str> {
    let value = metadata.get("authorization")?;
    Some(value.to_str().unwrap_or_default())
}
