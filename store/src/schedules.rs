//! Single schedules.

use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, SingleScheduleId};
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget, SingleSchedule, SingleSpec};
use evenkeel_domain::text::Name;
use sea_orm::{ActiveModelTrait, ColumnTrait, ExprTrait, QueryFilter, QueryOrder, Set};

use crate::error::StoreError;
use crate::page::{self, Listed, Page};
use crate::rows::named;
use crate::rows::single_schedule::{ActiveModel, Column, Entity, Model};
use crate::tx::Tx;
use crate::{ids, keyed};

/// Makes a schedule.
///
/// # Errors
/// Its target is not in the project.
pub async fn create(tx: &Tx, spec: &SingleSpec, now: Time) -> Result<SingleSchedule, StoreError> {
    tx.write_wanted().await?;
    let id = SingleScheduleId::nth(ids::next(tx.conn(), "single_schedule_numbers").await?);
    let host = spec
        .target
        .map(|ScheduleTarget::Host(host)| host.bits().cast_signed());
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(spec.name.to_string()),
        status: Set(spec.status.name().to_owned()),
        start_at: Set(spec.start),
        end_at: Set(spec.end),
        target_host_id: Set(host),
        created_at: Set(now),
        updated_at: Set(now),
    };
    row.insert(tx.conn()).await?.try_into()
}

/// The schedule with this id.
///
/// # Errors
/// There is none in the project.
pub async fn find(tx: &Tx, id: SingleScheduleId) -> Result<SingleSchedule, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// Part of the schedules, by id; only those of one host if it is given.
///
/// # Errors
/// The database cannot be reached.
pub async fn list(
    tx: &Tx,
    host: Option<HostId>,
    page: Page,
) -> Result<Listed<SingleSchedule>, StoreError> {
    let mut list = tx.scope::<Entity>().order_by_asc(Column::Id);
    if let Some(host) = host {
        list = list.filter(Column::TargetHostId.eq(host.bits().cast_signed()));
    }
    page::read(tx, list, page).await
}

/// The schedules of a host that are not over.
///
/// # Errors
/// The database cannot be reached.
pub async fn to_come(tx: &Tx, host: HostId, now: Time) -> Result<Vec<SingleSchedule>, StoreError> {
    let rows = tx
        .scope::<Entity>()
        .filter(Column::TargetHostId.eq(host.bits().cast_signed()))
        .filter(Column::EndAt.gt(now).or(Column::EndAt.is_null()))
        .all(tx.conn())
        .await?;
    rows.into_iter().map(SingleSchedule::try_from).collect()
}

/// Removes a schedule.
///
/// # Errors
/// There is none in the project.
pub async fn delete(tx: &Tx, id: SingleScheduleId) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    keyed::delete::<Entity>(tx, id.bits()).await
}

impl TryFrom<Model> for SingleSchedule {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        const TABLE: &str = "single_schedules";
        let host = row
            .target_host_id
            .map(|host| HostId::from_bits(host.cast_unsigned()));
        let status = ScheduleStatus::from_name(&row.status);
        let spec = SingleSpec {
            name: named(Name::parse("name", &row.name).ok(), TABLE, row.id, "name")?,
            status: named(status, TABLE, row.id, "status")?,
            start: row.start_at,
            end: row.end_at,
            target: host.map(ScheduleTarget::Host),
        };
        Ok(Self {
            id: SingleScheduleId::from_bits(row.id.cast_unsigned()),
            spec,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
