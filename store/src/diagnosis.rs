//! Facts about the database for reports of errors. They name no object of a project.

use serde::Serialize;

use crate::error::StoreError;
use crate::tx::{FleetTx, query_all, query_one};

/// Size of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableSize {
    pub table: String,
    /// With its indexes.
    pub bytes: i64,
    /// As Postgres estimates it; -1 if it has not counted yet.
    pub estimated_rows: i64,
}

/// Reads the size of each table.
pub async fn read_table_sizes(tx: &FleetTx) -> Result<Vec<TableSize>, StoreError> {
    let sql = "SELECT c.relname::text, pg_total_relation_size(c.oid), c.reltuples::bigint \
               FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace ORDER BY 1";
    let mut sizes = Vec::new();
    for row in query_all(tx.conn(), sql, []).await? {
        sizes.push(TableSize {
            table: row.try_get_by_index(0)?,
            bytes: row.try_get_by_index(1)?,
            estimated_rows: row.try_get_by_index(2)?,
        });
    }
    Ok(sizes)
}

/// Reads the version of the database server and the newest step of its schema.
pub async fn read_versions(tx: &FleetTx) -> Result<(String, String), StoreError> {
    let sql = "SELECT current_setting('server_version'), \
               coalesce((SELECT max(version) FROM seaql_migrations), '')";
    match query_one(tx.conn(), sql, []).await? {
        Some(row) => Ok((row.try_get_by_index(0)?, row.try_get_by_index(1)?)),
        None => Ok(Default::default()),
    }
}
