//! Single schedules.

pub mod repeated;
mod target;

use evenkeel_domain::Time;
use evenkeel_domain::id::SingleScheduleId;
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget, SingleSchedule, SingleSpec};
use evenkeel_domain::text::Name;
use sea_orm::{ActiveModelTrait, Set};

use crate::error::StoreError;
use crate::rows::or_corrupt;
use crate::rows::single_schedule::{ActiveModel, Entity, Model};
use crate::tx::Tx;
use crate::{ids, keyed};
use target::TargetBits;

/// Creates a schedule.
///
/// # Errors
/// Its target does not exist in the project.
pub async fn create(tx: &Tx, spec: &SingleSpec, now: Time) -> Result<SingleSchedule, StoreError> {
    tx.lock_for_change().await?;
    let id = SingleScheduleId::nth(ids::next(tx.conn(), "single_schedule_numbers").await?);
    let row = ActiveModel { created_at: Set(now), ..active_model(tx, id, spec, now) };
    row.insert(tx.conn()).await?.try_into()
}

/// The schedule with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: SingleScheduleId) -> Result<SingleSchedule, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The schedules with these ids that exist, in no particular order.
pub async fn find_many(
    tx: &Tx,
    ids: &[SingleScheduleId],
) -> Result<Vec<SingleSchedule>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// Replaces the specification of a schedule.
///
/// # Errors
/// It does not exist in the project, or its target does not.
pub async fn change(
    tx: &Tx,
    id: SingleScheduleId,
    spec: &SingleSpec,
    now: Time,
) -> Result<SingleSchedule, StoreError> {
    tx.lock_for_change().await?;
    find(tx, id).await?;
    let row = active_model(tx, id, spec, now).update(tx.conn()).await?;
    row.try_into()
}

/// Deletes a schedule.
///
/// # Errors
/// It does not exist in the project.
pub async fn delete(tx: &Tx, id: SingleScheduleId) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    keyed::delete::<Entity>(tx, id.bits()).await
}

fn active_model(tx: &Tx, id: SingleScheduleId, spec: &SingleSpec, now: Time) -> ActiveModel {
    let target = TargetBits::from_target(spec.target);
    ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(spec.name.to_string()),
        status: Set(spec.status.name().to_owned()),
        start_at: Set(spec.start),
        end_at: Set(spec.end),
        target_host_id: Set(target.host),
        target_site_id: Set(target.site),
        target_region_id: Set(target.region),
        updated_at: Set(now),
        ..Default::default()
    }
}

impl Model {
    /// The target, which can be read also if the rest of the row cannot.
    pub(crate) fn target(&self) -> Option<ScheduleTarget> {
        TargetBits::read(self.target_host_id, self.target_site_id, self.target_region_id)
    }
}

impl TryFrom<Model> for SingleSchedule {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        const TABLE: &str = "single_schedules";
        let status = ScheduleStatus::from_name(&row.status);
        let target = row.target();
        let spec = SingleSpec {
            name: Name::from_stored(&row.name),
            status: or_corrupt(status, TABLE, row.id, "status")?,
            start: row.start_at,
            end: row.end_at,
            target,
        };
        Ok(Self {
            id: SingleScheduleId::from_bits(row.id.cast_unsigned()),
            spec,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
