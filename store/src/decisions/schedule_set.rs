//! Schedules of both kinds for one target, as JSON columns aggregate them.

use evenkeel_domain::schedule::{RepeatedSchedule, SingleSchedule, WindowQuery};
use evenkeel_domain::window::Window;
use sea_orm::QueryResult;

use super::json_rows;
use crate::error::StoreError;
use crate::rows::{repeated_schedule, single_schedule};

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

    /// Reads the aggregated columns of a row.
    pub fn from_row(row: &QueryResult) -> Result<Self, StoreError> {
        let singles = json_rows::<single_schedule::Model>(row, "singles")?.into_iter();
        let repeated = json_rows::<repeated_schedule::Model>(row, "repeated")?.into_iter();
        Ok(Self {
            singles: singles.map(SingleSchedule::try_from).collect::<Result<_, _>>()?,
            repeated: repeated.map(RepeatedSchedule::try_from).collect::<Result<_, _>>()?,
        })
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
