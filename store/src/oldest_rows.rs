//! The oldest row of each table that housekeeping cleans. An old row shows that housekeeping does
//! not keep up or fails.

use evenkeel_domain::Time;

use crate::error::StoreError;
use crate::tx::{FleetTx, query_one};

/// Name of data of projects, its table and the time by which it ages.
const DATA_OF_PROJECTS: [(&str, &str, &str); 7] = [
    ("runs", "update_runs", "ended_at"),
    ("contents", "contents", "used_at"),
    ("slots", "update_slots", "until_at"),
    ("versions", "package_versions", "last_seen"),
    ("tokens", "node_tokens", "expires_at"),
    ("node_daily_usage", "node_daily_usage", "full_at"),
    ("project_daily_usage", "project_daily_usage", "full_at"),
];

/// The same for data that belongs to no project, or that has an index over all projects.
const DATA_OF_SERVERS: [(&str, &str, &str); 4] = [
    ("operator_tokens", "operator_tokens", "expires_at"),
    ("logins", "logins", "expires_at"),
    ("notification_deliveries", "notification_deliveries", "ended_at"),
    ("os_attachments", "os_attachments", "fetched_at"),
];

/// Name of a class of changes in the log, their number in a seal, and how far they are removed. Changes age from their seal.
const CHANGES: [(&str, &str, &str); 2] = [
    ("changes", "changes_by_server", "server_removed_to"),
    ("user_changes", "changes_by_users", "users_removed_to"),
];

/// The tables that [`read`] covers. The change log ages by its seals.
pub fn tables() -> impl Iterator<Item = &'static str> {
    let data = DATA_OF_PROJECTS.iter().chain(&DATA_OF_SERVERS).map(|(_, table, _)| *table);
    data.chain(["change_log", "change_seals", "projects"])
}

/// Reads the time of the oldest row of each kind of data, of all projects; none if there is no row.
/// One lookup in an index per project. A project counts from its deletion until its last row is
/// removed. Tallies have no time.
pub async fn read(tx: &FleetTx) -> Result<Vec<(&'static str, Option<Time>)>, StoreError> {
    let mut oldest = Vec::new();
    for (name, table, column) in DATA_OF_PROJECTS {
        let sql = format!(
            "SELECT min(o.at) FROM projects p CROSS JOIN LATERAL (SELECT t.{column} AS at FROM {table} t \
             WHERE t.tenant_id = p.tenant_id AND t.{column} IS NOT NULL ORDER BY t.{column} LIMIT 1) o"
        );
        oldest.push((name, first_time(tx, &sql).await?));
    }
    for (name, table, column) in DATA_OF_SERVERS {
        let sql = format!(
            "SELECT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY {column} LIMIT 1"
        );
        oldest.push((name, first_time(tx, &sql).await?));
    }
    for (name, number, removed_to) in CHANGES {
        let sql = format!(
            "SELECT s.sealed_at FROM change_seals s WHERE s.{number} > 0 \
             AND s.up_to > (SELECT c.{removed_to} FROM change_seal_state c) ORDER BY s.up_to LIMIT 1"
        );
        oldest.push((name, first_time(tx, &sql).await?));
    }
    let sql =
        "SELECT removed_at FROM projects WHERE removed_at IS NOT NULL ORDER BY removed_at LIMIT 1";
    oldest.push(("projects", first_time(tx, sql).await?));
    Ok(oldest)
}

async fn first_time(tx: &FleetTx, sql: &str) -> Result<Option<Time>, StoreError> {
    match query_one(tx.conn(), sql, []).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(None),
    }
}
