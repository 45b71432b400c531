//! Hosts with what runs on them and what they are made of.

use std::sync::LazyLock;

use evenkeel_domain::host::Host;
use evenkeel_domain::id::HostId;
use evenkeel_domain::instance::Instance;
use sea_orm::QueryResult;

use crate::error::StoreError;
use crate::fields::{self, Reader};
use crate::hardware::{self, ToldHardware};
use crate::instances;
use crate::keyed::Keyed;
use crate::related::{self, Related, Sought};
use crate::rows::host::{Entity, Model};
use crate::tx::{Tx, each, ids_in, one};

/// A host with what runs on it and what it is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeHost {
    /// The host.
    pub host: Host,
    /// What runs on it.
    pub instance: Option<Instance>,
    /// What it is made of, if it said so.
    pub hardware: Option<ToldHardware>,
}

/// What is read of hosts `h`.
fn shown() -> String {
    format!(
        "{}, {}, {}",
        fields::columns::<Model>("h"),
        instances::columns(),
        hardware::columns("w"),
    )
}

/// Where that is.
fn joined() -> String {
    format!(
        "hosts h \
         LEFT JOIN instances i ON i.tenant_id = h.tenant_id AND i.host_id = h.id {} \
         LEFT JOIN host_hardware w ON w.tenant_id = h.tenant_id AND w.host_id = h.id",
        instances::JOINED,
    )
}

static MANY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {} FROM {} WHERE h.tenant_id = $1 AND h.id = ANY ({})",
        shown(),
        joined(),
        ids_in(2),
    )
});

static ONE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {}, {} FROM {} WHERE h.tenant_id = $1 AND h.id = $2",
        shown(),
        Sought::of_node().columns(),
        joined(),
    )
});

/// The host with this id, whole, and what it and its instance refer to (see [`related::Wanted`]): one statement.
///
/// # Errors
/// There is none in the project.
pub async fn find_whole(tx: &Tx, id: HostId) -> Result<(WholeHost, Related), StoreError> {
    let values = [tx.tenant().uuid().into(), id.bits().cast_signed().into()];
    let row = one(tx.conn(), ONE.as_str(), values).await?;
    let row = row.ok_or(StoreError::NotFound { what: Entity::WHAT })?;
    Ok((whole(&row)?, related::from_row(&row)?))
}

/// The hosts with these ids that there are, whole and in no order: one statement for any number of them.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_many_whole(tx: &Tx, ids: &[HostId]) -> Result<Vec<WholeHost>, StoreError> {
    let ids: Vec<i32> = ids.iter().map(|id| id.bits().cast_signed()).collect();
    let values = [tx.tenant().uuid().into(), ids.into()];
    each(tx.conn(), MANY.as_str(), values, whole).await
}

fn whole(row: &QueryResult) -> Result<WholeHost, StoreError> {
    let mut row = Reader::new(row);
    Ok(WholeHost {
        host: row.fields::<Model>()?.try_into()?,
        instance: instances::read_one(&mut row)?,
        hardware: hardware::read_one(&mut row)?,
    })
}
