//! The history of a run: its events in order.

use evenkeel_domain::Time;
use evenkeel_domain::run::{Evidence, RunEventRecord, UpdateRun};
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect, Set};

use crate::error::StoreError;
use crate::rows::run_event::{ActiveModel, Column, Entity};
use crate::tx::Tx;

/// Maximum number of entries in the history of a run, except for its end.
const MAX_HISTORY_ENTRIES: i32 = 1_000;

/// An event and its effect on the run.
pub(super) struct HistoryEntry<'a> {
    record: &'a RunEventRecord,
    state: &'static str,
    is_end: bool,
}

impl<'a> HistoryEntry<'a> {
    /// The entry of an event that was just applied to a run.
    pub(super) fn new(run: &UpdateRun, record: &'a RunEventRecord, state_changed: bool) -> Self {
        Self { record, state: run.state.name(), is_end: state_changed && run.state.is_final() }
    }

    pub(super) fn evidence(&self) -> &'a Evidence {
        &self.record.evidence
    }
}

/// Starts the history of a new run.
pub(super) async fn begin(
    tx: &Tx,
    run: &UpdateRun,
    steps: &[HistoryEntry<'_>],
    now: Time,
) -> Result<(), StoreError> {
    write_entries(tx, run, steps, (1, now)).await
}

/// Appends events to the history of their run. A full history takes only the end of the run with
/// its detail; other events still take effect.
pub(super) async fn append(
    tx: &Tx,
    run: &UpdateRun,
    steps: &[HistoryEntry<'_>],
    now: Time,
) -> Result<(), StoreError> {
    let last = Entity::find()
        .select_only()
        .column(Column::Position)
        .filter(Column::TenantId.eq(tx.tenant().uuid()))
        .filter(Column::RunId.eq(run.id.bits().cast_signed()))
        .order_by_desc(Column::Position)
        .limit(1)
        .into_tuple::<i32>();
    let last = last.one(tx.conn()).await?;
    write_entries(tx, run, steps, (last.map_or(1, |last| last + 1), now)).await
}

/// Writes entries from a position on, in one statement.
async fn write_entries(
    tx: &Tx,
    run: &UpdateRun,
    steps: &[HistoryEntry<'_>],
    (mut position, now): (i32, Time),
) -> Result<(), StoreError> {
    let mut rows = Vec::new();
    for step in steps {
        let record = step.record;
        let detail = if step.is_end || position < MAX_HISTORY_ENTRIES {
            record.event.detail()
        } else if position == MAX_HISTORY_ENTRIES {
            "the history is full: only the end of the run will be added".to_owned()
        } else {
            continue;
        };
        rows.push(ActiveModel {
            tenant_id: Set(tx.tenant().uuid()),
            run_id: Set(run.id.bits().cast_signed()),
            position: Set(position),
            event: Set(record.event.name().to_owned()),
            state: Set(step.state.to_owned()),
            sequence: Set(record.sequence.map(u32::cast_signed)),
            boot_id: Set(record.boot_id.clone()),
            node_time: Set(record.node_time),
            at: Set(now),
            detail: Set(detail),
        });
        position += 1;
    }
    if rows.is_empty() {
        return Ok(());
    }
    Entity::insert_many(rows).exec_without_returning(tx.conn()).await?;
    Ok(())
}
