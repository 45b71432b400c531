//! Section `files`: files of operating systems for nodes.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_os_resource_manager::{Admission, FileSettings, Prefetch};
use serde::{Deserialize, Serialize};

/// Listener for files: HTTP/1.1 over TLS with the certificate of the southbound listener.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FilesConfig {
    /// Listen address. Without it, no files are served.
    pub(crate) listen: Option<SocketAddr>,
    /// Who may fetch files.
    pub(crate) auth: Admission,
    /// Directory of the stored files. If not set: `files` in the data directory. Only one process
    /// at a time can use it.
    pub(crate) dir: Option<PathBuf>,
    /// Maximum size of the stored files in bytes.
    pub(crate) max_bytes: u64,
    /// Space that stays free on the disk, in bytes.
    pub(crate) min_free_bytes: u64,
    /// Which files are fetched before they are requested.
    pub(crate) prefetch: Prefetch,
    /// Maximum number of concurrent transfers. The callers of one project have at most three quarters
    /// of them.
    pub(crate) max_transfers: usize,
    /// Maximum number of concurrent transfers per node; 0 for no limit.
    pub(crate) max_transfers_per_node: usize,
    /// Maximum number of open connections. Further connections wait until one is closed.
    pub(crate) max_connections: usize,
    /// Maximum number of open connections on which no request was served yet, at most half of
    /// `max_connections`. Above it, a new connection waits until one of them is older than 3 s, and
    /// replaces it.
    pub(crate) max_unauthenticated_connections: usize,
    /// Maximum number of such connections per client address; 0 for no limit. A new connection
    /// replaces one that is older than 3 s, or is refused.
    pub(crate) max_unauthenticated_per_address: usize,
    /// Addresses of the proxies in front of the listener. Their connections must begin with a
    /// header of the PROXY protocol, version 2; limits by address use the address in it.
    pub(crate) trusted_proxies: Vec<IpAddr>,
    /// Maximum time that a request waits for a file that is not stored yet.
    #[serde(with = "humantime_serde")]
    pub(crate) wait_timeout: Duration,
    /// Maximum duration of the TLS handshake.
    #[serde(with = "humantime_serde")]
    pub(crate) handshake_timeout: Duration,
    /// Maximum time to receive the header of a request.
    #[serde(with = "humantime_serde")]
    pub(crate) header_timeout: Duration,
    /// Maximum lifetime of a connection.
    #[serde(with = "humantime_serde")]
    pub(crate) max_connection_age: Duration,
}

impl Default for FilesConfig {
    fn default() -> Self {
        let usual = FileSettings::default();
        Self {
            listen: None,
            auth: usual.admission,
            dir: None,
            max_bytes: usual.max_bytes,
            min_free_bytes: usual.min_free_bytes,
            prefetch: usual.prefetch,
            max_transfers: usual.max_transfers,
            max_transfers_per_node: usual.max_transfers_per_node,
            max_connections: 1_000,
            max_unauthenticated_connections: 200,
            max_unauthenticated_per_address: 100,
            trusted_proxies: Vec::new(),
            wait_timeout: usual.wait_timeout,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            max_connection_age: Duration::from_hours(6),
        }
    }
}

impl FilesConfig {
    /// Settings of the file service. `bearer_credentials` is the setting of the maintenance
    /// manager.
    pub(crate) fn file_settings(&self, data_dir: &Path, bearer_credentials: bool) -> FileSettings {
        FileSettings {
            dir: self.dir.clone().unwrap_or_else(|| data_dir.join("files")),
            admission: self.auth,
            bearer_credentials,
            max_bytes: self.max_bytes,
            min_free_bytes: self.min_free_bytes,
            prefetch: self.prefetch,
            max_transfers: self.max_transfers,
            max_transfers_per_node: self.max_transfers_per_node,
            wait_timeout: self.wait_timeout,
            ..FileSettings::default()
        }
    }
}
