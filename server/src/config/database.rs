//! Connection to Postgres.

use std::path::PathBuf;
use std::time::Duration;

use evenkeel_kit::Secret;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DatabaseConfig {
    /// Connection URL, `postgres://…`. Without it, `evenkeeld all` starts a private Postgres.
    #[serde(skip_serializing)]
    pub(crate) url: Option<Secret>,
    /// Connection URL of another role, which owns the tables and migrates the schema. The role of `url` then can only add
    /// rows to the change log. Only `evenkeeld migrate` and `evenkeeld all` use it.
    #[serde(skip_serializing)]
    pub(crate) migration_url: Option<Secret>,
    /// File whose first line is the password, instead of a password in the URL. It is read at the
    /// start, and again when the database cannot be reached.
    pub(crate) password_file: Option<PathBuf>,
    /// Whether the connection to a database on another machine may be without TLS.
    pub(crate) allow_unencrypted: bool,
    /// Directory of the Postgres installations for the private Postgres: one directory per version,
    /// each with a `bin` directory.
    pub(crate) binaries: PathBuf,
    /// Maximum number of database connections of this process. From 8 on, nodes, reads and writes
    /// of the REST API, logins, and streamed lists each have their own share; nodes have the rest.
    pub(crate) max_connections: u32,
    /// Number of connections for requests to the REST API that read. If not set: a sixth of `max_connections`.
    pub(crate) rest_read_connections: Option<u32>,
    /// Number of connections for requests to the REST API that write. If not set: a tenth of `max_connections`.
    pub(crate) rest_write_connections: Option<u32>,
    /// Maximum duration of a statement that reads a list.
    #[serde(with = "humantime_serde")]
    pub(crate) list_statement_timeout: Duration,
    /// Maximum time that a request waits for a database connection. Afterwards the database counts
    /// as unreachable.
    #[serde(with = "humantime_serde")]
    pub(crate) acquire_timeout: Duration,
}

impl Default for DatabaseConfig {
    fn default() -> Self {
        Self {
            url: None,
            migration_url: None,
            password_file: None,
            allow_unencrypted: false,
            binaries: PathBuf::from("/usr/lib/postgresql"),
            max_connections: 32,
            rest_read_connections: None,
            rest_write_connections: None,
            list_statement_timeout: Duration::from_secs(3),
            acquire_timeout: Duration::from_secs(3),
        }
    }
}
