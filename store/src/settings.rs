//! Settings of a project.

use sea_orm::sea_query::OnConflict;
use sea_orm::{EntityTrait, Set};

use crate::error::StoreError;
use crate::rows::project_settings::{ActiveModel, Column, Entity};
use crate::tx::Tx;

/// Settings of a project that override those of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectSettings {
    /// Days to keep runs after their end; 0 keeps them forever, none uses the server's setting. At
    /// most [`ProjectSettings::MAX_RETENTION_DAYS`].
    pub retention_days: Option<u32>,
    /// Whether schedules of any status open update windows, as in EIM.
    pub any_schedule_status: bool,
}

impl ProjectSettings {
    /// 100 years.
    pub const MAX_RETENTION_DAYS: u32 = 36_500;
}

/// The settings of the project, or the default if none were stored.
pub async fn find(tx: &Tx) -> Result<ProjectSettings, StoreError> {
    let row = tx.scope::<Entity>().one(tx.conn()).await?;
    Ok(row.map_or_else(ProjectSettings::default, |row| ProjectSettings {
        retention_days: row.retention_days.map(i32::cast_unsigned),
        any_schedule_status: row.any_schedule_status,
    }))
}

/// Stores the settings of the project.
///
/// # Errors
/// The retention exceeds [`ProjectSettings::MAX_RETENTION_DAYS`].
pub async fn set(tx: &Tx, settings: &ProjectSettings) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        retention_days: Set(settings.retention_days.map(u32::cast_signed)),
        any_schedule_status: Set(settings.any_schedule_status),
    };
    let same = OnConflict::column(Column::TenantId)
        .update_columns([Column::RetentionDays, Column::AnyScheduleStatus])
        .to_owned();
    Entity::insert(row).on_conflict(same).exec_without_returning(tx.conn()).await?;
    Ok(())
}
