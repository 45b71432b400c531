//! The section `files`: the files of operating systems, for nodes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_os_resource_manager::{Admission, FileSettings, Prefetch};
use serde::Deserialize;

/// The listener for files: HTTP/1.1 over TLS, with the certificate of the southbound listener.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Files {
    /// Without an address no files are served.
    pub(crate) listen: Option<SocketAddr>,
    /// Who gets files: `token` is nodes and those who may read in a project, `open` is everybody.
    pub(crate) auth: Admission,
    /// The folder that they are kept in, if not `files` in the data directory.
    pub(crate) dir: Option<PathBuf>,
    /// How much is kept at most, in bytes.
    pub(crate) max_bytes: u64,
    /// How much stays free on the disk at least, in bytes.
    pub(crate) keep_free: u64,
    /// Which are fetched before anybody asks: `newest` of the lines that nodes run, or `off`.
    pub(crate) prefetch: Prefetch,
    /// How many files are read at once.
    pub(crate) transfers: usize,
    /// How many of them by one node; 0 is without limit.
    pub(crate) transfers_per_node: usize,
    pub(crate) max_connections: usize,
    /// How long a request waits for a file that is not there yet.
    #[serde(with = "humantime_serde")]
    pub(crate) wait: Duration,
    /// How long a client may take for the TLS handshake.
    #[serde(with = "humantime_serde")]
    pub(crate) handshake_within: Duration,
    /// How long it may take to send the head of a request.
    #[serde(with = "humantime_serde")]
    pub(crate) head_within: Duration,
    /// How long a connection lasts at most.
    #[serde(with = "humantime_serde")]
    pub(crate) longest: Duration,
}

impl Default for Files {
    fn default() -> Self {
        let usual = FileSettings::default();
        Self {
            listen: None,
            auth: usual.admission,
            dir: None,
            max_bytes: usual.max_bytes,
            keep_free: usual.keep_free,
            prefetch: usual.prefetch,
            transfers: usual.transfers,
            transfers_per_node: usual.transfers_per_node,
            max_connections: 1_000,
            wait: usual.wait,
            handshake_within: Duration::from_secs(10),
            head_within: Duration::from_secs(10),
            longest: Duration::from_hours(6),
        }
    }
}

impl Files {
    /// What the service is told.
    pub(crate) fn settings(&self, data_dir: &Path) -> FileSettings {
        FileSettings {
            dir: self.dir.clone().unwrap_or_else(|| data_dir.join("files")),
            admission: self.auth,
            max_bytes: self.max_bytes,
            keep_free: self.keep_free,
            prefetch: self.prefetch,
            transfers: self.transfers,
            transfers_per_node: self.transfers_per_node,
            wait: self.wait,
            ..FileSettings::default()
        }
    }
}
