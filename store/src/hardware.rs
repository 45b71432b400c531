//! What hosts are made of: one row a host.

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
use crate::fields::{Fields as _, Reader};
use crate::hosts;
use crate::rows::host_hardware::{Column, Entity, Model};
use crate::rows::{Kept, named};
use crate::tx::{Tx, all, among};

/// The SHA-256 of what a machine said.
pub type Digest = [u8; 32];

const TABLE: &str = "host_hardware";

/// How a row says that nothing is known of a management controller.
const NO_CONTROLLER: &str = "unspecified";

/// What a host is made of, its parts as the REST API tells them.
#[derive(Clone, Debug, PartialEq)]
pub struct ToldHardware {
    /// What it is made of, without its parts.
    pub of_itself: Hardware,
    /// Its parts.
    pub parts: ToldParts,
}

/// The parts of a host: lists of JSON, letter by letter as the REST API tells them. The database makes them from what it
/// keeps.
#[derive(Clone, Debug, Deserialize)]
pub struct ToldParts {
    /// Its disks.
    pub storages: Box<RawValue>,
    /// Its network interfaces.
    pub nics: Box<RawValue>,
    /// Its USB devices.
    pub usbs: Box<RawValue>,
    /// Its graphics processors.
    pub gpus: Box<RawValue>,
}

impl ToldParts {
    fn texts(&self) -> [&str; 4] {
        [&self.storages, &self.nics, &self.usbs, &self.gpus].map(|list| list.get())
    }
}

impl PartialEq for ToldParts {
    fn eq(&self, other: &Self) -> bool {
        self.texts() == other.texts()
    }
}

/// The columns of `host_hardware` under an alias, for [`read_one`]. Their lists are empty: the parts come as they are told.
pub(crate) fn columns(alias: &str) -> String {
    let columns = Model::COLUMNS.iter().map(|column| match *column {
        "storages" | "nics" | "usbs" | "gpus" => "'[]'::jsonb".to_owned(),
        column => format!("{alias}.{column}"),
    });
    let columns: Vec<_> = columns.collect();
    format!("{}, {alias}.told", columns.join(", "))
}

/// What the host of the next [`columns`] is made of; none if it did not say so.
pub(crate) fn read_one(row: &mut Reader<'_>) -> Result<Option<ToldHardware>, StoreError> {
    let model = row.joined::<Model>()?;
    let told: Option<String> = row.take()?;
    let Some(model) = model else {
        return Ok(None);
    };
    let parts = told.and_then(|told| serde_json::from_str(&told).ok());
    Ok(Some(ToldHardware {
        parts: named(parts, TABLE, model.host_id, "told")?,
        of_itself: model.try_into()?,
    }))
}

/// What these hosts are made of, as far as they said so: one statement for any number of them.
///
/// # Errors
/// The database cannot be reached.
pub async fn of_hosts(tx: &Tx, hosts: &[HostId]) -> Result<HashMap<HostId, Hardware>, StoreError> {
    if hosts.is_empty() {
        return Ok(HashMap::new());
    }
    let ids = hosts.iter().map(|id| id.bits().cast_signed());
    let rows = tx
        .scope::<Entity>()
        .filter(among(Column::HostId, ids))
        .all(tx.conn())
        .await?;
    let known = |row: Model| {
        let host = HostId::from_bits(row.host_id.cast_unsigned());
        Hardware::try_from(row).map(|hardware| (host, hardware))
    };
    rows.into_iter().map(known).collect()
}

/// Keeps what a host says that it is made of, with the digest of that, unless it is what it said last. Says whether it
/// was kept.
///
/// # Errors
/// There is no such host in the project.
pub async fn keep(
    tx: &Tx,
    host: HostId,
    said: Hardware,
    digest: &Digest,
    now: Time,
) -> Result<bool, StoreError> {
    if said_last(tx, host).await?.as_deref() == Some(digest.as_slice()) {
        return Ok(false);
    }
    // What one host says is taken one by one.
    let known = hosts::lock(tx, host).await?;
    let before = tx.scope::<Entity>().filter(is_of(host));
    let before = before.one(tx.conn()).await?;
    if before
        .as_ref()
        .is_some_and(|row| row.digest == digest.as_slice())
    {
        return Ok(false);
    }
    let serial = SerialNumber::parse("serialNumber", &said.serial_number);
    if let (None, Ok(Some(serial))) = (known.serial, serial) {
        hosts::note_serial(tx, host, &serial).await?;
    }
    write(tx, host, said, before, (digest, now)).await?;
    Ok(true)
}

async fn said_last(tx: &Tx, host: HostId) -> Result<Option<Vec<u8>>, StoreError> {
    let last = tx
        .scope::<Entity>()
        .select_only()
        .column(Column::Digest)
        .filter(is_of(host))
        .into_tuple::<Vec<u8>>();
    Ok(last.one(tx.conn()).await?)
}

fn is_of(host: HostId) -> Expr {
    Column::HostId.eq(host.bits().cast_signed())
}

/// Writes what a host says in place of what it said before.
async fn write(
    tx: &Tx,
    host: HostId,
    mut said: Hardware,
    before: Option<Model>,
    (digest, now): (&Digest, Time),
) -> Result<(), StoreError> {
    let created_at = before.as_ref().map_or(now, |row| row.created_at);
    let is_new = before.is_none();
    let before = before.map(Hardware::try_from).transpose()?;
    let new = said.follow(before.as_ref(), now);
    number(tx, new).await?;
    let lifetime = Lifetime {
        created_at,
        updated_at: now,
    };
    let row = into_row(tx, host, said, digest, lifetime);
    let row = row.into_active_model().reset_all();
    if is_new {
        Entity::insert(row)
            .exec_without_returning(tx.conn())
            .await?;
    } else {
        row.update(tx.conn()).await?;
    }
    Ok(())
}

/// Gives addresses their ids.
async fn number(tx: &Tx, addresses: Vec<&mut Address>) -> Result<(), StoreError> {
    if addresses.is_empty() {
        return Ok(());
    }
    let sql = "SELECT nextval('ip_address_numbers') FROM generate_series(1, $1::integer)";
    let many = i32::try_from(addresses.len()).unwrap_or(i32::MAX);
    let rows = all(tx.conn(), sql, [many.into()]).await?;
    for (address, row) in addresses.into_iter().zip(rows) {
        let number: i64 = row.try_get_by_index(0)?;
        let number = named(u32::try_from(number).ok(), "sequence", 0, "nextval")?;
        address.resource_id = Some(IpAddressId::nth(number));
    }
    Ok(())
}

fn into_row(
    tx: &Tx,
    host: HostId,
    hardware: Hardware,
    digest: &Digest,
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
        bios_version: hardware.bios_version,
        bios_release_date: hardware.bios_release_date,
        bios_vendor: hardware.bios_vendor,
        bmc_kind: hardware
            .controller
            .map_or(NO_CONTROLLER, Controller::name)
            .to_owned(),
        bmc_ip: hardware.controller_ip,
        storages: Kept(hardware.storages),
        nics: Kept(hardware.nics),
        usbs: Kept(hardware.usbs),
        gpus: Kept(hardware.gpus),
        digest: digest.to_vec(),
        created_at: lifetime.created_at,
        updated_at: lifetime.updated_at,
    }
}

impl TryFrom<Model> for Hardware {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let id = row.host_id;
        let count = |number: i64, column| named(u32::try_from(number).ok(), TABLE, id, column);
        let memory = u64::try_from(row.memory_bytes).ok();
        let controller = match row.bmc_kind.as_str() {
            NO_CONTROLLER => None,
            kind => Some(named(Controller::from_name(kind), TABLE, id, "bmc_kind")?),
        };
        Ok(Self {
            serial_number: row.serial_number,
            memory_bytes: named(memory, TABLE, id, "memory_bytes")?,
            cpu_model: row.cpu_model,
            cpu_capabilities: row.cpu_capabilities,
            cpu_architecture: row.cpu_architecture,
            cpu_topology: row.cpu_topology,
            cpu_sockets: count(row.cpu_sockets, "cpu_sockets")?,
            cpu_cores: count(row.cpu_cores, "cpu_cores")?,
            cpu_threads: count(row.cpu_threads, "cpu_threads")?,
            product_name: row.product_name,
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
