//! Hardware of hosts: one row per host.

use std::collections::HashMap;

use evenkeel_domain::Time;
use evenkeel_domain::hardware::{Address, Controller, Hardware, Lifetime};
use evenkeel_domain::host::SerialNumber;
use evenkeel_domain::id::{HostId, IpAddressId};
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, EntityTrait, IntoActiveModel, QueryFilter, QuerySelect,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::StoreError;
use crate::fields::{Fields as _, RowReader};
use crate::hosts;
use crate::rows::host_hardware::{Column, Entity, Model};
use crate::rows::{JsonColumn, or_corrupt, readable};
use crate::tx::{Tx, is_any_of, query_all};

/// SHA-256 of the hardware report of a machine.
pub type HardwareDigest = [u8; 32];

const TABLE: &str = "host_hardware";

/// Value of the column for an unknown management controller.
const NO_CONTROLLER: &str = "unspecified";

/// The hardware of a host, with its parts as JSON of the REST API.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderedHardware {
    /// The hardware without its parts.
    pub hardware: Hardware,
    pub parts: RenderedParts,
}

/// The parts of a host: JSON lists exactly as the REST API returns them. The database renders them.
#[derive(Clone, Debug, Deserialize)]
pub struct RenderedParts {
    pub storages: Box<RawValue>,
    pub nics: Box<RawValue>,
    pub usbs: Box<RawValue>,
    pub gpus: Box<RawValue>,
}

impl RenderedParts {
    fn texts(&self) -> [&str; 4] {
        [&self.storages, &self.nics, &self.usbs, &self.gpus].map(|list| list.get())
    }
}

impl PartialEq for RenderedParts {
    fn eq(&self, other: &Self) -> bool {
        self.texts() == other.texts()
    }
}

/// The columns of `host_hardware` under an alias, for [`read_hardware`]. The part columns are
/// empty, because the parts come rendered.
pub(crate) fn columns(alias: &str) -> String {
    let columns = Model::COLUMNS.iter().map(|column| match *column {
        "storages" | "nics" | "usbs" | "gpus" => "'[]'::jsonb".to_owned(),
        column => format!("{alias}.{column}"),
    });
    let columns: Vec<_> = columns.collect();
    format!("{}, {alias}.parts_json", columns.join(", "))
}

/// Reads the hardware from the next [`columns`]; none if the host did not report it.
pub(crate) fn read_hardware(
    row: &mut RowReader<'_>,
) -> Result<Option<RenderedHardware>, StoreError> {
    let model = row.joined::<Model>()?;
    let rendered_parts: Option<String> = row.take()?;
    let Some(model) = model else {
        return Ok(None);
    };
    let parts = rendered_parts.and_then(|text| serde_json::from_str(&text).ok());
    Ok(Some(RenderedHardware {
        parts: or_corrupt(parts, TABLE, model.host_id, "parts_json")?,
        hardware: model.try_into()?,
    }))
}

/// The reported hardware of these hosts: one statement for any number of hosts.
pub async fn find_by_hosts(
    tx: &Tx,
    hosts: &[HostId],
) -> Result<HashMap<HostId, Hardware>, StoreError> {
    if hosts.is_empty() {
        return Ok(HashMap::new());
    }
    let ids = hosts.iter().map(|id| id.bits().cast_signed());
    let rows = tx.scope::<Entity>().filter(is_any_of(Column::HostId, ids)).all(tx.conn()).await?;
    let entry = |row: Model| {
        let host = HostId::from_bits(row.host_id.cast_unsigned());
        Hardware::try_from(row).map(|hardware| (host, hardware))
    };
    rows.into_iter().map(entry).collect()
}

/// Stores a hardware report with its digest unless the digest is unchanged. Returns whether the
/// report was stored.
///
/// # Errors
/// The host does not exist in the project.
pub async fn store_if_changed(
    tx: &Tx,
    host: HostId,
    reported: Hardware,
    digest: &HardwareDigest,
    now: Time,
) -> Result<bool, StoreError> {
    if stored_digest(tx, host).await?.as_deref() == Some(digest.as_slice()) {
        return Ok(false);
    }
    // The lock serializes reports of the same host.
    let locked_host = hosts::lock(tx, host).await?;
    let before = tx.scope::<Entity>().filter(host_condition(host));
    let before = before.one(tx.conn()).await?;
    if before.as_ref().is_some_and(|row| row.digest == digest.as_slice()) {
        return Ok(false);
    }
    let serial = SerialNumber::from_report(&reported.serial_number);
    if let (None, Some(serial)) = (locked_host.serial, serial) {
        hosts::record_names(tx, host, None, Some(&serial)).await?;
    }
    write_row(tx, host, reported, before, (digest, now)).await?;
    Ok(true)
}

async fn stored_digest(tx: &Tx, host: HostId) -> Result<Option<Vec<u8>>, StoreError> {
    let last = tx
        .scope::<Entity>()
        .select_only()
        .column(Column::Digest)
        .filter(host_condition(host))
        .into_tuple::<Vec<u8>>();
    Ok(last.one(tx.conn()).await?)
}

fn host_condition(host: HostId) -> Expr {
    Column::HostId.eq(host.bits().cast_signed())
}

/// Replaces the stored report of a host.
async fn write_row(
    tx: &Tx,
    host: HostId,
    mut reported: Hardware,
    before: Option<Model>,
    (digest, now): (&HardwareDigest, Time),
) -> Result<(), StoreError> {
    let created_at = before.as_ref().map_or(now, |row| row.created_at);
    let is_new = before.is_none();
    let before = before.and_then(|row| readable(TABLE, Hardware::try_from(row)));
    let new = reported.carry_over(before.as_ref(), now);
    assign_address_ids(tx, new).await?;
    let lifetime = Lifetime { created_at, updated_at: now };
    let row = into_row(tx, host, reported, digest, lifetime);
    let row = row.into_active_model().reset_all();
    if is_new {
        Entity::insert(row).exec_without_returning(tx.conn()).await?;
    } else {
        row.update(tx.conn()).await?;
    }
    Ok(())
}

async fn assign_address_ids(tx: &Tx, addresses: Vec<&mut Address>) -> Result<(), StoreError> {
    if addresses.is_empty() {
        return Ok(());
    }
    let sql = "SELECT nextval('ip_address_numbers') FROM generate_series(1, $1::integer)";
    let count = i32::try_from(addresses.len()).unwrap_or(i32::MAX);
    let rows = query_all(tx.conn(), sql, [count.into()]).await?;
    for (address, row) in addresses.into_iter().zip(rows) {
        let number: i64 = row.try_get_by_index(0)?;
        let number = or_corrupt(u32::try_from(number).ok(), "sequence", 0, "nextval")?;
        address.resource_id = Some(IpAddressId::nth(number));
    }
    Ok(())
}

fn into_row(
    tx: &Tx,
    host: HostId,
    hardware: Hardware,
    digest: &HardwareDigest,
    lifetime: Lifetime,
) -> Model {
    Model {
        tenant_id: tx.tenant().uuid(),
        host_id: host.bits().cast_signed(),
        serial_number: hardware.serial_number,
        memory_bytes: i64::try_from(hardware.memory_bytes).unwrap_or(i64::MAX),
        cpu_model: hardware.cpu_model,
        cpu_capabilities: hardware.cpu_capabilities,
        cpu_architecture: hardware.cpu_architecture,
        cpu_topology: hardware.cpu_topology,
        cpu_sockets: hardware.cpu_sockets.into(),
        cpu_cores: hardware.cpu_cores.into(),
        cpu_threads: hardware.cpu_threads.into(),
        product_name: hardware.product_name,
        product_vendor: hardware.product_vendor,
        bios_version: hardware.bios_version,
        bios_release_date: hardware.bios_release_date,
        bios_vendor: hardware.bios_vendor,
        bmc_kind: hardware.controller.map_or(NO_CONTROLLER, Controller::name).to_owned(),
        bmc_ip: hardware.controller_ip,
        storages: JsonColumn(hardware.storages),
        nics: JsonColumn(hardware.nics),
        usbs: JsonColumn(hardware.usbs),
        gpus: JsonColumn(hardware.gpus),
        digest: digest.to_vec(),
        created_at: lifetime.created_at,
        updated_at: lifetime.updated_at,
    }
}

impl TryFrom<Model> for Hardware {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let id = row.host_id;
        let count = |number: i64, column| or_corrupt(u32::try_from(number).ok(), TABLE, id, column);
        let memory = u64::try_from(row.memory_bytes).ok();
        let controller = match row.bmc_kind.as_str() {
            NO_CONTROLLER => None,
            kind => Some(or_corrupt(Controller::from_name(kind), TABLE, id, "bmc_kind")?),
        };
        Ok(Self {
            serial_number: row.serial_number,
            memory_bytes: or_corrupt(memory, TABLE, id, "memory_bytes")?,
            cpu_model: row.cpu_model,
            cpu_capabilities: row.cpu_capabilities,
            cpu_architecture: row.cpu_architecture,
            cpu_topology: row.cpu_topology,
            cpu_sockets: count(row.cpu_sockets, "cpu_sockets")?,
            cpu_cores: count(row.cpu_cores, "cpu_cores")?,
            cpu_threads: count(row.cpu_threads, "cpu_threads")?,
            product_name: row.product_name,
            product_vendor: row.product_vendor,
            bios_version: row.bios_version,
            bios_release_date: row.bios_release_date,
            bios_vendor: row.bios_vendor,
            controller,
            controller_ip: row.bmc_ip,
            storages: row.storages.0,
            nics: row.nics.0,
            usbs: row.usbs.0,
            gpus: row.gpus.0,
        })
    }
}
