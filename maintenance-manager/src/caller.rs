//! Who is calling.

use std::time::Instant;

use evenkeel_auth::{AuthError, Authority, Caller};
use evenkeel_domain::Time;
use evenkeel_domain::host::{Host, parse_uuid};
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::node_tokens::{self, Digest};
use evenkeel_store::nodes::{self, Machine};
use evenkeel_store::{StoreError, Tx};
use sha2::{Digest as _, Sha256};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use uuid::Uuid;

use crate::carried::Carried;
use crate::manager::MaintenanceManager;
use crate::peer::Peer;
use crate::progress::found;
use crate::status;

/// One of our own nodes: its credential names its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its project.
    pub tenant: TenantId,
    /// Its host.
    pub host: HostId,
    /// Until when its credential counts.
    pub credential_expires: Time,
}

/// Which of our own nodes is calling.
fn node(authority: &Authority, metadata: &MetadataMap, now: Time) -> Result<Node, Status> {
    let caller = verified(authority, metadata, now).map_err(status::auth)?;
    let denied = || Status::permission_denied("this credential is not that of a node");
    let project = caller.node_of().ok_or_else(denied)?;
    if !caller.ours {
        return Err(denied());
    }
    Ok(Node {
        tenant: TenantId::new(project),
        host: caller.subject.parse().map_err(|_| denied())?,
        credential_expires: caller.expires_at,
    })
}

/// One of the ancestor's nodes: its token names its project, and it names itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Its project.
    pub tenant: TenantId,
    /// The host that the token speaks for and no other: it names it, if we issued it; else it was used for it first.
    pub bound: Option<HostId>,
    /// What it says that it is.
    pub uuid: Uuid,
    /// Who it is as far as its token proves it.
    pub holder: Peer,
    /// Its token, if that comes from outside and names no host of ours.
    pub outside: Option<OutsideToken>,
}

/// A token of an issuer outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideToken {
    digest: Digest,
    expires_at: Time,
}

impl Ancestor {
    /// The node, once its host was found.
    pub fn node(&self) -> Peer {
        self.holder.named(self.uuid)
    }
}

/// Whether the token of one of the ancestor's nodes is that of a host, which may be believed or not.
pub fn of_its_own(ancestor: &Ancestor, host: HostId) -> Result<(), Status> {
    if ancestor.bound.is_some_and(|bound| bound != host) {
        return Err(Status::permission_denied(
            "the token is that of another host",
        ));
    }
    Ok(())
}

/// Whether one of the ancestor's nodes may speak for a host.
pub fn of_host(ancestor: &Ancestor, host: &Host) -> Result<(), Status> {
    of_its_own(ancestor, host.id)?;
    if !host.is_trusted() {
        return Err(Status::unauthenticated("the host was invalidated"));
    }
    Ok(())
}

impl MaintenanceManager {
    /// Which of our own nodes is calling, if it does not call too often; and who that is for the log.
    pub(crate) fn node<T>(&self, request: &Request<T>) -> (Peer, Result<Node, Status>) {
        let node = match node(&self.authority, request.metadata(), self.now()) {
            Ok(node) => node,
            Err(refused) => return self.stranger(request, refused),
        };
        Carried::prove(request);
        let peer = Peer::Host(node.tenant, node.host);
        let admitted = self.flood.admit(&peer, Instant::now());
        (peer, admitted.map(|()| node))
    }

    /// Which of the ancestor's nodes is calling, if it does not call too often; and who that is for the log.
    pub(crate) async fn ancestor<T>(
        &self,
        request: &Request<T>,
        guid: &str,
    ) -> (Peer, Result<Ancestor, Status>) {
        let (peer, called) = self.claimed(request, guid);
        match called {
            Ok(ancestor) => (peer, self.bound(ancestor).await),
            Err(refused) => (peer, Err(refused)),
        }
    }

    /// Says to which host a token from outside belongs: to the one that used it first. That is looked up once in each
    /// process, and remembered.
    async fn bound(&self, ancestor: Ancestor) -> Result<Ancestor, Status> {
        let Some(token) = ancestor.outside else {
            return Ok(ancestor);
        };
        let mut bound = self.bonds.get(&token.digest);
        if bound.is_none() {
            bound = status::within(async {
                let tx = self.store.tenant(ancestor.tenant).await;
                let tx = tx.map_err(status::store)?;
                let made = self.bind(tx, token, ancestor.uuid).await;
                made.map_err(status::store)
            })
            .await?;
        }
        Ok(Ancestor { bound, ..ancestor })
    }

    /// Binds a token to the host that it is used for, unless it is bound. What is not there or not trusted takes nothing.
    async fn bind(
        &self,
        tx: Tx,
        token: OutsideToken,
        uuid: Uuid,
    ) -> Result<Option<HostId>, StoreError> {
        let read = nodes::read(&tx, Machine::Uuid(uuid)).await;
        let Some((host, _)) = found(read)?.filter(|(host, _)| host.is_trusted()) else {
            // It may be another's all the same.
            return node_tokens::find(&tx, &token.digest).await;
        };
        let (digest, now) = (&token.digest, self.now());
        let bound = node_tokens::bind(&tx, digest, host.id, token.expires_at, now).await?;
        tx.commit().await?;
        self.bonds.put(token.digest, bound, token.expires_at);
        Ok(Some(bound))
    }

    /// Which of the ancestor's nodes says that it is calling.
    fn claimed<T>(&self, request: &Request<T>, guid: &str) -> (Peer, Result<Ancestor, Status>) {
        let agent = match agent(&self.authority, request.metadata(), self.now()) {
            Ok(agent) => agent,
            Err(refused) => return self.stranger(request, refused),
        };
        Carried::prove(request);
        let (holder, now) = (agent.holder.clone(), Instant::now());
        let uuid = match guid_of(guid) {
            Ok(uuid) => uuid,
            Err(refused) => {
                let admitted = self.flood.admit(&holder, now);
                return (holder, admitted.and(Err(refused)));
            }
        };
        let ancestor = Ancestor { uuid, ..agent };
        let node = ancestor.node();
        if let Some(admitted) = self.flood.admit_known(&node, now) {
            return (node, admitted.map(|()| ancestor));
        }
        let admitted = self.flood.admit(&holder, now);
        (holder, admitted.map(|()| ancestor))
    }

    /// Notes how a call of one of the ancestor's nodes ended. Only one whose host was found is known by its UUID: it may
    /// say any. So what is answered to one of those who share a token says nothing about the others.
    pub(crate) fn note_ancestor<T>(
        &self,
        (peer, ancestor): (Peer, Option<&Ancestor>),
        call: &'static str,
        answer: &Result<T, Status>,
    ) {
        let said = ancestor.filter(|_| answer.is_err());
        let said = said.map(|ancestor| ancestor.uuid);
        self.note_saying((&peer, said), call, answer);
        let Some(ancestor) = ancestor else {
            return;
        };
        if let Err(refused) = answer {
            // The host that it belonged to may be gone, and the token with it: the next call looks.
            let token = ancestor.outside;
            if let Some(token) = token.filter(|_| refused.code() == Code::PermissionDenied) {
                self.bonds.forget(&token.digest);
            }
            return;
        }
        let node = ancestor.node();
        if peer != node {
            self.flood.found(&peer, &node, Instant::now());
        }
    }

    /// Somebody who could not prove anything, and may not try for ever.
    fn stranger<T, N>(&self, request: &Request<T>, refused: Status) -> (Peer, Result<N, Status>) {
        let peer = Peer::of(request);
        let admitted = self.flood.admit(&peer, Instant::now());
        (peer, admitted.and(Err(refused)))
    }
}

fn guid_of(text: &str) -> Result<Uuid, Status> {
    let uuid = parse_uuid("host_guid", text).map_err(status::invalid)?;
    uuid.ok_or_else(|| Status::invalid_argument("host_guid: must not be empty"))
}

/// For which project one of the ancestor's agents speaks. Its token does not name its host, unless we issued it. No
/// header of the call says more than the token (M19). What it says that it is does not come from there, nor to which host
/// a token from outside belongs.
fn agent(authority: &Authority, metadata: &MetadataMap, now: Time) -> Result<Ancestor, Status> {
    let caller = verified(authority, metadata, now).map_err(status::auth)?;
    let nobody =
        || Status::unauthenticated("the token names no project as that of a node, or several");
    let project = caller.node_of().ok_or_else(nobody)?;
    let tenant = TenantId::new(project);
    let bound: Option<HostId> = if caller.ours {
        caller.subject.parse().ok()
    } else {
        None
    };
    Ok(Ancestor {
        tenant,
        bound,
        uuid: Uuid::nil(),
        holder: match bound {
            Some(host) => Peer::Host(tenant, host),
            None => Peer::holder(tenant, &caller.subject),
        },
        outside: (!caller.ours).then(|| OutsideToken {
            digest: signed_digest(metadata),
            expires_at: caller.expires_at,
        }),
    })
}

/// The SHA-256 of what is signed in a token that was verified. The signature itself does not count: some kinds of keys have
/// several for the same.
fn signed_digest(metadata: &MetadataMap) -> Digest {
    let bearer = authorization(metadata).unwrap_or_default().trim();
    let token = bearer.split_once(' ').map_or("", |(_, token)| token.trim());
    let signed = token.rsplit_once('.').map_or(token, |(signed, _)| signed);
    Sha256::digest(signed.as_bytes()).into()
}

fn verified(
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
