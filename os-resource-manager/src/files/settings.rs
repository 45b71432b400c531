//! Settings of the file service.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const GIB: u64 = 1024 * 1024 * 1024;

/// Who gets files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// Nodes, and users who may read a project. They need a client certificate or a token, and get
    /// the files of their projects.
    #[default]
    Token,
    /// Everybody, without authentication, for the files of all projects.
    Open,
}

/// Which files are downloaded before they are requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prefetch {
    /// The newest image of each series that a node runs.
    #[default]
    Newest,
    /// No file.
    Off,
}

/// Settings of the file service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSettings {
    /// Folder of the cache. Only one process at a time can use it.
    pub dir: PathBuf,
    /// Who gets files.
    pub admission: Admission,
    /// Whether a node of ours may authenticate with a credential instead of a client certificate.
    pub bearer_credentials: bool,
    /// Maximum size of the cache, in bytes.
    pub max_bytes: u64,
    /// Space that stays free on the disk, in bytes.
    pub min_free_bytes: u64,
    /// Which files are downloaded before they are requested.
    pub prefetch: Prefetch,
    /// Maximum number of concurrent responses with a file; of one project, three quarters of it.
    pub max_transfers: usize,
    /// The same per node; 0 for no limit.
    pub max_transfers_per_node: usize,
    /// How long a request waits for a running download.
    pub wait_timeout: Duration,
    /// How long a request waits for the database.
    pub lookup_timeout: Duration,
    /// How long a file with wrong content is not downloaded again.
    pub bad_file_retry_interval: Duration,
}

impl Default for FileSettings {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("files"),
            admission: Admission::default(),
            bearer_credentials: false,
            max_bytes: 50 * GIB,
            min_free_bytes: 5 * GIB,
            prefetch: Prefetch::default(),
            max_transfers: 200,
            max_transfers_per_node: 4,
            wait_timeout: Duration::from_mins(1),
            lookup_timeout: Duration::from_secs(20),
            bad_file_retry_interval: Duration::from_mins(10),
        }
    }
}
