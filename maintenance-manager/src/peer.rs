//! Who a call is from, as far as it is known: what one peer does must not cost the others anything.

mod flood;
mod refusals;

pub use flood::{Flood, FloodSettings};
pub use refusals::Refusals;

use std::fmt;
use std::net::IpAddr;

use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use tonic::Request;
use uuid::Uuid;

/// Who a call is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A node of ours, by its credential.
    Host(TenantId, HostId),
    /// A node of the ancestor's, by what it says of itself, in a project that its token names.
    Guid(TenantId, Uuid),
    /// Somebody who could not prove anything; the address is that of the last proxy.
    Unknown(Option<IpAddr>),
}

impl Peer {
    /// The sender of a request, before it has proved anything.
    pub fn of<T>(request: &Request<T>) -> Self {
        Self::Unknown(request.remote_addr().map(|address| address.ip()))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(_, host) => host.fmt(f),
            Self::Guid(_, guid) => guid.fmt(f),
            Self::Unknown(Some(address)) => address.fmt(f),
            Self::Unknown(None) => f.write_str("unknown"),
        }
    }
}
