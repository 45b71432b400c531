//! How to reach the database: its URL, and the file with its password.
//!
//! No error and no `Debug` of this module shows a part of the URL: a password with unescaped
//! characters may be parsed as a host, a path or a parameter.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_kit::Secret;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

/// The parameters of a URL that have an effect. Others are refused: sqlx would log them with their
/// values.
const PARAMETERS: [&str; 14] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    TARGET_SESSION_ATTRIBUTES,
    "user",
];

/// libpq's name for what every connection of the server requires: a database that can be written.
const TARGET_SESSION_ATTRIBUTES: &str = "target_session_attrs";

/// Why a database URL is refused. The message says how to fix it, and contains no part of the URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDatabaseUrl {
    #[error(
        "the database URL cannot be parsed; its form is postgres://user:password@host:5432/database?sslmode=verify-full, and special \
         characters of the user and the password are percent-encoded, for example @ as %40, : as %3A, / as %2F, ? as %3F, # as %23 \
         and % as %25"
    )]
    Malformed,
    #[error("the database URL has an unknown parameter; known are {}", PARAMETERS.join(", "))]
    UnknownParameter,
    #[error(
        "the database URL has an unknown sslmode; use verify-full, or require for a connection that is encrypted while the certificate \
         is not verified"
    )]
    UnknownSslMode,
    /// A certificate of any public authority for any name would be accepted.
    #[error(
        "the database URL has sslmode=verify-ca, which does not verify the host name and is not supported; use sslmode=verify-full"
    )]
    HostNotVerified,
    /// libpq would verify the certificate, sqlx would not.
    #[error(
        "the database URL has sslrootcert, but its sslmode does not verify the certificate; use sslmode=verify-full"
    )]
    RootCertificateNotUsed,
    #[error(
        "the database URL names another machine, and its sslmode permits a connection without TLS; add sslmode=verify-full, with \
         sslrootcert=FILE if the system does not trust the authority of the database, or set database.allow_unencrypted = true if \
         other machines cannot read the network"
    )]
    Unencrypted,
    #[error(
        "the database URL has several hosts in a parameter; name them before the database: postgres://user@one:5432,two:5432/database"
    )]
    HostList,
    #[error(
        "the database URL has an unknown target_session_attrs; the server always requires read-write"
    )]
    UnknownSessionAttributes,
}

/// Checks a database URL without a connection. Without `allow_unencrypted`, a connection to another
/// machine needs TLS.
///
/// # Errors
/// A server would refuse the URL.
pub fn check_database_url(url: &str, allow_unencrypted: bool) -> Result<(), InvalidDatabaseUrl> {
    DatabaseAddress::parse(url, allow_unencrypted).map(drop)
}

/// The role that a database URL names.
///
/// # Errors
/// The URL is not valid.
pub fn find_database_role(url: &str) -> Result<String, InvalidDatabaseUrl> {
    let address = DatabaseAddress::parse(url, true)?;
    let role = address.hosts.first().map(|host| host.get_username().to_owned());
    Ok(role.unwrap_or_default())
}

/// The file that a parameter of a valid database URL names for TLS, such as `sslrootcert`. None if
/// no connection reads it.
#[must_use]
pub fn find_tls_file(database_url: &str, parameter: &str) -> Option<PathBuf> {
    let address = DatabaseAddress::parse(database_url, true).ok()?;
    let uses_socket =
        |options: &PgConnectOptions| find_locality(options) == Some(Locality::UnixSocket);
    if address.hosts.iter().all(uses_socket) {
        return None;
    }
    let (_, query) = database_url.split_once('?')?;
    let mut pairs = url::form_urlencoded::parse(query.as_bytes());
    let (_, file) = pairs.find(|(name, _)| name == parameter)?;
    Some(PathBuf::from(file.into_owned()))
}

/// How to reach the database. `Debug` shows nothing of it. Clones share the current host.
#[derive(Clone)]
pub(crate) struct DatabaseAddress {
    /// At least one. All lead to the same database, of which one can be written.
    hosts: Arc<[PgConnectOptions]>,
    /// The number of the host for the next connection, modulo the number of hosts.
    current: Arc<AtomicUsize>,
    /// Counts what succeeded, if there are several hosts.
    successes: Arc<AtomicUsize>,
    password_file: Option<PathBuf>,
}

impl DatabaseAddress {
    /// Parses a URL. Without `allow_unencrypted`, a connection to another machine needs TLS.
    pub(crate) fn parse(url: &str, allow_unencrypted: bool) -> Result<Self, InvalidDatabaseUrl> {
        let urls = split_hosts(url)?;
        let hosts = urls.iter().map(|url| parse_host(url, allow_unencrypted));
        Ok(Self {
            hosts: hosts.collect::<Result<_, _>>()?,
            current: Arc::default(),
            successes: Arc::default(),
            password_file: None,
        })
    }

    /// Reads the password from a file for each new connection.
    pub(crate) fn with_password_file(self, password_file: Option<PathBuf>) -> Self {
        Self { password_file, ..self }
    }

    /// The options for a new connection, with the current host and password.
    ///
    /// # Errors
    /// The password file cannot be read.
    pub(crate) fn connect_options(&self) -> Result<PgConnectOptions, PasswordFileError> {
        let current = self.current.load(Ordering::Relaxed);
        let options = self.hosts[current % self.hosts.len()].clone();
        match &self.password_file {
            Some(path) => Ok(options.password(read_password(path)?.reveal())),
            None => Ok(options),
        }
    }

    /// Whether the next connection may use another host or another password than the last one.
    pub(crate) fn is_variable(&self) -> bool {
        self.hosts.len() > 1 || self.password_file.is_some()
    }

    pub(crate) fn host_count(&self) -> usize {
        self.hosts.len()
    }

    /// Begins to use the database.
    pub(crate) fn begin_attempt(&self) -> HostAttempt {
        let load = |number: &AtomicUsize| number.load(Ordering::Relaxed);
        HostAttempt { host: load(&self.current), successes: load(&self.successes) }
    }

    pub(crate) fn record_success(&self) {
        if self.hosts.len() > 1 {
            self.successes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Chooses the next host, unless another caller has done so since the attempt began. If another
    /// attempt has succeeded meanwhile, the host is not down but busy, and is kept.
    pub(crate) fn record_failure(&self, attempt: HostAttempt) {
        let order = Ordering::Relaxed;
        if self.successes.load(order) == attempt.successes {
            let next = attempt.host.wrapping_add(1);
            // If it fails, the host has changed already.
            let _ = self.current.compare_exchange(attempt.host, next, order, order);
        }
    }
}

/// An attempt to use the database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostAttempt {
    host: usize,
    successes: usize,
}

impl fmt::Debug for DatabaseAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Parses the URL of one host.
fn parse_host(url: &str, allow_unencrypted: bool) -> Result<PgConnectOptions, InvalidDatabaseUrl> {
    let parsed = PgConnectOptions::from_str(url).map_err(|_| InvalidDatabaseUrl::Malformed)?;
    let has_root_certificate = parameter(url, "sslrootcert").is_some();
    let options = match (parsed.get_ssl_mode(), find_locality(&parsed)) {
        // As libpq: there is no TLS on a Unix socket.
        (_, Some(Locality::UnixSocket)) => parsed.ssl_mode(PgSslMode::Disable),
        (PgSslMode::VerifyFull, _) => parsed,
        (PgSslMode::VerifyCa, _) => return Err(InvalidDatabaseUrl::HostNotVerified),
        _ if has_root_certificate => return Err(InvalidDatabaseUrl::RootCertificateNotUsed),
        (PgSslMode::Require, _) => parsed,
        (_, None) if !allow_unencrypted => return Err(InvalidDatabaseUrl::Unencrypted),
        _ => parsed,
    };
    // Poolers refuse unknown settings in the startup packet, and the default of Postgres is precise
    // enough.
    let options = options.application_name("evenkeel").extra_float_digits(None);
    Ok(options.disable_statement_logging())
}

/// The password file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the password of the database from {path}", path = path.display())]
pub(crate) struct PasswordFileError {
    path: PathBuf,
    source: std::io::Error,
}

/// The first line of the file.
fn read_password(path: &Path) -> Result<Secret, PasswordFileError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| PasswordFileError { path: path.to_owned(), source })?;
    Ok(Secret::new(text.lines().next().unwrap_or_default()))
}

/// A connection that other machines cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locality {
    UnixSocket,
    Loopback,
}

fn find_locality(options: &PgConnectOptions) -> Option<Locality> {
    let host = options.get_host();
    if options.get_socket().is_some() || host.starts_with('/') {
        return Some(Locality::UnixSocket);
    }
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = address == "localhost"
        || address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    is_loopback.then_some(Locality::Loopback)
}

/// Checks the parameters, removes the one that sqlx does not know, and returns one URL for each host.
fn split_hosts(url: &str) -> Result<Vec<String>, InvalidDatabaseUrl> {
    let (scheme, rest) = url.split_once("://").ok_or(InvalidDatabaseUrl::Malformed)?;
    if !matches!(scheme, "postgres" | "postgresql") {
        return Err(InvalidDatabaseUrl::Malformed);
    }
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut kept = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !(PARAMETERS.contains(&name) || name.starts_with("options[") && name.ends_with(']')) {
            return Err(InvalidDatabaseUrl::UnknownParameter);
        }
        match name {
            "sslmode" if PgSslMode::from_str(value).is_err() => {
                return Err(InvalidDatabaseUrl::UnknownSslMode);
            }
            "host" | "hostaddr" if value.contains(',') => {
                return Err(InvalidDatabaseUrl::HostList);
            }
            TARGET_SESSION_ATTRIBUTES if !matches!(value, "read-write" | "primary") => {
                return Err(InvalidDatabaseUrl::UnknownSessionAttributes);
            }
            TARGET_SESSION_ATTRIBUTES => {}
            _ => kept.push(pair),
        }
    }
    let (authority, path) = address.find('/').map_or((address, ""), |at| address.split_at(at));
    let (user, hosts) = authority
        .rsplit_once('@')
        .map_or(("", authority), |(user, hosts)| (&authority[..=user.len()], hosts));
    let (path, query) = (path, kept.join("&"));
    let hosts = hosts.split(',');
    Ok(hosts.map(|host| format!("{scheme}://{user}{host}{path}?{query}")).collect())
}

/// The value of a parameter of a URL, without decoding.
fn parameter<'a>(url: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = url.split_once('?')?;
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<DatabaseAddress, InvalidDatabaseUrl> {
        DatabaseAddress::parse(url, false)
    }

    fn ssl_mode(url: &str) -> String {
        let address = DatabaseAddress::parse(url, true).expect(url);
        format!("{:?}", address.hosts[0].get_ssl_mode())
    }

    #[test]
    fn a_machine_elsewhere_is_reached_with_tls_only() {
        let refused = Some(InvalidDatabaseUrl::Unencrypted);
        for host in
            ["db.example", "10.0.0.1", "[2001:db8::1]", "localhost.example", "127.1.example"]
        {
            for query in ["", "?sslmode=disable", "?sslmode=allow", "?sslmode=prefer"] {
                let url = format!("postgres://evenkeel:hush@{host}/evenkeel{query}");
                assert_eq!(parse(&url).err(), refused, "{url}");
                assert!(DatabaseAddress::parse(&url, true).is_ok(), "{url}");
            }
            for mode in ["require", "verify-full"] {
                let url = format!("postgres://evenkeel:hush@{host}/evenkeel?sslmode={mode}");
                assert_eq!(parse(&url).err(), None, "{url}");
            }
        }
        let elsewhere = "postgres:///evenkeel?host=db.example";
        assert_eq!(parse(elsewhere).err(), refused);
        let elsewhere = "postgres://localhost/evenkeel?hostaddr=10.0.0.1";
        assert_eq!(parse(elsewhere).err(), refused);
    }

    #[test]
    fn a_connection_on_this_machine_needs_no_tls() {
        for url in [
            "postgres://evenkeel@localhost/evenkeel",
            "postgres://evenkeel@127.0.0.1:5433/evenkeel",
            "postgres://evenkeel@127.0.0.2/evenkeel",
            "postgresql://evenkeel@[::1]/evenkeel?sslmode=disable",
            "postgres:///evenkeel?host=/run/postgresql&user=evenkeel",
            "postgres://evenkeel@%2Frun%2Fpostgresql/evenkeel",
        ] {
            assert_eq!(parse(url).err(), None, "{url}");
        }
        assert_eq!(ssl_mode("postgres:///e?host=/run/postgresql&sslmode=require"), "Disable");
        assert_eq!(ssl_mode("postgres://localhost/e"), "Prefer");
    }

    /// sqlx accepts any public certificate for verify-ca, and ignores the file for require.
    #[test]
    fn a_mode_that_would_verify_less_than_its_name_promises_is_refused() {
        let url = |query: &str| parse(&format!("postgres://db.example/evenkeel?{query}")).err();
        assert_eq!(url("sslmode=verify-ca"), Some(InvalidDatabaseUrl::HostNotVerified));
        let unused = Some(InvalidDatabaseUrl::RootCertificateNotUsed);
        assert_eq!(url("sslmode=require&sslrootcert=/ca.pem"), unused);
        assert_eq!(url("sslrootcert=/ca.pem"), unused);
        assert_eq!(url("sslmode=verify-full&sslrootcert=/ca.pem"), None);
        assert_eq!(url("sslmode=full"), Some(InvalidDatabaseUrl::UnknownSslMode));
    }

    #[test]
    fn the_files_of_a_connection_over_tls_are_found() {
        let find = |url: &str| find_tls_file(url, "sslrootcert");
        let query = "sslmode=verify-full&sslrootcert=/etc/my%20ca.pem";
        let expected = Some(PathBuf::from("/etc/my ca.pem"));
        assert_eq!(find(&format!("postgres://db.example/evenkeel?{query}")), expected);
        assert_eq!(find(&format!("postgres://localhost,db.example/evenkeel?{query}")), expected);
        assert_eq!(find(&format!("postgres:///evenkeel?host=/run/postgresql&{query}")), None);
        assert_eq!(find("postgres://db.example/evenkeel?sslmode=verify-full"), None);
        assert_eq!(find("not a URL"), None);
        let url = format!("postgres://db.example/evenkeel?{query}&sslkey=/etc/key.pem");
        assert_eq!(find_tls_file(&url, "sslkey"), Some(PathBuf::from("/etc/key.pem")));
        assert_eq!(find_tls_file(&url, "sslcert"), None);
    }

    #[test]
    fn the_hosts_of_a_url_are_used_in_turn() {
        let url = "postgres://u,1:p@one.example,two.example:5433,[::1]:5434/x?sslmode=require";
        let address = parse(url).expect("a URL");
        let next = || {
            let options = address.connect_options().expect("options");
            let host = (options.get_host().to_owned(), options.get_port());
            address.record_failure(address.begin_attempt());
            host
        };
        assert_eq!(next(), ("one.example".to_owned(), 5432));
        assert_eq!(next(), ("two.example".to_owned(), 5433));
        assert_eq!(next().1, 5434);
        assert_eq!(next(), ("one.example".to_owned(), 5432));
        let attempts = [address.begin_attempt(), address.begin_attempt()];
        for attempt in attempts {
            address.record_failure(attempt);
        }
        assert_eq!(next().1, 5434, "changed once for all who saw the host fail");
        let attempt = address.begin_attempt();
        address.record_success();
        address.record_failure(attempt);
        assert_eq!(next().1, 5432, "kept, because it is not down");

        let refused = Some(InvalidDatabaseUrl::Unencrypted);
        assert_eq!(
            parse("postgres://u:p@localhost,db.example/x").err(),
            refused,
            "each is checked"
        );
        let lists = Some(InvalidDatabaseUrl::HostList);
        assert_eq!(parse("postgres:///x?host=localhost,db.example").err(), lists);
        assert_eq!(parse("postgres:///x?hostaddr=127.0.0.1,10.0.0.1").err(), lists);
    }

    #[test]
    fn only_a_database_that_can_be_written_can_be_requested() {
        let url = |value: &str| {
            parse(&format!("postgres://localhost/evenkeel?target_session_attrs={value}")).err()
        };
        assert_eq!((url("read-write"), url("primary")), (None, None));
        assert_eq!(url("standby"), Some(InvalidDatabaseUrl::UnknownSessionAttributes));
    }

    #[test]
    fn no_error_and_no_debug_text_contains_a_part_of_the_url() {
        for url in [
            "postgres://u:HUSH@127.0.0.1:bad/x",
            "postgres://u:HUSH@127.0.0.1:99999/x",
            "postgres://u:HU/HUSH@db/x",
            "postgres://u:12/HUSH@db/x",
            "postgres://u:12?HUSH@db/x",
            "postgres://u:12?a=b&HUSH=1@db/x",
            "postgres://u:12#HUSH@db/x",
            "postgres://u:HUSH@/x@",
            "postgres://u:%ffHUSH@db/x?sslmode=require",
            "postgres://u:HUSH@[::1/x",
            "postgres://u:HUSH@db.example/x",
            "postgres://u:HUSH@a,b/x",
            "postgres://u@db/x?password=HUSH",
            "postgres://u@db/x?passwrod=HUSH",
            "postgres://u@localhost/x?sslmode=HUSH",
            "postgres://u@localhost/x?port=HUSH",
            "postgres://u@localhost/x?hostaddr=HUSH",
            "postgres://u@localhost/x?statement-cache-capacity=HUSH",
            "postgres://u@localhost/x?target_session_attrs=HUSH",
            "mysql://u:HUSH@db/x",
            "u:HUSH@db/x",
            "HUSH",
            "host=db password=HUSH",
            "postgres://u:HUSH@localhost/x",
        ] {
            let text = match parse(url) {
                Ok(address) => format!("{address:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!text.contains("HUSH"), "{url}: {text}");
        }
    }

    #[test]
    fn the_password_is_read_from_its_file_at_each_connection() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        let address = parse("postgres://u:old@localhost/x").expect("a URL");
        let address = address.with_password_file(Some(file.clone()));
        let error = address.connect_options().expect_err("there is no file").to_string();
        assert!(error.contains("password") && error.ends_with("password"), "{error}");
        for password in ["one", "two words"] {
            std::fs::write(&file, format!("{password}\n")).expect("written");
            let options = address.connect_options().expect("a password");
            let url = options.to_url_lossy();
            assert_eq!(url.password(), Some(&*password.replace(' ', "%20")));
        }
    }
}
