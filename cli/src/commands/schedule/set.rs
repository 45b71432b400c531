//! `evenkeel schedule set`: another name, another time.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use clap::{ArgGroup, Args};
use evenkeel_api::timestamps::from_unix_seconds;
use serde_json::{Map, Value};

use super::create::{Cron, Purpose, seconds, whole_seconds};
use super::{REPEATED, Schedule};
use crate::Failure;
use crate::client::Client;
use crate::resource::{self, is_id};
use crate::time::{Moment, duration};

/// What changes about a schedule.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["name", "start", "end", "no_end", "duration", "cron", "time_zone", "purpose"]))]
pub struct SetSchedule {
    /// Its id or name.
    schedule: String,
    /// What to call it from now on.
    #[arg(long)]
    name: Option<String>,
    /// When one that opens once opens: `now`, a span such as `+30m`, or a time such as `2026-01-31T22:00:00Z`.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["cron", "time_zone"])]
    start: Option<Moment>,
    /// When one that opens once closes, given like --start.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["no_end", "duration", "cron", "time_zone"])]
    end: Option<Moment>,
    /// One that opens once stays open.
    #[arg(long, conflicts_with_all = ["duration", "cron", "time_zone"])]
    no_end: bool,
    /// How long it stays open, such as `2h`.
    #[arg(long, value_parser = duration, value_name = "SPAN")]
    duration: Option<Duration>,
    /// When one that opens again and again opens, such as `30 22 * * 1-5`.
    #[arg(long, value_name = "M H DOM MON DOW")]
    cron: Option<Cron>,
    /// The time zone in which cron counts, such as `Europe/Berlin`.
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// What it is for.
    #[arg(long = "for", value_enum)]
    purpose: Option<Purpose>,
}

impl SetSchedule {
    pub async fn run(self, client: &Client, now: DateTime<Utc>) -> Result<Schedule, Failure> {
        let id = resource::id_of::<Schedule>(client, &self.schedule).await?;
        let mut body = if is_id(REPEATED, &id) {
            self.repeated()?
        } else {
            self.single(client, &id, now).await?
        };
        let status = self.purpose.map(|purpose| purpose.status().as_str());
        body.extend(status.map(|status| ("scheduleStatus".to_owned(), status.into())));
        body.extend(self.name.map(|name| ("name".to_owned(), name.into())));
        resource::change(client, &id, &self.schedule, &body).await
    }

    /// What changes about the times of one that opens again and again.
    fn repeated(&self) -> Result<Map<String, Value>, Failure> {
        if self.start.is_some() || self.end.is_some() || self.no_end {
            return Err(Failure::usage_with(
                format!("`{}` opens again and again", self.schedule),
                "when it opens is said with --cron, and how long it stays open with --duration",
            ));
        }
        let mut body = Map::new();
        if let Some(Cron(fields)) = &self.cron {
            let names = [
                "cronMinutes",
                "cronHours",
                "cronDayMonth",
                "cronMonth",
                "cronDayWeek",
            ];
            let fields = names.into_iter().zip(fields);
            body.extend(fields.map(|(name, field)| (name.to_owned(), field.clone().into())));
        }
        if let Some(length) = self.duration {
            let seconds = whole_seconds(length)?;
            body.insert("durationSeconds".to_owned(), seconds.into());
        }
        let zone = self.time_zone.clone();
        body.extend(zone.map(|zone| ("timeZone".to_owned(), zone.into())));
        Ok(body)
    }

    /// What changes about the times of one that opens once.
    async fn single(
        &self,
        client: &Client,
        id: &str,
        now: DateTime<Utc>,
    ) -> Result<Map<String, Value>, Failure> {
        if self.cron.is_some() || self.time_zone.is_some() {
            return Err(Failure::usage_with(
                format!("`{}` opens once", self.schedule),
                "when it opens is said with --start, and when it closes with --end or --duration",
            ));
        }
        let mut body = Map::new();
        let start = self.start.map(|start| start.instant(now));
        if let Some(start) = start {
            body.insert("startSeconds".to_owned(), seconds("--start", start)?.into());
        }
        let end = match (self.end, self.duration) {
            (Some(end), _) => Some(end.instant(now)),
            (None, Some(length)) => {
                let start = match start {
                    Some(start) => start,
                    None => opening(client, id).await?,
                };
                Some(after(start, length))
            }
            (None, None) => None,
        };
        if let Some(end) = end {
            body.insert("endSeconds".to_owned(), seconds("--end", end)?.into());
        } else if self.no_end {
            body.insert("endSeconds".to_owned(), Value::Null);
        }
        Ok(body)
    }
}

/// When a schedule that opens once opens as it is.
async fn opening(client: &Client, id: &str) -> Result<DateTime<Utc>, Failure> {
    let start = match resource::find::<Schedule>(client, id).await? {
        Schedule::Single(schedule) => schedule.start_seconds,
        Schedule::Repeated(_) => 0,
    };
    Ok(from_unix_seconds(start).unwrap_or_default())
}

/// The instant this long after another.
fn after(start: DateTime<Utc>, length: Duration) -> DateTime<Utc> {
    let length = TimeDelta::from_std(length).unwrap_or(TimeDelta::MAX);
    start
        .checked_add_signed(length)
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}
