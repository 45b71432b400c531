//! Projects. They are the tenants, so they are kept by whoever sees the whole fleet.

use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::tenant::{Project, ProjectName, TenantId};
use sea_orm::{
    ActiveModelTrait, ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect, Set, Value,
};
use uuid::Uuid;

use crate::error::{Conflict, StoreError};
use crate::rows::named;
use crate::rows::project::{ActiveModel, Column, Entity, Model};
use crate::tx::{FleetTx, execute, one};

const WHAT: &str = "project";

/// Makes a project.
///
/// # Errors
/// The name is taken.
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

/// The project that a first start makes, and whether this call made it.
///
/// # Errors
/// The database cannot be reached.
pub async fn ensure_default(tx: &FleetTx, now: Time) -> Result<(Project, bool), StoreError> {
    // Two first starts at once make one project.
    execute(tx.conn(), "SELECT pg_advisory_xact_lock(7031)", []).await?;
    if let Some(first) = list(tx).await?.into_iter().next() {
        return Ok((first, false));
    }
    let name =
        ProjectName::parse("name", "default").map_err(|_| StoreError::NotFound { what: WHAT })?;
    let project = create(tx, &name, "made by the first start", now).await?;
    Ok((project, true))
}

/// All projects, by name.
///
/// # Errors
/// The database cannot be reached.
pub async fn list(tx: &FleetTx) -> Result<Vec<Project>, StoreError> {
    let rows = Entity::find()
        .order_by_asc(Column::Name)
        .all(tx.conn())
        .await?;
    rows.into_iter().map(Project::try_from).collect()
}

/// The project with this name.
///
/// # Errors
/// There is none.
pub async fn find_by_name(tx: &FleetTx, name: &str) -> Result<Project, StoreError> {
    let found = Entity::find()
        .filter(Column::Name.eq(name))
        .one(tx.conn())
        .await?;
    found.ok_or(StoreError::NotFound { what: WHAT })?.try_into()
}

/// The project of a tenant.
///
/// # Errors
/// There is none.
pub async fn find(tx: &FleetTx, id: TenantId) -> Result<Project, StoreError> {
    let found = Entity::find_by_id(id.uuid()).one(tx.conn()).await?;
    found.ok_or(StoreError::NotFound { what: WHAT })?.try_into()
}

/// Gives a project another description.
///
/// # Errors
/// There is none.
pub async fn describe(
    tx: &FleetTx,
    id: TenantId,
    description: &str,
    now: Time,
) -> Result<Project, StoreError> {
    // Locked, so that it does not go meanwhile.
    let found = Entity::find_by_id(id.uuid()).lock_exclusive();
    let found = found.one(tx.conn()).await?;
    found.ok_or(StoreError::NotFound { what: WHAT })?;
    let row = ActiveModel {
        tenant_id: Set(id.uuid()),
        description: Set(description.to_owned()),
        updated_at: Set(now),
        ..Default::default()
    };
    row.update(tx.conn()).await?.try_into()
}

/// Removes a project with all that is in it, if it holds no hosts or `force` says that these go as well. The change log
/// stays.
///
/// # Errors
/// There is none, it holds hosts, or something is being made in it.
pub async fn delete(tx: &FleetTx, id: TenantId, force: bool) -> Result<(), StoreError> {
    let tenant = || [Value::from(id.uuid())];
    // A large project takes its time.
    let patience = "SELECT set_config('statement_timeout', '60000', true)";
    execute(tx.conn(), patience, []).await?;
    tx.conn().wait_for(Duration::from_secs(65));
    // The order of locks: what is wanted and the states of nodes before the project, which their reports refer to.
    tx.write_wanted(id).await?;
    if force {
        let nodes = "SELECT count(*) FROM (SELECT FROM node_states WHERE tenant_id = $1 \
                     ORDER BY instance_id FOR UPDATE) held";
        execute(tx.conn(), nodes, tenant()).await?;
    }
    // Whatever refers to the project from now on waits, and finds it gone.
    let lock = "SELECT 1 FROM projects WHERE tenant_id = $1 FOR UPDATE";
    if one(tx.conn(), lock, tenant()).await?.is_none() {
        return Err(StoreError::NotFound { what: WHAT });
    }
    let holds = "SELECT 1 FROM hosts WHERE tenant_id = $1 LIMIT 1";
    if !force && one(tx.conn(), holds, tenant()).await?.is_some() {
        let by = "hosts, and goes with them only by force";
        return Err(Conflict::InUse { what: WHAT, by }.into());
    }
    for table in CHILDREN_FIRST {
        let sql = format!("DELETE FROM {table} WHERE tenant_id = $1");
        let deleted = execute(tx.conn(), sql, tenant()).await;
        deleted.map_err(|error| match error {
            // Something was made in it just now.
            StoreError::Conflict(_) => StoreError::Stale { what: WHAT },
            other => other,
        })?;
    }
    Ok(())
}

/// What belongs to a project: what refers to something comes before it, and what is locked first (a node's state, then
/// the assignment, then the run) goes first.
const CHILDREN_FIRST: &[&str] = &[
    "node_states",
    "assignments",
    "run_events",
    "update_runs",
    "last_contacts",
    "brake_slots",
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
    "os_inside",
    "os_settings",
    "os_profiles",
    "image_lines",
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
            name: named(name, "projects", 0, "name")?,
            description: row.description,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
