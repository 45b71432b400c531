//! Projects. They are the tenants, so they are kept by whoever sees the whole fleet.

use evenkeel_domain::Time;
use evenkeel_domain::tenant::{Project, ProjectName, TenantId};
use sea_orm::{ActiveModelTrait, ColumnTrait, EntityTrait, QueryFilter, QueryOrder, Set};
use uuid::Uuid;

use crate::error::{Conflict, StoreError};
use crate::rows::named;
use crate::rows::project::{ActiveModel, Column, Entity, Model};
use crate::tx::{FleetTx, execute};

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
    find(tx, id).await?;
    let row = ActiveModel {
        tenant_id: Set(id.uuid()),
        description: Set(description.to_owned()),
        updated_at: Set(now),
        ..Default::default()
    };
    row.update(tx.conn()).await?.try_into()
}

/// Removes an empty project. Its join tokens go with it.
///
/// # Errors
/// There is none, or something is still in it.
pub async fn delete(tx: &FleetTx, id: TenantId) -> Result<(), StoreError> {
    let deleted = Entity::delete_by_id(id.uuid()).exec(tx.conn()).await;
    let deleted = deleted.map_err(|error| match StoreError::from(error) {
        StoreError::Conflict(_) => StoreError::Conflict(Conflict::InUse {
            what: WHAT,
            by: "what is still in it",
        }),
        other => other,
    })?;
    match deleted.rows_affected {
        0 => Err(StoreError::NotFound { what: WHAT }),
        _ => Ok(()),
    }
}

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
