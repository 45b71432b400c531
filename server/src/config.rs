//! Server configuration: a TOML file, overridden by environment variables, overridden by the
//! command line. Each section belongs to one part of the server. An unknown key is an error.

mod auth;
mod connection_shares;
mod database;
mod defaults;
mod faults;
mod files;
mod http_tls;
mod listen_addresses;
mod rest;
mod traces;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use chrono::TimeDelta;
use evenkeel_inventory::OsDefaults;
use evenkeel_kit::max_per_project;
use evenkeel_kit::telemetry::LogConfig;
use evenkeel_maintenance_manager::MAX_MESSAGE_BYTES;
use evenkeel_os_resource_manager::FileSettings;
use evenkeel_store::decisions::PlanningLimits;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::{Deserialize, Serialize};

use crate::Cli;

pub(crate) use auth::{AuthConfig, IssuerConfig, LoginConfig, is_origin};
pub(crate) use database::DatabaseConfig;
pub use defaults::default_settings;
pub(crate) use files::FilesConfig;
pub(crate) use http_tls::{AdminConfig, HttpSecurity, HttpTlsSettings};
pub(crate) use rest::RestConfig;
pub(crate) use traces::TracingConfig;

/// Default configuration file.
const DEFAULT_CONFIG_FILE: &str = "/etc/evenkeel/evenkeeld.toml";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Directory for keys, certificates and the private Postgres.
    pub(crate) data_dir: PathBuf,
    /// Maximum duration of a graceful shutdown. Then open calls are aborted.
    #[serde(with = "humantime_serde")]
    pub(crate) shutdown_timeout: Duration,
    pub(crate) log: LogConfig,
    /// Connection to Postgres.
    pub(crate) database: DatabaseConfig,
    pub(crate) rest: RestConfig,
    pub(crate) southbound: SouthboundConfig,
    pub(crate) admin: AdminConfig,
    /// Authentication of users and programs, signing keys and certificate authority.
    pub(crate) auth: AuthConfig,
    /// The service that agents poll. It is used by `evenkeeld all` and `evenkeeld
    /// maintenance-manager`.
    pub(crate) maintenance_manager: evenkeel_maintenance_manager::Settings,
    /// The catalogue of operating systems and its registries. It is used by `evenkeeld all` and
    /// `evenkeeld os-resource-manager`.
    pub(crate) os_resource_manager: evenkeel_os_resource_manager::Settings,
    pub(crate) files: FilesConfig,
    pub(crate) tracing: TracingConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("/var/lib/evenkeel"),
            shutdown_timeout: Duration::from_secs(20),
            log: LogConfig {
                // Notices of Postgres during migrations are not useful in normal operation.
                level: "info,sqlx::postgres::notice=warn".to_owned(),
                ..LogConfig::default()
            },
            database: DatabaseConfig::default(),
            rest: RestConfig::default(),
            southbound: SouthboundConfig::default(),
            admin: AdminConfig::default(),
            auth: AuthConfig::default(),
            maintenance_manager: evenkeel_maintenance_manager::Settings::default(),
            os_resource_manager: evenkeel_os_resource_manager::Settings::default(),
            files: FilesConfig::default(),
            tracing: TracingConfig::default(),
        }
    }
}

/// Listener for agents: gRPC over TLS.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SouthboundConfig {
    /// Listen address. Port 0 lets the system choose a port.
    pub(crate) listen: SocketAddr,
    /// Additional DNS names and IP addresses of the server's certificate. The names of this machine
    /// are always included.
    pub(crate) server_names: Vec<String>,
    /// File with a certificate chain in PEM. Without it, the certificate authority in the data
    /// directory issues the certificate.
    pub(crate) certificate: Option<PathBuf>,
    /// File with the key of that certificate in PEM.
    pub(crate) key: Option<PathBuf>,
    /// File with the certificate of the issuing authority in PEM; join tokens then contain its
    /// digest. Without it, agents verify the certificate with the root certificates of their
    /// system.
    pub(crate) ca: Option<PathBuf>,
    /// Maximum number of open connections. Further connections wait until one is closed. Each
    /// connection needs a file descriptor.
    pub(crate) max_connections: usize,
    /// Maximum number of open connections without an authenticated call yet, at most half of
    /// `max_connections`. Nodes that are refused because of overload count as well until their next
    /// call. Above the limit, a new connection waits until one of them is older than 3 s, and
    /// replaces it.
    pub(crate) max_unauthenticated_connections: usize,
    /// Maximum number of such connections per client address; 0 for no limit. A new connection
    /// replaces one that is older than 3 s, or is refused. Nodes behind one NAT router share an
    /// address, but they count only until their first call.
    pub(crate) max_unauthenticated_per_address: usize,
    /// Maximum number of open connections per node that shows a client certificate; 0 for no limit.
    /// A new connection replaces the oldest one of its node. Bearer credentials are not limited,
    /// because a proxy may share one connection among many nodes.
    pub(crate) max_connections_per_node: usize,
    /// Addresses of the proxies in front of the listener. Their connections must begin with a
    /// header of the PROXY protocol, version 2; limits by address use the address in it.
    pub(crate) trusted_proxies: Vec<IpAddr>,
    /// Maximum memory of this process in bytes; 0 for no limit. From 90 % of it on, new connections
    /// are refused with a retry delay, and polls are answered at once instead of held open.
    pub(crate) memory_limit: u64,
    /// Maximum number of concurrent calls per connection.
    pub(crate) max_calls_per_connection: u32,
    /// Maximum duration of the TLS handshake, including the first data of the client.
    #[serde(with = "humantime_serde")]
    pub(crate) handshake_timeout: Duration,
    /// Maximum lifetime of a connection without an authenticated call; 0 for no limit. It should be
    /// longer than the timeout of a message and the retry delay of refused calls.
    #[serde(with = "humantime_serde")]
    pub(crate) authentication_timeout: Duration,
    /// Maximum duration of a call; must be longer than the longest long poll.
    #[serde(with = "humantime_serde")]
    pub(crate) request_timeout: Duration,
    /// Idle time of a connection before TCP keepalive probes start.
    #[serde(with = "humantime_serde")]
    pub(crate) tcp_keepalive_idle: Duration,
}

impl Default for SouthboundConfig {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::UNSPECIFIED, 50_002).into(),
            server_names: Vec::new(),
            certificate: None,
            key: None,
            ca: None,
            max_connections: 100_000,
            max_unauthenticated_connections: 50_000,
            max_unauthenticated_per_address: 10_000,
            max_connections_per_node: 16,
            trusted_proxies: Vec::new(),
            memory_limit: 0,
            max_calls_per_connection: 32,
            handshake_timeout: Duration::from_secs(10),
            authentication_timeout: Duration::from_mins(5),
            request_timeout: Duration::from_hours(2),
            tcp_keepalive_idle: Duration::from_mins(1),
        }
    }
}

impl Config {
    /// Loads and checks the configuration.
    ///
    /// # Errors
    /// Names all unknown settings and invalid values that were found.
    pub(crate) fn load(cli: &Cli) -> anyhow::Result<Self> {
        let read = Self::read(cli.config.as_deref(), cli.data_dir.as_deref());
        let checked = read.and_then(|config| match config.find_faults() {
            faults if faults.is_empty() => Ok(config),
            faults => Err(faults),
        });
        checked.map_err(|faults| match faults.as_slice() {
            [one] => anyhow!("the configuration is invalid: {one}"),
            several => anyhow!("the configuration is invalid:\n  {}", several.join("\n  ")),
        })
    }

    /// Violations of rules between different settings.
    fn find_faults(&self) -> Vec<String> {
        let checks = [
            self.check_expensive_lists(),
            self.check_message_memory(),
            self.check_long_polls(),
            self.connection_shares().map(drop),
            self.rest_tls().security().map(drop),
            self.admin_tls().security().map(drop),
            self.tracing.check(),
        ];
        let mut faults: Vec<String> = checks.into_iter().filter_map(Result::err).collect();
        faults.extend(self.find_bad_origins());
        faults.extend(self.find_unauthenticated_faults());
        faults.extend(self.auth.find_faults(self.rest.listen));
        faults
    }

    fn find_bad_origins(&self) -> impl Iterator<Item = String> {
        let origins = self.rest.cors_origins.iter();
        let bad = origins.filter(|origin| *origin != "*" && !is_origin(origin));
        bad.map(|bad| {
            format!("rest.cors_origins contains {bad:?}; an origin has the form https://ui.example")
        })
    }

    /// Limits of unauthenticated connections above half of all connections. A default is no fault:
    /// a lower `max_connections` also lowers it.
    fn find_unauthenticated_faults(&self) -> Vec<String> {
        let (rest, south, files) = (&self.rest, &self.southbound, &self.files);
        let default = Self::default();
        let sections = [
            (
                "rest",
                (rest.max_unauthenticated_connections, rest.max_connections),
                default.rest.max_unauthenticated_connections,
            ),
            (
                "southbound",
                (south.max_unauthenticated_connections, south.max_connections),
                default.southbound.max_unauthenticated_connections,
            ),
            (
                "files",
                (files.max_unauthenticated_connections, files.max_connections),
                default.files.max_unauthenticated_connections,
            ),
        ];
        let wrong = sections
            .into_iter()
            .filter(|(_, (limit, all), default)| *limit > all / 2 && limit != default);
        let describe = |(section, (limit, all), _): (&str, (usize, usize), usize)| {
            format!(
                "{section}.max_unauthenticated_connections ({limit}) must be at most half of {section}.max_connections ({all})"
            )
        };
        wrong.map(describe).collect()
    }

    fn check_expensive_lists(&self) -> Result<(), String> {
        match self.rest.expensive_list_percentage {
            1..=100 => Ok(()),
            other => {
                Err(format!("rest.expensive_list_percentage ({other}) must be between 1 and 100"))
            }
        }
    }

    /// The part of a project must admit the longest message; otherwise that message could never be
    /// received.
    fn check_message_memory(&self) -> Result<(), String> {
        let most = self.maintenance_manager.load.message_memory_limit;
        let of_project = max_per_project(usize::try_from(most).unwrap_or(usize::MAX));
        if most == 0 || MAX_MESSAGE_BYTES <= of_project {
            return Ok(());
        }
        Err(format!(
            "maintenance_manager.load.message_memory_limit ({most}) must be 0, or at least {}: one project may \
             use three quarters of it, and a message may have {MAX_MESSAGE_BYTES} bytes",
            MAX_MESSAGE_BYTES.div_ceil(3) * 4
        ))
    }

    /// Checks the limits of long polls against the limits of connections and calls.
    fn check_long_polls(&self) -> Result<(), String> {
        let holds = &self.maintenance_manager.long_poll;
        if holds.max_polls == 0 {
            return Ok(());
        }
        let (each, calls) = (holds.max_per_connection, self.southbound.max_calls_per_connection);
        if calls <= each {
            return Err(format!(
                "southbound.max_calls_per_connection ({calls}) must be greater than maintenance_manager.long_poll.max_per_connection ({each})"
            ));
        }
        let (within, max_duration) = (self.southbound.request_timeout, holds.max_duration);
        if within <= max_duration {
            return Err(format!(
                "southbound.request_timeout ({}) must be longer than maintenance_manager.long_poll.max_duration ({})",
                humantime::format_duration(within),
                humantime::format_duration(max_duration)
            ));
        }
        Ok(())
    }

    /// Settings of the REST API. Its forecasts use the planning limits of the maintenance manager,
    /// so that both compute the same windows.
    pub(crate) fn inventory_settings(&self) -> anyhow::Result<evenkeel_inventory::Settings> {
        let manager = &self.maintenance_manager;
        let delta = |length| {
            TimeDelta::from_std(length).context("a duration in maintenance_manager is too long")
        };
        Ok(evenkeel_inventory::Settings {
            body_limit: self.rest.body_limit,
            request_timeout: self.rest.request_timeout,
            cors_origins: self.rest.cors_origins.clone(),
            max_streamed_lists: self.max_streams(),
            min_stream_rate: self.rest.min_stream_rate,
            max_expensive_lists: self.rest.max_expensive_lists,
            expensive_list_percentage: self.rest.expensive_list_percentage,
            stream_grace_period: evenkeel_inventory::Settings::default().stream_grace_period,
            max_watchers: self.rest.max_watchers,
            planning_limits: PlanningLimits {
                fetch_ahead: delta(manager.fetch_ahead)?,
                max_window: delta(manager.max_window)?,
            },
            os_defaults: self.os_defaults(),
            has_mail_server: manager.smtp.host.is_some(),
            allow_http_webhooks: manager.notifications.allow_http,
        })
    }

    /// Settings of the file service. It accepts credentials of nodes if the maintenance manager does.
    pub(crate) fn file_settings(&self, data_dir: &Path) -> FileSettings {
        self.files.file_settings(data_dir, self.maintenance_manager.bearer_credentials)
    }

    /// Catalogue defaults of projects: only the names of the registries, none of their other
    /// settings.
    fn os_defaults(&self) -> OsDefaults {
        let manager = &self.os_resource_manager;
        OsDefaults {
            registries: manager.registries.keys().cloned().collect(),
            selection: manager.default_selection(),
        }
    }

    fn read(file: Option<&Path>, data_dir: Option<&Path>) -> Result<Self, Vec<String>> {
        let file = match file {
            Some(file) => Toml::file_exact(file),
            None => Toml::file(DEFAULT_CONFIG_FILE),
        };
        // The command line reads this environment variable itself; it is not a configuration key.
        let environment = Env::prefixed("EVENKEELD_").ignore(&["config"]).split("__");
        // Without this line, a section `log` without a level would have the level of other programs.
        let level = Serialized::default("log.level", Self::default().log.level);
        let mut figment = Figment::from(level).merge(file).merge(environment);
        if let Some(data_dir) = data_dir {
            figment = figment.merge(Serialized::default("data_dir", data_dir));
        }
        faults::extract(&figment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("evenkeeld.toml");
        std::fs::write(&file, text).unwrap();
        Config::read(Some(&file), None).map_err(|faults| faults.join("\n"))
    }

    #[test]
    fn an_empty_file_is_a_configuration() {
        let config = parse("").unwrap();
        assert_eq!(config.rest.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.southbound.listen.to_string(), "0.0.0.0:50002");
        assert_eq!(config.admin.listen.to_string(), "127.0.0.1:9464");
        assert_eq!(config.files.listen, None, "no listener for files by default");
        assert!(config.os_resource_manager.registries.is_empty());
    }

    /// Key lines of the file that the package installs, without the # before them, except in sections
    /// that are absent by default and except keys without a default.
    fn uncomment_keys(text: &str) -> String {
        let mut is_absent = false;
        let lines = text.lines().map(|line| {
            if line.starts_with('[') || line.starts_with("#[") {
                is_absent = line.starts_with('#');
            }
            let key = line.strip_prefix('#').filter(|rest| rest.starts_with(char::is_alphabetic));
            let key = key.filter(|_| !is_absent && !line.ends_with("# no default"));
            key.unwrap_or(line).to_owned() + "\n"
        });
        lines.collect()
    }

    #[test]
    fn the_configuration_file_of_the_package_shows_the_defaults() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = folder.join("../deploy/package/evenkeel-server/evenkeeld.toml");
        let text = std::fs::read_to_string(file).unwrap();
        let defaults = serde_json::to_value(Config::default()).unwrap();
        let uncommented = uncomment_keys(&text);
        assert_ne!(uncommented, text);
        for text in [&text, &uncommented] {
            let config = parse(text).unwrap();
            assert_eq!(config.find_faults(), [""; 0]);
            assert_eq!(serde_json::to_value(config).unwrap(), defaults);
        }
    }

    #[test]
    fn no_error_contains_a_url_of_the_configuration() {
        for text in [
            "database = \"postgres://u:HUSH@db/x\"",
            "[database]\nurl = \"postgres://u:HUSH@db/x",
            "[database]\nurl = postgres://u:HUSH@db/x",
            "[database]\nurl = [\"postgres://u:HUSH@db/x\"]",
            "[database]\nmax_connections = \"postgres://u:HUSH@db/x\"",
            "[database]\nacquire_timeout = \"postgres://u:HUSH@db/x\"",
            "[database]\nurl = \"postgres://u:HUSH@db/x\"\nport = 1",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.contains("HUSH"), "{text}: {error}");
            assert!(error.contains("evenkeeld.toml"), "{text}: {error}");
        }
        let both = "url = \"postgres://u:HUSH@db/x\"\nmigration_url = \"postgres://o:HUSH@db/x\"";
        let config = parse(&format!("[database]\n{both}")).unwrap();
        assert!(!format!("{config:?}").contains("HUSH"));
    }

    /// Sets at least one key in each section.
    const EXAMPLE: &str = r#"
            data_dir = "/srv/evenkeel"
            shutdown_timeout = "1m 5s"
            [log]
            format = "json"
            [database]
            url = "postgres://evenkeel:hush@db/evenkeel"
            password_file = "/etc/evenkeel/database.password"
            allow_unencrypted = true
            [rest]
            listen = "[::1]:0"
            body_limit = 1000
            tls = true
            server_names = ["api.example"]
            cors_origins = ["https://ui.example"]
            max_streams = 3
            [admin]
            listen = "192.0.2.1:9464"
            certificate = "/etc/evenkeel/admin.pem"
            key = "/etc/evenkeel/admin.key"
            [maintenance_manager]
            fetch_ahead = "90m"
            run_retention = "90d"
            change_log_retention = "10d"
            user_change_retention = "800d"
            silence_timeout = "10m"
            [maintenance_manager.rate_limit]
            calls_per_second = 5
            [maintenance_manager.answer_cache]
            max_staleness = "5s"
            [maintenance_manager.long_poll]
            max_duration = "2m"
            [maintenance_manager.load]
            query_call_limit = 100
            max_poll_interval = "10m"
            [southbound]
            server_names = ["updates.example"]
            max_unauthenticated_per_address = 50
            trusted_proxies = ["192.0.2.1"]
            [auth.tokens]
            issuer = "urn:example"
            [[auth.issuers]]
            issuer = "https://login.example"
            jwks = "/etc/evenkeel/login.json"
            [[auth.issuers]]
            issuer = "https://other.example"
            discovery = true
            roles = "groups"
            [auth.login]
            users = "/etc/evenkeel/users.toml"
            [os_resource_manager]
            default = { registry = "release", revision = "~0.8.11", enabled = ["edge"] }
            [os_resource_manager.registries.release]
            address = "https://registry.example"
            username = "reader"
            password_file = "/etc/evenkeel/release.password"
            proxy = "http://reader:hush@proxy.example:3128"
            trust = "require"
            keys = ["/etc/evenkeel/release.pub"]
            [files]
            listen = "0.0.0.0:50003"
            auth = "open"
            prefetch = "off"
            wait_timeout = "5s"
            [tracing]
            otlp_endpoint = "https://otel.example:4317"
            sample_percentage = 5
    "#;

    #[test]
    fn every_section_is_read() {
        let config = parse(EXAMPLE).unwrap();
        assert_eq!(config.shutdown_timeout, Duration::from_secs(65));
        assert_eq!(config.rest.listen.port(), 0);
        assert_eq!(config.rest_tls().security(), Ok(HttpSecurity::OwnAuthority));
        assert_eq!(config.rest_tls().server_names, [["updates.example"], ["api.example"]]);
        let (certificate, key) =
            (Path::new("/etc/evenkeel/admin.pem"), Path::new("/etc/evenkeel/admin.key"));
        let files = HttpSecurity::Files { certificate, key };
        assert_eq!(config.admin_tls().security(), Ok(files));
        assert_eq!(config.auth.issuers[0].issuer, "https://login.example");
        let inventory = config.inventory_settings().unwrap();
        assert_eq!(inventory.body_limit, 1000);
        assert_eq!(inventory.cors_origins, ["https://ui.example"]);
        assert_eq!(inventory.max_streamed_lists, 3);
        assert_eq!(config.find_faults(), [""; 0]);
        assert_eq!(inventory.planning_limits.fetch_ahead, TimeDelta::minutes(90));
        let manager = &config.maintenance_manager;
        assert_eq!(manager.run_retention, Duration::from_hours(90 * 24));
        assert_eq!(manager.change_log_retention, Duration::from_hours(10 * 24));
        assert_eq!(manager.user_change_retention, Duration::from_hours(800 * 24));
        assert_eq!((manager.rate_limit.calls_per_second, manager.rate_limit.burst), (5, 200));
        assert_eq!(manager.long_poll.max_duration, Duration::from_mins(2));
        assert_eq!((manager.load.query_call_limit, manager.load.max_writers), (100, 16));
        assert_eq!(config.southbound.max_unauthenticated_per_address, 50);
        assert_eq!(config.tracing.sample_percentage, 5);
        assert_eq!(config.southbound.trusted_proxies, [IpAddr::from([192, 0, 2, 1])]);
        let os = inventory.os_defaults;
        assert_eq!(os.registries, ["release"]);
        assert_eq!(os.selection.revision.as_deref(), Some("~0.8.11"));
        let files = config.file_settings(&config.data_dir);
        assert_eq!(files.dir, Path::new("/srv/evenkeel/files"));
        assert_eq!((files.wait_timeout, files.max_transfers), (Duration::from_secs(5), 200));
        let rendered = format!("{config:?}");
        assert!(
            rendered.contains("url: Some([secret])") && !rendered.contains("hush"),
            "{rendered}"
        );
    }

    #[test]
    fn a_user_gets_a_part_of_the_connections_unless_another_limit_is_set() {
        let limits = |text: &str| {
            let limits = parse(text).unwrap().rest.authenticated_limits();
            (limits.user, limits.project, limits.address)
        };
        assert_eq!(limits(""), (250, 500, 500));
        assert_eq!(limits("[rest]\nmax_connections = 1"), (1, 1, 1));
        let text = "[rest]\nmax_connections_per_user = 7\nmax_connections_per_address = 0";
        assert_eq!(limits(text), (7, 500, 0));
    }

    #[test]
    fn an_unknown_key_is_named() {
        for (text, key) in [
            ("colour = 'blue'", "colour"),
            ("[rest]\nport = 80", "port"),
            ("[southbound]\nlisten = 'everywhere'", "listen"),
            ("shutdown_timeout = 'soon'", "shutdown_timeout"),
            ("[[auth.issuers]]\njwks = 'x'", "issuer"),
            ("[files]\nport = 80", "port"),
            ("[files]\nauth = 'nobody'", "auth"),
            ("[os_resource_manager.registries.a]\nplain_http = true", "address"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(key), "{text}: {error}");
        }
    }

    #[test]
    fn each_fault_is_reported_with_its_setting_and_its_file() {
        let text = "colour = 'blue'\nshutdown_timeout = 'soon'\n[rest]\nport = 80\nlisten = 5\n\
                    [admin]\nlisen = '127.0.0.1:0'\n[files]\nauth = 'nobody'\n\
                    [[auth.issuers]]\ndiscovery = true\n\
                    [os_resource_manager.registries.a]\nplain_http = true\n";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("typo.toml");
        std::fs::write(&file, text).unwrap();
        let faults = Config::read(Some(&file), None).unwrap_err();
        let text = faults.join("\n").replace(&file.display().to_string(), "typo.toml");
        let expected = [
            "unknown setting colour in typo.toml; the settings there are data_dir,",
            "shutdown_timeout in typo.toml is \"soon\", expected ",
            "unknown setting rest.port in typo.toml",
            "rest.listen in typo.toml is 5, expected ",
            "unknown setting admin.lisen in typo.toml; did you mean listen?",
            "files.auth in typo.toml is \"nobody\"; the values are ",
            "auth.issuers.0.issuer is missing in typo.toml",
            "os_resource_manager.registries.a.address is missing in typo.toml",
        ];
        for part in expected {
            assert!(text.lines().any(|line| line.starts_with(part)), "{part}:\n{text}");
        }
        assert_eq!(faults.len(), expected.len(), "{text}");
    }

    #[test]
    fn an_error_describes_the_expected_value_without_names_of_types() {
        for (text, expected) in [
            ("shutdown_timeout = 'soon'", "is \"soon\", expected a duration such as \"10s\""),
            (
                "[rest]\nmax_connections = 'many'",
                "is \"many\", expected a whole number, 0 or greater",
            ),
            (
                "[rest]\nexpensive_list_percentage = 'all'",
                "is \"all\", expected a whole number from 0 to 255",
            ),
            ("[rest]\ncors_origins = 5", "is 5, expected a list"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.ends_with(expected), "{error}");
        }
    }

    #[test]
    fn a_section_without_a_log_level_keeps_the_level_of_the_server() {
        let level = |text: &str| parse(text).unwrap().log.level;
        assert_eq!(level("[log]\nformat = 'json'"), level(""));
        assert_eq!(level("[log]\nlevel = 'warn'"), "warn");
    }

    #[test]
    fn an_unknown_log_level_is_a_fault_of_its_setting() {
        let error = parse("[log]\nlevel = 'inof'").unwrap_err();
        assert!(error.starts_with("log.level in "), "{error}");
        assert!(error.contains("`inof` is not a log level; the levels are error,"), "{error}");
    }

    #[test]
    fn the_request_timeout_must_exceed_the_longest_long_poll() {
        let config = parse("[southbound]\nrequest_timeout = '3m'").unwrap();
        let wrong = config.find_faults().join("\n");
        assert!(
            wrong.contains("request_timeout (3m)") && wrong.contains("max_duration (1h)"),
            "{wrong}"
        );
        let shorter = "[southbound]\nrequest_timeout = '3m'\n\
                       [maintenance_manager.long_poll]\nmax_duration = '2m'";
        assert_eq!(parse(shorter).unwrap().find_faults(), [""; 0]);
        let none = "[southbound]\nrequest_timeout = '1m'\n\
                    [maintenance_manager.long_poll]\nmax_polls = 0";
        assert_eq!(parse(none).unwrap().find_faults(), [""; 0]);
    }

    #[test]
    fn the_message_memory_must_hold_the_longest_message() {
        let of = |bytes| format!("[maintenance_manager.load]\nmessage_memory_limit = {bytes}");
        let wrong = parse(&of(1 << 20)).unwrap().find_faults().join("\n");
        assert!(wrong.contains("message_memory_limit (1048576)"), "{wrong}");
        let wrong = parse(&of(22_369_620)).unwrap().find_faults().join("\n");
        assert!(wrong.contains("at least 22369624"), "{wrong}");
        for good in [0, 22_369_624] {
            assert_eq!(parse(&of(good)).unwrap().find_faults(), [""; 0]);
        }
    }

    #[test]
    fn the_time_of_expensive_lists_is_a_percentage_above_zero() {
        let of = |percentage: u8| format!("[rest]\nexpensive_list_percentage = {percentage}");
        for (percentage, is_valid) in [(0, false), (1, true), (100, true), (101, false)] {
            let faults = parse(&of(percentage)).unwrap().find_faults();
            assert_eq!(faults.is_empty(), is_valid, "{percentage}: {faults:?}");
        }
    }

    #[test]
    fn unauthenticated_connections_are_at_most_half_of_all() {
        let faults = |text: &str| parse(text).unwrap().find_faults();
        for section in ["rest", "southbound", "files"] {
            let of = |limit: usize| {
                format!(
                    "[{section}]\nmax_connections = 100\nmax_unauthenticated_connections = {limit}"
                )
            };
            let expected = format!(
                "{section}.max_unauthenticated_connections (51) must be at most half of {section}.max_connections (100)"
            );
            assert_eq!(faults(&of(51)), [expected]);
            assert_eq!(faults(&of(50)), [""; 0], "{section}");
            let lower = format!("[{section}]\nmax_connections = 100");
            assert_eq!(faults(&lower), [""; 0], "the default is lowered as well");
        }
    }

    #[test]
    fn a_listener_that_other_machines_reach_without_tls_is_a_fault_of_its_section() {
        for section in ["rest", "admin"] {
            let of = |more: &str| {
                parse(&format!("[{section}]\nlisten = '0.0.0.0:0'\n{more}")).unwrap().find_faults()
            };
            let faults = of("");
            let expected = format!("other machines can reach {section}.listen (0.0.0.0:0)");
            assert!(faults.len() == 1 && faults[0].starts_with(&expected), "{faults:?}");
            assert_eq!(of("tls = true"), [""; 0]);
            assert_eq!(of("tls = false"), [""; 0]);
        }
    }

    #[test]
    fn each_bad_origin_is_named() {
        let config = parse("[rest]\ncors_origins = ['ui.example', '*', 'ftp://x']").unwrap();
        assert_eq!(config.find_faults().len(), 2, "{:?}", config.find_faults());
    }

    #[test]
    fn long_polls_spare_calls_for_reports_on_a_connection() {
        let config = parse("[southbound]\nmax_calls_per_connection = 16").unwrap();
        let wrong = config.find_faults().join("\n");
        assert!(wrong.contains("max_per_connection (16)"), "{wrong}");
    }

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        for (origin, is_one) in [
            ("https://ui.example", true),
            ("http://127.0.0.1:3000", true),
            ("https://ui.example/", false),
            ("*", true),
            ("ui.example", false),
        ] {
            let config = parse(&format!("[rest]\ncors_origins = ['{origin}']")).unwrap();
            assert_eq!(config.find_faults().is_empty(), is_one, "{origin}");
        }
    }

    #[test]
    fn a_named_file_must_exist() {
        let faults = Config::read(Some(Path::new("/does/not/exist.toml")), None).unwrap_err();
        assert!(faults[0].contains("/does/not/exist.toml"), "{faults:?}");
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("evenkeeld.toml");
        std::fs::write(&file, "data_dir = '/one'").unwrap();
        let config = Config::read(Some(&file), Some(Path::new("/two"))).unwrap();
        assert_eq!(config.data_dir, Path::new("/two"));
    }
}
