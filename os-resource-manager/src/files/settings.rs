//! What serving files can be told.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

const GIB: u64 = 1024 * 1024 * 1024;

/// Who gets files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// Nodes and those who may read in a project, by their token: what a profile of their project names.
    #[default]
    Token,
    /// Everybody, without being asked who it is: what a profile of any project names.
    Open,
}

/// Which files are fetched before anybody asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prefetch {
    /// Of each line of images that a node runs, the newest one.
    #[default]
    Newest,
    /// None.
    Off,
}

/// How files are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSettings {
    /// The folder that they are kept in. It belongs to one process at a time.
    pub dir: PathBuf,
    /// Who gets them.
    pub admission: Admission,
    /// How much is kept at most, in bytes.
    pub max_bytes: u64,
    /// How much stays free on the disk at least, in bytes.
    pub keep_free: u64,
    /// Which are fetched before anybody asks.
    pub prefetch: Prefetch,
    /// How many answers are under way at once.
    pub transfers: usize,
    /// How many of them are one node's; 0 is without limit.
    pub transfers_per_node: usize,
    /// How long a request waits for a file that is not there yet.
    pub wait: Duration,
    /// How long a request waits for the database to say which files there are.
    pub look: Duration,
    /// How long a registry is not asked again for what was not what it should be.
    pub rest: Duration,
    /// How long is waited before what broke off is taken up again; later pauses are longer.
    pub pause: Duration,
}

impl Default for FileSettings {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("files"),
            admission: Admission::default(),
            max_bytes: 50 * GIB,
            keep_free: 5 * GIB,
            prefetch: Prefetch::default(),
            transfers: 200,
            transfers_per_node: 4,
            wait: Duration::from_mins(1),
            look: Duration::from_secs(20),
            rest: Duration::from_mins(10),
            pause: Duration::from_millis(500),
        }
    }
}
