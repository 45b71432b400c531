//! Rows of `join_tokens`.

use sea_orm::entity::prelude::*;

use crate::keyed::KeyedEntity;
use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "join_tokens")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: i32,
    pub name: String,
    pub digest: Vec<u8>,
    pub expires_at: DateTimeUtc,
    pub one_time: bool,
    pub may_create_hosts: bool,
    pub used: i32,
    pub last_used_at: Option<DateTimeUtc>,
    pub revoked_at: Option<DateTimeUtc>,
    pub created_at: DateTimeUtc,
}

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}

impl KeyedEntity for Entity {
    const ID: Column = Column::Id;
    const RESOURCE: &'static str = "join_token_resource";
}
