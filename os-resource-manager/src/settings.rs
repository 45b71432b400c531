//! Settings of the OS resource manager.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_domain::os::catalogue::CatalogSelection;
use evenkeel_kit::Secret;
use evenkeel_registry::{Limits, SignaturePolicy};
use serde::Deserialize;

/// Upper bound of `parallel`.
const MAX_PARALLEL_FETCHES: usize = 64;

/// Settings of the OS resource manager.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// When registries are synced: a cron expression in UTC with the fields seconds, minutes, hours, days of the
    /// month, months and days of the week. If both day fields are restricted, a day needs to match only one of them.
    pub sync_schedule: String,
    /// Whether registries are also synced when the process starts.
    pub at_start: bool,
    /// How many profiles or documents are fetched concurrently from one registry.
    pub parallel: usize,
    /// Default selection of projects.
    pub default: DefaultProfile,
    /// The registries, by the names that projects use.
    pub registries: BTreeMap<String, RegistrySettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sync_schedule: "0 23 */6 * * *".to_owned(),
            at_start: true,
            parallel: 8,
            default: DefaultProfile::default(),
            registries: BTreeMap::new(),
        }
    }
}

/// Default selection of projects. Without a registry and a revision, projects take nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultProfile {
    /// Name of a registry.
    pub registry: Option<String>,
    /// Tags to take: `0.8.11` or `main` is that tag, `~0.8.11` is its patches.
    pub revision: Option<String>,
    /// Profiles to take.
    pub enabled: Option<Vec<String>>,
    /// Profile for nodes without a selected one.
    pub default_profile: Option<String>,
}

/// A registry and its access. Secrets are in files, which are read again for each sync.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrySettings {
    /// Address: `https://host`, `http://host` or `oci:/folder`.
    pub address: String,
    /// Whether access without TLS is allowed.
    #[serde(default)]
    pub plain_http: bool,
    /// Prefix of a profile name that makes its repository name, with a slash at its end.
    #[serde(default)]
    pub prefix: String,
    /// Base URL of files that a profile names without a host.
    #[serde(default)]
    pub files_url: Option<String>,
    /// User name.
    #[serde(default)]
    pub username: Option<String>,
    /// File with the password of the user.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// File with a token, instead of a user name and a password.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// File with the only CA certificates to trust, in PEM; without, the system's.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Address of a proxy, or `none`; without, the proxy of the environment.
    #[serde(default)]
    pub proxy: Option<Secret>,
    /// What to do with profiles without a valid signature by one of `keys`.
    #[serde(default)]
    pub trust: SignaturePolicy,
    /// Files with the trusted public keys, each in PEM.
    #[serde(default)]
    pub keys: Vec<PathBuf>,
    /// Additional hosts to fetch files from, with or without a port. The registry's host and that of `files_url` are
    /// always allowed.
    #[serde(default)]
    pub allow_hosts: Vec<String>,
    /// Size and time limits. Not configurable.
    #[serde(skip)]
    pub limits: Limits,
}

impl RegistrySettings {
    /// Anonymous access with TLS to an address.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
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
            trust: SignaturePolicy::default(),
            keys: Vec::new(),
            allow_hosts: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("os_resource_manager.{key}: {why}")]
pub struct InvalidSettings {
    /// Key of the setting.
    pub key: String,
    /// What is wrong; never contains a secret.
    pub why: String,
}

impl InvalidSettings {
    pub(crate) fn new(key: impl Into<String>, why: impl ToString) -> Self {
        Self {
            key: key.into(),
            why: why.to_string(),
        }
    }
}

impl Settings {
    /// Default selection of projects.
    #[must_use]
    pub fn default_selection(&self) -> CatalogSelection {
        let selection = self.default.clone();
        CatalogSelection {
            registry: selection.registry,
            revision: selection.revision,
            enabled: selection.enabled,
            default_profile: selection.default_profile,
        }
    }

    /// Checks the settings, as far as possible without opening files.
    pub(crate) fn check(&self) -> Result<(), InvalidSettings> {
        if !(1..=MAX_PARALLEL_FETCHES).contains(&self.parallel) {
            let why = format!("must be from 1 to {MAX_PARALLEL_FETCHES}");
            return Err(InvalidSettings::new("parallel", why));
        }
        let bad = |invalid: evenkeel_domain::invalid::Invalid| {
            let key = match invalid.field {
                "enabledProfiles" => "default.enabled",
                "defaultProfile" => "default.default_profile",
                "registry" => "default.registry",
                _ => "default.revision",
            };
            InvalidSettings::new(key, invalid.why)
        };
        let selection = self.default_selection().validated().map_err(bad)?;
        selection.resolve().map_err(bad)?;
        match selection.registry {
            Some(name) if !self.registries.contains_key(&name) => {
                let why = format!("there is no registry named {name}");
                Err(InvalidSettings::new("default.registry", why))
            }
            _ => Ok(()),
        }
    }
}
