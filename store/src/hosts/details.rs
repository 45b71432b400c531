//! Hosts with their instances and hardware.

use std::sync::LazyLock;

use evenkeel_domain::Time;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::HostId;
use evenkeel_domain::instance::Instance;
use sea_orm::QueryResult;

use crate::error::StoreError;
use crate::fields::{self, RowReader};
use crate::hardware::{self, RenderedHardware};
use crate::instances;
use crate::keyed::KeyedEntity;
use crate::related::{self, Related, RelatedIdsSql};
use crate::rows::host::{Entity, Model};
use crate::rows::{JsonColumn, readable};
use crate::tx::{Tx, ids_in, query_map, query_one};

const TABLE: &str = "hosts";

/// A host with its instance and hardware.
#[derive(Clone, Debug, PartialEq)]
pub struct HostDetails {
    pub host: Host,
    pub instance: Option<Instance>,
    /// When its node last made contact; none if it never did.
    pub last_contact: Option<Time>,
    /// The IP addresses of its network interfaces, with the length of their prefix.
    pub addresses: Vec<String>,
    /// Its hardware, if the host reported it.
    pub hardware: Option<RenderedHardware>,
}

/// The addresses in the hardware `w`: a JSON array, or null without hardware.
const ADDRESSES_SQL: &str = "jsonb_path_query_array(w.nics, '$[*].ipaddresses[*].address')";

/// The columns of hosts `h`.
fn select_columns() -> String {
    format!(
        "{}, {}, lc.heard_at, {ADDRESSES_SQL}, {}",
        fields::columns::<Model>("h"),
        instances::columns(),
        hardware::columns("w"),
    )
}

/// The `FROM` clause for these columns.
fn from_clause() -> String {
    format!(
        "hosts h \
         LEFT JOIN instances i ON i.tenant_id = h.tenant_id AND i.host_id = h.id {} \
         LEFT JOIN last_contacts lc ON lc.tenant_id = i.tenant_id AND lc.instance_id = i.id \
         LEFT JOIN host_hardware w ON w.tenant_id = h.tenant_id AND w.host_id = h.id",
        instances::JOINS_SQL,
    )
}

static FIND_MANY_SQL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {} FROM {} WHERE h.tenant_id = $1 AND h.id = ANY ({})",
        select_columns(),
        from_clause(),
        ids_in(2),
    )
});

static FIND_ONE_SQL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {}, {} FROM {} WHERE h.tenant_id = $1 AND h.id = $2",
        select_columns(),
        RelatedIdsSql::for_node().columns(),
        from_clause(),
    )
});

/// The details of a host, and the resources that it and its instance refer to (see
/// [`related::RelatedIds`]): one statement.
///
/// # Errors
/// It does not exist in the project.
pub async fn find_details(tx: &Tx, id: HostId) -> Result<(HostDetails, Related), StoreError> {
    let values = [tx.tenant().uuid().into(), id.bits().cast_signed().into()];
    let row = query_one(tx.conn(), FIND_ONE_SQL.as_str(), values).await?;
    let row = row.ok_or(StoreError::NotFound { what: Entity::RESOURCE })?;
    Ok((details_from_row(&row)?, related::from_row(&row)?))
}

/// The details of the hosts that exist, in no particular order: one statement for any number of
/// hosts. Leaves out hosts that cannot be read.
pub async fn find_many_details(tx: &Tx, ids: &[HostId]) -> Result<Vec<HostDetails>, StoreError> {
    let ids: Vec<i32> = ids.iter().map(|id| id.bits().cast_signed()).collect();
    let values = [tx.tenant().uuid().into(), ids.into()];
    let read = |row: &QueryResult| Ok(readable(TABLE, details_from_row(row)));
    let rows = query_map(tx.conn(), FIND_MANY_SQL.as_str(), values, read).await?;
    Ok(rows.into_iter().flatten().collect())
}

fn details_from_row(row: &QueryResult) -> Result<HostDetails, StoreError> {
    let mut row = RowReader::new(row);
    Ok(HostDetails {
        host: row.fields::<Model>()?.try_into()?,
        instance: instances::read_instance(&mut row)?,
        last_contact: row.take()?,
        // A host is shown without a hardware report that cannot be read.
        addresses: readable(TABLE, read_addresses(&mut row)).unwrap_or_default(),
        hardware: readable(TABLE, hardware::read_hardware(&mut row)).flatten(),
    })
}

/// Reads the addresses; none without hardware.
fn read_addresses(row: &mut RowReader<'_>) -> Result<Vec<String>, StoreError> {
    let addresses: Option<JsonColumn<Vec<String>>> = row.take()?;
    Ok(addresses.map(|column| column.0).unwrap_or_default())
}
