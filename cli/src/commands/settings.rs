//! `evenkeel project settings`: settings of a project.

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::settings::ProjectSettings;

use crate::Failure;
use crate::client::Client;
use crate::output::Printer;
use crate::page::DetailPage;
use crate::requests::PatchBody;

const PATH: &str = "settings";

/// Show or change the settings of the project that `--project` selects.
#[derive(Debug, Subcommand)]
pub enum SettingsCommand {
    /// Show the settings.
    Show,
    /// Change settings. Options that are not given keep their values.
    Set(SetSettings),
}

/// Change settings. Options that are not given keep their values.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["retention_days", "any_schedule_status"]))]
pub struct SetSettings {
    /// Retention of runs after their end, in days: a number, 0 for unlimited, or `default` for the
    /// default of the server.
    #[arg(long, value_name = "N|default")]
    retention_days: Option<Retention>,
    /// Whether schedules of every purpose open update windows, not only those for updates.
    #[arg(long, value_name = "true|false")]
    any_schedule_status: Option<bool>,
}

/// Retention of runs in days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention(Option<u32>);

impl std::str::FromStr for Retention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "default" {
            return Ok(Self(None));
        }
        text.parse()
            .map(|days| Self(Some(days)))
            .map_err(|_| format!("`{text}` is neither a number of days nor `default`"))
    }
}

impl SettingsCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let settings = match self {
            Self::Show => client.get(PATH).await?,
            Self::Set(set) => client.patch(PATH, &set.build_patch()).await?,
        };
        print_settings(&settings, client, printer)
    }
}

impl SetSettings {
    /// The fields to change. Null resets a field to the default of the server.
    fn build_patch(&self) -> PatchBody {
        let mut change = PatchBody::default();
        change
            .set("retentionDays", self.retention_days.map(|Retention(days)| days))
            .set("anyScheduleStatus", self.any_schedule_status);
        change
    }
}

fn print_settings(
    settings: &ProjectSettings,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let retention = match settings.retention_days {
        None => "server default".to_owned(),
        Some(0) => "unlimited".to_owned(),
        Some(days) => format!("{days} days after the end"),
    };
    let opened = if settings.any_schedule_status { "all schedules" } else { "update schedules" };
    let mut page = DetailPage::default();
    page.field("project", client.project())
        .field("run retention", retention)
        .field("windows from", opened);
    printer.print_page(settings, client.project(), &page)
}
