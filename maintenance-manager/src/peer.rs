//! Who a call is from, as far as it is known: what one peer does must not cost the others anything.

mod flood;
mod refusals;

pub use flood::{Flood, FloodSettings};
pub use refusals::Refusals;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::cut;
use tonic::Request;
use uuid::Uuid;

/// Who a call is from, as far as the caller cannot choose it: what it only says of itself is no key to anything here, or
/// it could be somebody else with each call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Whoever has the credential of a host, that we issued.
    Host(TenantId, HostId),
    /// One of the ancestor's nodes, by its UUID and by whose token speaks for it, once a host of the project that the token
    /// names was found to have it. Whoever has another token of the project is somebody else.
    Guid(TenantId, Arc<str>, Uuid),
    /// Whoever has a token for the ancestor's agents of a project: its subject, cut.
    Holder(TenantId, Arc<str>),
    /// Somebody who could not prove anything; the address is that of the last proxy.
    Unknown(Option<IpAddr>),
}

/// The longest subject that is told from others, in bytes.
const MAX_SUBJECT: usize = 128;

impl Peer {
    /// The sender of a request, before it has proved anything. Whoever has one address of IPv6 has 2^64 of them.
    pub fn of<T>(request: &Request<T>) -> Self {
        let address = request.remote_addr().map(|address| address.ip());
        Self::Unknown(address.map(|address| match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(all) => {
                let [a, b, c, d, ..] = all.segments();
                IpAddr::from([a, b, c, d, 0, 0, 0, 0])
            }
        }))
    }

    /// The holder of a verified token that is not bound to a host.
    pub fn holder(tenant: TenantId, subject: &str) -> Self {
        Self::Holder(tenant, cut(subject, MAX_SUBJECT).into())
    }

    /// The node that somebody speaks for who says that it has a UUID, once it was found. A token that is bound to a host
    /// speaks for no other.
    pub fn named(&self, uuid: Uuid) -> Self {
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
            Self::Holder(_, subject) => write!(f, "holder of the token of {subject:?}"),
            Self::Unknown(Some(address)) => address.fmt(f),
            Self::Unknown(None) => f.write_str("unknown"),
        }
    }
}
