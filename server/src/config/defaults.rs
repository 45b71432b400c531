//! The defaults of all keys, for the generated reference.

use anyhow::Context;
use figment::Figment;
use figment::providers::{Format, Toml};

use super::Config;

/// Sections that are absent by default, with their required keys.
const OPTIONAL_SECTIONS: &str = r#"
    [auth.login]
    [[auth.issuers]]
    issuer = ""
    [[auth.issuers.role_mapping]]
    claim = ""
    value = ""
    role = ""
    [os_resource_manager.registries.NAME]
    address = ""
"#;

/// Returns every key of the configuration with its default. Sections that are absent by default are
/// present, with empty texts as the values of their required keys. Secrets are left out.
pub fn default_settings() -> anyhow::Result<serde_json::Value> {
    let sections = Figment::from(Toml::string(OPTIONAL_SECTIONS));
    let config: Config = sections.extract().context("cannot read the sections")?;
    serde_json::to_value(config).context("cannot write the configuration")
}
