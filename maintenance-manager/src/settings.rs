//! What the maintenance manager can be told.

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::run::Patience;
use evenkeel_store::decisions::Horizon;
use serde::Deserialize;

use crate::desk::DeskSettings;
use crate::holds::HoldSettings;
use crate::load::LoadSettings;
use crate::peer::FloodSettings;
use crate::view::ViewSettings;

/// Everything the maintenance manager can be told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// How often a node should ask, within a tenth more or less.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// How long a node's credential lives. It is replaced when a third of that is left.
    #[serde(with = "humantime_serde")]
    pub credential_lifetime: Duration,
    /// How long before its window a node may fetch.
    #[serde(with = "humantime_serde")]
    pub fetch_ahead: Duration,
    /// How long a window of an open-ended schedule is.
    #[serde(with = "humantime_serde")]
    pub max_window: Duration,
    /// How often the times of last contact are written.
    #[serde(with = "humantime_serde")]
    pub contacts_every: Duration,
    /// How often open runs are looked at.
    #[serde(with = "humantime_serde")]
    pub track_every: Duration,
    /// How long a run may stay where it is.
    pub patience: PatienceSettings,
    /// After how long without a word a node is shown as silent.
    #[serde(with = "humantime_serde")]
    pub silent_after: Duration,
    /// How often silent nodes are looked for.
    #[serde(with = "humantime_serde")]
    pub silent_every: Duration,
    /// How often it is looked whether nodes of images are to be told of a newer one, although nothing tells of one.
    #[serde(with = "humantime_serde")]
    pub images_every: Duration,
    /// How long a run is kept after its end, where its project does not say otherwise; 0 keeps it for ever.
    #[serde(with = "humantime_serde")]
    pub retention: Duration,
    /// How long the log keeps who changed what; 0 keeps it for ever.
    #[serde(with = "humantime_serde")]
    pub log_kept: Duration,
    /// When what is not needed any more is thrown away: seconds, minutes, hours, days, months and weekdays of a
    /// calendar in UTC, as in cron.
    pub housekeeping: String,
    /// How often one node may call.
    pub flood: FloodSettings,
    /// What is remembered of answers.
    pub view: ViewSettings,
    /// How polls are looked at in the database that nothing is remembered of.
    pub desk: DeskSettings,
    /// How polls are held until there is something to say.
    pub holds: HoldSettings,
    /// How much is taken on at once.
    pub load: LoadSettings,
}

impl Settings {
    /// After how long without a word a node is silent: it is given the time of two polls at least, and that in which contacts
    /// are written.
    pub(crate) fn silence(&self) -> TimeDelta {
        let least = (delta(self.poll_interval) + delta(self.contacts_every)) * 2;
        delta(self.silent_after).max(least)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(20),
            credential_lifetime: Duration::from_hours(90 * 24),
            fetch_ahead: Duration::from_hours(6),
            max_window: Duration::from_hours(24),
            contacts_every: Duration::from_secs(30),
            track_every: Duration::from_secs(30),
            patience: PatienceSettings::default(),
            silent_after: Duration::from_mins(5),
            silent_every: Duration::from_secs(30),
            images_every: Duration::from_secs(30),
            retention: Duration::from_hours(30 * 24),
            log_kept: Duration::from_hours(30 * 24),
            housekeeping: "0 7 * * * *".to_owned(),
            flood: FloodSettings::default(),
            view: ViewSettings::default(),
            desk: DeskSettings::default(),
            holds: HoldSettings::default(),
            load: LoadSettings::default(),
        }
    }
}

/// How long a run may stay in each of its open states before it is given up as timed out.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PatienceSettings {
    /// Fetching.
    #[serde(with = "humantime_serde")]
    pub downloading: Duration,
    /// Waiting for its gate.
    #[serde(with = "humantime_serde")]
    pub staged: Duration,
    /// Being changed.
    #[serde(with = "humantime_serde")]
    pub applying: Duration,
    /// Down on purpose.
    #[serde(with = "humantime_serde")]
    pub rebooting: Duration,
    /// Looking at what runs.
    #[serde(with = "humantime_serde")]
    pub verifying: Duration,
    /// Going back.
    #[serde(with = "humantime_serde")]
    pub reverting: Duration,
}

impl Default for PatienceSettings {
    fn default() -> Self {
        let domain = Patience::default();
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
    pub(crate) fn horizon(&self) -> Horizon {
        Horizon {
            fetch_ahead: delta(self.fetch_ahead),
            max_window: delta(self.max_window),
        }
    }

    /// Whole days; what is shorter than one but not 0 is one.
    pub(crate) fn retention_days(&self) -> u32 {
        let days = self.retention.as_secs_f64() / 86_400.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it saturates, and is not negative"
        )]
        let days = days.ceil() as u32;
        days
    }

    pub(crate) fn patience(&self) -> Patience {
        let patience = &self.patience;
        Patience {
            downloading: delta(patience.downloading),
            staged: delta(patience.staged),
            applying: delta(patience.applying),
            rebooting: delta(patience.rebooting),
            verifying: delta(patience.verifying),
            reverting: delta(patience.reverting),
        }
    }
}

/// A length of time as the calendar counts it, a century at most: what is longer would lead out of it.
pub(crate) fn delta(length: Duration) -> TimeDelta {
    let century = TimeDelta::days(36_525);
    TimeDelta::from_std(length).map_or(century, |length| length.min(century))
}

/// How often a loop goes round: a tenth of a second at least, or it would do nothing else.
pub(crate) fn period(every: Duration) -> Duration {
    every.max(Duration::from_millis(100))
}
