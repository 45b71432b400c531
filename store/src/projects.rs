//! Projects. They are the tenants, so they are managed in transactions that see the whole fleet.

use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::tenant::{Project, ProjectName, TenantId};
use sea_orm::{
    ActiveModelTrait, ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect, Set, Value,
};
use uuid::Uuid;

use crate::error::{Conflict, StoreError};
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
    };
    row.insert(tx.conn()).await?.try_into()
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

/// All projects, by name.
pub async fn list(tx: &FleetTx) -> Result<Vec<Project>, StoreError> {
    let rows = Entity::find().order_by_asc(Column::Name).all(tx.conn()).await?;
    rows.into_iter().map(Project::try_from).collect()
}

/// The project with this name.
///
/// # Errors
/// It does not exist.
pub async fn find_by_name(tx: &FleetTx, name: &str) -> Result<Project, StoreError> {
    let row = Entity::find().filter(Column::Name.eq(name)).one(tx.conn()).await?;
    row.ok_or(StoreError::NotFound { what: RESOURCE })?.try_into()
}

/// The project of a tenant.
///
/// # Errors
/// It does not exist.
pub async fn find(tx: &FleetTx, id: TenantId) -> Result<Project, StoreError> {
    let row = Entity::find_by_id(id.uuid()).one(tx.conn()).await?;
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
    let query = Entity::find_by_id(id.uuid()).lock_exclusive();
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

/// Deletes a project with everything in it, unless it contains hosts and `force` is not set. The
/// change log stays.
///
/// # Errors
/// It does not exist, it contains hosts, or a resource is being created in it.
pub async fn delete(tx: &FleetTx, id: TenantId, force: bool) -> Result<(), StoreError> {
    let tenant = || [Value::from(id.uuid())];
    // Deleting a large project takes longer than the statement timeout allows.
    let raise_timeout = "SELECT set_config('statement_timeout', '60000', true)";
    execute(tx.conn(), raise_timeout, []).await?;
    tx.conn().set_timeout(Duration::from_secs(65));
    // Lock order: the project's advisory lock and the node states before the project, because
    // reports of nodes refer to it.
    tx.lock_for_change(id).await?;
    if force {
        let nodes = "SELECT count(*) FROM (SELECT FROM node_states WHERE tenant_id = $1 \
                     ORDER BY instance_id FOR UPDATE) held";
        execute(tx.conn(), nodes, tenant()).await?;
    }
    // A transaction that refers to the project from now on waits and then fails.
    let lock = "SELECT 1 FROM projects WHERE tenant_id = $1 FOR UPDATE";
    if query_one(tx.conn(), lock, tenant()).await?.is_none() {
        return Err(StoreError::NotFound { what: RESOURCE });
    }
    let holds = "SELECT 1 FROM hosts WHERE tenant_id = $1 LIMIT 1";
    if !force && query_one(tx.conn(), holds, tenant()).await?.is_some() {
        let by = "hosts; delete it with force to delete the hosts as well";
        return Err(Conflict::InUse { what: RESOURCE, by }.into());
    }
    for table in CHILDREN_FIRST {
        let sql = format!("DELETE FROM {table} WHERE tenant_id = $1");
        let deleted = execute(tx.conn(), sql, tenant()).await;
        deleted.map_err(|error| match error {
            // A resource was just created in it.
            StoreError::Conflict(_) => StoreError::Stale { what: RESOURCE },
            other => other,
        })?;
    }
    Ok(())
}

/// The tables of a project. A table that refers to another one comes before it, and rows that are
/// locked first (the node state, then the assignment, then the run) are deleted first.
const CHILDREN_FIRST: &[&str] = &[
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
