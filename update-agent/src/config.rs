//! Configuration of the agent: the file and the variables `EVENKEEL_AGENT_…`.

mod hook_timeout;
mod image;
mod password;
mod settings_error;

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::telemetry::LogConfig;
use figment::Figment;
use figment::providers::{Env, Format, Toml};
use serde::{Deserialize, Deserializer, Serialize};

use crate::agent::Intervals;
use crate::gate::GateSettings;
use crate::link::{BadProxy, Proxy};
use crate::modules::packages::{DEFAULT_HOOK_TIMEOUT, PackageToolTimeouts};
use crate::other_updaters::OtherUpdatersMode;
use crate::reboot::{self, RebootTiming};

pub use self::image::{
    BootControlChoice, HealthConfig, ImageConfig, TRIAL_GRACE_PERIOD, WatchdogPolicy,
};
pub use self::password::{check_password_file, restrict_password_file};
pub use self::settings_error::describe_settings_error;

/// Default path of the configuration file. It may be missing.
pub const CONFIG_FILE: &str = "/etc/evenkeel/agent.toml";

/// Settings of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Root directory to manage.
    pub root: PathBuf,
    /// State directory of the agent. If not set: `/var/lib/evenkeel-agent` in the managed root.
    pub state_dir: Option<PathBuf>,
    /// Time limit for an answer of the server, in addition to the duration of a long poll.
    #[serde(with = "humantime_serde")]
    pub call_timeout: Duration,
    /// Maximum age of the package lists. Each node refreshes them at its own time in this interval.
    #[serde(with = "humantime_serde")]
    pub refresh_interval: Duration,
    /// Minimum time between two preparations of the same update ahead of its window if there was
    /// nothing to download.
    #[serde(with = "humantime_serde")]
    pub fetch_retry_interval: Duration,
    /// Minimum time between two attempts for the same update.
    #[serde(with = "humantime_serde")]
    pub retry_interval: Duration,
    /// Maximum time between two polls, even if the server requests more.
    #[serde(with = "humantime_serde")]
    pub max_poll_interval: Duration,
    /// How long the agent waits for the current step when it is stopped.
    #[serde(with = "humantime_serde")]
    pub stop_grace_period: Duration,
    /// Proxy to reach the server, `http://[USER:PASSWORD@]HOST:PORT`; empty for none. With a password,
    /// only root may read the file: mode 0600. apt has its own setting.
    pub proxy: String,
    /// Hosts that are reached without the proxy: names with the hosts below them, addresses, networks such as `10.0.0.0/8`,
    /// or `*` for all; a name or an address may have a port (`HOST:PORT`).
    pub no_proxy: Vec<String>,
    /// Conditions of the machine for the start of a change and for a reboot.
    pub gate: GateConfig,
    /// How the node reboots after a change that needs it.
    pub reboot: RebootConfig,
    /// Time limits of apt and dpkg.
    pub packages: PackagesConfig,
    /// What the agent does about other programs that update the machine.
    pub other_updaters: OtherUpdatersConfig,
    /// How images are downloaded, armed and tried.
    pub image: ImageConfig,
    /// Format and level of the log.
    pub log: LogConfig,
}

/// Conditions of the machine for the start of a change and for a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateConfig {
    /// Minimum battery charge without external power, in percent.
    pub min_battery_percent: u8,
    /// Space that must be free on each file system that a change writes to, in addition to what the
    /// change needs: bytes, or a number with `KiB`, `MiB` or `GiB`.
    #[serde(deserialize_with = "deserialize_bytes")]
    pub min_free: u64,
    /// Time limit of each hook, from 1 second to 24 hours.
    #[serde(with = "hook_timeout")]
    pub hook_timeout: Duration,
    /// How long inhibitor locks of ordinary users (user IDs 1000 to 60513, and 65536 and above) may
    /// delay the start of a change, or a logind that does not answer. Locks of the system have no
    /// limit.
    #[serde(with = "humantime_serde")]
    pub max_user_lock_delay: Duration,
}

/// How the node reboots after a change that needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RebootConfig {
    /// Program and arguments, run without a shell; empty if the agent cannot reboot the node.
    pub command: Vec<String>,
    /// How long the power supply, a lack of free space, inhibit files, locks of other programs,
    /// logged-in users and hooks may delay a reboot. After that the update ends without it, and the
    /// update to an image is reverted.
    #[serde(with = "humantime_serde")]
    pub max_delay: Duration,
    /// How long before a reboot logged-in users get a message on their terminals; `0s` for no
    /// message. Without logged-in users the reboot does not wait.
    #[serde(with = "humantime_serde")]
    pub warning_time: Duration,
    /// How long services may take to start after a reboot before they are reported as missing.
    #[serde(with = "humantime_serde")]
    pub services_timeout: Duration,
}

/// Time limits of apt and dpkg.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PackagesConfig {
    /// Time limit for queries and simulations.
    #[serde(with = "humantime_serde")]
    pub query_timeout: Duration,
    /// Time limit for the refresh of the package lists.
    #[serde(with = "humantime_serde")]
    pub refresh_timeout: Duration,
    /// Time limit for the download of packages.
    #[serde(with = "humantime_serde")]
    pub download_timeout: Duration,
    /// Time limit for changes of packages. After it, the agent kills the scripts of packages, and a
    /// minute later apt and dpkg.
    #[serde(with = "humantime_serde")]
    pub apply_timeout: Duration,
    /// How long to wait for dpkg's lock and for the lock of the package lists. A wait of more than
    /// three seconds is reported to the server.
    #[serde(with = "humantime_serde")]
    pub lock_timeout: Duration,
    /// Time limit of each hook of apt around dpkg (`DPkg::Pre-Invoke`, `DPkg::Pre-Install-Pkgs`,
    /// `DPkg::Post-Invoke`). A hook that takes longer is killed. Before dpkg starts, this prevents the
    /// change, as a failed hook does; after dpkg, it is a remark of the run. From 1 second to 24 hours.
    #[serde(with = "hook_timeout")]
    pub hook_timeout: Duration,
    /// Maximum download rate of packages and package lists in bytes per second, or a number with
    /// `KiB`, `MiB` or `GiB`; 0 for none. A lower limit of the policy takes precedence.
    #[serde(deserialize_with = "deserialize_bytes")]
    pub max_download_rate: u64,
}

/// What the agent does about other programs that update the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OtherUpdatersConfig {
    /// Whether the agent disables unattended-upgrades and other update programs at its start. If
    /// not set: `take_over` after `enroll --take-over`, otherwise `coexist`.
    pub mode: Option<OtherUpdatersMode>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            state_dir: None,
            call_timeout: Duration::from_secs(30),
            refresh_interval: Duration::from_hours(4),
            fetch_retry_interval: Duration::from_hours(1),
            retry_interval: Duration::from_mins(1),
            max_poll_interval: Duration::from_hours(1),
            stop_grace_period: Duration::from_hours(1),
            proxy: String::new(),
            no_proxy: Vec::new(),
            gate: GateConfig::default(),
            reboot: RebootConfig::default(),
            packages: PackagesConfig::default(),
            other_updaters: OtherUpdatersConfig::default(),
            image: ImageConfig::default(),
            log: LogConfig::default(),
        }
    }
}

impl Default for GateConfig {
    fn default() -> Self {
        let settings = GateSettings::default();
        let GateSettings { min_battery_percent, min_free, hook_timeout, max_user_lock_delay } =
            settings;
        Self { min_battery_percent, min_free, hook_timeout, max_user_lock_delay }
    }
}

impl Default for RebootConfig {
    fn default() -> Self {
        let RebootTiming { max_delay, warning_time } = RebootTiming::default();
        Self {
            command: Vec::from(reboot::DEFAULT_REBOOT_COMMAND.map(str::to_owned)),
            max_delay,
            warning_time,
            services_timeout: Duration::from_mins(2),
        }
    }
}

impl Default for PackagesConfig {
    fn default() -> Self {
        Self {
            query_timeout: Duration::from_mins(5),
            refresh_timeout: Duration::from_mins(10),
            download_timeout: Duration::from_hours(6),
            apply_timeout: Duration::from_hours(1),
            lock_timeout: Duration::from_mins(5),
            hook_timeout: DEFAULT_HOOK_TIMEOUT,
            max_download_rate: 0,
        }
    }
}

/// The configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl Config {
    /// Reads the file and the variables. A named file must exist. Fails at the first unknown key.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let toml = match file {
            Some(file) => Toml::file_exact(file),
            None => Toml::file(CONFIG_FILE),
        };
        Figment::new()
            .merge(toml)
            .merge(Env::prefixed("EVENKEEL_AGENT_").split("__"))
            .extract()
            .map_err(|error| ConfigError(describe_settings_error(&error)))
    }

    /// Intervals of the agent's own work.
    pub fn intervals(&self) -> Intervals {
        Intervals {
            refresh_interval: to_time_delta(self.refresh_interval),
            fetch_retry_interval: to_time_delta(self.fetch_retry_interval),
            retry_interval: to_time_delta(self.retry_interval),
            max_poll_interval: self.max_poll_interval,
        }
    }

    /// The proxy to reach the server, if there is one. Entries of `no_proxy` that can match no host
    /// are ignored with a warning: a node that is enrolled must reach its server.
    pub fn proxy(&self) -> Result<Option<Proxy>, BadProxy> {
        if self.proxy.is_empty() {
            return Ok(None);
        }
        if let Err(error) = Proxy::check_exceptions(&self.no_proxy) {
            tracing::warn!(%error, "ignoring entries of `no_proxy`");
        }
        Proxy::parse(&self.proxy, &self.no_proxy).map(Some)
    }

    /// The proxy to reach the server, if there is one. Fails if an entry of `no_proxy` can match no
    /// host.
    pub fn checked_proxy(&self) -> Result<Option<Proxy>, BadProxy> {
        let proxy = self.proxy()?;
        if proxy.is_some() {
            Proxy::check_exceptions(&self.no_proxy)?;
        }
        Ok(proxy)
    }

    /// Conditions of the machine for the start of a change.
    pub fn gate_settings(&self) -> GateSettings {
        GateSettings {
            min_battery_percent: self.gate.min_battery_percent,
            min_free: self.gate.min_free,
            hook_timeout: self.gate.hook_timeout,
            max_user_lock_delay: self.gate.max_user_lock_delay,
        }
    }

    /// Time that passes before a reboot.
    pub fn reboot_timing(&self) -> RebootTiming {
        let RebootConfig { max_delay, warning_time, .. } = self.reboot;
        RebootTiming { max_delay, warning_time }
    }

    /// Time limits of apt and dpkg.
    pub fn package_tool_timeouts(&self) -> PackageToolTimeouts {
        PackageToolTimeouts {
            query: self.packages.query_timeout,
            refresh: self.packages.refresh_timeout,
            download: self.packages.download_timeout,
            apply: self.packages.apply_timeout,
            lock: self.packages.lock_timeout,
        }
    }
}

/// Reads a size: a number of bytes, or text with a unit.
fn deserialize_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Size::deserialize(deserializer)? {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Text(text) => parse_size(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is not a size, such as \"200MiB\""))
        }),
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn to_time_delta(duration: Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.toml");
        std::fs::write(&file, text).unwrap();
        Config::load(Some(&file))
    }

    #[test]
    fn everything_has_a_default() {
        assert_eq!(load("").unwrap(), Config::default());
    }

    #[test]
    fn durations_are_written_with_their_unit() {
        let config =
            load("refresh_interval = \"30s\"\n[packages]\nlock_timeout = \"2m\"\n").unwrap();
        assert_eq!(config.refresh_interval, Duration::from_secs(30));
        assert_eq!(config.package_tool_timeouts().lock, Duration::from_mins(2));
        assert_eq!(config.intervals().refresh_interval, TimeDelta::seconds(30));
    }

    #[test]
    fn sizes_are_written_with_their_unit_or_in_bytes() {
        let free = |text: &str| load(&format!("[gate]\nmin_free = {text}\n"));
        assert_eq!(free("\"2GiB\"").unwrap().gate_settings().min_free, 2 << 30);
        assert_eq!(free("\"5 KiB\"").unwrap().gate.min_free, 5 << 10);
        assert_eq!(free("7").unwrap().gate.min_free, 7);
        for bad in ["\"MiB\"", "\"2 GB\"", "\"99999999999GiB\"", "-1", "true"] {
            assert!(free(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn images_have_a_section_with_two_subsections() {
        let config = load(
            "[image]\ntries = 2\nwatchdog = \"require\"\nesp = \"/efi\"\n\
             [image.web]\nplain_http = true\nhosts = [\"cdn.example\"]\n\
             [image.health]\nunits = [\"app.service\"]\nstable = \"2s\"\ndeadline = \"40s\"\n",
        );
        let image = config.unwrap().image;
        assert_eq!(image.tries, 2);
        assert_eq!(image.watchdog, WatchdogPolicy::Require);
        assert_eq!(image.esp.as_deref(), Some(Path::new("/efi")));
        assert!(image.web.plain_http);
        assert_eq!(image.health.units, ["app.service"]);
        assert_eq!(image.health.stable, Duration::from_secs(2));
        assert!(image.health.server, "the default next to explicit settings");
        image.check().unwrap();
        let rauc = load("[image]\nboot_control = \"rauc\"").unwrap().image;
        assert_eq!(rauc.boot_control, BootControlChoice::Rauc);
        rauc.check().unwrap();
        let both =
            load("[image]\nboot_control = \"systemd-boot\"\ntool = \"/usr/bin/tool\"").unwrap();
        assert!(both.image.check().unwrap_err().contains("image.boot_control"));
        let none = load("[image]\ntries = 0").unwrap().image;
        assert!(none.check().unwrap_err().contains("image.tries"));
        let never = load("[image.health]\nstable = \"10m\"").unwrap().image;
        assert!(never.check().unwrap_err().contains("image.health.stable"));
        load("[image]\nunsigned_images = true").unwrap_err();
    }

    #[test]
    fn an_error_describes_the_expected_value_without_names_of_types() {
        for (text, expected) in [
            (
                "[image]\nboot_control = \"grub\"",
                "image.boot_control: \"grub\" is unknown; the values are auto, ",
            ),
            ("call_timeout = \"soon\"", "expected a duration such as \"10s\""),
            ("[gate]\nhook_timeout = \"0s\"", "gate.hook_timeout: must be from 1s to 24h"),
            ("[packages]\nhook_timeout = \"9999999days\"", "packages.hook_timeout: must be from"),
            ("[packages]\nhook_timeout = \"soon\"", "expected a duration such as \"10s\""),
            ("[gate]\nmin_battery_percent = \"all\"", "expected a whole number from 0 to 255"),
        ] {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn an_unknown_log_level_is_an_error_of_its_setting() {
        let error = load("[log]\nlevel = \"inof\"").unwrap_err().to_string();
        assert!(error.contains("agent.toml: log.level: `inof` is not a log level;"), "{error}");
        load("[log]\nlevel = \"info,hyper=debug\"").unwrap();
    }

    #[test]
    fn a_configured_proxy_must_be_valid() {
        assert!(Config::default().proxy().unwrap().is_none());
        let config =
            load("proxy = \"http://keel:secret@proxy:3128\"\nno_proxy = [\".local\"]").unwrap();
        let proxy = config.proxy().unwrap().unwrap();
        assert_eq!(proxy.to_string(), "http://proxy:3128");
        load("proxy = \"proxy:3128\"").unwrap().proxy().unwrap_err();
        let invalid = "proxy = \"http://proxy:1\"\nno_proxy = [\"http://keel.example\"]";
        let error = load(invalid).unwrap().checked_proxy().unwrap_err();
        assert!(error.to_string().contains("http://keel.example"), "{error}");
        // A node that was enrolled before the entries were checked still reaches its server.
        assert!(load(invalid).unwrap().proxy().unwrap().is_some());
    }

    /// The shipped example claims to show the defaults.
    #[test]
    fn the_shipped_example_shows_the_defaults() {
        let example = include_str!("../../deploy/agent/agent.toml");
        assert_eq!(load(example).unwrap(), Config::default());
        let uncommented: Vec<_> = example.lines().map(uncomment).collect();
        for key in ["proxy", "no_proxy", "min_battery_percent", "min_free", "command"] {
            let prefix = format!("{key} =");
            let is_named = uncommented.iter().any(|line| line.starts_with(&prefix));
            assert!(is_named, "{key}");
        }
        let parsed = load(&uncommented.join("\n")).unwrap();
        // `coexist` is what happens without the key and without `enroll --take-over`.
        assert_eq!(parsed.other_updaters.mode, Some(OtherUpdatersMode::Coexist));
        let usual = Config {
            state_dir: None,
            proxy: String::new(),
            no_proxy: Vec::new(),
            other_updaters: OtherUpdatersConfig::default(),
            ..parsed
        };
        assert_eq!(usual, Config::default());
    }

    /// A line of the example with its setting or section enabled. Other comments are unchanged.
    fn uncomment(line: &str) -> &str {
        let rest = line.trim_start_matches('#').trim();
        let is_name = |text: &str| {
            let mut bytes = text.bytes();
            !text.is_empty() && bytes.all(|byte| byte == b'_' || byte.is_ascii_lowercase())
        };
        let section = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let key = rest.split_once(" = ").map(|(key, _)| key);
        if section.is_some_and(is_name) || key.is_some_and(is_name) { rest } else { line }
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        for text in ["rot = \"/\"", "[packages]\nlock_timeuot = \"1s\"", "[log]\nlevle = \"info\""]
        {
            let error = load(text).unwrap_err().to_string();
            let key = text.lines().last().unwrap().split(' ').next().unwrap();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn an_error_names_the_file_and_the_setting_and_shows_no_line() {
        let error = load("[gate]\nmin_free = \"MiB\"\n").unwrap_err().to_string();
        assert!(error.contains("agent.toml: gate.min_free: "), "{error}");
        assert!(error.contains("is not a size"), "{error}");
        let error = load("proxy = \"http://keel:secret@proxy:3128\n").unwrap_err().to_string();
        assert!(error.contains("agent.toml: TOML parse error at line 1"), "{error}");
        assert!(!error.contains("secret") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn a_named_file_must_exist() {
        assert!(Config::load(Some(Path::new("/no/such/file.toml"))).is_err());
    }
}
