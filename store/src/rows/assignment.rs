//! Rows of `assignments`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

use crate::fields::fields;
use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel, Deserialize)]
#[sea_orm(table_name = "assignments")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub target_kind: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub target_id: i32,
    pub policy_id: i32,
    pub max_concurrent: Option<i32>,
    pub stop_after_failures: Option<i32>,
    pub since_at: DateTimeUtc,
    pub resumed_at: Option<DateTimeUtc>,
    pub resumed_by: Option<String>,
    pub resume_reason: Option<String>,
}

fields!(Model {
    tenant_id,
    target_kind,
    target_id,
    policy_id,
    max_concurrent,
    stop_after_failures,
    since_at,
    resumed_at,
    resumed_by,
    resume_reason,
});

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}
