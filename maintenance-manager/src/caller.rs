//! Who is calling.

use std::time::Instant;

use evenkeel_auth::{AuthError, Authority, Caller};
use evenkeel_domain::Time;
use evenkeel_domain::host::{Host, parse_uuid};
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};
use uuid::Uuid;

use crate::manager::MaintenanceManager;
use crate::peer::Peer;
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
    /// The host that the token names, if we issued it.
    pub bound: Option<HostId>,
    /// What it says that it is.
    pub uuid: Uuid,
    /// Who it is as far as its token proves it.
    pub holder: Peer,
}

impl Ancestor {
    /// The node, once its host was found.
    pub fn node(&self) -> Peer {
        self.holder.named(self.uuid)
    }
}

/// Whether one of the ancestor's nodes may speak for a host.
pub fn of_host(ancestor: &Ancestor, host: &Host) -> Result<(), Status> {
    if ancestor.bound.is_some_and(|bound| bound != host.id) {
        return Err(Status::permission_denied(
            "the token is that of another host",
        ));
    }
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
        let peer = Peer::Host(node.tenant, node.host);
        let admitted = self.flood.admit(&peer, Instant::now());
        (peer, admitted.map(|()| node))
    }

    /// Which of the ancestor's nodes is calling, if it does not call too often; and who that is for the log.
    pub(crate) fn ancestor<T>(
        &self,
        request: &Request<T>,
        guid: &str,
    ) -> (Peer, Result<Ancestor, Status>) {
        let agent = match agent(&self.authority, request.metadata(), self.now()) {
            Ok(agent) => agent,
            Err(refused) => return self.stranger(request, refused),
        };
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
        let Some(ancestor) = ancestor.filter(|_| answer.is_ok()) else {
            return;
        };
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
/// header of the call says more than the token (M19). What it says that it is does not come from there.
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
    })
}

fn verified(
    authority: &Authority,
    metadata: &MetadataMap,
    now: Time,
) -> Result<std::sync::Arc<Caller>, AuthError> {
    let header = metadata
        .get("authorization")
        .map(|value| value.to_str().unwrap_or_default());
    authority.verify_header(header, now)
}
