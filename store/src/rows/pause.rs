//! Rows of `pauses`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel, Deserialize)]
#[sea_orm(table_name = "pauses")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub scope_kind: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub scope_id: i32,
    pub reason: String,
    pub created_by: String,
    pub since_at: DateTimeUtc,
}

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}
