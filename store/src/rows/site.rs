//! Rows of `sites`.

use evenkeel_domain::location::Metadata;
use sea_orm::entity::prelude::*;
use serde::Deserialize;

use crate::keyed::KeyedEntity;
use crate::rows::JsonColumn;
use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel, Deserialize)]
#[sea_orm(table_name = "sites")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: i32,
    pub name: String,
    pub region_id: Option<i32>,
    pub latitude: i32,
    pub longitude: i32,
    pub metadata: JsonColumn<Metadata>,
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
    const RESOURCE: &'static str = "site_resource";
}
