//! Rows of `project_settings`.

use sea_orm::entity::prelude::*;

use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "project_settings")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    pub retention_days: Option<i32>,
    pub any_schedule_status: bool,
}

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}
