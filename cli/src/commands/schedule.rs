//! `evenkeel schedule`: when nodes may update.

mod create;
mod set;

use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::Subcommand;
use evenkeel_api::host::HostResource;
use evenkeel_api::region::RegionResource;
use evenkeel_api::schedule::{RepeatedScheduleResource, ScheduleStatus, SingleScheduleResource};
use evenkeel_api::site::SiteResource;
use evenkeel_api::timestamps::Timestamps;
use serde::{Deserialize, Deserializer, Serialize, de};

use self::create::CreateSchedule;
use self::set::SetSchedule;
use crate::Failure;
use crate::client::Client;
use crate::listing::ListOptions;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::requests::{self, ResourceArg};
use crate::resource::{Resource, ResourceKind, is_id};
use crate::time::format_unix_seconds;

const SINGLE_PREFIX: &str = "singlesche";
const SINGLE_PATH: &str = "schedules/single";
const REPEATED_PREFIX: &str = "repeatedsche";
const REPEATED_PATH: &str = "schedules/repeated";

/// Manage schedules: when nodes may update.
#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// List schedules.
    List(ListOptions),
    /// Show a schedule.
    Get(ResourceArg<Schedule>),
    /// Create a schedule.
    Create(Box<CreateSchedule>),
    /// Change a schedule. Options that are not given keep their values.
    Set(Box<SetSchedule>),
    /// Delete a schedule.
    Delete(ResourceArg<Schedule>),
}

impl ScheduleCommand {
    pub async fn run(
        self,
        client: &Client,
        printer: &mut Printer<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), Failure> {
        match self {
            Self::List(options) => requests::list::<Schedule>(options, client, printer).await,
            Self::Get(schedule) => schedule.print(client, printer).await,
            Self::Create(create) => printer.print_resource(&create.run(client, now).await?),
            Self::Set(set) => printer.print_resource(&set.run(client, now).await?),
            Self::Delete(schedule) => schedule.delete(client, printer).await,
        }
    }
}

/// A single or a repeated schedule.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Schedule {
    /// Opens once.
    Single(Box<SingleScheduleResource>),
    /// Opens repeatedly.
    Repeated(Box<RepeatedScheduleResource>),
}

impl<'de> Deserialize<'de> for Schedule {
    /// The prefix of the ID tells the kind.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let is_repeated = value["resourceId"].as_str().is_some_and(|id| is_id(REPEATED_PREFIX, id));
        let read = if is_repeated {
            serde_json::from_value(value).map(Self::Repeated)
        } else {
            serde_json::from_value(value).map(Self::Single)
        };
        read.map_err(de::Error::custom)
    }
}

impl Resource for Schedule {
    const KIND: ResourceKind = ResourceKind {
        id_prefix: SINGLE_PREFIX,
        path: "compute/schedules",
        list_key: "singleSchedules",
        second_list_key: Some("repeatedSchedules"),
        titles: &["FOR", "OPENS", "CLOSES", "TARGET"],
        optional_titles: &["AGE", "FOR", "CLOSES", "TARGET"],
        ..ResourceKind::new("SCHEDULE", "schedule", "schedules")
    };

    fn is_id(text: &str) -> bool {
        is_id(SINGLE_PREFIX, text) || is_id(REPEATED_PREFIX, text)
    }

    fn address(id: &str) -> String {
        let path = if is_id(REPEATED_PREFIX, id) { REPEATED_PATH } else { SINGLE_PATH };
        format!("{path}/{id}")
    }

    fn key(&self) -> [&str; 2] {
        match self {
            Self::Single(schedule) => [&schedule.resource_id, &schedule.name],
            Self::Repeated(schedule) => [&schedule.resource_id, &schedule.name],
        }
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        match self {
            Self::Single(schedule) => schedule.timestamps.as_ref(),
            Self::Repeated(schedule) => schedule.timestamps.as_ref(),
        }
    }

    fn columns(&self) -> Vec<Cell> {
        let (opens, closes) = match self {
            Self::Single(schedule) => (
                format_unix_seconds(schedule.start_seconds),
                format_unix_seconds(schedule.end_seconds),
            ),
            Self::Repeated(schedule) => (
                format!("{} {}", cron_expression(schedule), schedule.time_zone),
                format!("after {}", format_length(schedule)),
            ),
        };
        cells![self.purpose(), opens, closes, self.target()]
    }

    fn add_details(&self, page: &mut DetailPage) {
        page.field("for", self.purpose());
        match self {
            Self::Single(schedule) => {
                page.field("start", format_unix_seconds(schedule.start_seconds))
                    .field("end", format_unix_seconds(schedule.end_seconds));
            }
            Self::Repeated(schedule) => {
                page.field("cron", cron_expression(schedule))
                    .field("time zone", &schedule.time_zone)
                    .field("duration", format_length(schedule));
            }
        }
        page.field("target", self.target()).created(self.timestamps());
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
            Self::Single(schedule) => describe_target(
                (&schedule.target_host_id, schedule.target_host.as_deref()),
                (&schedule.target_site_id, schedule.target_site.as_ref()),
                (&schedule.target_region_id, schedule.target_region.as_ref()),
            ),
            Self::Repeated(schedule) => describe_target(
                (&schedule.target_host_id, schedule.target_host.as_deref()),
                (&schedule.target_site_id, schedule.target_site.as_ref()),
                (&schedule.target_region_id, schedule.target_region.as_ref()),
            ),
        }
    }
}

/// Kind and name (else ID) of the target of a schedule.
fn describe_target(
    host: (&str, Option<&HostResource>),
    site: (&str, Option<&SiteResource>),
    region: (&str, Option<&RegionResource>),
) -> String {
    let all = [
        ("host", host.0, host.1.map(|host| &host.name)),
        ("site", site.0, site.1.map(|site| &site.name)),
        ("region", region.0, region.1.map(|region| &region.name)),
    ];
    let target = all.into_iter().find(|(_, id, _)| !id.is_empty());
    target.map_or_else(String::new, |(kind, id, name)| {
        let name = name.filter(|name| !name.is_empty());
        format!("{kind} {}", name.map_or(id, String::as_str))
    })
}

/// The five cron fields.
fn cron_expression(schedule: &RepeatedScheduleResource) -> String {
    [
        schedule.cron_minutes.as_str(),
        &schedule.cron_hours,
        &schedule.cron_day_month,
        &schedule.cron_month,
        &schedule.cron_day_week,
    ]
    .join(" ")
}

fn format_length(schedule: &RepeatedScheduleResource) -> String {
    humantime::format_duration(Duration::from_secs(schedule.duration_seconds.into())).to_string()
}
