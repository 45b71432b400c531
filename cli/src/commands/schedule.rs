//! `evenkeel schedule`: when nodes may be changed.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use clap::{Args, Subcommand, ValueEnum};
use evenkeel_api::host::HostResource;
use evenkeel_api::schedule::{
    ScheduleList, ScheduleStatus, SingleScheduleInput, SingleScheduleList, SingleScheduleResource,
};

use crate::Failure;
use crate::client::Client;
use crate::resource::{self, Resource};
use crate::time::{Moment, duration, show_option, show_seconds};
use crate::view::{Cell, Page, Printer};

/// Schedules: when nodes may be changed.
#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// List the schedules.
    List,
    /// Show a schedule.
    Get {
        /// Its id or name.
        schedule: String,
    },
    /// Make a schedule.
    Create(CreateSchedule),
    /// Delete a schedule.
    Delete {
        /// Its id or name.
        schedule: String,
    },
}

/// Make a schedule. All times are UTC unless they say otherwise.
#[derive(Debug, Args)]
pub struct CreateSchedule {
    /// What to call it.
    name: String,
    /// When it opens: `now`, a span such as `+30m`, or a time such as `2026-01-31T22:00:00Z`.
    #[arg(long)]
    start: Moment,
    /// When it closes, given like --start [default: it stays open].
    #[arg(long, conflicts_with = "duration")]
    end: Option<Moment>,
    /// How long it stays open, such as `2h`.
    #[arg(long, value_parser = duration, value_name = "SPAN")]
    duration: Option<Duration>,
    /// The host it is meant for, by its id or name.
    #[arg(long)]
    host: String,
    /// What it is for.
    #[arg(long = "for", value_enum, default_value_t = Purpose::Update)]
    purpose: Purpose,
}

/// What a schedule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Purpose {
    /// Nodes may be updated.
    Update,
    /// People work on the node; it is not updated for that.
    Maintenance,
}

impl ScheduleCommand {
    pub async fn run(
        self,
        client: &Client,
        printer: &mut Printer<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), Failure> {
        type Single = SingleScheduleResource;
        match self {
            Self::List => {
                let list: ScheduleList = client.get("compute/schedules").await?;
                printer.list(&list.single_schedules)
            }
            Self::Get { schedule } => {
                printer.one(&resource::find::<Single>(client, &schedule).await?)
            }
            Self::Create(create) => {
                let body = create.input(client, now).await?;
                let made: Single = client.post(Single::PATH, &body).await?;
                printer.one(&made)
            }
            Self::Delete { schedule } => {
                let id = resource::delete::<Single>(client, &schedule).await?;
                printer.done(Single::WORD, &id, "deleted")
            }
        }
    }
}

impl CreateSchedule {
    async fn input(
        self,
        client: &Client,
        now: DateTime<Utc>,
    ) -> Result<SingleScheduleInput, Failure> {
        let start = self.start.instant(now);
        let end = match (self.end, self.duration) {
            (Some(end), _) => Some(end.instant(now)),
            (None, Some(length)) => {
                let length = TimeDelta::from_std(length).unwrap_or(TimeDelta::MAX);
                Some(
                    start
                        .checked_add_signed(length)
                        .unwrap_or(DateTime::<Utc>::MAX_UTC),
                )
            }
            (None, None) => None,
        };
        Ok(SingleScheduleInput {
            name: self.name,
            schedule_status: match self.purpose {
                Purpose::Update => ScheduleStatus::OsUpdate,
                Purpose::Maintenance => ScheduleStatus::Maintenance,
            },
            start_seconds: seconds("--start", start)?,
            end_seconds: end.map(|end| seconds("--end", end)).transpose()?,
            target_host_id: resource::id_of::<HostResource>(client, &self.host).await?,
            ..SingleScheduleInput::default()
        })
    }
}

/// Whole seconds, rounded up so that `now` is never in the past.
fn seconds(option: &str, time: DateTime<Utc>) -> Result<u32, Failure> {
    let up = i64::from(time.timestamp_subsec_nanos() > 0);
    u32::try_from(time.timestamp() + up)
        .map_err(|_| Failure::usage(format!("{option}: the time must lie between 1970 and 2106")))
}

impl Resource for SingleScheduleResource {
    const NOUN: &'static str = "schedule";
    const WORD: &'static str = "schedule";
    const MANY: &'static str = "schedules";
    const PREFIX: &'static str = "singlesche";
    const PATH: &'static str = "schedules/single";
    const HEADER: &'static [&'static str] = &["ID", "NAME", "FOR", "START", "END", "TARGET"];
    type List = SingleScheduleList;

    fn items(list: SingleScheduleList) -> Vec<Self> {
        list.single_schedules
    }

    fn id(&self) -> &str {
        &self.resource_id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            self.resource_id.clone().into(),
            self.name.clone().into(),
            purpose(self).into(),
            show_seconds(self.start_seconds).into(),
            show_seconds(self.end_seconds).into(),
            target(self).into(),
        ]
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("for", purpose(self))
            .field("start", show_seconds(self.start_seconds))
            .field("end", show_seconds(self.end_seconds))
            .field("target", target(self))
            .field(
                "created",
                show_option(self.timestamps.as_ref().map(|times| times.created_at)),
            );
        page
    }
}

fn purpose(schedule: &SingleScheduleResource) -> &'static str {
    match schedule.schedule_status {
        ScheduleStatus::Unspecified => "",
        ScheduleStatus::Maintenance => "maintenance",
        ScheduleStatus::OsUpdate => "update",
    }
}

/// What a schedule is meant for: the name if there is one, else the id.
fn target(schedule: &SingleScheduleResource) -> String {
    let host = schedule.target_host.as_ref().map(|host| host.name.clone());
    let site = schedule.target_site.as_ref().map(|site| site.name.clone());
    let region = schedule
        .target_region
        .as_ref()
        .map(|region| region.name.clone());
    let ids = [
        (host, &schedule.target_host_id),
        (site, &schedule.target_site_id),
        (region, &schedule.target_region_id),
    ];
    let given = ids.into_iter().find(|(_, id)| !id.is_empty());
    given.map_or_else(String::new, |(name, id)| {
        name.filter(|name| !name.is_empty())
            .unwrap_or_else(|| id.clone())
    })
}
