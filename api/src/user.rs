//! Users who log in with a password.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;

/// User in the database of the server. Users of the file of users are not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UserResource {
    /// Name to log in with.
    pub name: String,
    /// Roles with the names of their projects, such as `operator@shops`. Contains only the roles that
    /// the caller may give.
    pub roles: Vec<String>,
    /// Whether the user cannot log in.
    pub disabled: bool,
    /// Time of the creation.
    pub created_at: DateTime<Utc>,
    /// Name of the administrator who created the user.
    pub created_by: String,
    /// Time of the last change.
    pub updated_at: DateTime<Utc>,
}

/// Text that `Debug` does not show.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Password(String);

impl Password {
    /// A password with this text.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The password itself. Call this only where it is used.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[password]")
    }
}

/// User to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UserInput {
    /// Name to log in with: at most 128 lower-case letters, digits and `-_.+@`.
    #[schema(min_length = 1, max_length = 128, pattern = "^[a-z0-9._+@-]+$")]
    pub name: String,
    /// Password: 12 to 1,024 bytes, with at least five different characters, and without the name of
    /// the user.
    #[schema(value_type = String, min_length = 12, max_length = 1024, write_only)]
    pub password: Password,
    /// Roles: `evenkeel-admin`, or a role in a project, such as `operator@shops`.
    pub roles: Vec<String>,
}

/// New password of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UserPasswordInput {
    /// Password, as when the user is created.
    #[schema(value_type = String, min_length = 12, max_length = 1024, write_only)]
    pub password: Password,
}

/// New password of the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OwnPasswordInput {
    /// The password until now.
    #[schema(value_type = String, min_length = 1, max_length = 1024, write_only)]
    pub old_password: Password,
    /// New password, as when the user is created.
    #[schema(value_type = String, min_length = 12, max_length = 1024, write_only)]
    pub password: Password,
}

/// New roles of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UserRolesInput {
    /// Roles, as when the user is created. Roles that the caller may not give stay as they are.
    pub roles: Vec<String>,
}

impl Input for UserInput {
    const READ_ONLY: &[&str] = &["disabled", "createdAt", "createdBy", "updatedAt"];
}

impl Input for UserPasswordInput {
    const READ_ONLY: &[&str] = &[];
}

impl Input for OwnPasswordInput {
    const READ_ONLY: &[&str] = &[];
}

impl Input for UserRolesInput {
    const READ_ONLY: &[&str] = &["name", "disabled", "createdAt", "createdBy", "updatedAt"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown_by_debug() {
        let input = UserPasswordInput { password: Password::new("open sesame".to_owned()) };
        assert!(!format!("{input:?}").contains("sesame"));
    }
}
