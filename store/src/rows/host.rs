//! Rows of `hosts`.

use evenkeel_domain::location::Metadata;
use sea_orm::entity::prelude::*;

use crate::fields::fields;
use crate::keyed::KeyedEntity;
use crate::rows::JsonColumn;
use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "hosts")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: i32,
    pub name: String,
    pub uuid: Option<Uuid>,
    pub serial: Option<String>,
    pub hostname: String,
    pub desired_state: String,
    pub current_state: String,
    pub note: String,
    pub public_key: Vec<u8>,
    pub status: String,
    pub status_indication: String,
    pub status_at: DateTimeUtc,
    pub created_at: DateTimeUtc,
    pub updated_at: DateTimeUtc,
    pub site_id: Option<i32>,
    pub metadata: JsonColumn<Metadata>,
    pub provider_id: Option<i32>,
    pub user_lvm_size: i32,
}

fields!(Model {
    tenant_id,
    id,
    name,
    uuid,
    serial,
    hostname,
    desired_state,
    current_state,
    note,
    public_key,
    status,
    status_indication,
    status_at,
    created_at,
    updated_at,
    site_id,
    metadata,
    provider_id,
    user_lvm_size,
});

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}

impl KeyedEntity for Entity {
    const ID: Column = Column::Id;
    const RESOURCE: &'static str = "host_resource";
}
