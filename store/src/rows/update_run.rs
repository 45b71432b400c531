//! Rows of `update_runs`.

use evenkeel_domain::package::PackageChange;
use evenkeel_domain::run::{ImageChange, Origin, RunReport};
use sea_orm::entity::prelude::*;

use crate::fields::fields;
use crate::keyed::KeyedEntity;
use crate::rows::JsonColumn;
use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "update_runs")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: i32,
    pub instance_id: i32,
    pub name: String,
    pub description: String,
    pub attempt: Option<Uuid>,
    pub policy_id: Option<i32>,
    pub origin: JsonColumn<Origin>,
    pub target_digest: Option<String>,
    pub state: String,
    pub state_since: DateTimeUtc,
    pub changed: Option<bool>,
    pub cause: Option<String>,
    pub failure_kind: Option<String>,
    pub failure: Option<String>,
    pub packages: JsonColumn<Vec<PackageChange>>,
    pub log: String,
    pub sequence: i32,
    pub generation: i64,
    pub granted_at: Option<DateTimeUtc>,
    pub started_at: DateTimeUtc,
    pub ended_at: Option<DateTimeUtc>,
    pub granted_kind: Option<String>,
    pub granted_id: Option<i32>,
    pub packages_digest: Option<Vec<u8>>,
    pub report: JsonColumn<RunReport>,
    pub image: Option<JsonColumn<ImageChange>>,
}

fields!(Model {
    tenant_id,
    id,
    instance_id,
    name,
    description,
    attempt,
    policy_id,
    origin,
    target_digest,
    state,
    state_since,
    changed,
    cause,
    failure_kind,
    failure,
    packages,
    log,
    sequence,
    generation,
    granted_at,
    started_at,
    ended_at,
    granted_kind,
    granted_id,
    packages_digest,
    report,
    image,
});

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}

impl KeyedEntity for Entity {
    const ID: Column = Column::Id;
    const RESOURCE: &'static str = "os_update_run_resource";
}
