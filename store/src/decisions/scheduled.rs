//! Schedules of both kinds that are meant for one thing, as columns of a statement gather them.

use evenkeel_domain::schedule::{Ahead, RepeatedSchedule, SingleSchedule};
use evenkeel_domain::window::Window;
use sea_orm::QueryResult;

use super::gathered;
use crate::error::StoreError;
use crate::rows::{repeated_schedule, single_schedule};

/// The schedules that are meant for one thing, each kind by id.
#[derive(Debug, Default)]
pub struct Scheduled {
    pub singles: Vec<SingleSchedule>,
    pub repeated: Vec<RepeatedSchedule>,
}

impl Scheduled {
    /// Columns that gather the schedules `t` that meet a condition, of the single ones those that are not over at the
    /// instant of a parameter; nothing without an instant.
    pub fn columns(condition: &str, now: usize) -> String {
        let gathered =
            format!("WHERE t.tenant_id = $1 AND ({condition}) AND ${now}::timestamptz IS NOT NULL");
        format!(
            "(SELECT json_agg(t ORDER BY t.id) FROM single_schedules t {gathered} \
             AND (t.end_at > ${now} OR t.end_at IS NULL)) AS singles, \
             (SELECT json_agg(t ORDER BY t.id) FROM repeated_schedules t {gathered}) AS repeated"
        )
    }

    /// What the columns of a row have gathered.
    pub fn of(row: &QueryResult) -> Result<Self, StoreError> {
        let singles = gathered::<single_schedule::Model>(row, "singles")?.into_iter();
        let repeated = gathered::<repeated_schedule::Model>(row, "repeated")?.into_iter();
        Ok(Self {
            singles: singles
                .map(SingleSchedule::try_from)
                .collect::<Result<_, _>>()?,
            repeated: repeated
                .map(RepeatedSchedule::try_from)
                .collect::<Result<_, _>>()?,
        })
    }

    /// The windows that they open.
    pub fn windows_from(&self, ahead: &Ahead) -> Vec<Window> {
        let singles = self.singles.iter();
        let singles = singles.flat_map(|schedule| schedule.windows_from(ahead));
        let repeated = self.repeated.iter();
        let repeated = repeated.flat_map(|schedule| schedule.windows_from(ahead));
        singles.chain(repeated).collect()
    }
}
