//! Catalogue settings of projects that have their own.

use evenkeel_domain::os::catalogue::CatalogSelection;
use evenkeel_domain::tenant::TenantId;
use sea_orm::FromQueryResult;
use uuid::Uuid;

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, execute, query_all as rows, query_one};

/// The settings of the project; none if it has none of its own.
pub async fn find(tx: &Tx) -> Result<Option<CatalogSelection>, StoreError> {
    let sql =
        "SELECT registry, revision, enabled, default_profile FROM os_settings WHERE tenant_id = $1";
    let row = query_one(tx.conn(), sql, [tx.tenant().uuid().into()]).await?;
    let read = |row| SelectionRow::from_query_result(&row, "").map(CatalogSelection::from);
    Ok(row.map(read).transpose()?)
}

/// Stores the settings of the project. Deletes the report of its last sync, so that it is synced
/// again.
///
/// # Errors
/// The settings are invalid (see [`CatalogSelection::validated`]).
pub async fn set(tx: &Tx, selection: &CatalogSelection) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    let sql = "INSERT INTO os_settings (tenant_id, registry, revision, enabled, default_profile) \
               VALUES ($1, $2, $3, $4, $5) ON CONFLICT (tenant_id) DO UPDATE SET registry = excluded.registry, \
               revision = excluded.revision, enabled = excluded.enabled, default_profile = excluded.default_profile";
    let values = [
        tx.tenant().uuid().into(),
        selection.registry.clone().into(),
        selection.revision.clone().into(),
        selection.enabled.clone().into(),
        selection.default_profile.clone().into(),
    ];
    execute(tx.conn(), sql, values).await?;
    let sql = "DELETE FROM os_sync_reports WHERE tenant_id = $1";
    execute(tx.conn(), sql, [tx.tenant().uuid().into()]).await?;
    Ok(())
}

/// All projects with their own settings, if any.
pub async fn all(tx: &FleetTx) -> Result<Vec<(TenantId, Option<CatalogSelection>)>, StoreError> {
    let sql = "SELECT p.tenant_id, s.tenant_id IS NOT NULL AS is_said, s.registry, s.revision, s.enabled, \
               s.default_profile FROM projects p LEFT JOIN os_settings s ON s.tenant_id = p.tenant_id \
               WHERE p.removed_at IS NULL ORDER BY p.tenant_id";
    let mut projects = Vec::new();
    for row in rows(tx.conn(), sql, []).await? {
        let tenant: Uuid = row.try_get("", "tenant_id")?;
        let selection = SelectionRow::from_query_result(&row, "")?;
        let is_set: bool = row.try_get("", "is_said")?;
        projects.push((TenantId::new(tenant), is_set.then(|| selection.into())));
    }
    Ok(projects)
}

#[derive(Debug, FromQueryResult)]
struct SelectionRow {
    registry: Option<String>,
    revision: Option<String>,
    enabled: Option<Vec<String>>,
    default_profile: Option<String>,
}

impl From<SelectionRow> for CatalogSelection {
    fn from(row: SelectionRow) -> Self {
        Self {
            registry: row.registry,
            revision: row.revision,
            enabled: row.enabled,
            default_profile: row.default_profile,
        }
    }
}
