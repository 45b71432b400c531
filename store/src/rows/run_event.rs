//! Rows of `run_events`.

use sea_orm::entity::prelude::*;

use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "run_events")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub run_id: i32,
    #[sea_orm(primary_key, auto_increment = false)]
    pub position: i32,
    pub event: String,
    pub state: String,
    pub sequence: Option<i32>,
    pub boot_id: String,
    pub node_time: Option<DateTimeUtc>,
    pub at: DateTimeUtc,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}
