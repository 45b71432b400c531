//! Rows of `host_hardware`. The column `parts_json` is generated from the lists and is not written.

use evenkeel_domain::hardware::{Gpu, Nic, Storage, Usb};
use sea_orm::entity::prelude::*;

use crate::fields::fields;
use crate::rows::JsonColumn;
use crate::tx::Scoped;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "host_hardware")]
#[expect(clippy::struct_field_names, reason = "the fields are named like the columns")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub tenant_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub host_id: i32,
    pub serial_number: String,
    pub memory_bytes: i64,
    pub cpu_model: String,
    pub cpu_capabilities: String,
    pub cpu_architecture: String,
    pub cpu_topology: String,
    pub cpu_sockets: i64,
    pub cpu_cores: i64,
    pub cpu_threads: i64,
    pub product_name: String,
    pub bios_version: String,
    pub bios_release_date: String,
    pub bios_vendor: String,
    pub bmc_kind: String,
    pub bmc_ip: String,
    pub storages: JsonColumn<Vec<Storage>>,
    pub nics: JsonColumn<Vec<Nic>>,
    pub usbs: JsonColumn<Vec<Usb>>,
    pub gpus: JsonColumn<Vec<Gpu>>,
    pub digest: Vec<u8>,
    pub created_at: DateTimeUtc,
    pub updated_at: DateTimeUtc,
}

fields!(Model {
    tenant_id,
    host_id,
    serial_number,
    memory_bytes,
    cpu_model,
    cpu_capabilities,
    cpu_architecture,
    cpu_topology,
    cpu_sockets,
    cpu_cores,
    cpu_threads,
    product_name,
    bios_version,
    bios_release_date,
    bios_vendor,
    bmc_kind,
    bmc_ip,
    storages,
    nics,
    usbs,
    gpus,
    digest,
    created_at,
    updated_at,
});

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl Scoped for Entity {
    const TENANT: Column = Column::TenantId;
}
