//! Rows of `update_orders`.

use sea_orm::entity::prelude::*;

use crate::fields::fields;
use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "update_orders")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub instance_id: i32,
    pub kind: String,
    pub given_at: DateTimeUtc,
    pub until_at: DateTimeUtc,
    pub reason: String,
    pub created_by: String,
}

fields!(Model { tenant_id, instance_id, kind, given_at, until_at, reason, created_by });

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}
