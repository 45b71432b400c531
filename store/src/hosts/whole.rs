//! Hosts with what runs on them and what they are made of.

use std::sync::LazyLock;

use evenkeel_domain::hardware::Hardware;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::HostId;
use evenkeel_domain::instance::Instance;
use sea_orm::{FromQueryResult, QueryResult};

use crate::error::StoreError;
use crate::instances;
use crate::keyed::Keyed;
use crate::rows::host::{Entity, Model};
use crate::rows::host_hardware;
use crate::tx::{Tx, all, columns, ids_in, joined};

/// A host with what runs on it and what it is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeHost {
    /// The host.
    pub host: Host,
    /// What runs on it.
    pub instance: Option<Instance>,
    /// What it is made of, if it said so.
    pub hardware: Option<Hardware>,
}

static WHOLE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {}, {}, {} FROM hosts h \
         LEFT JOIN instances i ON i.tenant_id = h.tenant_id AND i.host_id = h.id {} \
         LEFT JOIN host_hardware w ON w.tenant_id = h.tenant_id AND w.host_id = h.id \
         WHERE h.tenant_id = $1 AND h.id = ANY ({})",
        columns::<Entity>("h"),
        instances::columns(),
        columns::<host_hardware::Entity>("w"),
        instances::JOINED,
        ids_in(2),
    )
});

/// The host with this id, whole: one statement.
///
/// # Errors
/// There is none in the project.
pub async fn find_whole(tx: &Tx, id: HostId) -> Result<WholeHost, StoreError> {
    let found = find_many_whole(tx, &[id]).await?.pop();
    found.ok_or(StoreError::NotFound { what: Entity::WHAT })
}

/// The hosts with these ids that there are, whole and in no order: one statement for any number of them.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_many_whole(tx: &Tx, ids: &[HostId]) -> Result<Vec<WholeHost>, StoreError> {
    let ids: Vec<i32> = ids.iter().map(|id| id.bits().cast_signed()).collect();
    let values = [tx.tenant().uuid().into(), ids.into()];
    let rows = all(tx.conn(), WHOLE.as_str(), values).await?;
    rows.iter().map(whole).collect()
}

fn whole(row: &QueryResult) -> Result<WholeHost, StoreError> {
    let hardware: Option<host_hardware::Model> = joined(row, "w_")?;
    Ok(WholeHost {
        host: Model::from_query_result(row, "h_")?.try_into()?,
        instance: instances::from_row(row)?,
        hardware: hardware.map(Hardware::try_from).transpose()?,
    })
}
