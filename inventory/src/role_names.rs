//! Roles with the names of their projects.

use std::collections::HashMap;

use evenkeel_auth::{ProjectRole, Role};
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_store::{FleetTx, StoreError, projects};

/// The names of all projects.
#[derive(Debug)]
pub struct RoleNames(HashMap<TenantId, ProjectName>);

impl RoleNames {
    pub async fn load(tx: &FleetTx) -> Result<Self, StoreError> {
        let projects = projects::list(tx).await?;
        Ok(Self(projects.into_iter().map(|project| (project.id, project.name)).collect()))
    }

    /// The name of a project; none if it does not exist any more.
    pub fn project(&self, id: TenantId) -> Option<&str> {
        self.0.get(&id).map(ProjectName::as_str)
    }

    /// Whether the project of a role exists. A role in a deleted project has no effect.
    pub fn is_in_effect(&self, role: Role) -> bool {
        role.project().is_none_or(|project| self.0.contains_key(&TenantId::new(project)))
    }

    /// The roles as people write them, without those in projects that do not exist any more.
    pub fn describe<'a>(&self, roles: impl IntoIterator<Item = &'a Role>) -> Vec<String> {
        roles.into_iter().filter_map(|role| self.describe_role(*role)).collect()
    }

    fn describe_role(&self, role: Role) -> Option<String> {
        let Some(project) = role.project() else {
            return Some(role.to_string());
        };
        let project = self.project(TenantId::new(project))?;
        let name = ProjectRole::from_role(role).map_or("node", ProjectRole::name);
        Some(format!("{name}@{project}"))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn roles_are_named_by_their_projects() {
        let (shops, gone) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let name = ProjectName::parse("name", "shops").unwrap();
        let names = RoleNames(HashMap::from([(TenantId::new(shops), name)]));
        let roles = [
            Role::Read(shops),
            Role::Write(shops),
            Role::Approve(shops),
            Role::Manage(shops),
            Role::Node(shops),
            Role::Write(gone),
            Role::Administrator,
        ];
        let expected = [
            "viewer@shops",
            "operator@shops",
            "approver@shops",
            "administrator@shops",
            "node@shops",
            "evenkeel-admin",
        ];
        assert_eq!(names.describe(&roles), expected);
        let is_in_effect = roles.map(|role| names.is_in_effect(role));
        assert_eq!(is_in_effect, [true, true, true, true, true, false, true]);
    }
}
