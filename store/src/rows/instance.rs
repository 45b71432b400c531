//! Rows of `instances`.

use sea_orm::entity::prelude::*;

use crate::fields::fields;
use crate::keyed::KeyedEntity;
use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "instances")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: i32,
    pub host_id: i32,
    pub name: String,
    pub kind: String,
    pub desired_state: String,
    pub current_state: String,
    pub security_feature: String,
    pub created_at: DateTimeUtc,
    pub updated_at: DateTimeUtc,
    pub local_account_id: Option<i32>,
}

fields!(Model {
    tenant_id,
    id,
    host_id,
    name,
    kind,
    desired_state,
    current_state,
    security_feature,
    created_at,
    updated_at,
    local_account_id,
});

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}

impl KeyedEntity for Entity {
    const ID: Column = Column::Id;
    const RESOURCE: &'static str = "instance_resource";
}
