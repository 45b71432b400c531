//! Schedules of both kinds for one target, as JSON columns aggregate them.

use evenkeel_domain::decide::UnreadableObject;
use evenkeel_domain::id::{RepeatedScheduleId, SingleScheduleId};
use evenkeel_domain::schedule::{RepeatedSchedule, ScheduleTarget, SingleSchedule, WindowQuery};
use evenkeel_domain::window::Window;
use sea_orm::QueryResult;

use super::unreadable::converted_rows;
use crate::error::StoreError;
use crate::rows::{repeated_schedule, single_schedule};

/// A schedule that cannot be read, with its target.
pub type UnreadableSchedule = (ScheduleTarget, UnreadableObject);

/// The schedules of one target, each kind by id.
#[derive(Debug, Default)]
pub struct ScheduleSet {
    pub singles: Vec<SingleSchedule>,
    pub repeated: Vec<RepeatedSchedule>,
}

impl ScheduleSet {
    /// Columns that aggregate the schedules `t` that meet a condition. Single schedules that ended
    /// by the time in parameter `now` are left out. If that time is null, the columns are empty.
    pub fn columns(condition: &str, now: usize) -> String {
        let gathered =
            format!("WHERE t.tenant_id = $1 AND ({condition}) AND ${now}::timestamptz IS NOT NULL");
        format!(
            "(SELECT json_agg(t ORDER BY t.id) FROM single_schedules t {gathered} \
             AND (t.end_at > ${now} OR t.end_at IS NULL)) AS singles, \
             (SELECT json_agg(t ORDER BY t.id) FROM repeated_schedules t {gathered}) AS repeated"
        )
    }

    /// Reads the aggregated columns of a row, and the schedules that cannot be read, each with its
    /// target.
    pub fn from_row(row: &QueryResult) -> Result<(Self, Vec<UnreadableSchedule>), StoreError> {
        let (singles, unreadable_singles) =
            converted_rows(row, "singles", |schedule: &single_schedule::Model| {
                let id = SingleScheduleId::from_bits(schedule.id.cast_unsigned());
                (schedule.target(), id)
            })?;
        let (repeated, unreadable_repeated) =
            converted_rows(row, "repeated", |schedule: &repeated_schedule::Model| {
                let id = RepeatedScheduleId::from_bits(schedule.id.cast_unsigned());
                (schedule.target(), id)
            })?;
        let singles_named =
            unreadable_singles.into_iter().map(|(target, id)| (target, id.to_string()));
        let repeated_named =
            unreadable_repeated.into_iter().map(|(target, id)| (target, id.to_string()));
        let unreadable = singles_named
            .chain(repeated_named)
            .filter_map(|(target, id)| Some((target?, UnreadableObject { kind: "schedule", id })));
        let unreadable = unreadable.collect();
        Ok((Self { singles, repeated }, unreadable))
    }

    /// The windows that the schedules open.
    pub fn windows_from(&self, ahead: &WindowQuery) -> Vec<Window> {
        let singles = self.singles.iter();
        let singles = singles.flat_map(|schedule| schedule.windows_from(ahead));
        let repeated = self.repeated.iter();
        let repeated = repeated.flat_map(|schedule| schedule.windows_from(ahead));
        singles.chain(repeated).collect()
    }
}
