//! Projects. They are the tenants, so they are managed in transactions that see the whole fleet.
//!
//! A deleted project is only marked as removed, which hides it. Its rows are removed in batches:
//! one transaction for all of them would exceed every time limit, and would hold up the change log.

use evenkeel_domain::Time;
use evenkeel_domain::tenant::{Project, ProjectName, TenantId};
use sea_orm::{
    ActiveModelTrait, ColumnTrait, ConnectionTrait, EntityTrait, QueryFilter, QueryOrder,
    QuerySelect, QueryTrait, Select, Set, Value,
};
use uuid::Uuid;

use crate::error::{Conflict, StoreError};
use crate::keyed::readable_rows;
use crate::rows::or_corrupt;
use crate::rows::project::{ActiveModel, Column, Entity, Model};
use crate::tx::{FleetTx, execute, query_one};

const RESOURCE: &str = "project";

/// Creates a project.
///
/// # Errors
/// The name already exists.
pub async fn create(
    tx: &FleetTx,
    name: &ProjectName,
    description: &str,
    now: Time,
) -> Result<Project, StoreError> {
    let row = ActiveModel {
        tenant_id: Set(Uuid::now_v7()),
        name: Set(name.to_string()),
        description: Set(description.to_owned()),
        created_at: Set(now),
        updated_at: Set(now),
        removed_at: Set(None),
    };
    let project: Project = row.insert(tx.conn()).await?.try_into()?;
    record_without_project(tx, project.id, "insert").await?;
    Ok(project)
}

/// Records the creation or the deletion of a project among the changes that belong to no project:
/// those of a deleted project cannot be read any more through its name. The trigger of the table
/// records it among the changes of the project as well.
async fn record_without_project(
    tx: &FleetTx,
    id: TenantId,
    operation: &str,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO change_log (tenant_id, kind, id, operation, actor, request_id, before, after) \
               SELECT $2::uuid, 'project', 0, $3::text, u.actor, \
               nullif(current_setting('evenkeel.request', true), ''), \
               CASE WHEN u.actor IS NOT NULL AND $3::text = 'delete' THEN to_jsonb(p) END, \
               CASE WHEN u.actor IS NOT NULL AND $3::text = 'insert' THEN to_jsonb(p) END \
               FROM projects p, (SELECT nullif(current_setting('evenkeel.actor', true), '') AS actor) u \
               WHERE p.tenant_id = $1::uuid";
    let values = [id.uuid().into(), TenantId::NO_PROJECT.uuid().into(), operation.into()];
    execute(tx.conn(), sql, values).await.map(drop)
}

/// Creates the default project of a new installation. Returns the first project and whether this
/// call created it.
pub async fn ensure_default(tx: &FleetTx, now: Time) -> Result<(Project, bool), StoreError> {
    // The lock keeps two servers that start at the same time from creating two projects.
    execute(tx.conn(), "SELECT pg_advisory_xact_lock(7031)", []).await?;
    if let Some(first) = list(tx).await?.into_iter().next() {
        return Ok((first, false));
    }
    let name = ProjectName::parse("name", "default")
        .map_err(|_| StoreError::NotFound { what: RESOURCE })?;
    let project = create(tx, &name, "created by the first start", now).await?;
    Ok((project, true))
}

/// Selects the projects that are not removed.
fn select() -> Select<Entity> {
    Entity::find().filter(Column::RemovedAt.is_null())
}

/// All projects, by name. Leaves out those that cannot be read.
pub async fn list(tx: &FleetTx) -> Result<Vec<Project>, StoreError> {
    let query = select().order_by_asc(Column::Name).into_query();
    let rows = tx.conn().query_all(&query).await?;
    Ok(readable_rows::<Model, Project>(RESOURCE, &rows))
}

/// The project with this name.
///
/// # Errors
/// It does not exist.
pub async fn find_by_name(tx: &FleetTx, name: &str) -> Result<Project, StoreError> {
    let row = select().filter(Column::Name.eq(name)).one(tx.conn()).await?;
    row.ok_or(StoreError::NotFound { what: RESOURCE })?.try_into()
}

/// The project of a tenant.
///
/// # Errors
/// It does not exist.
pub async fn find(tx: &FleetTx, id: TenantId) -> Result<Project, StoreError> {
    let row = select().filter(Column::TenantId.eq(id.uuid())).one(tx.conn()).await?;
    row.ok_or(StoreError::NotFound { what: RESOURCE })?.try_into()
}

/// Changes the description of a project.
///
/// # Errors
/// It does not exist.
pub async fn describe(
    tx: &FleetTx,
    id: TenantId,
    description: &str,
    now: Time,
) -> Result<Project, StoreError> {
    // Locked, so that it is not deleted meanwhile.
    let query = select().filter(Column::TenantId.eq(id.uuid())).lock_exclusive();
    let row = query.one(tx.conn()).await?;
    row.ok_or(StoreError::NotFound { what: RESOURCE })?;
    let row = ActiveModel {
        tenant_id: Set(id.uuid()),
        description: Set(description.to_owned()),
        updated_at: Set(now),
        ..Default::default()
    };
    row.update(tx.conn()).await?.try_into()
}

/// Deletes a project with everything in it, unless it contains hosts and `force` is not set: no
/// request finds it any more, nothing starts in it and no node joins it. [`remove_batch`] removes its
/// rows. The change log stays.
///
/// # Errors
/// It does not exist, or it contains hosts.
pub async fn delete(tx: &FleetTx, id: TenantId, force: bool, now: Time) -> Result<(), StoreError> {
    let tenant = || [Value::from(id.uuid())];
    // Waits for decisions, so that no permit is granted afterwards.
    tx.lock_for_change(id).await?;
    let lock = "SELECT 1 FROM projects WHERE tenant_id = $1 AND removed_at IS NULL FOR UPDATE";
    if query_one(tx.conn(), lock, tenant()).await?.is_none() {
        return Err(StoreError::NotFound { what: RESOURCE });
    }
    let holds = "SELECT 1 FROM hosts WHERE tenant_id = $1 LIMIT 1";
    if !force && query_one(tx.conn(), holds, tenant()).await?.is_some() {
        let by = "hosts; delete it with force to delete the hosts as well";
        return Err(Conflict::InUse { what: RESOURCE, by }.into());
    }
    for table in ["assignments", "join_tokens"] {
        let sql = format!("DELETE FROM {table} WHERE tenant_id = $1");
        execute(tx.conn(), sql, tenant()).await?;
    }
    record_without_project(tx, id, "delete").await?;
    let mark = "UPDATE projects SET removed_at = $2 WHERE tenant_id = $1";
    execute(tx.conn(), mark, [id.uuid().into(), now.into()]).await.map(drop)
}

/// Removes at most `limit` rows of a deleted project, in the end the project itself. Returns the
/// number of removed rows; 0 if no deleted project is left. Safe on several replicas at once: each
/// works on another project.
///
/// # Errors
/// A node was reporting at the same time, or the database cannot be reached. The next call
/// continues.
pub async fn remove_batch(tx: &FleetTx, limit: u32) -> Result<u64, StoreError> {
    // A stronger lock would make a reporting node wait, which holds its own state.
    let next = "SELECT tenant_id FROM projects WHERE removed_at IS NOT NULL \
                ORDER BY removed_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED";
    let Some(row) = query_one(tx.conn(), next, []).await? else {
        return Ok(0);
    };
    let id: Uuid = row.try_get_by_index(0)?;
    for table in CHILDREN_FIRST {
        // A region is removed after the regions in it, so all of them are removed at once.
        let sql = if *table == "regions" {
            "DELETE FROM regions WHERE tenant_id = $1 AND $2 > 0".to_owned()
        } else {
            format!(
                "DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table} \
                 WHERE tenant_id = $1 LIMIT $2))"
            )
        };
        let removed = execute(tx.conn(), sql, [id.into(), i64::from(limit).into()]).await?;
        if removed > 0 {
            return Ok(removed);
        }
    }
    Ok(0)
}

/// The tables of a project. A table that refers to another one comes before it, and rows that are
/// locked first (the node state, then the assignment, then the run) are deleted first.
const CHILDREN_FIRST: &[&str] = &[
    "notification_deliveries",
    "notification_queues",
    "notification_targets",
    "notified_stops",
    "notified_certificates",
    "notified_security_updates",
    "node_states",
    "assignments",
    "run_events",
    "update_runs",
    "last_contacts",
    "update_slots",
    "update_orders",
    "instance_custom_configs",
    "instances",
    "node_tokens",
    "node_subjects",
    "node_daily_usage",
    "project_daily_usage",
    "host_hardware",
    "single_schedules",
    "repeated_schedules",
    "hosts",
    "pauses",
    "update_policies",
    "os_sync_findings",
    "os_sync_reports",
    "os_details",
    "os_settings",
    "os_profiles",
    "image_series",
    "sites",
    "regions",
    "providers",
    "custom_configs",
    "local_accounts",
    "join_tokens",
    "package_versions",
    "contents",
    "project_settings",
    "projects",
];

impl TryFrom<Model> for Project {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let name = ProjectName::parse("name", &row.name).ok();
        Ok(Self {
            id: TenantId::new(row.tenant_id),
            name: or_corrupt(name, "projects", 0, "name")?,
            description: row.description,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
