//! Settings of a project.

use sea_orm::sea_query::OnConflict;
use sea_orm::{EntityTrait, Set};

use crate::error::StoreError;
use crate::rows::project_settings::{ActiveModel, Column, Entity};
use crate::tx::Tx;

/// What a project has its own way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectSettings {
    /// For how many days runs are kept after their end; 0 is for ever, none is as the server has it. At most
    /// [`ProjectSettings::MAX_RETENTION_DAYS`].
    pub retention_days: Option<u32>,
    /// Whether schedules of any status open windows for updates, as the ancestor had it.
    pub any_schedule_status: bool,
}

impl ProjectSettings {
    /// A hundred years.
    pub const MAX_RETENTION_DAYS: u32 = 36_500;
}

/// The settings of the project; the usual ones if none were written.
///
/// # Errors
/// The database cannot be reached.
pub async fn find(tx: &Tx) -> Result<ProjectSettings, StoreError> {
    let row = tx.scope::<Entity>().one(tx.conn()).await?;
    Ok(
        row.map_or_else(ProjectSettings::default, |row| ProjectSettings {
            retention_days: row.retention_days.map(i32::cast_unsigned),
            any_schedule_status: row.any_schedule_status,
        }),
    )
}

/// Writes the settings of the project.
///
/// # Errors
/// The retention is longer than may be.
pub async fn set(tx: &Tx, settings: &ProjectSettings) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        retention_days: Set(settings.retention_days.map(u32::cast_signed)),
        any_schedule_status: Set(settings.any_schedule_status),
    };
    let same = OnConflict::column(Column::TenantId)
        .update_columns([Column::RetentionDays, Column::AnyScheduleStatus])
        .to_owned();
    Entity::insert(row)
        .on_conflict(same)
        .exec_without_returning(tx.conn())
        .await?;
    Ok(())
}
