//! The history of a run: what happened in it, in order.

use evenkeel_domain::Time;
use evenkeel_domain::run::{Happening, UpdateRun};
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect, Set};

use crate::error::StoreError;
use crate::rows::run_event::{ActiveModel, Column, Entity};
use crate::tx::Tx;

/// The most that the history of one run holds, apart from ends.
const MAX_HISTORY: i32 = 1_000;

/// An event, and what it made of its run.
pub(super) struct Step<'a> {
    happening: &'a Happening,
    state: &'static str,
    is_end: bool,
}

impl<'a> Step<'a> {
    /// An event that has just been brought to a run.
    pub(super) fn of(run: &UpdateRun, happening: &'a Happening, is_moved: bool) -> Self {
        Self {
            happening,
            state: run.state.name(),
            is_end: is_moved && run.state.is_final(),
        }
    }
}

/// Begins the history of a new run.
pub(super) async fn begin(
    tx: &Tx,
    run: &UpdateRun,
    steps: &[Step<'_>],
    now: Time,
) -> Result<(), StoreError> {
    write(tx, run, steps, (1, now)).await
}

/// Appends events to the history of their run. When that is full, nothing but an end is, with its own words: the events count
/// all the same.
pub(super) async fn append(
    tx: &Tx,
    run: &UpdateRun,
    steps: &[Step<'_>],
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
    write(tx, run, steps, (last.map_or(1, |last| last + 1), now)).await
}

/// Writes events from a place of the history on, in one statement.
async fn write(
    tx: &Tx,
    run: &UpdateRun,
    steps: &[Step<'_>],
    (mut position, now): (i32, Time),
) -> Result<(), StoreError> {
    let mut rows = Vec::new();
    for step in steps {
        let happening = step.happening;
        let detail = if step.is_end || position < MAX_HISTORY {
            happening.event.detail()
        } else if position == MAX_HISTORY {
            "the history is full: only how the run ends is added".to_owned()
        } else {
            continue;
        };
        rows.push(ActiveModel {
            tenant_id: Set(tx.tenant().uuid()),
            run_id: Set(run.id.bits().cast_signed()),
            position: Set(position),
            event: Set(happening.event.name().to_owned()),
            state: Set(step.state.to_owned()),
            sequence: Set(happening.sequence.map(u32::cast_signed)),
            boot_id: Set(happening.boot_id.clone()),
            node_time: Set(happening.node_time),
            at: Set(now),
            detail: Set(detail),
        });
        position += 1;
    }
    if rows.is_empty() {
        return Ok(());
    }
    Entity::insert_many(rows)
        .exec_without_returning(tx.conn())
        .await?;
    Ok(())
}
