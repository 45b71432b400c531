//! `evenkeel schedule set`: changes schedules.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use clap::{ArgGroup, Args};
use evenkeel_api::timestamps::from_unix_seconds;
use serde_json::Value;

use super::create::{CRON_OPTION, Cron, Purpose, TIME_OPTIONS, duration_seconds, unix_seconds};
use super::{REPEATED_PREFIX, Schedule};
use crate::Failure;
use crate::client::Client;
use crate::requests::{self, DuplicateOption, PatchBody};
use crate::resource::is_id;
use crate::time::{Moment, parse_duration};

/// Change a schedule.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["name", "start", "end", "no_end", "duration", "cron", "time_zone", "purpose"]))]
pub struct SetSchedule {
    /// ID or name of the schedule.
    schedule: String,
    /// New name.
    #[arg(long)]
    name: Option<String>,
    /// New start of a single schedule: `now`, an offset such as `+30m`, or a time such as
    /// `2026-01-31T22:00:00Z`.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["cron", "time_zone"])]
    start: Option<Moment>,
    /// New end of a single schedule, in the format of --start.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["no_end", "duration", "cron", "time_zone"])]
    end: Option<Moment>,
    /// Remove the end of a single schedule.
    #[arg(long, conflicts_with_all = ["duration", "cron", "time_zone"])]
    no_end: bool,
    /// How long the schedule stays open, such as `2h`.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    duration: Option<Duration>,
    /// New cron expression of a repeated schedule, as for `evenkeel schedule create`.
    #[arg(long, value_name = "M H DOM MON DOW")]
    cron: Option<Cron>,
    /// Time zone of the cron expression, such as `Europe/Berlin`.
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Purpose of the schedule.
    #[arg(long = "for", value_enum)]
    purpose: Option<Purpose>,
    #[command(flatten)]
    duplicates: DuplicateOption,
}

impl SetSchedule {
    pub async fn run(self, client: &Client, now: DateTime<Utc>) -> Result<Schedule, Failure> {
        let id = requests::resolve_id::<Schedule>(client, &self.schedule).await?;
        let name = self.name.as_deref().unwrap_or_default();
        self.duplicates.check::<Schedule>(client, name, Some(&id)).await?;
        let mut body = if is_id(REPEATED_PREFIX, &id) {
            self.repeated_patch()?
        } else {
            self.single_patch(client, &id, now).await?
        };
        let status = self.purpose.map(|purpose| purpose.status().as_str());
        body.set("scheduleStatus", status).set("name", self.name);
        let changed = requests::patch(client, &id, &self.schedule, &body).await;
        changed.map_err(|error| error.with_option(&CRON_OPTION).with_option(&TIME_OPTIONS))
    }

    /// The time fields to change of a repeated schedule.
    fn repeated_patch(&self) -> Result<PatchBody, Failure> {
        if self.start.is_some() || self.end.is_some() || self.no_end {
            return Err(Failure::usage_with(
                format!("`{}` is a repeated schedule", self.schedule),
                "change its times with --cron and --duration",
            ));
        }
        let mut body = PatchBody::default();
        if let Some(Cron(fields)) = &self.cron {
            let names = ["cronMinutes", "cronHours", "cronDayMonth", "cronMonth", "cronDayWeek"];
            for (name, field) in names.into_iter().zip(fields) {
                body.set(name, Some(field.as_str()));
            }
        }
        body.set("durationSeconds", self.duration.map(duration_seconds).transpose()?)
            .set("timeZone", self.time_zone.as_deref());
        Ok(body)
    }

    /// The time fields to change of a single schedule.
    async fn single_patch(
        &self,
        client: &Client,
        id: &str,
        now: DateTime<Utc>,
    ) -> Result<PatchBody, Failure> {
        if self.cron.is_some() || self.time_zone.is_some() {
            return Err(Failure::usage_with(
                format!("`{}` is a single schedule", self.schedule),
                "change its times with --start, and with --end or --duration",
            ));
        }
        let mut body = PatchBody::default();
        let start = self.start.map(|start| start.instant(now));
        let start_seconds = start.map(|start| unix_seconds("--start", start)).transpose()?;
        body.set("startSeconds", start_seconds);
        let end = match (self.end, self.duration) {
            (Some(end), _) => Some(end.instant(now)),
            (None, Some(length)) => {
                let start = match start {
                    Some(start) => start,
                    None => fetch_start(client, id).await?,
                };
                Some(add_duration(start, length))
            }
            (None, None) => None,
        };
        if let Some(end) = end {
            body.set("endSeconds", Some(unix_seconds("--end", end)?));
        } else if self.no_end {
            body.set("endSeconds", Some(Value::Null));
        }
        Ok(body)
    }
}

/// Current start of a single schedule.
async fn fetch_start(client: &Client, id: &str) -> Result<DateTime<Utc>, Failure> {
    let start = match requests::find::<Schedule>(client, id).await? {
        Schedule::Single(schedule) => schedule.start_seconds,
        Schedule::Repeated(_) => 0,
    };
    Ok(from_unix_seconds(start).unwrap_or_default())
}

/// Adds a duration to a time; saturates.
fn add_duration(start: DateTime<Utc>, length: Duration) -> DateTime<Utc> {
    let length = TimeDelta::from_std(length).unwrap_or(TimeDelta::MAX);
    start.checked_add_signed(length).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
