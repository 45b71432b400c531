//! Repeated schedules.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::id::RepeatedScheduleId;
use evenkeel_domain::schedule::{
    Cron, RepeatedSchedule, RepeatedSpec, ScheduleStatus, ScheduleTarget, Zone,
};
use evenkeel_domain::text::Name;
use sea_orm::{ActiveModelTrait, Set};

use super::target::TargetBits;
use crate::error::StoreError;
use crate::rows::or_corrupt;
use crate::rows::repeated_schedule::{ActiveModel, Entity, Model};
use crate::tx::Tx;
use crate::{ids, keyed};

/// Creates a schedule.
///
/// # Errors
/// Its target does not exist in the project.
pub async fn create(
    tx: &Tx,
    spec: &RepeatedSpec,
    now: Time,
) -> Result<RepeatedSchedule, StoreError> {
    tx.lock_for_change().await?;
    let id = RepeatedScheduleId::nth(ids::next(tx.conn(), "repeated_schedule_numbers").await?);
    let row = ActiveModel { created_at: Set(now), ..active_model(tx, id, spec, now) };
    row.insert(tx.conn()).await?.try_into()
}

/// The schedule with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: RepeatedScheduleId) -> Result<RepeatedSchedule, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The schedules with these ids that exist, in no particular order.
pub async fn find_many(
    tx: &Tx,
    ids: &[RepeatedScheduleId],
) -> Result<Vec<RepeatedSchedule>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// Replaces the specification of a schedule.
///
/// # Errors
/// It does not exist in the project, or its target does not.
pub async fn change(
    tx: &Tx,
    id: RepeatedScheduleId,
    spec: &RepeatedSpec,
    now: Time,
) -> Result<RepeatedSchedule, StoreError> {
    tx.lock_for_change().await?;
    find(tx, id).await?;
    let row = active_model(tx, id, spec, now).update(tx.conn()).await?;
    row.try_into()
}

/// Deletes a schedule.
///
/// # Errors
/// It does not exist in the project.
pub async fn delete(tx: &Tx, id: RepeatedScheduleId) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    keyed::delete::<Entity>(tx, id.bits()).await
}

fn active_model(tx: &Tx, id: RepeatedScheduleId, spec: &RepeatedSpec, now: Time) -> ActiveModel {
    let target = TargetBits::from_target(spec.target);
    let seconds = i32::try_from(spec.duration.num_seconds()).unwrap_or(i32::MAX);
    ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(spec.name.to_string()),
        status: Set(spec.status.name().to_owned()),
        duration_seconds: Set(seconds),
        cron_minutes: Set(spec.cron.minutes().to_owned()),
        cron_hours: Set(spec.cron.hours().to_owned()),
        cron_day_month: Set(spec.cron.day_month().to_owned()),
        cron_month: Set(spec.cron.month().to_owned()),
        cron_day_week: Set(spec.cron.day_week().to_owned()),
        time_zone: Set(spec.zone.name().to_owned()),
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

impl TryFrom<Model> for RepeatedSchedule {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        const TABLE: &str = "repeated_schedules";
        let cron = Cron::parse(
            &row.cron_minutes,
            &row.cron_hours,
            &row.cron_day_month,
            &row.cron_month,
            &row.cron_day_week,
        );
        let zone = Zone::parse(&row.time_zone).ok();
        let status = ScheduleStatus::from_name(&row.status);
        let target = row.target();
        let spec = RepeatedSpec {
            name: Name::from_stored(&row.name),
            status: or_corrupt(status, TABLE, row.id, "status")?,
            duration: TimeDelta::seconds(row.duration_seconds.into()),
            cron: or_corrupt(cron.ok(), TABLE, row.id, "cron")?,
            zone: or_corrupt(zone, TABLE, row.id, "time_zone")?,
            target,
        };
        Ok(Self {
            id: RepeatedScheduleId::from_bits(row.id.cast_unsigned()),
            spec,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
