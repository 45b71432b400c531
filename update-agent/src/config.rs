//! What the agent can be told by its configuration file and by `EVENKEEL_AGENT_…`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::telemetry::LogConfig;
use figment::Figment;
use figment::providers::{Env, Format, Toml};
use serde::Deserialize;

use crate::agent::Pace;
use crate::modules::packages::Limits;

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
    /// How long the server may take for an answer.
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
    /// How long a stop waits for a step that is being taken.
    #[serde(with = "humantime_serde")]
    pub stop_grace: Duration,
    /// How long apt and dpkg may take.
    pub packages: PackagesConfig,
    /// What is logged.
    pub log: LogConfig,
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
            stop_grace: Duration::from_hours(1),
            packages: PackagesConfig::default(),
            log: LogConfig::default(),
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
