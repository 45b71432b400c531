//! Options of a private Postgres.

use std::path::PathBuf;
use std::time::Duration;

/// Folder with the Postgres installations of Debian.
const DEBIAN_BINARIES: &str = "/usr/lib/postgresql";

/// Folder with the Postgres installation that tests use instead of Debian's.
const TEST_BINARIES_VARIABLE: &str = "EVENKEEL_TEST_POSTGRES_BINARIES";

/// Location and behaviour of a private Postgres.
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(crate) dir: PathBuf,
    pub(crate) binaries: PathBuf,
    pub(crate) durable: bool,
    pub(crate) create_databases: bool,
    pub(crate) max_connections: u16,
    pub(crate) start_timeout: Duration,
    pub(crate) settings: Vec<(String, String)>,
}

impl Options {
    /// A durable Postgres with all its files below `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            binaries: PathBuf::from(DEBIAN_BINARIES),
            durable: true,
            create_databases: false,
            max_connections: 100,
            start_timeout: Duration::from_mins(2),
            settings: Vec::new(),
        }
    }

    /// A Postgres for tests with all its files below `dir`: fast instead of durable. `EVENKEEL_TEST_POSTGRES_BINARIES`
    /// names the folder of its programs as for [`Self::binaries_in`], so that the same tests run on another version.
    #[expect(clippy::disallowed_methods, reason = "a switch of the tests")]
    pub fn for_tests(dir: impl Into<PathBuf>) -> Self {
        let options = Self::new(dir).durable(false);
        match std::env::var_os(TEST_BINARIES_VARIABLE) {
            Some(folder) => options.binaries_in(folder),
            None => options,
        }
    }

    /// Whether a commit survives a power cut. Use `false` for tests only: it is faster, and a stop does not flush.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Whether the role may create databases. Applied when the cluster is created.
    pub fn create_databases(mut self, allowed: bool) -> Self {
        self.create_databases = allowed;
        self
    }

    /// Maximum number of connections.
    pub fn max_connections(mut self, count: u16) -> Self {
        self.max_connections = count;
        self
    }

    /// How long a start may take, including recovery after a crash.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// An additional Postgres setting, as in `postgresql.conf`.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The folder with one folder per major version, each with a `bin`. Default: Debian's.
    pub fn binaries_in(mut self, folder: impl Into<PathBuf>) -> Self {
        self.binaries = folder.into();
        self
    }

    /// All settings for the command line. Those of the caller come last, so they win.
    pub(crate) fn command_line(&self, socket: &str) -> Vec<String> {
        let connections = self.max_connections.to_string();
        let mut settings = vec![
            ("listen_addresses", ""),
            ("unix_socket_directories", socket),
            ("unix_socket_permissions", "0700"),
            ("max_connections", connections.as_str()),
            ("timezone", "UTC"),
            ("log_timezone", "UTC"),
            ("lc_messages", "C"),
            ("log_destination", "stderr"),
            ("logging_collector", "off"),
            ("log_line_prefix", ""),
            // A statement may contain secrets, which must not be logged.
            ("log_min_error_statement", "panic"),
        ];
        if !self.durable {
            settings.extend([
                ("fsync", "off"),
                ("synchronous_commit", "off"),
                ("full_page_writes", "off"),
                ("autovacuum_naptime", "10min"),
                ("max_wal_size", "2GB"),
            ]);
        }
        let own = self.settings.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        settings
            .into_iter()
            .chain(own)
            .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durability_is_off_only_on_request() {
        let durable = Options::new("/x").command_line("/s").join(" ");
        assert!(!durable.contains("fsync"), "{durable}");
        let quick = Options::for_tests("/x").command_line("/s").join(" ");
        assert!(quick.contains("-c fsync=off -c synchronous_commit=off -c full_page_writes=off"));
    }

    #[test]
    fn settings_of_the_caller_come_last() {
        let line = Options::new("/x").setting("max_connections", "7").command_line("/s");
        assert_eq!(line.last().map(String::as_str), Some("max_connections=7"));
    }
}
