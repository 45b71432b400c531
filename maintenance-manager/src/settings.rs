//! Settings of the maintenance manager.

mod smtp;

use std::ops::RangeInclusive;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::change_seal::ChangeRetention;
use evenkeel_domain::run::RunTimeouts;
use evenkeel_kit::JobSchedule;
use evenkeel_kit::job_schedule::JobScheduleError;
use evenkeel_store::decisions::PlanningLimits;
use serde::{Deserialize, Serialize};

use crate::admission::concurrency::LoadSettings;
use crate::admission::daily_limits::DailyLimitSettings;
use crate::admission::rate_limit::RateLimitSettings;
use crate::durations::to_time_delta;
use crate::poll::batch::PollBatchSettings;
use crate::poll::cache::AnswerCacheSettings;
use crate::poll::long_poll::LongPollSettings;

pub use smtp::{InvalidSmtpSettings, SmtpSettings, SmtpTls};

/// Settings of the maintenance manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Interval between two polls of a node, plus or minus a tenth. Under load the server raises it,
    /// up to `load.max_poll_interval`.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// Whether nodes with an Evenkeel agent may authenticate with a bearer credential instead of a
    /// client certificate. Only for deployments whose proxy terminates TLS, because the client
    /// certificate does not reach the server there.
    pub bearer_credentials: bool,
    /// How long a bearer credential is valid. It is renewed at any contact when it is older than a
    /// day, or than two thirds of this time if that is less.
    #[serde(with = "humantime_serde")]
    pub credential_lifetime: Duration,
    /// How long before its maintenance window a node may download.
    #[serde(with = "humantime_serde")]
    pub fetch_ahead: Duration,
    /// Length of a maintenance window whose schedule has no end.
    #[serde(with = "humantime_serde")]
    pub max_window: Duration,
    /// Interval at which the contact times of nodes are written to the database.
    #[serde(with = "humantime_serde")]
    pub contact_write_interval: Duration,
    /// Interval at which the server checks open runs for timeouts. At least 100 ms.
    #[serde(with = "humantime_serde")]
    pub run_check_interval: Duration,
    /// Maximum time of a run in each state. A run that exceeds it is abandoned.
    pub run_timeouts: RunTimeoutSettings,
    /// Time without contact after which a node counts as silent. At least twice the sum of
    /// `poll_interval` and `contact_write_interval`.
    #[serde(with = "humantime_serde")]
    pub silence_timeout: Duration,
    /// Interval at which the server checks for silent nodes. At least 100 ms.
    #[serde(with = "humantime_serde")]
    pub silence_check_interval: Duration,
    /// Interval at which the server checks for changes of images, in addition to notifications. At
    /// least 100 ms.
    #[serde(with = "humantime_serde")]
    pub image_check_interval: Duration,
    /// How long a run is kept after its end, unless its project overrides it; 0 keeps runs forever.
    #[serde(with = "humantime_serde")]
    pub run_retention: Duration,
    /// How long changes that the server made on its own stay in the change log; 0 keeps them forever.
    #[serde(with = "humantime_serde")]
    pub change_log_retention: Duration,
    /// How long changes by users stay in the change log; 0 keeps them forever.
    #[serde(with = "humantime_serde")]
    pub user_change_retention: Duration,
    /// When data that is no longer needed is removed: a cron expression in UTC with the fields
    /// seconds, minutes, hours, days of the month, months and days of the week. If both day fields
    /// are restricted, a day needs to match only one of them; a step such as `*/2` restricts.
    pub housekeeping_schedule: String,
    /// Rate limit of calls for each node.
    pub rate_limit: RateLimitSettings,
    /// Limits of what nodes may make the server store within a day.
    pub daily_limits: DailyLimitSettings,
    /// Cache of poll answers.
    pub answer_cache: AnswerCacheSettings,
    /// Batches of polls that the cache cannot answer.
    pub poll_batch: PollBatchSettings,
    /// Long polls: polls that wait for a change.
    pub long_poll: LongPollSettings,
    /// Limits of the load, and what happens under load.
    pub load: LoadSettings,
    /// Delivery of notifications.
    pub notifications: NotificationSettings,
    /// The mail server that takes notifications by e-mail.
    pub smtp: SmtpSettings,
}

/// A setting is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSettings {
    #[error("maintenance_manager.housekeeping_schedule is invalid")]
    Schedule(#[from] JobScheduleError),
    #[error(transparent)]
    Smtp(#[from] InvalidSmtpSettings),
    #[error("maintenance_manager.notifications.attempt_timeout must be from 100 ms to 30 s")]
    AttemptTimeout,
}

impl Settings {
    /// Checks the settings.
    ///
    /// # Errors
    /// Names the first invalid setting.
    pub fn check(&self) -> Result<(), InvalidSettings> {
        self.smtp.check()?;
        if !ATTEMPT_TIMEOUTS.contains(&self.notifications.attempt_timeout) {
            return Err(InvalidSettings::AttemptTimeout);
        }
        self.parse_housekeeping_schedule().map(drop)
    }

    pub(crate) fn parse_housekeeping_schedule(&self) -> Result<JobSchedule, InvalidSettings> {
        Ok(self.housekeeping_schedule.parse()?)
    }

    /// The silence timeout: at least twice the sum of the poll interval and the contact write
    /// interval.
    pub(crate) fn effective_silence_timeout(&self) -> TimeDelta {
        let least =
            (to_time_delta(self.poll_interval) + to_time_delta(self.contact_write_interval)) * 2;
        to_time_delta(self.silence_timeout).max(least)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(20),
            bearer_credentials: false,
            credential_lifetime: Duration::from_hours(90 * 24),
            fetch_ahead: Duration::from_hours(6),
            max_window: Duration::from_hours(24),
            contact_write_interval: Duration::from_secs(30),
            run_check_interval: Duration::from_secs(30),
            run_timeouts: RunTimeoutSettings::default(),
            silence_timeout: Duration::from_mins(5),
            silence_check_interval: Duration::from_secs(30),
            image_check_interval: Duration::from_secs(30),
            run_retention: Duration::from_hours(30 * 24),
            change_log_retention: Duration::from_hours(30 * 24),
            user_change_retention: Duration::from_hours(400 * 24),
            housekeeping_schedule: "0 7 * * * *".to_owned(),
            rate_limit: RateLimitSettings::default(),
            daily_limits: DailyLimitSettings::default(),
            answer_cache: AnswerCacheSettings::default(),
            poll_batch: PollBatchSettings::default(),
            long_poll: LongPollSettings::default(),
            load: LoadSettings::default(),
            notifications: NotificationSettings::default(),
            smtp: SmtpSettings::default(),
        }
    }
}

/// Delivery of notifications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NotificationSettings {
    /// Whether webhooks may have addresses of this machine and of private networks. Users of
    /// projects choose the URLs, so they could reach services in the network of the server.
    /// Link-local addresses and metadata services are always refused.
    pub allow_private_targets: bool,
    /// Whether URLs of webhooks may begin with `http://`. Their messages are signed but not
    /// encrypted.
    pub allow_http: bool,
    /// Maximum time of one attempt, from 100 ms to 30 s.
    #[serde(with = "humantime_serde")]
    pub attempt_timeout: Duration,
}

impl Default for NotificationSettings {
    fn default() -> Self {
        Self {
            allow_private_targets: false,
            allow_http: false,
            attempt_timeout: Duration::from_secs(10),
        }
    }
}

/// Time-outs that an attempt may have: less than the lease of a target.
const ATTEMPT_TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(30);

/// How long a run may stay in each open state before it times out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunTimeoutSettings {
    /// Downloading the update.
    #[serde(with = "humantime_serde")]
    pub downloading: Duration,
    /// Downloaded, and waiting for permission to start.
    #[serde(with = "humantime_serde")]
    pub staged: Duration,
    /// Applying the changes.
    #[serde(with = "humantime_serde")]
    pub applying: Duration,
    /// Rebooting into the changed system.
    #[serde(with = "humantime_serde")]
    pub rebooting: Duration,
    /// Verifying the running system.
    #[serde(with = "humantime_serde")]
    pub verifying: Duration,
    /// Reverting the changes.
    #[serde(with = "humantime_serde")]
    pub reverting: Duration,
}

impl Default for RunTimeoutSettings {
    fn default() -> Self {
        let domain = RunTimeouts::default();
        let length = |length: TimeDelta| length.to_std().unwrap_or_default();
        Self {
            downloading: length(domain.downloading),
            staged: length(domain.staged),
            applying: length(domain.applying),
            rebooting: length(domain.rebooting),
            verifying: length(domain.verifying),
            reverting: length(domain.reverting),
        }
    }
}

impl Settings {
    pub(crate) fn planning_limits(&self) -> PlanningLimits {
        PlanningLimits {
            fetch_ahead: to_time_delta(self.fetch_ahead),
            max_window: to_time_delta(self.max_window),
        }
    }

    /// The retention in days, rounded up.
    pub(crate) fn retention_days(&self) -> u32 {
        let days = self.run_retention.as_secs_f64() / 86_400.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it saturates, and is not negative"
        )]
        let days = days.ceil() as u32;
        days
    }

    /// How long changes of each class stay in the change log after they were sealed.
    #[must_use]
    pub fn change_retention(&self) -> ChangeRetention {
        let retention = |length: Duration| (!length.is_zero()).then(|| to_time_delta(length));
        ChangeRetention {
            by_users: retention(self.user_change_retention),
            by_server: retention(self.change_log_retention),
        }
    }

    pub(crate) fn run_timeouts(&self) -> RunTimeouts {
        let timeouts = &self.run_timeouts;
        RunTimeouts {
            downloading: to_time_delta(timeouts.downloading),
            staged: to_time_delta(timeouts.staged),
            applying: to_time_delta(timeouts.applying),
            rebooting: to_time_delta(timeouts.rebooting),
            verifying: to_time_delta(timeouts.verifying),
            reverting: to_time_delta(timeouts.reverting),
        }
    }
}
