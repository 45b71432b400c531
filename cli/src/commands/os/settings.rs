//! `evenkeel os settings`: the registry and the profiles that a project uses.

use clap::Args;
use evenkeel_api::os_sync::{OsSettings, OsSettingsInput};

use crate::Failure;
use crate::client::Client;
use crate::output::Printer;
use crate::page::DetailPage;
use crate::requests::PatchBody;

const PATH: &str = "os-catalogue/settings";

/// Show or change which operating systems the project takes from a registry.
///
/// Options that are not given keep their values.
#[derive(Debug, Args)]
pub struct OsSettingsCommand {
    /// Registry, by its name on the server.
    #[arg(long, value_name = "NAME")]
    registry: Option<String>,
    /// Revisions to take: one such as `0.3.1`, or `~0.3.1` for it and later patches of 0.3.
    #[arg(long)]
    revision: Option<String>,
    /// Profile to take. Can be repeated; replaces the list of profiles.
    #[arg(long = "enable", value_name = "PROFILE")]
    enabled: Vec<String>,
    /// Default profile, for nodes without a profile of their own.
    #[arg(long = "default", value_name = "PROFILE")]
    default_profile: Option<String>,
    /// Remove the default profile.
    #[arg(long, conflicts_with = "default_profile")]
    no_default: bool,
    /// Reset all settings to the defaults of the server.
    #[arg(long, conflicts_with_all = ["registry", "revision", "enabled", "default_profile", "no_default"])]
    reset: bool,
}

impl OsSettingsCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let reset = self.reset;
        let change = self.build_patch();
        let settings: OsSettings = if reset {
            client.replace(PATH, &OsSettingsInput::default()).await?
        } else if change.is_empty() {
            client.get(PATH).await?
        } else {
            client.patch(PATH, &change).await?
        };
        print_settings(&settings, client, printer)
    }

    /// The fields to change.
    fn build_patch(self) -> PatchBody {
        let no_default = self.no_default.then(String::new);
        let mut change = PatchBody::default();
        change
            .set("registry", self.registry)
            .set("revision", self.revision)
            .set("defaultProfile", no_default.or(self.default_profile))
            .set("enabledProfiles", Some(self.enabled).filter(|enabled| !enabled.is_empty()));
        change
    }
}

fn print_settings(
    settings: &OsSettings,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let effective = &settings.effective;
    let annotate = |value: &str, is_own: bool| match (value, is_own) {
        ("", _) => String::new(),
        (value, true) => value.to_owned(),
        (value, false) => format!("{value} (server default)"),
    };
    let profiles = effective.enabled_profiles.join(", ");
    let default_profile = effective.default_profile.as_str();
    let mut page = DetailPage::default();
    page.field("project", client.project())
        .field("registry", annotate(&effective.registry, settings.registry.is_some()))
        .field("revision", annotate(&effective.revision, settings.revision.is_some()))
        .field("profiles", annotate(&profiles, settings.enabled_profiles.is_some()))
        .field("default profile", annotate(default_profile, settings.default_profile.is_some()))
        .field_if("default os", &settings.default_os_id)
        .field("registries", settings.registries.join(", "));
    printer.print_page(settings, client.project(), &page)
}
