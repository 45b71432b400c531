//! Rows of `sites`.

use evenkeel_domain::place::Metadata;
use sea_orm::entity::prelude::*;
use serde::Deserialize;

use crate::keyed::Keyed;
use crate::rows::Kept;
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
    pub metadata: Kept<Metadata>,
    pub created_at: DateTimeUtc,
    pub updated_at: DateTimeUtc,
}

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}

impl Keyed for Entity {
    const ID: Column = Column::Id;
    const WHAT: &'static str = "site_resource";
}
