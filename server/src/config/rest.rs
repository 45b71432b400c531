//! Section `rest`: the REST API.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::listen::AuthenticatedLimits;

/// Listener of the REST API.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RestConfig {
    /// Listen address. Port 0 lets the system choose a port.
    pub(crate) listen: SocketAddr,
    /// Whether the listener uses TLS. If not set: with `certificate`, or plain HTTP on a loopback
    /// address; on another address the server does not start. `true` without `certificate` uses a
    /// certificate of the certificate authority in the data directory. `false` permits plain HTTP on
    /// every address.
    pub(crate) tls: Option<bool>,
    /// Additional DNS names and IP addresses of the certificate from that authority. The names of
    /// this machine and `southbound.server_names` are always included.
    pub(crate) server_names: Vec<String>,
    /// File with a certificate chain in PEM. The server uses a new file within seconds.
    pub(crate) certificate: Option<PathBuf>,
    /// File with the key of that certificate in PEM.
    pub(crate) key: Option<PathBuf>,
    /// Maximum number of open connections. Further connections wait until one is closed.
    pub(crate) max_connections: usize,
    /// Maximum number of open connections without a request with a valid token yet, at most half of
    /// `max_connections`. Above it, a new connection waits until one of them is older than 3 s, and
    /// replaces it. Connections of this machine and of `auth.login.trusted_proxies` do not count.
    pub(crate) max_unauthenticated_connections: usize,
    /// Maximum number of such connections per client address; 0 for no limit. A new connection
    /// replaces one that is older than 3 s, or is refused. Behind a proxy on another machine that is
    /// not trusted, all clients have its address.
    pub(crate) max_unauthenticated_per_address: usize,
    /// Maximum number of open connections per user with a valid token; 0 for no limit. If not set: a
    /// quarter of `max_connections`. A new connection replaces the oldest one without a running
    /// request; if there is none, its request is refused with status 503.
    pub(crate) max_connections_per_user: Option<usize>,
    /// Maximum number of such connections for all users of a project; 0 for no limit. If not set: half
    /// of `max_connections`. A connection counts for each project that the token of its user names.
    pub(crate) max_connections_per_project: Option<usize>,
    /// Maximum number of such connections per client address; 0 for no limit. If not set: half of
    /// `max_connections`. This machine and `auth.login.trusted_proxies` have no limit.
    pub(crate) max_connections_per_address: Option<usize>,
    /// Addresses of the proxies in front of the listener that forward TCP connections. Their connections
    /// must begin with a header of the PROXY protocol, version 2; limits by address, the access log and
    /// the change log use the address in it.
    pub(crate) trusted_proxies: Vec<IpAddr>,
    /// Maximum duration of the TLS handshake, and maximum time to receive the header of a request.
    #[serde(with = "humantime_serde")]
    pub(crate) header_timeout: Duration,
    /// Maximum duration of a request, including its body.
    #[serde(with = "humantime_serde")]
    pub(crate) request_timeout: Duration,
    /// Maximum size of a request body in bytes.
    pub(crate) body_limit: usize,
    /// Allowed CORS origins, for example `https://ui.example`; `*` allows all.
    pub(crate) cors_origins: Vec<String>,
    /// Maximum number of complete lists that are streamed at the same time. Each stream holds a
    /// database connection until its client has read the list, so at most a sixth of
    /// `database.max_connections` is used.
    pub(crate) max_streams: usize,
    /// Minimum number of bytes per second that the client of a streamed list must read; 0 for no minimum. The client
    /// may pause for 15 s. The server disconnects a slower client.
    pub(crate) min_stream_rate: u64,
    /// Maximum number of lists with an expensive filter that the database reads at the same time. Each uses a processor of
    /// the database. Others wait for 3 s and are then refused with status 503. 0 refuses all.
    pub(crate) max_expensive_lists: usize,
    /// Percentage of the time in which the database may read such a list, from 1 to 100. After each list, the next one
    /// waits for the remaining time, but at most for 2 s. Nodes can use the processor meanwhile.
    pub(crate) expensive_list_percentage: u8,
    /// Maximum number of streams of changes that are open at the same time; 0 refuses all. A user may open half of them, a
    /// project three quarters. Each needs a connection and at most about 500 KB of memory, and is closed if its client
    /// reads nothing for 15 s while there are events.
    pub(crate) max_watchers: usize,
}

impl Default for RestConfig {
    fn default() -> Self {
        let inventory = evenkeel_inventory::Settings::default();
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8080).into(),
            tls: None,
            server_names: Vec::new(),
            certificate: None,
            key: None,
            max_connections: 1_000,
            max_unauthenticated_connections: 500,
            max_unauthenticated_per_address: 100,
            max_connections_per_user: None,
            max_connections_per_project: None,
            max_connections_per_address: None,
            trusted_proxies: Vec::new(),
            header_timeout: Duration::from_secs(10),
            request_timeout: inventory.request_timeout,
            body_limit: inventory.body_limit,
            cors_origins: inventory.cors_origins,
            max_streams: inventory.max_streamed_lists,
            min_stream_rate: inventory.min_stream_rate,
            max_expensive_lists: inventory.max_expensive_lists,
            expensive_list_percentage: inventory.expensive_list_percentage,
            max_watchers: inventory.max_watchers,
        }
    }
}

impl RestConfig {
    /// Limits of the connections of users. One that is not set has at least one connection.
    pub(crate) fn authenticated_limits(&self) -> AuthenticatedLimits {
        let part = |limit: Option<usize>, parts: usize| {
            limit.unwrap_or_else(|| self.max_connections.div_ceil(parts).max(1))
        };
        AuthenticatedLimits {
            user: part(self.max_connections_per_user, 4),
            project: part(self.max_connections_per_project, 2),
            address: part(self.max_connections_per_address, 2),
        }
    }
}
