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
            Err(refused) => return (Peer::of(request), Err(refused)),
        };
        let peer = Peer::Host(node.tenant, node.host);
        let admitted = self.flood.admit(peer, Instant::now());
        (peer, admitted.map(|()| node))
    }

    /// Which of the ancestor's nodes is calling, if it does not call too often; and who that is for the log.
    pub(crate) fn ancestor<T>(
        &self,
        request: &Request<T>,
        guid: &str,
    ) -> (Peer, Result<Ancestor, Status>) {
        let ancestor = match ancestor(&self.authority, request.metadata(), guid, self.now()) {
            Ok(ancestor) => ancestor,
            Err(refused) => return (Peer::of(request), Err(refused)),
        };
        let peer = Peer::Guid(ancestor.tenant, ancestor.uuid);
        let admitted = self.flood.admit(peer, Instant::now());
        (peer, admitted.map(|()| ancestor))
    }
}

fn ancestor(
    authority: &Authority,
    metadata: &MetadataMap,
    guid: &str,
    now: Time,
) -> Result<Ancestor, Status> {
    let (tenant, bound) = agent(authority, metadata, now)?;
    let uuid = parse_uuid("host_guid", guid).map_err(status::invalid)?;
    let uuid = uuid.ok_or_else(|| Status::invalid_argument("host_guid: must not be empty"))?;
    Ok(Ancestor {
        tenant,
        bound,
        uuid,
    })
}

/// For which project one of the ancestor's agents speaks. Its token does not name its host, unless we issued it. No
/// header of the call says more than the token (M19).
fn agent(
    authority: &Authority,
    metadata: &MetadataMap,
    now: Time,
) -> Result<(TenantId, Option<HostId>), Status> {
    let caller = verified(authority, metadata, now).map_err(status::auth)?;
    let nobody =
        || Status::unauthenticated("the token names no project as that of a node, or several");
    let project = caller.node_of().ok_or_else(nobody)?;
    let host = if caller.ours {
        caller.subject.parse().ok()
    } else {
        None
    };
    Ok((TenantId::new(project), host))
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
