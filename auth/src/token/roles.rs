//! Reads the roles of a token, and completes an accepted one.

use std::sync::{Arc, PoisonError};

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use super::{AuthError, Authority, INVALID_TOKEN_JSON};
use crate::issuer::ExternalIssuer;
use crate::keys::KeyPurpose;
use crate::named_role::{NamedRole, ProjectNames, RoleGrant};
use crate::roles::{Caller, Role};

impl Authority {
    /// Replaces the list of projects, which roles may name.
    pub fn set_project_names(&self, names: ProjectNames) {
        let names = Arc::new(names);
        *self.project_names.write().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// The projects that were set last.
    #[must_use]
    pub fn project_names(&self) -> Arc<ProjectNames> {
        Arc::clone(&self.project_names.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Logs each role of a mapping whose project does not exist, once until the project exists.
    pub fn warn_of_unknown_projects(&self) {
        let names = self.project_names();
        let mut warned = self.warned_roles.lock().unwrap_or_else(PoisonError::into_inner);
        warned.retain(|role| names.find(&role.project).is_none());
        for issuer in &self.issuers {
            for role in issuer.unknown_mapped_roles(&names) {
                if warned.insert(role.clone()) {
                    tracing::warn!(
                        issuer = &*issuer.issuer,
                        %role,
                        "a role mapping names a project that does not exist, so it gives no role; create the project, \
                         or correct auth.issuers.role_mapping"
                    );
                }
            }
        }
    }

    /// Whether tokens of other issuers are accepted. Only their roles name projects.
    #[must_use]
    pub fn has_external_issuers(&self) -> bool {
        self.issuers.len() > 1
    }

    /// The uses of tokens for automation since the last call: their ids and the times.
    #[must_use]
    pub fn take_token_uses(&self) -> Vec<(Uuid, DateTime<Utc>)> {
        self.usage.take()
    }

    /// Notes the use of a token for automation that was accepted, and completes its roles.
    pub(super) fn note_accepted(&self, caller: Arc<Caller>, now: DateTime<Utc>) -> Arc<Caller> {
        if let (Some(id), Some(_)) = (caller.token_id, &caller.token_name) {
            self.usage.record(id, now);
        }
        self.with_named_roles(caller)
    }

    /// Adds the roles in projects that the token names, as far as the projects exist now and its
    /// issuer may give the roles.
    fn with_named_roles(&self, caller: Arc<Caller>) -> Arc<Caller> {
        if caller.named_roles.is_empty() {
            return caller;
        }
        let Some(issuer) = self.issuers.iter().find(|issuer| issuer.issuer == caller.issuer) else {
            return caller;
        };
        let names = self.project_names();
        let mut resolved = Caller::clone(&caller);
        for role in caller.named_roles.iter().filter_map(|role| names.resolve(role)) {
            if issuer.role_limits.allow(role) && !resolved.roles.contains(&role) {
                resolved.roles.push(role);
            }
        }
        Arc::new(resolved)
    }
}

/// The roles in the claims of a token that its issuer may give, and those that name their project.
/// One of our own keys gives only the roles of its purpose, and our own tokens name no projects.
pub(super) fn read_roles(
    issuer: &ExternalIssuer,
    purpose: Option<KeyPurpose>,
    claims: &Value,
) -> Result<(Vec<Role>, Box<[NamedRole]>), AuthError> {
    let may_give = |role: Role| match purpose {
        Some(KeyPurpose::Nodes) => matches!(role, Role::Node(_)),
        Some(KeyPurpose::Operators) => !matches!(role, Role::Node(_)),
        None => issuer.role_limits.allow(role),
    };
    let texts = issuer.roles.read_roles(claims).ok_or(INVALID_TOKEN_JSON)?;
    let exact = texts.iter().filter_map(|text| Role::parse(text));
    let named = texts.iter().filter_map(|text| NamedRole::parse(text));
    let (mut roles, mut named_roles): (Vec<Role>, Vec<NamedRole>) = (Vec::new(), Vec::new());
    let mapped = issuer.mapped_roles(claims).cloned();
    let grants = exact.map(RoleGrant::Exact).chain(named.map(RoleGrant::Named)).chain(mapped);
    for grant in grants {
        match grant {
            RoleGrant::Exact(role) if may_give(role) && !roles.contains(&role) => roles.push(role),
            RoleGrant::Named(role) if purpose.is_none() && !named_roles.contains(&role) => {
                named_roles.push(role);
            }
            RoleGrant::Exact(_) | RoleGrant::Named(_) => {}
        }
    }
    roles.shrink_to_fit();
    Ok((roles, named_roles.into_boxed_slice()))
}
