//! What the agent can be told by its configuration file and by `EVENKEEL_AGENT_…`.

mod image;

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::telemetry::LogConfig;
use figment::Figment;
use figment::providers::{Env, Format, Toml};
use serde::{Deserialize, Deserializer};

use crate::agent::Pace;
use crate::boot;
use crate::gate::GateSettings;
use crate::link::{BadProxy, Proxy};
use crate::modules::packages::Limits;

pub use self::image::{HealthConfig, ImageConfig, Watchdog};

/// Where the configuration file is unless the command line says otherwise. It may be missing.
pub const FILE: &str = "/etc/evenkeel/agent.toml";

/// Everything the agent can be told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The root to manage.
    pub root: PathBuf,
    /// Where the agent keeps its state; in the managed root unless told otherwise.
    pub state_dir: Option<PathBuf>,
    /// How long the server may take for an answer, beside the time for which it may keep a poll open.
    #[serde(with = "humantime_serde")]
    pub call_timeout: Duration,
    /// Lists of packages are made current at least this often.
    #[serde(with = "humantime_serde")]
    pub refresh_every: Duration,
    /// The same wish is not prepared again ahead of its window before this time, if there was nothing to fetch.
    #[serde(with = "humantime_serde")]
    pub fetch_again_after: Duration,
    /// The same wish is not seen through again before this time, however it ended.
    #[serde(with = "humantime_serde")]
    pub retry_after: Duration,
    /// The server is asked at least this often, even if it named a later time.
    #[serde(with = "humantime_serde")]
    pub poll_at_least_every: Duration,
    /// How long a stop waits for a step that is being taken.
    #[serde(with = "humantime_serde")]
    pub stop_grace: Duration,
    /// The proxy on the way to the server, `http://[USER:PASSWORD@]HOST:PORT`; empty for none. apt has its own.
    pub proxy: String,
    /// Hosts that are reached without it: names, addresses, `.domains`, or `*` for all.
    pub no_proxy: Vec<String>,
    /// What is enough for a change to begin.
    pub gate: GateConfig,
    /// How the node reboots after a change that asks for it.
    pub reboot: RebootConfig,
    /// How long apt and dpkg may take.
    pub packages: PackagesConfig,
    /// How images are fetched, armed and tried.
    pub image: ImageConfig,
    /// What is logged.
    pub log: LogConfig,
}

/// What is enough for a change to begin.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateConfig {
    /// Without power from outside a change begins only with at least this much left, in percent.
    pub min_battery_percent: u8,
    /// This must be free on each file system that a change writes to, beside what the change needs: bytes, or a number
    /// with `KiB`, `MiB` or `GiB`.
    #[serde(deserialize_with = "bytes")]
    pub min_free: u64,
    /// How long each hook may take.
    #[serde(with = "humantime_serde")]
    pub hook_deadline: Duration,
}

/// How the node reboots after a change that asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RebootConfig {
    /// The program and its arguments; empty if the agent cannot reboot the node. No shell reads it.
    pub command: Vec<String>,
    /// How long services may take to come up after it before their absence counts.
    #[serde(with = "humantime_serde")]
    pub services_deadline: Duration,
}

/// How long apt and dpkg may take.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PackagesConfig {
    /// To look and to think.
    #[serde(with = "humantime_serde")]
    pub look_deadline: Duration,
    /// To fetch lists of packages.
    #[serde(with = "humantime_serde")]
    pub refresh_deadline: Duration,
    /// To fetch packages.
    #[serde(with = "humantime_serde")]
    pub download_deadline: Duration,
    /// To change packages. What is not done by then is left alone and reported.
    #[serde(with = "humantime_serde")]
    pub apply_deadline: Duration,
    /// To wait for dpkg's lock.
    #[serde(with = "humantime_serde")]
    pub lock_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            state_dir: None,
            call_timeout: Duration::from_secs(30),
            refresh_every: Duration::from_hours(4),
            fetch_again_after: Duration::from_hours(1),
            retry_after: Duration::from_mins(1),
            poll_at_least_every: Duration::from_hours(1),
            stop_grace: Duration::from_hours(1),
            proxy: String::new(),
            no_proxy: Vec::new(),
            gate: GateConfig::default(),
            reboot: RebootConfig::default(),
            packages: PackagesConfig::default(),
            image: ImageConfig::default(),
            log: LogConfig::default(),
        }
    }
}

impl Default for GateConfig {
    fn default() -> Self {
        let GateSettings {
            min_battery_percent,
            min_free,
            hook_deadline,
        } = GateSettings::default();
        Self {
            min_battery_percent,
            min_free,
            hook_deadline,
        }
    }
}

impl Default for RebootConfig {
    fn default() -> Self {
        Self {
            command: Vec::from(boot::COMMAND.map(str::to_owned)),
            services_deadline: Duration::from_mins(2),
        }
    }
}

impl Default for PackagesConfig {
    fn default() -> Self {
        Self {
            look_deadline: Duration::from_mins(5),
            refresh_deadline: Duration::from_mins(10),
            download_deadline: Duration::from_hours(6),
            apply_deadline: Duration::from_hours(1),
            lock_timeout: Duration::from_mins(5),
        }
    }
}

impl Config {
    /// Reads the file and the variables. A file that was named must be there. Fails on the first unknown key.
    pub fn load(file: Option<&Path>) -> Result<Self, Box<figment::Error>> {
        let toml = match file {
            Some(file) => Toml::file_exact(file),
            None => Toml::file(FILE),
        };
        Figment::new()
            .merge(toml)
            .merge(Env::prefixed("EVENKEEL_AGENT_").split("__"))
            .extract()
            .map_err(Box::new)
    }

    /// How often things are done that nobody asked for.
    pub fn pace(&self) -> Pace {
        Pace {
            refresh_every: delta(self.refresh_every),
            fetch_again_after: delta(self.fetch_again_after),
            retry_after: delta(self.retry_after),
            poll_at_least_every: self.poll_at_least_every,
        }
    }

    /// The proxy on the way to the server, if there is one.
    pub fn proxy(&self) -> Result<Option<Proxy>, BadProxy> {
        if self.proxy.is_empty() {
            return Ok(None);
        }
        Proxy::parse(&self.proxy, &self.no_proxy).map(Some)
    }

    /// What is enough for a change to begin.
    pub fn gate(&self) -> GateSettings {
        GateSettings {
            min_battery_percent: self.gate.min_battery_percent,
            min_free: self.gate.min_free,
            hook_deadline: self.gate.hook_deadline,
        }
    }

    /// How long apt and dpkg may take.
    pub fn limits(&self) -> Limits {
        Limits {
            look: self.packages.look_deadline,
            refresh: self.packages.refresh_deadline,
            download: self.packages.download_deadline,
            apply: self.packages.apply_deadline,
            lock: self.packages.lock_timeout,
        }
    }
}

/// Reads a size: a number of bytes, or text with a unit.
fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Size::deserialize(deserializer)? {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Text(text) => size(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no size, such as \"200MiB\""))
        }),
    }
}

fn size(text: &str) -> Option<u64> {
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

fn delta(duration: Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, Box<figment::Error>> {
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
        let config = load("refresh_every = \"30s\"\n[packages]\nlock_timeout = \"2m\"\n").unwrap();
        assert_eq!(config.refresh_every, Duration::from_secs(30));
        assert_eq!(config.limits().lock, Duration::from_mins(2));
        assert_eq!(config.pace().refresh_every, TimeDelta::seconds(30));
    }

    #[test]
    fn sizes_are_written_with_their_unit_or_in_bytes() {
        let free = |text: &str| load(&format!("[gate]\nmin_free = {text}\n"));
        assert_eq!(free("\"2GiB\"").unwrap().gate().min_free, 2 << 30);
        assert_eq!(free("\"5 KiB\"").unwrap().gate.min_free, 5 << 10);
        assert_eq!(free("7").unwrap().gate.min_free, 7);
        for bad in ["\"MiB\"", "\"2 GB\"", "\"99999999999GiB\"", "-1", "true"] {
            assert!(free(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn images_have_a_section_with_two_of_its_own() {
        let config = load(
            "[image]\ntries = 2\nwatchdog = \"require\"\nesp = \"/efi\"\n\
             [image.web]\nplain_http = true\nhosts = [\"cdn.example\"]\n\
             [image.health]\nunits = [\"app.service\"]\nstable = \"2s\"\ndeadline = \"40s\"\n",
        );
        let image = config.unwrap().image;
        assert_eq!(image.tries, 2);
        assert_eq!(image.watchdog, Watchdog::Require);
        assert_eq!(image.esp.as_deref(), Some(Path::new("/efi")));
        assert!(image.web.plain_http);
        assert_eq!(image.health.units, ["app.service"]);
        assert_eq!(image.health.stable, Duration::from_secs(2));
        assert!(image.health.server, "a default beside what is set");
        image.check().unwrap();
        let none = load("[image]\ntries = 0").unwrap().image;
        assert!(none.check().unwrap_err().contains("image.tries"));
        let never = load("[image.health]\nstable = \"10m\"").unwrap().image;
        assert!(never.check().unwrap_err().contains("image.health.stable"));
        load("[image]\nunsigned_images = true").unwrap_err();
    }

    #[test]
    fn a_proxy_is_used_if_it_is_named_and_must_then_be_one() {
        assert!(Config::default().proxy().unwrap().is_none());
        let config =
            load("proxy = \"http://keel:secret@proxy:3128\"\nno_proxy = [\".local\"]").unwrap();
        let proxy = config.proxy().unwrap().unwrap();
        assert_eq!(proxy.to_string(), "http://proxy:3128");
        load("proxy = \"proxy:3128\"").unwrap().proxy().unwrap_err();
    }

    /// The example that is shipped says of itself that it shows the defaults.
    #[test]
    fn the_commented_example_is_understood_line_by_line_and_shows_the_defaults() {
        let example = include_str!("../../deploy/agent/agent.toml");
        assert_eq!(load(example).unwrap(), Config::default());
        let uncommented: Vec<_> = example.lines().map(uncomment).collect();
        for key in [
            "proxy",
            "no_proxy",
            "min_battery_percent",
            "min_free",
            "command",
        ] {
            let named = format!("{key} =");
            let is_named = uncommented.iter().any(|line| line.starts_with(&named));
            assert!(is_named, "{key}");
        }
        let shown = load(&uncommented.join("\n")).unwrap();
        let usual = Config {
            state_dir: None,
            proxy: String::new(),
            no_proxy: Vec::new(),
            ..shown
        };
        assert_eq!(usual, Config::default());
    }

    /// A line of the example as it is used. What is behind a `#` is a setting or a section, or words about them.
    fn uncomment(line: &str) -> &str {
        let rest = line.trim_start_matches('#').trim();
        let is_name = |text: &str| {
            let mut bytes = text.bytes();
            !text.is_empty() && bytes.all(|byte| byte == b'_' || byte.is_ascii_lowercase())
        };
        let section = rest
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let key = rest.split_once(" = ").map(|(key, _)| key);
        if section.is_some_and(is_name) || key.is_some_and(is_name) {
            rest
        } else {
            line
        }
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        for text in [
            "rot = \"/\"",
            "[packages]\nlock_timeuot = \"1s\"",
            "[log]\nlevle = \"info\"",
        ] {
            let error = load(text).unwrap_err().to_string();
            let key = text.lines().last().unwrap().split(' ').next().unwrap();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn a_file_that_was_named_must_be_there() {
        assert!(Config::load(Some(Path::new("/no/such/file.toml"))).is_err());
    }
}
