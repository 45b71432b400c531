//! `evenkeel schedule create`: once, or again and again.

use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use clap::{ArgGroup, Args, ValueEnum};
use evenkeel_api::host::HostResource;
use evenkeel_api::region::RegionResource;
use evenkeel_api::schedule::{RepeatedScheduleInput, ScheduleStatus, SingleScheduleInput};
use evenkeel_api::site::SiteResource;

use super::{REPEATED_PATH, SINGLE_PATH, Schedule};
use crate::Failure;
use crate::client::Client;
use crate::resource;
use crate::time::{Moment, duration};

/// Make a schedule that opens once (--start) or again and again (--cron, or its fields one by one).
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("when").required(true).multiple(true)
        .args(["start", "cron", "minutes", "hours", "days", "months", "weekdays"]),
    group = ArgGroup::new("fields").multiple(true).conflicts_with_all(["start", "end", "cron"])
        .args(["minutes", "hours", "days", "months", "weekdays"]),
    group = ArgGroup::new("target").required(true).args(["host", "site", "region"]),
)]
pub struct CreateSchedule {
    /// What to call it.
    name: String,
    /// When it opens: `now`, a span such as `+30m`, or a time such as `2026-01-31T22:00:00Z`.
    #[arg(long, value_name = "TIME")]
    start: Option<Moment>,
    /// When it closes, given like --start [default: it stays open].
    #[arg(long, value_name = "TIME", conflicts_with_all = ["duration", "cron"])]
    end: Option<Moment>,
    /// How long it stays open, such as `2h`; needed for one that opens again and again.
    #[arg(long, value_parser = duration, value_name = "SPAN")]
    duration: Option<Duration>,
    /// At which minutes, hours, days of the month, months and days of the week (0 for Sunday) it opens, such as
    /// `30 22 * * 1-5`.
    #[arg(
        long,
        value_name = "M H DOM MON DOW",
        conflicts_with = "start",
        requires = "duration"
    )]
    cron: Option<Cron>,
    /// At which minutes it opens [default: 0].
    #[arg(long, requires = "duration", help_heading = "Instead of --cron")]
    minutes: Option<String>,
    /// At which hours it opens [default: *].
    #[arg(long, requires = "duration", help_heading = "Instead of --cron")]
    hours: Option<String>,
    /// On which days of the month it opens, L for the last one [default: *].
    #[arg(long, requires = "duration", help_heading = "Instead of --cron")]
    days: Option<String>,
    /// In which months it opens [default: *].
    #[arg(long, requires = "duration", help_heading = "Instead of --cron")]
    months: Option<String>,
    /// On which days of the week it opens, 0 for Sunday [default: *].
    #[arg(long, requires = "duration", help_heading = "Instead of --cron")]
    weekdays: Option<String>,
    /// The time zone in which cron counts, such as `Europe/Berlin` [default: UTC].
    #[arg(long, value_name = "ZONE", conflicts_with = "start")]
    time_zone: Option<String>,
    /// The host it is meant for, by its id or name.
    #[arg(long)]
    host: Option<String>,
    /// The site it is meant for, by its id or name.
    #[arg(long)]
    site: Option<String>,
    /// The region it is meant for with all that lies in it, by its id or name.
    #[arg(long)]
    region: Option<String>,
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

impl Purpose {
    /// As the server has it.
    pub const fn status(self) -> ScheduleStatus {
        match self {
            Self::Update => ScheduleStatus::OsUpdate,
            Self::Maintenance => ScheduleStatus::Maintenance,
        }
    }
}

/// The fields of cron: minutes, hours, days of the month, months, days of the week. The server says what may stand in
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron(pub [String; 5]);

impl FromStr for Cron {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        fields.try_into().map(Self).map_err(|fields: Vec<_>| {
            format!(
                "{} fields where there should be five: minutes, hours, days of the month, months, days of the week, \
                 such as `30 22 * * 1-5`",
                fields.len()
            )
        })
    }
}

/// The id of what a schedule is meant for; the others are empty.
#[derive(Default)]
struct TargetIds {
    host: String,
    site: String,
    region: String,
}

impl CreateSchedule {
    pub async fn run(self, client: &Client, now: DateTime<Utc>) -> Result<Schedule, Failure> {
        let status = self.purpose.status();
        let target = self.target(client).await?;
        let Some(start) = self.start else {
            let body = self.repeated(status, target)?;
            return client.post(REPEATED_PATH, &body).await;
        };
        let (start, end) = self.span(start, now)?;
        let body = SingleScheduleInput {
            name: self.name,
            schedule_status: status,
            start_seconds: start,
            end_seconds: end,
            target_host_id: target.host,
            target_site_id: target.site,
            target_region_id: target.region,
        };
        client.post(SINGLE_PATH, &body).await
    }

    async fn target(&self, client: &Client) -> Result<TargetIds, Failure> {
        let mut ids = TargetIds::default();
        if let Some(host) = &self.host {
            ids.host = resource::id_of::<HostResource>(client, host).await?;
        }
        if let Some(site) = &self.site {
            ids.site = resource::id_of::<SiteResource>(client, site).await?;
        }
        if let Some(region) = &self.region {
            ids.region = resource::id_of::<RegionResource>(client, region).await?;
        }
        Ok(ids)
    }

    /// When it opens and closes, in Unix seconds.
    fn span(&self, start: Moment, now: DateTime<Utc>) -> Result<(u32, Option<u32>), Failure> {
        let start = start.instant(now);
        let after = |length| {
            let length = TimeDelta::from_std(length).unwrap_or(TimeDelta::MAX);
            start
                .checked_add_signed(length)
                .unwrap_or(DateTime::<Utc>::MAX_UTC)
        };
        let end = self.end.map(|end| end.instant(now));
        let end = end.or_else(|| self.duration.map(after));
        Ok((
            seconds("--start", start)?,
            end.map(|end| seconds("--end", end)).transpose()?,
        ))
    }

    fn repeated(
        self,
        status: ScheduleStatus,
        target: TargetIds,
    ) -> Result<RepeatedScheduleInput, Failure> {
        let every = |field: Option<String>| field.unwrap_or_else(|| "*".to_owned());
        let Cron([minutes, hours, days, months, weekdays]) = self.cron.unwrap_or_else(|| {
            Cron([
                self.minutes.unwrap_or_else(|| "0".to_owned()),
                every(self.hours),
                every(self.days),
                every(self.months),
                every(self.weekdays),
            ])
        });
        Ok(RepeatedScheduleInput {
            name: self.name,
            schedule_status: status,
            duration_seconds: whole_seconds(self.duration.unwrap_or_default())?,
            cron_minutes: minutes,
            cron_hours: hours,
            cron_day_month: days,
            cron_month: months,
            cron_day_week: weekdays,
            time_zone: self.time_zone.unwrap_or_else(|| "UTC".to_owned()),
            target_host_id: target.host,
            target_site_id: target.site,
            target_region_id: target.region,
        })
    }
}

/// Whole seconds, rounded up so that `now` is never in the past.
pub fn seconds(option: &str, time: DateTime<Utc>) -> Result<u32, Failure> {
    let up = i64::from(time.timestamp_subsec_nanos() > 0);
    u32::try_from(time.timestamp() + up)
        .map_err(|_| Failure::usage(format!("{option}: the time must lie between 1970 and 2106")))
}

/// The longest that a schedule that opens again and again may stay open each time.
const A_DAY: Duration = Duration::from_hours(24);

/// How long a schedule that opens again and again stays open each time.
pub fn whole_seconds(length: Duration) -> Result<u32, Failure> {
    let seconds = u32::try_from(length.as_secs()).ok();
    let fits = length >= Duration::from_secs(1) && length <= A_DAY;
    seconds.filter(|_| fits).ok_or_else(|| {
        Failure::usage_with(
            "--duration: a schedule that opens again and again stays open for a second at least and a day at most",
            "one that stays open for longer is made with --start and --end",
        )
    })
}
