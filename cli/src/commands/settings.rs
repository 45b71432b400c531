//! `evenkeel project settings`: how updates are kept and planned in the project.

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::settings::ProjectSettings;
use serde_json::{Map, Value};

use crate::Failure;
use crate::client::Client;
use crate::view::{Page, Printer};

const PATH: &str = "settings";

/// How updates are kept and planned in the project, which `--project` chooses.
#[derive(Debug, Subcommand)]
pub enum SettingsCommand {
    /// Show the settings.
    Show,
    /// Change settings; the others stay as they are.
    Set(SetSettings),
}

/// Change settings; the others stay as they are.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["retention_days", "any_schedule_status"]))]
pub struct SetSettings {
    /// How many days a run is kept after its end: a number, 0 for always, or `default` for what the server says.
    #[arg(long, value_name = "N|default")]
    retention_days: Option<Retention>,
    /// Whether schedules of every kind let nodes update, and not only those that are for updates.
    #[arg(long, value_name = "true|false")]
    any_schedule_status: Option<bool>,
}

/// How long a run is kept.
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
            Self::Set(set) => client.patch(PATH, &set.change()).await?,
        };
        show(&settings, client, printer)
    }
}

impl SetSettings {
    /// What changes; what is not named stays, and null is as the server does by default.
    fn change(&self) -> Map<String, Value> {
        let mut change = Map::new();
        if let Some(Retention(days)) = self.retention_days {
            change.insert("retentionDays".to_owned(), days.into());
        }
        if let Some(any) = self.any_schedule_status {
            change.insert("anyScheduleStatus".to_owned(), any.into());
        }
        change
    }
}

fn show(
    settings: &ProjectSettings,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let kept = match settings.retention_days {
        None => "as long as the server says".to_owned(),
        Some(0) => "for ever".to_owned(),
        Some(days) => format!("{days} days after the end"),
    };
    let opened = if settings.any_schedule_status {
        "every schedule"
    } else {
        "schedules for updates"
    };
    let mut page = Page::default();
    page.field("project", client.project())
        .field("runs are kept", kept)
        .field("windows come from", opened);
    printer.page(settings, client.project(), &page)
}
