//! Rows of `update_policies`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

use crate::keyed::KeyedEntity;
use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel, Deserialize)]
#[sea_orm(table_name = "update_policies")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: i32,
    pub name: String,
    pub description: String,
    pub mode: String,
    pub target_os_id: Option<i32>,
    pub packages: String,
    pub sources: Vec<String>,
    pub kernel_command: String,
    pub created_at: DateTimeUtc,
    pub allow_downgrade: bool,
    pub offline_days: i32,
    pub rules: Json,
    pub image_rules: Json,
}

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}

impl KeyedEntity for Entity {
    const ID: Column = Column::Id;
    const RESOURCE: &'static str = "os_update_policy_resource";
}
