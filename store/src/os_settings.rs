//! What projects want of the catalogue of operating systems, where they say it themselves.

use evenkeel_domain::os::catalogue::Wish;
use evenkeel_domain::tenant::TenantId;
use sea_orm::FromQueryResult;
use uuid::Uuid;

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, all as rows, execute, one};

/// What the project wants; none if it never said anything.
///
/// # Errors
/// The database cannot be reached.
pub async fn find(tx: &Tx) -> Result<Option<Wish>, StoreError> {
    let sql =
        "SELECT registry, revision, enabled, default_profile FROM os_settings WHERE tenant_id = $1";
    let row = one(tx.conn(), sql, [tx.tenant().uuid().into()]).await?;
    let read = |row| WishRow::from_query_result(&row, "").map(Wish::from);
    Ok(row.map(read).transpose()?)
}

/// Writes what the project wants. How its last sync went is forgotten, so that it is looked at anew.
///
/// # Errors
/// It is nothing that can be wanted (see [`Wish::checked`]).
pub async fn set(tx: &Tx, wish: &Wish) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    let sql = "INSERT INTO os_settings (tenant_id, registry, revision, enabled, default_profile) \
               VALUES ($1, $2, $3, $4, $5) ON CONFLICT (tenant_id) DO UPDATE SET registry = excluded.registry, \
               revision = excluded.revision, enabled = excluded.enabled, default_profile = excluded.default_profile";
    let values = [
        tx.tenant().uuid().into(),
        wish.registry.clone().into(),
        wish.revision.clone().into(),
        wish.enabled.clone().into(),
        wish.default_profile.clone().into(),
    ];
    execute(tx.conn(), sql, values).await?;
    let sql = "DELETE FROM os_sync_reports WHERE tenant_id = $1";
    execute(tx.conn(), sql, [tx.tenant().uuid().into()]).await?;
    Ok(())
}

/// All projects with what they want, if they say it themselves.
///
/// # Errors
/// The database cannot be reached.
pub async fn all(tx: &FleetTx) -> Result<Vec<(TenantId, Option<Wish>)>, StoreError> {
    let sql = "SELECT p.tenant_id, s.tenant_id IS NOT NULL AS is_said, s.registry, s.revision, s.enabled, \
               s.default_profile FROM projects p LEFT JOIN os_settings s ON s.tenant_id = p.tenant_id \
               ORDER BY p.tenant_id";
    let mut projects = Vec::new();
    for row in rows(tx.conn(), sql, []).await? {
        let tenant: Uuid = row.try_get("", "tenant_id")?;
        let wish = WishRow::from_query_result(&row, "")?;
        let is_said: bool = row.try_get("", "is_said")?;
        projects.push((TenantId::new(tenant), is_said.then(|| wish.into())));
    }
    Ok(projects)
}

#[derive(Debug, FromQueryResult)]
struct WishRow {
    registry: Option<String>,
    revision: Option<String>,
    enabled: Option<Vec<String>>,
    default_profile: Option<String>,
}

impl From<WishRow> for Wish {
    fn from(row: WishRow) -> Self {
        Self {
            registry: row.registry,
            revision: row.revision,
            enabled: row.enabled,
            default_profile: row.default_profile,
        }
    }
}
