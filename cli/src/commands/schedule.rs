//! `evenkeel schedule`: when nodes may be changed.

mod create;
mod set;

use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::Subcommand;
use evenkeel_api::host::HostResource;
use evenkeel_api::region::RegionResource;
use evenkeel_api::schedule::{RepeatedScheduleResource, ScheduleStatus, SingleScheduleResource};
use evenkeel_api::site::SiteResource;
use serde::{Deserialize, Deserializer, Serialize, de};

use self::create::CreateSchedule;
use self::set::SetSchedule;
use crate::Failure;
use crate::client::Client;
use crate::pages::{self, ListOptions};
use crate::resource::{self, Resource, is_id};
use crate::time::show_seconds;
use crate::view::{Cell, Page, Printer};

const SINGLE: &str = "singlesche";
const SINGLE_PATH: &str = "schedules/single";
const REPEATED: &str = "repeatedsche";
const REPEATED_PATH: &str = "schedules/repeated";

/// Schedules: when nodes may be changed.
#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// List the schedules.
    List(ListOptions),
    /// Show a schedule.
    Get {
        /// Its id or name.
        schedule: String,
    },
    /// Make a schedule.
    Create(Box<CreateSchedule>),
    /// Change what is given of a schedule; the rest stays.
    Set(Box<SetSchedule>),
    /// Delete a schedule.
    Delete {
        /// Its id or name.
        schedule: String,
    },
}

impl ScheduleCommand {
    pub async fn run(
        self,
        client: &Client,
        printer: &mut Printer<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), Failure> {
        match self {
            Self::List(options) => pages::show::<Schedule>(client, &options.query(), printer).await,
            Self::Get { schedule } => {
                printer.one(&resource::find::<Schedule>(client, &schedule).await?)
            }
            Self::Create(create) => printer.one(&create.run(client, now).await?),
            Self::Set(set) => printer.one(&set.run(client, now).await?),
            Self::Delete { schedule } => {
                let id = resource::delete::<Schedule>(client, &schedule).await?;
                printer.done(Schedule::WORD, &id, "deleted")
            }
        }
    }
}

/// A schedule of either kind.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Schedule {
    /// It opens once.
    Single(Box<SingleScheduleResource>),
    /// It opens again and again.
    Repeated(Box<RepeatedScheduleResource>),
}

impl<'de> Deserialize<'de> for Schedule {
    /// The id says which kind it is.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let is_repeated = value["resourceId"]
            .as_str()
            .is_some_and(|id| is_id(REPEATED, id));
        let read = if is_repeated {
            serde_json::from_value(value).map(Self::Repeated)
        } else {
            serde_json::from_value(value).map(Self::Single)
        };
        read.map_err(de::Error::custom)
    }
}

impl Resource for Schedule {
    const NOUN: &'static str = "schedule";
    const WORD: &'static str = "schedule";
    const MANY: &'static str = "schedules";
    const PREFIX: &'static str = SINGLE;
    const PATH: &'static str = "compute/schedules";
    const KEYS: &'static [&'static str] = &["singleSchedules", "repeatedSchedules"];
    const HEADER: &'static [&'static str] = &["ID", "NAME", "FOR", "OPENS", "CLOSES", "TARGET"];

    fn is_id(text: &str) -> bool {
        is_id(SINGLE, text) || is_id(REPEATED, text)
    }

    fn address(id: &str) -> String {
        let path = if is_id(REPEATED, id) {
            REPEATED_PATH
        } else {
            SINGLE_PATH
        };
        format!("{path}/{id}")
    }

    fn id(&self) -> &str {
        match self {
            Self::Single(schedule) => &schedule.resource_id,
            Self::Repeated(schedule) => &schedule.resource_id,
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Single(schedule) => &schedule.name,
            Self::Repeated(schedule) => &schedule.name,
        }
    }

    fn row(&self) -> Vec<Cell> {
        let (opens, closes) = match self {
            Self::Single(schedule) => (
                show_seconds(schedule.start_seconds),
                show_seconds(schedule.end_seconds),
            ),
            Self::Repeated(schedule) => (
                format!("{} {}", cron(schedule), schedule.time_zone),
                format!("after {}", length(schedule)),
            ),
        };
        vec![
            self.id().into(),
            self.name().into(),
            self.purpose().into(),
            opens.into(),
            closes.into(),
            self.target().into(),
        ]
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        page.field("id", self.id())
            .field("name", self.name())
            .field("for", self.purpose());
        let timestamps = match self {
            Self::Single(schedule) => {
                page.field("start", show_seconds(schedule.start_seconds))
                    .field("end", show_seconds(schedule.end_seconds));
                &schedule.timestamps
            }
            Self::Repeated(schedule) => {
                page.field("cron", cron(schedule))
                    .field("time zone", schedule.time_zone.clone())
                    .field("duration", length(schedule));
                &schedule.timestamps
            }
        };
        page.field("target", self.target())
            .created(timestamps.as_ref());
        page
    }
}

impl Schedule {
    fn purpose(&self) -> String {
        let status = match self {
            Self::Single(schedule) => schedule.schedule_status,
            Self::Repeated(schedule) => schedule.schedule_status,
        };
        match status {
            ScheduleStatus::Unspecified => String::new(),
            ScheduleStatus::OsUpdate => "update".to_owned(),
            other => other
                .as_str()
                .trim_start_matches("SCHEDULE_STATUS_")
                .to_lowercase()
                .replace('_', " "),
        }
    }

    fn target(&self) -> String {
        match self {
            Self::Single(schedule) => target(
                (&schedule.target_host_id, schedule.target_host.as_deref()),
                (&schedule.target_site_id, schedule.target_site.as_ref()),
                (&schedule.target_region_id, schedule.target_region.as_ref()),
            ),
            Self::Repeated(schedule) => target(
                (&schedule.target_host_id, schedule.target_host.as_deref()),
                (&schedule.target_site_id, schedule.target_site.as_ref()),
                (&schedule.target_region_id, schedule.target_region.as_ref()),
            ),
        }
    }
}

/// What a schedule is meant for: the kind, and the name if there is one, else the id.
fn target(
    host: (&str, Option<&HostResource>),
    site: (&str, Option<&SiteResource>),
    region: (&str, Option<&RegionResource>),
) -> String {
    let all = [
        ("host", host.0, host.1.map(|host| &host.name)),
        ("site", site.0, site.1.map(|site| &site.name)),
        ("region", region.0, region.1.map(|region| &region.name)),
    ];
    let given = all.into_iter().find(|(_, id, _)| !id.is_empty());
    given.map_or_else(String::new, |(kind, id, name)| {
        let name = name.filter(|name| !name.is_empty());
        format!("{kind} {}", name.map_or(id, String::as_str))
    })
}

/// The five fields as cron has them.
fn cron(schedule: &RepeatedScheduleResource) -> String {
    [
        schedule.cron_minutes.as_str(),
        &schedule.cron_hours,
        &schedule.cron_day_month,
        &schedule.cron_month,
        &schedule.cron_day_week,
    ]
    .join(" ")
}

fn length(schedule: &RepeatedScheduleResource) -> String {
    humantime::format_duration(Duration::from_secs(schedule.duration_seconds.into())).to_string()
}
