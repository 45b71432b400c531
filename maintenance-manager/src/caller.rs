//! Who is calling.

use evenkeel_auth::{AuthError, Authority, Caller};
use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use tonic::Status;
use tonic::metadata::MetadataMap;

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
pub fn node(authority: &Authority, metadata: &MetadataMap, now: Time) -> Result<Node, Status> {
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

/// For which project one of the ancestor's agents speaks. Its token does not name its host, unless we issued it.
pub fn agent(
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
