//! Rows of `custom_configs`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

use crate::keyed::KeyedEntity;
use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel, Deserialize)]
#[sea_orm(table_name = "custom_configs")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: i32,
    pub name: String,
    pub description: String,
    pub config: String,
    pub created_at: DateTimeUtc,
    pub updated_at: DateTimeUtc,
}

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}

impl KeyedEntity for Entity {
    const ID: Column = Column::Id;
    const RESOURCE: &'static str = "custom_config_resource";
}
