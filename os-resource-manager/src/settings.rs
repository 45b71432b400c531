//! What the OS resource manager can be told.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_domain::os::catalogue::Wish;
use evenkeel_kit::Secret;
use evenkeel_registry::{Limits, Trust};
use serde::Deserialize;

/// The most that is fetched side by side from one registry.
const MOST_PARALLEL: usize = 64;

/// Everything the OS resource manager can be told.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// When registries are asked what is new: seconds, minutes, hours, days, months and weekdays of a calendar in
    /// UTC, as in cron.
    pub calendar: String,
    /// Whether they are asked when the process starts, too.
    pub at_start: bool,
    /// How many profiles or documents are fetched side by side from one registry.
    pub parallel: usize,
    /// What projects take that do not say it themselves.
    pub default: DefaultWish,
    /// The registries by the names that projects know them by.
    pub registries: BTreeMap<String, RegistrySettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            calendar: "0 23 */6 * * *".to_owned(),
            at_start: true,
            parallel: 8,
            default: DefaultWish::default(),
            registries: BTreeMap::new(),
        }
    }
}

/// What projects take that do not say it themselves. Without a registry or a revision they take nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultWish {
    /// The name of a registry.
    pub registry: Option<String>,
    /// Which tags: `0.8.11` or `main` is that one, `~0.8.11` is its patches.
    pub revision: Option<String>,
    /// Which profiles.
    pub enabled: Option<Vec<String>>,
    /// The profile for nodes that nothing is said of.
    pub default_profile: Option<String>,
}

/// A registry and how it is entered. Secrets are in files of their own, which are read anew each time that it is asked.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrySettings {
    /// Where it is: `https://host`, `http://host` or `oci:/folder`.
    pub address: String,
    /// Whether it may be asked without TLS.
    #[serde(default)]
    pub plain_http: bool,
    /// What stands before the name of a profile to make its repository, with the slash at its end.
    #[serde(default)]
    pub prefix: String,
    /// Where files lie that a profile names without a host.
    #[serde(default)]
    pub files_url: Option<String>,
    /// As whom it is asked.
    #[serde(default)]
    pub username: Option<String>,
    /// The file with the password for that.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// The file with a token, instead of a name and a password.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// The file with the only authorities that may vouch for it, in PEM; without, those of the system.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Through what it is reached: the address of a proxy, or `none`; without, as the environment says.
    #[serde(default)]
    pub proxy: Option<Secret>,
    /// What is done with profiles that nobody signed whose key is known.
    #[serde(default)]
    pub trust: Trust,
    /// Files with the public keys whose signatures count, each in PEM.
    #[serde(default)]
    pub keys: Vec<PathBuf>,
    /// Hosts that files may be fetched from besides the registry's own and that of `files_url`, with or without a port.
    #[serde(default)]
    pub allow_hosts: Vec<String>,
    /// How much is taken from it, and how long is waited. Nobody is asked for it.
    #[serde(skip)]
    pub limits: Limits,
}

impl RegistrySettings {
    /// The usual way into what is at an address: as nobody, with TLS.
    #[must_use]
    pub fn at(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            plain_http: false,
            prefix: String::new(),
            files_url: None,
            username: None,
            password_file: None,
            token_file: None,
            ca: None,
            proxy: None,
            trust: Trust::default(),
            keys: Vec::new(),
            allow_hosts: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// A setting that cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("os_resource_manager.{key}: {why}")]
pub struct BadSettings {
    /// Which one.
    pub key: String,
    /// Why not; never the value of a secret.
    pub why: String,
}

impl BadSettings {
    pub(crate) fn new(key: impl Into<String>, why: impl ToString) -> Self {
        Self {
            key: key.into(),
            why: why.to_string(),
        }
    }
}

impl Settings {
    /// What projects take that do not say it themselves.
    #[must_use]
    pub fn wish(&self) -> Wish {
        let wish = self.default.clone();
        Wish {
            registry: wish.registry,
            revision: wish.revision,
            enabled: wish.enabled,
            default_profile: wish.default_profile,
        }
    }

    /// Whether all of it can be kept, as far as that can be seen without opening anything.
    pub(crate) fn check(&self) -> Result<(), BadSettings> {
        if !(1..=MOST_PARALLEL).contains(&self.parallel) {
            let why = format!("must be from 1 to {MOST_PARALLEL}");
            return Err(BadSettings::new("parallel", why));
        }
        let bad = |invalid: evenkeel_domain::invalid::Invalid| {
            let key = match invalid.field {
                "enabledProfiles" => "default.enabled",
                "defaultProfile" => "default.default_profile",
                "registry" => "default.registry",
                _ => "default.revision",
            };
            BadSettings::new(key, invalid.why)
        };
        let wish = self.wish().checked().map_err(bad)?;
        wish.whole().map_err(bad)?;
        match wish.registry {
            Some(name) if !self.registries.contains_key(&name) => {
                let why = format!("there is no registry of the name {name}");
                Err(BadSettings::new("default.registry", why))
            }
            _ => Ok(()),
        }
    }
}
