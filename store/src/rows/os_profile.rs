//! Rows of `os_profiles`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

use crate::keyed::KeyedEntity;
use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel, Deserialize)]
#[sea_orm(table_name = "os_profiles")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: i32,
    pub name: String,
    pub kind: String,
    pub provider: String,
    pub architecture: String,
    pub profile_name: String,
    pub image_id: String,
    pub image_url: String,
    pub sha256: String,
    pub security_feature: String,
    pub description: String,
    pub metadata: String,
    pub repo_url: String,
    pub tls_ca_cert: String,
    pub installed_packages_url: String,
    pub existing_cves_url: String,
    pub fixed_cves_url: String,
    pub created_at: DateTimeUtc,
    pub updated_at: DateTimeUtc,
    pub image_signatures: Vec<String>,
}

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}

impl KeyedEntity for Entity {
    const ID: Column = Column::Id;
    const RESOURCE: &'static str = "operating_system_resource";
}
