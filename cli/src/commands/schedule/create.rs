//! `evenkeel schedule create`: creates single and repeated schedules.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use clap::{ArgGroup, Args, ValueEnum};
use evenkeel_api::host::HostResource;
use evenkeel_api::region::RegionResource;
use evenkeel_api::schedule::{RepeatedScheduleInput, ScheduleStatus, SingleScheduleInput};
use evenkeel_api::site::SiteResource;
use serde_json::Value;

use super::{REPEATED_PATH, SINGLE_PATH, Schedule};
use crate::client::Client;
use crate::requests::{self, DuplicateOption};
use crate::time::{Moment, parse_duration};
use crate::{Failure, commands};

/// Create a single schedule (--start) or a repeated one (--cron, or its fields one by one), or one of
/// a file.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("when").required(true).multiple(true)
        .args(["start", "cron", "minutes", "hours", "days", "months", "weekdays", "file"]),
    group = ArgGroup::new("fields").multiple(true).conflicts_with_all(["start", "end", "cron"])
        .args(["minutes", "hours", "days", "months", "weekdays"]),
    group = ArgGroup::new("target").required(true).args(["host", "site", "region", "file"]),
)]
pub struct CreateSchedule {
    /// Name of the schedule.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// File with a schedule as `get -o yaml` or `get -o json` prints it.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "start", "end", "duration", "cron", "fields", "time_zone", "purpose"])]
    file: Option<PathBuf>,
    /// Start of a single schedule: `now`, an offset such as `+30m`, or a time such as
    /// `2026-01-31T22:00:00Z`.
    #[arg(long, value_name = "TIME")]
    start: Option<Moment>,
    /// End of a single schedule, in the format of --start [default: no end].
    #[arg(long, value_name = "TIME", conflicts_with_all = ["duration", "cron"])]
    end: Option<Moment>,
    /// How long the schedule stays open, such as `2h`; required for repeated schedules.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    duration: Option<Duration>,
    /// Cron expression: minutes, hours, days of the month, months and days of the week (0 is Sunday),
    /// such as `30 22 * * MON-FRI`. If days of the month and days of the week are given, a day needs
    /// to match only one of them; a step such as `*/2` counts as given.
    #[arg(long, value_name = "M H DOM MON DOW", conflicts_with = "start", requires = "duration")]
    cron: Option<Cron>,
    /// Minutes [default: 0].
    #[arg(long, requires = "duration", help_heading = "Instead of --cron")]
    minutes: Option<String>,
    /// Hours [default: *].
    #[arg(long, requires = "duration", help_heading = "Instead of --cron")]
    hours: Option<String>,
    /// Days of the month, L for the last one [default: *].
    #[arg(long, requires = "duration", help_heading = "Instead of --cron")]
    days: Option<String>,
    /// Months, 1 to 12 or JAN to DEC [default: *].
    #[arg(long, requires = "duration", help_heading = "Instead of --cron")]
    months: Option<String>,
    /// Days of the week, 0 (Sunday) to 6 or SUN to SAT [default: *].
    #[arg(long, requires = "duration", help_heading = "Instead of --cron")]
    weekdays: Option<String>,
    /// Time zone of the cron expression, such as `Europe/Berlin` [default: UTC].
    #[arg(long, value_name = "ZONE", conflicts_with = "start")]
    time_zone: Option<String>,
    /// Host that the schedule applies to (ID or name).
    #[arg(long)]
    host: Option<String>,
    /// Site that the schedule applies to (ID or name).
    #[arg(long)]
    site: Option<String>,
    /// Region that the schedule applies to, with its subregions (ID or name).
    #[arg(long)]
    region: Option<String>,
    /// Purpose of the schedule.
    #[arg(long = "for", value_enum, default_value_t = Purpose::Update)]
    purpose: Purpose,
    #[command(flatten)]
    duplicates: DuplicateOption,
}

/// Purpose of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Purpose {
    /// Nodes may update.
    Update,
    /// Maintenance by people; nodes do not update.
    Maintenance,
}

impl Purpose {
    /// The value of the REST API.
    pub const fn status(self) -> ScheduleStatus {
        match self {
            Self::Update => ScheduleStatus::OsUpdate,
            Self::Maintenance => ScheduleStatus::Maintenance,
        }
    }
}

/// Cron fields: minutes, hours, days of the month, months, days of the week. The server validates
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron(pub [String; 5]);

impl FromStr for Cron {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        fields.try_into().map(Self).map_err(|fields: Vec<_>| {
            format!(
                "{} fields, expected five: minutes, hours, days of the month, months and days of the week, \
                 such as `30 22 * * 1-5`",
                fields.len()
            )
        })
    }
}

/// How the user gave a schedule.
#[derive(Clone, Copy)]
enum Typed {
    File,
    Cron,
    Fields,
}

/// The option for the cron fields of the API.
pub const CRON_OPTION: [(&str, &str); 5] = [
    ("cronMinutes", "--cron, minutes"),
    ("cronHours", "--cron, hours"),
    ("cronDayMonth", "--cron, days of the month"),
    ("cronMonth", "--cron, months"),
    ("cronDayWeek", "--cron, days of the week"),
];

/// The options for each of the cron fields of the API.
const FIELD_OPTIONS: [(&str, &str); 5] = [
    ("cronMinutes", "--minutes"),
    ("cronHours", "--hours"),
    ("cronDayMonth", "--days"),
    ("cronMonth", "--months"),
    ("cronDayWeek", "--weekdays"),
];

/// The options for the other time fields of the API.
pub const TIME_OPTIONS: [(&str, &str); 4] = [
    ("timeZone", "--time-zone"),
    ("durationSeconds", "--duration"),
    ("startSeconds", "--start"),
    ("endSeconds", "--end"),
];

/// A new schedule.
enum ScheduleInput {
    Single(SingleScheduleInput),
    Repeated(RepeatedScheduleInput),
}

/// Reads a new schedule with its name from a file. Only repeated schedules have a duration.
fn read_schedule(path: &Path) -> Result<(String, ScheduleInput), Failure> {
    let expected = "a schedule";
    let resource: Value = commands::read_yaml(path, expected)?;
    if resource.get("durationSeconds").is_some() {
        let input: RepeatedScheduleInput = commands::parse_input(resource, path, expected)?;
        return Ok((input.name.clone(), ScheduleInput::Repeated(input)));
    }
    let input: SingleScheduleInput = commands::parse_input(resource, path, expected)?;
    // 0 stands for no end in a printed schedule.
    let end_seconds = input.end_seconds.filter(|end| *end > 0);
    let input = SingleScheduleInput { end_seconds, ..input };
    Ok((input.name.clone(), ScheduleInput::Single(input)))
}

/// ID of the target of a schedule; the other fields are empty.
#[derive(Default)]
struct TargetIds {
    host: String,
    site: String,
    region: String,
}

impl CreateSchedule {
    pub async fn run(self, client: &Client, now: DateTime<Utc>) -> Result<Schedule, Failure> {
        let duplicates = self.duplicates;
        let typed = match (&self.file, &self.cron) {
            (Some(_), _) => Typed::File,
            (None, Some(_)) => Typed::Cron,
            (None, None) => Typed::Fields,
        };
        let (name, input) = match &self.file {
            Some(path) => read_schedule(path)?,
            None => (self.name.clone().unwrap_or_default(), self.build_input(client, now).await?),
        };
        duplicates.check::<Schedule>(client, &name, None).await?;
        let created = match input {
            ScheduleInput::Single(body) => client.post(SINGLE_PATH, &body).await,
            ScheduleInput::Repeated(body) => client.post(REPEATED_PATH, &body).await,
        };
        created.map_err(|error| match typed {
            Typed::File => error,
            Typed::Cron => error.with_option(&CRON_OPTION).with_option(&TIME_OPTIONS),
            Typed::Fields => error.with_option(&FIELD_OPTIONS).with_option(&TIME_OPTIONS),
        })
    }

    async fn build_input(
        self,
        client: &Client,
        now: DateTime<Utc>,
    ) -> Result<ScheduleInput, Failure> {
        let status = self.purpose.status();
        let target = self.resolve_target(client).await?;
        let Some(start) = self.start else {
            return self.build_repeated(status, target).map(ScheduleInput::Repeated);
        };
        let (start, end) = self.start_and_end(start, now)?;
        Ok(ScheduleInput::Single(SingleScheduleInput {
            name: self.name.unwrap_or_default(),
            schedule_status: status,
            start_seconds: start,
            end_seconds: end,
            target_host_id: target.host,
            target_site_id: target.site,
            target_region_id: target.region,
        }))
    }

    async fn resolve_target(&self, client: &Client) -> Result<TargetIds, Failure> {
        let mut ids = TargetIds::default();
        if let Some(host) = &self.host {
            ids.host = requests::resolve_id::<HostResource>(client, host).await?;
        }
        if let Some(site) = &self.site {
            ids.site = requests::resolve_id::<SiteResource>(client, site).await?;
        }
        if let Some(region) = &self.region {
            ids.region = requests::resolve_id::<RegionResource>(client, region).await?;
        }
        Ok(ids)
    }

    /// Start and end in Unix seconds.
    fn start_and_end(
        &self,
        start: Moment,
        now: DateTime<Utc>,
    ) -> Result<(u32, Option<u32>), Failure> {
        let start = start.instant(now);
        let after = |length| {
            let length = TimeDelta::from_std(length).unwrap_or(TimeDelta::MAX);
            start.checked_add_signed(length).unwrap_or(DateTime::<Utc>::MAX_UTC)
        };
        let end = self.end.map(|end| end.instant(now));
        let end = end.or_else(|| self.duration.map(after));
        Ok((
            unix_seconds("--start", start)?,
            end.map(|end| unix_seconds("--end", end)).transpose()?,
        ))
    }

    fn build_repeated(
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
            name: self.name.unwrap_or_default(),
            schedule_status: status,
            duration_seconds: duration_seconds(self.duration.unwrap_or_default())?,
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

/// Unix seconds, rounded up so that `now` is never in the past.
pub fn unix_seconds(option: &str, time: DateTime<Utc>) -> Result<u32, Failure> {
    let up = i64::from(time.timestamp_subsec_nanos() > 0);
    u32::try_from(time.timestamp() + up)
        .map_err(|_| Failure::usage(format!("{option}: the time must lie between 1970 and 2106")))
}

/// Maximum duration of a repeated schedule.
const MAX_DURATION: Duration = Duration::from_hours(24);

/// Duration of a repeated schedule in seconds.
pub fn duration_seconds(length: Duration) -> Result<u32, Failure> {
    let seconds = u32::try_from(length.as_secs()).ok();
    let fits = length >= Duration::from_secs(1) && length <= MAX_DURATION;
    seconds.filter(|_| fits).ok_or_else(|| {
        Failure::usage_with(
            "--duration: a repeated schedule stays open for at least one second and at most one day",
            "use --start and --end for a longer one",
        )
    })
}
