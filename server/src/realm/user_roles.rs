//! The roles of a user who logs in, as tokens contain them.

use evenkeel_auth::{NamedRole, Role, RoleGrant, User};
use evenkeel_store::{FleetTx, StoreError, projects};

/// The roles of a user. A role in a project that does not exist is left out with a warning.
pub(super) async fn resolve_roles(tx: &FleetTx, user: &User) -> Result<Vec<Role>, StoreError> {
    let mut roles = Vec::new();
    for grant in &user.roles {
        let role = match grant {
            RoleGrant::Exact(role) => Some(*role),
            RoleGrant::Named(named) => find_role(tx, named).await?,
        };
        let Some(role) = role else {
            tracing::warn!(
                user = user.name,
                role = %grant,
                "a user has a role in a project that does not exist; create the project, or correct the role"
            );
            continue;
        };
        if !roles.contains(&role) {
            roles.push(role);
        }
    }
    Ok(roles)
}

async fn find_role(tx: &FleetTx, named: &NamedRole) -> Result<Option<Role>, StoreError> {
    match projects::find_by_name(tx, &named.project).await {
        Ok(project) => Ok(Some(named.role.in_project(project.id.uuid()))),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
