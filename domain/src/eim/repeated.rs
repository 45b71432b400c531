//! Schedules that EIM's agents repeat themselves.

use crate::schedule::RepeatedSchedule;
use crate::window::Opener;

/// A repeated schedule in the agent's terms: a cron in UTC, of `*` and lists of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireRepeatedSchedule {
    /// How long a window stays open.
    pub duration_seconds: u32,
    /// `*`, or numbers from 0 to 59.
    pub cron_minutes: String,
    /// `*`, or numbers from 0 to 23.
    pub cron_hours: String,
    /// `*`, or numbers from 1 to 31.
    pub cron_day_month: String,
    /// `*`, or numbers from 1 to 12.
    pub cron_month: String,
    /// `*`, or numbers from 0, which is Sunday, to 6.
    pub cron_day_week: String,
}

impl WireRepeatedSchedule {
    /// The schedule, if the agent can represent it.
    fn from_schedule(schedule: &RepeatedSchedule) -> Option<Self> {
        let duration_seconds = u32::try_from(schedule.spec.duration.num_seconds()).ok()?;
        let [minutes, hours, day_month, month, day_week] = schedule.spec.as_lists()?;
        Some(Self {
            duration_seconds,
            cron_minutes: minutes,
            cron_hours: hours,
            cron_day_month: day_month,
            cron_month: month,
            cron_day_week: day_week,
        })
    }
}

/// The schedules that the agent can represent, sorted by id, with the opener of each.
pub(super) fn to_wire(schedules: &[RepeatedSchedule]) -> Vec<(Opener, WireRepeatedSchedule)> {
    let encoded = schedules.iter().filter_map(|schedule| {
        let wire = WireRepeatedSchedule::from_schedule(schedule)?;
        Some((Opener::Repeated(schedule.id), wire))
    });
    let mut encoded: Vec<_> = encoded.collect();
    encoded.sort_by_key(|(opener, _)| *opener);
    encoded
}
