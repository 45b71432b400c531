//! Everything the server can be told: a TOML file, over it the environment, over it the command line. One section per
//! room of the house; an unknown key is an error.

mod auth;
mod files;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use chrono::TimeDelta;
use evenkeel_inventory::OsDefaults;
use evenkeel_kit::Secret;
use evenkeel_kit::telemetry::LogConfig;
use evenkeel_maintenance_manager::MAX_MESSAGE;
use evenkeel_store::decisions::Horizon;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::Deserialize;

use crate::Cli;

use auth::Auth;
pub(crate) use auth::{Login, Outside, is_origin};
pub(crate) use files::Files;

/// Read when no other file is named.
const USUAL_FILE: &str = "/etc/evenkeel/evenkeeld.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Where keys, certificates and the private Postgres are kept.
    pub(crate) data_dir: PathBuf,
    /// How long a stop may take.
    #[serde(with = "humantime_serde")]
    pub(crate) stop_within: Duration,
    pub(crate) log: LogConfig,
    pub(crate) database: Database,
    pub(crate) rest: Rest,
    pub(crate) southbound: Southbound,
    pub(crate) admin: Admin,
    pub(crate) auth: Auth,
    pub(crate) maintenance_manager: evenkeel_maintenance_manager::Settings,
    pub(crate) os_resource_manager: evenkeel_os_resource_manager::Settings,
    pub(crate) files: Files,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("/var/lib/evenkeel"),
            stop_within: Duration::from_secs(20),
            log: LogConfig {
                // What Postgres notes on the way of a migration is for who looks for it.
                level: "info,sqlx::postgres::notice=warn".to_owned(),
                ..LogConfig::default()
            },
            database: Database::default(),
            rest: Rest::default(),
            southbound: Southbound::default(),
            admin: Admin::default(),
            auth: Auth::default(),
            maintenance_manager: evenkeel_maintenance_manager::Settings::default(),
            os_resource_manager: evenkeel_os_resource_manager::Settings::default(),
            files: Files::default(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Database {
    /// `postgres://…`. Without it `evenkeeld all` starts a private Postgres.
    pub(crate) url: Option<Secret>,
    /// The folder with one folder per version of Postgres, each with a `bin`, for a private Postgres.
    pub(crate) binaries: PathBuf,
    /// The most connections of this process.
    pub(crate) max_connections: u32,
    /// How long a request waits for a connection before the database counts as away.
    #[serde(with = "humantime_serde")]
    pub(crate) acquire_within: Duration,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url: None,
            binaries: PathBuf::from("/usr/lib/postgresql"),
            max_connections: 20,
            acquire_within: Duration::from_secs(3),
        }
    }
}

/// The listener of the REST API. It speaks plain HTTP: put an ingress with TLS before it, or keep it local.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Rest {
    pub(crate) listen: SocketAddr,
    pub(crate) max_connections: usize,
    /// How long a client may take to send the head of a request.
    #[serde(with = "humantime_serde")]
    pub(crate) head_within: Duration,
    /// How long a request may take in all, its body included.
    #[serde(with = "humantime_serde")]
    pub(crate) answer_within: Duration,
    /// The largest body of a request, in bytes.
    pub(crate) body_limit: usize,
    /// Where web pages come from that may use the API, such as `https://ui.example`; `*` is anywhere.
    pub(crate) cors_origins: Vec<String>,
    /// How many whole lists are sent at once; each holds a connection to the database until its client has it.
    pub(crate) streams: usize,
}

impl Default for Rest {
    fn default() -> Self {
        let inventory = evenkeel_inventory::Settings::default();
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8080).into(),
            max_connections: 1_000,
            head_within: Duration::from_secs(10),
            answer_within: inventory.request_timeout,
            body_limit: inventory.body_limit,
            cors_origins: inventory.cors_origins,
            streams: inventory.streams,
        }
    }
}

/// The listener for agents: gRPC over TLS.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Southbound {
    pub(crate) listen: SocketAddr,
    /// Names and addresses by which agents reach this server, besides those of this machine.
    pub(crate) names: Vec<String>,
    /// A certificate chain of your own in PEM, instead of one of the authority in the data directory.
    pub(crate) certificate: Option<PathBuf>,
    /// The key of that certificate in PEM.
    pub(crate) key: Option<PathBuf>,
    /// The certificate of the authority that signed it, in PEM; join tokens then carry its digest. Without it agents
    /// ask the roots of their system.
    pub(crate) ca: Option<PathBuf>,
    pub(crate) max_connections: usize,
    /// How many connections one address may have; 0 is without limit. All nodes behind one router have its address.
    pub(crate) connections_per_address: u32,
    /// How many bytes of memory this process may hold; 0 is without limit. From nine tenths of it on, new connections are
    /// turned away with a time after which to come again, and polls are no longer held.
    pub(crate) memory_limit: u64,
    /// How many calls one connection may have open.
    pub(crate) calls_per_connection: u32,
    /// How long a client may take for the TLS handshake and its first word.
    #[serde(with = "humantime_serde")]
    pub(crate) handshake_within: Duration,
    /// How long a connection may last over which no call with a good credential has come; 0 is without limit. Longer than
    /// a message may take, and than those are told to wait who are refused.
    #[serde(with = "humantime_serde")]
    pub(crate) known_within: Duration,
    /// How long a call may take in all; longer than any poll is held.
    #[serde(with = "humantime_serde")]
    pub(crate) answer_within: Duration,
    /// After how long a silent connection is looked after.
    #[serde(with = "humantime_serde")]
    pub(crate) keep_alive: Duration,
}

impl Default for Southbound {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::UNSPECIFIED, 50_002).into(),
            names: Vec::new(),
            certificate: None,
            key: None,
            ca: None,
            max_connections: 100_000,
            connections_per_address: 0,
            memory_limit: 0,
            calls_per_connection: 32,
            handshake_within: Duration::from_secs(10),
            known_within: Duration::from_mins(5),
            answer_within: Duration::from_hours(2),
            keep_alive: Duration::from_mins(1),
        }
    }
}

/// The listener for health, readiness and metrics.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Admin {
    pub(crate) listen: SocketAddr,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 9090).into(),
        }
    }
}

impl Config {
    /// Fails on the first unknown or wrong key, before anything is opened.
    pub(crate) fn load(cli: &Cli) -> anyhow::Result<Self> {
        let read = Self::read(cli.config.as_deref(), cli.data_dir.as_deref());
        let config = read.context("the configuration is not usable")?;
        let checked = config.check().map_err(anyhow::Error::msg);
        checked.context("the configuration is not usable")?;
        Ok(config)
    }

    /// What is wrong between the keys, if anything is.
    fn check(&self) -> Result<(), String> {
        let is_odd = |origin: &&String| *origin != "*" && !is_origin(origin);
        if let Some(odd) = self.rest.cors_origins.iter().find(is_odd) {
            return Err(format!(
                "rest.cors_origins has {odd:?}; an origin looks like https://ui.example"
            ));
        }
        self.check_messages()?;
        self.check_holds()?;
        self.auth.check(self.rest.listen)
    }

    /// The longest message must have room, or it is never read.
    fn check_messages(&self) -> Result<(), String> {
        let (most, longest) = (self.maintenance_manager.load.message_memory, MAX_MESSAGE);
        if most == 0 || u64::try_from(longest).is_ok_and(|longest| longest <= most) {
            return Ok(());
        }
        Err(format!(
            "maintenance_manager.load.message_memory ({most}) must be 0, or have room for the longest message ({longest})"
        ))
    }

    /// What is wrong between the polls that are held and what carries them, if anything is.
    fn check_holds(&self) -> Result<(), String> {
        let holds = &self.maintenance_manager.holds;
        if holds.most == 0 {
            return Ok(());
        }
        let (each, calls) = (holds.per_connection, self.southbound.calls_per_connection);
        if calls <= each {
            return Err(format!(
                "southbound.calls_per_connection ({calls}) must be more than maintenance_manager.holds.per_connection ({each})"
            ));
        }
        let (within, held) = (self.southbound.answer_within, holds.longest);
        if within <= held {
            return Err(format!(
                "southbound.answer_within ({}) must be longer than maintenance_manager.holds.longest ({})",
                humantime::format_duration(within),
                humantime::format_duration(held)
            ));
        }
        Ok(())
    }

    /// What the REST API is told. What it foresees is what the maintenance manager does, so both look equally far.
    pub(crate) fn inventory(&self) -> anyhow::Result<evenkeel_inventory::Settings> {
        let manager = &self.maintenance_manager;
        let delta = |length| {
            TimeDelta::from_std(length).context("a time in maintenance_manager is too long")
        };
        Ok(evenkeel_inventory::Settings {
            body_limit: self.rest.body_limit,
            request_timeout: self.rest.answer_within,
            cors_origins: self.rest.cors_origins.clone(),
            streams: self.rest.streams,
            horizon: Horizon {
                fetch_ahead: delta(manager.fetch_ahead)?,
                max_window: delta(manager.max_window)?,
            },
            os: self.catalogue(),
        })
    }

    /// What projects can be told of registries of operating systems: their names, and nothing else of them.
    fn catalogue(&self) -> OsDefaults {
        let manager = &self.os_resource_manager;
        OsDefaults {
            registries: manager.registries.keys().cloned().collect(),
            wish: manager.wish(),
        }
    }

    fn read(file: Option<&Path>, data_dir: Option<&Path>) -> Result<Self, Box<figment::Error>> {
        let file = match file {
            Some(file) => Toml::file_exact(file),
            None => Toml::file(USUAL_FILE),
        };
        // What the command line reads from the environment is not the configuration's.
        let environment = Env::prefixed("EVENKEELD_").ignore(&["config"]).split("__");
        let mut figment = Figment::new().merge(file).merge(environment);
        if let Some(data_dir) = data_dir {
            figment = figment.merge(Serialized::default("data_dir", data_dir));
        }
        figment.extract().map_err(Box::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("evenkeeld.toml");
        std::fs::write(&file, text).unwrap();
        Config::read(Some(&file), None).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_a_configuration() {
        let config = read("").unwrap();
        assert_eq!(config.rest.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.southbound.listen.to_string(), "0.0.0.0:50002");
        assert_eq!(config.admin.listen.to_string(), "127.0.0.1:9090");
        assert_eq!(config.files.listen, None, "nobody asked for it");
        assert!(config.os_resource_manager.registries.is_empty());
    }

    /// Something in each section.
    const TOLD: &str = r#"
            data_dir = "/srv/evenkeel"
            stop_within = "1m 5s"
            [log]
            format = "json"
            [database]
            url = "postgres://evenkeel:hush@db/evenkeel"
            [rest]
            listen = "[::1]:0"
            body_limit = 1000
            cors_origins = ["https://ui.example"]
            streams = 3
            [maintenance_manager]
            fetch_ahead = "90m"
            retention = "90d"
            log_kept = "10d"
            silent_after = "10m"
            [maintenance_manager.flood]
            calls_per_second = 5
            [maintenance_manager.view]
            max_staleness = "5s"
            [maintenance_manager.holds]
            longest = "2m"
            [maintenance_manager.load]
            calls = 100
            poll_interval_max = "10m"
            [southbound]
            names = ["updates.example"]
            connections_per_address = 50
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
            wait = "5s"
    "#;

    #[test]
    fn each_section_can_be_told_something() {
        let config = read(TOLD).unwrap();
        assert_eq!(config.stop_within, Duration::from_secs(65));
        assert_eq!(config.rest.listen.port(), 0);
        assert_eq!(config.auth.issuers[0].issuer, "https://login.example");
        let inventory = config.inventory().unwrap();
        assert_eq!(inventory.body_limit, 1000);
        assert_eq!(inventory.cors_origins, ["https://ui.example"]);
        assert_eq!(inventory.streams, 3);
        assert_eq!(config.check(), Ok(()));
        assert_eq!(inventory.horizon.fetch_ahead, TimeDelta::minutes(90));
        let manager = &config.maintenance_manager;
        assert_eq!(manager.retention, Duration::from_hours(90 * 24));
        assert_eq!(manager.log_kept, Duration::from_hours(10 * 24));
        assert_eq!(
            (manager.flood.calls_per_second, manager.flood.burst),
            (5, 200)
        );
        assert_eq!(manager.holds.longest, Duration::from_mins(2));
        assert_eq!((manager.load.calls, manager.load.writers), (100, 16));
        assert_eq!(config.southbound.connections_per_address, 50);
        let os = inventory.os;
        assert_eq!(os.registries, ["release"]);
        assert_eq!(os.wish.revision.as_deref(), Some("~0.8.11"));
        let files = config.files.settings(&config.data_dir);
        assert_eq!(files.dir, Path::new("/srv/evenkeel/files"));
        assert_eq!((files.wait, files.transfers), (Duration::from_secs(5), 200));
        let shown = format!("{config:?}");
        assert!(
            shown.contains("url: Some([secret])") && !shown.contains("hush"),
            "{shown}"
        );
    }

    #[test]
    fn an_unknown_key_is_named() {
        for (text, key) in [
            ("colour = 'blue'", "colour"),
            ("[rest]\nport = 80", "port"),
            ("[southbound]\nlisten = 'everywhere'", "listen"),
            ("stop_within = 'soon'", "stop_within"),
            ("[[auth.issuers]]\njwks = 'x'", "issuer"),
            ("[files]\nport = 80", "port"),
            ("[files]\nauth = 'nobody'", "auth"),
            (
                "[os_resource_manager.registries.a]\nplain_http = true",
                "address",
            ),
            ("[auth.login]\nurl = 'https://x'", "users"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(key), "{text}: {error}");
        }
    }

    #[test]
    fn a_call_may_take_longer_than_a_poll_is_held() {
        let config = read("[southbound]\nanswer_within = '3m'").unwrap();
        let wrong = config.check().unwrap_err();
        assert!(
            wrong.contains("answer_within (3m)") && wrong.contains("longest (1h)"),
            "{wrong}"
        );
        let shorter = "[southbound]\nanswer_within = '3m'\n\
                       [maintenance_manager.holds]\nlongest = '2m'";
        assert_eq!(read(shorter).unwrap().check(), Ok(()));
        let none = "[southbound]\nanswer_within = '1m'\n\
                    [maintenance_manager.holds]\nmost = 0";
        assert_eq!(read(none).unwrap().check(), Ok(()));
    }

    #[test]
    fn the_longest_message_has_room() {
        let of = |bytes| format!("[maintenance_manager.load]\nmessage_memory = {bytes}");
        let wrong = read(&of(1 << 20)).unwrap().check().unwrap_err();
        assert!(wrong.contains("message_memory (1048576)"), "{wrong}");
        for good in [0, 16 << 20] {
            assert_eq!(read(&of(good)).unwrap().check(), Ok(()));
        }
    }

    #[test]
    fn polls_that_are_held_leave_room_for_reports() {
        let config = read("[southbound]\ncalls_per_connection = 16").unwrap();
        let wrong = config.check().unwrap_err();
        assert!(wrong.contains("per_connection (16)"), "{wrong}");
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
            let config = read(&format!("[rest]\ncors_origins = ['{origin}']")).unwrap();
            assert_eq!(config.check().is_ok(), is_one, "{origin}");
        }
    }

    #[test]
    fn a_file_that_is_named_must_be_there() {
        let error = Config::read(Some(Path::new("/does/not/exist.toml")), None).unwrap_err();
        assert!(
            error.to_string().contains("/does/not/exist.toml"),
            "{error}"
        );
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
