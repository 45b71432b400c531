//! `evenkeel os settings`: what the project takes of a registry.

use clap::Args;
use evenkeel_api::os_sync::{OsSettings, OsSettingsInput};
use serde_json::{Map, Value};

use crate::Failure;
use crate::client::Client;
use crate::view::{Page, Printer};

const PATH: &str = "os-catalogue/settings";

/// Show what the project takes of a registry, or change it; what is not named stays.
#[derive(Debug, Args)]
pub struct Settings {
    /// The registry, by the name that the server knows it by.
    #[arg(long, value_name = "NAME")]
    registry: Option<String>,
    /// Which revisions: one such as `0.3.1`, or `~0.3.1` for it and all later patches of 0.3.
    #[arg(long)]
    revision: Option<String>,
    /// A profile to take; may be given more than once. Those that are not named are not taken any more.
    #[arg(long = "enable", value_name = "PROFILE")]
    enabled: Vec<String>,
    /// The profile for nodes that nothing is said of.
    #[arg(long = "default", value_name = "PROFILE")]
    default_profile: Option<String>,
    /// No profile for nodes that nothing is said of.
    #[arg(long, conflicts_with = "default_profile")]
    no_default: bool,
    /// Take everything as the server has it.
    #[arg(long, conflicts_with_all = ["registry", "revision", "enabled", "default_profile", "no_default"])]
    reset: bool,
}

impl Settings {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let change = self.change();
        let settings: OsSettings = if self.reset {
            client.replace(PATH, &OsSettingsInput::default()).await?
        } else if change.is_empty() {
            client.get(PATH).await?
        } else {
            client.patch(PATH, &change).await?
        };
        show(&settings, client, printer)
    }

    /// What changes; what is not named stays.
    fn change(&self) -> Map<String, Value> {
        let mut change = Map::new();
        let default_profile = if self.no_default {
            Some(String::new())
        } else {
            self.default_profile.clone()
        };
        for (name, value) in [
            ("registry", self.registry.clone()),
            ("revision", self.revision.clone()),
            ("defaultProfile", default_profile),
        ] {
            change.extend(value.map(|value| (name.to_owned(), Value::from(value))));
        }
        if !self.enabled.is_empty() {
            change.insert("enabledProfiles".to_owned(), self.enabled.clone().into());
        }
        change
    }
}

fn show(settings: &OsSettings, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let effective = &settings.effective;
    let said = |value: &str, is_own: bool| match (value, is_own) {
        ("", _) => String::new(),
        (value, true) => value.to_owned(),
        (value, false) => format!("{value} (as the server has it)"),
    };
    let profiles = effective.enabled_profiles.join(", ");
    let default_profile = effective.default_profile.as_str();
    let mut page = Page::default();
    page.field("project", client.project())
        .field(
            "registry",
            said(&effective.registry, settings.registry.is_some()),
        )
        .field(
            "revision",
            said(&effective.revision, settings.revision.is_some()),
        )
        .field(
            "profiles",
            said(&profiles, settings.enabled_profiles.is_some()),
        )
        .field(
            "default profile",
            said(default_profile, settings.default_profile.is_some()),
        )
        .field_if("newest of it", &settings.default_os_id)
        .field("the server knows", settings.registries.join(", "));
    printer.page(settings, client.project(), &page)
}
