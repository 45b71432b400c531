//! Settings of the OS resource manager.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_domain::os::catalogue::CatalogSelection;
use evenkeel_kit::{JobSchedule, Secret};
use evenkeel_registry::{Limits, SignaturePolicy};
use serde::{Deserialize, Serialize};

/// Upper bound of `parallel`.
const MAX_PARALLEL_FETCHES: usize = 64;

/// Settings of the OS resource manager.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// When registries are synced: a cron expression in UTC with the fields seconds, minutes, hours, days of the
    /// month, months and days of the week. If both day fields are restricted, a day needs to match only one of them; a
    /// step such as `*/2` restricts.
    pub sync_schedule: String,
    /// Whether registries are synced when the process starts, in addition to the schedule.
    pub at_start: bool,
    /// Maximum number of profiles or documents that are fetched concurrently from one registry, from 1
    /// to 64.
    pub parallel: usize,
    /// Profiles of projects that have no selection of their own. Without `registry` and `revision`,
    /// these projects take no profiles.
    pub default: DefaultProfile,
    /// Access to a registry. NAME is the name that projects use. Secrets are in files, which the
    /// server reads again for each sync.
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultProfile {
    /// Name of the registry.
    pub registry: Option<String>,
    /// Tags to take: `0.8.11` or `main` is that tag, `~0.8.11` is that release and its patches.
    pub revision: Option<String>,
    /// Names of the profiles to take. If not set: all.
    pub enabled: Option<Vec<String>>,
    /// Name of the profile for nodes without a selected profile.
    pub default_profile: Option<String>,
}

/// A registry and its access. Secrets are in files, which are read again for each sync.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrySettings {
    /// Address: `https://HOST`, `http://HOST` or `oci:/DIRECTORY`.
    pub address: String,
    /// Whether access without TLS is allowed.
    #[serde(default)]
    pub plain_http: bool,
    /// Prefix of the repositories of profiles, with a slash at its end. The repository of a profile
    /// is the prefix and the name of the profile.
    #[serde(default)]
    pub prefix: String,
    /// Base URL of files whose address in a profile has no host.
    #[serde(default)]
    pub files_url: Option<String>,
    /// User name. Needs `password_file`.
    #[serde(default)]
    pub username: Option<String>,
    /// File with the password of the user.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// File with a token, instead of a user name and a password.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// File with the only CA certificates to trust, in PEM. If not set: the certificates of the
    /// system.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Proxy to reach the registry: `http://[USER:PASSWORD@]HOST:PORT`, or `none` for no proxy. If
    /// not set, the environment variables `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` apply.
    #[serde(default, skip_serializing)]
    pub proxy: Option<Secret>,
    /// What to do with profiles without a valid signature by one of `keys`.
    #[serde(default)]
    pub trust: SignaturePolicy,
    /// Files with the trusted public keys, each in PEM.
    #[serde(default)]
    pub keys: Vec<PathBuf>,
    /// Additional hosts that files are fetched from, with or without a port. The hosts of `address`
    /// and `files_url` are always allowed.
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
        Self { key: key.into(), why: why.to_string() }
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

    /// Checks the settings that do not concern a single registry. Returns the schedule of the syncs.
    ///
    /// # Errors
    /// Names the first invalid setting.
    pub fn check(&self) -> Result<JobSchedule, InvalidSettings> {
        let schedule = self.sync_schedule.parse();
        let schedule = schedule.map_err(|error| InvalidSettings::new("sync_schedule", error))?;
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
            _ => Ok(schedule),
        }
    }
}
