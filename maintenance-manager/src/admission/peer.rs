//! The peer of a call, as far as it is authenticated. Limits per peer keep one peer from affecting
//! others.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::cut;
use tonic::Request;
use uuid::Uuid;

/// The peer of a call. It contains only what the caller cannot choose; otherwise a caller could
/// appear as a new peer with each call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The owner of a credential that we issued for a host.
    Host(TenantId, HostId),
    /// One of EIM's nodes: its UUID and the subject of its token, once a host with this UUID was
    /// found in the project of the token. Another token of the project is another peer.
    Guid(TenantId, Arc<str>, Uuid),
    /// The owner of a token for EIM's agents of a project, by the subject of the token, cut.
    Holder(TenantId, Arc<str>),
    /// An unauthenticated caller, by the address of the last proxy.
    Unknown(Option<IpAddr>),
}

/// The maximum length of a subject that is compared, in bytes.
const MAX_SUBJECT_BYTES: usize = 128;

impl Peer {
    /// The sender of a request before authentication. IPv6 addresses count by their /64 network,
    /// because one caller usually has a whole network.
    pub fn from_request<T>(request: &Request<T>) -> Self {
        let address = request.remote_addr().map(|address| address.ip());
        Self::Unknown(address.map(|address| match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(all) => {
                let [a, b, c, d, ..] = all.segments();
                IpAddr::from([a, b, c, d, 0, 0, 0, 0])
            }
        }))
    }

    /// The owner of a verified token that is not bound to a host.
    pub fn holder(tenant: TenantId, subject: &str) -> Self {
        Self::Holder(tenant, cut(subject, MAX_SUBJECT_BYTES).into())
    }

    /// The peer of a node that claims a UUID, once its host was found. A token that is bound to a
    /// host stays the peer of that host.
    pub fn with_uuid(&self, uuid: Uuid) -> Self {
        match self {
            Self::Holder(tenant, subject) => Self::Guid(*tenant, Arc::clone(subject), uuid),
            other => other.clone(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(_, host) => host.fmt(f),
            Self::Guid(_, subject, guid) => write!(f, "{guid} with the token of {subject:?}"),
            Self::Holder(_, subject) => write!(f, "owner of the token of {subject:?}"),
            Self::Unknown(Some(address)) => address.fmt(f),
            Self::Unknown(None) => f.write_str("unknown"),
        }
    }
}
