//! Projects: tenants. No caller sees the resources of another project.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;
use crate::status::StatusIndication;

/// Project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectResource {
    /// Name; unique. Part of the paths of all resources of the project.
    pub name: String,
    /// Specification by the user.
    pub spec: ProjectSpec,
    /// Status set by the server.
    pub status: ProjectStatus,
}

/// Specification of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ProjectSpec {
    /// Description, as free text.
    pub description: String,
}

/// Status of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectStatus {
    /// Condition of the project.
    pub project_status: ProjectCondition,
}

/// Condition of a project: whether it is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectCondition {
    /// Indication of the status.
    pub status_indicator: StatusIndication,
    /// Status, as text.
    pub message: String,
    /// Time at which the status was set, in Unix seconds.
    pub time_stamp: u64,
    /// UUID of the project.
    #[serde(rename = "uID")]
    pub uid: String,
}

/// Project to create or change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProjectInput {
    /// Description: at most 200 letters, digits, spaces and `-_./:;=?@!#,<>*()`.
    #[schema(max_length = 200)]
    pub description: String,
}

impl Input for ProjectInput {
    const READ_ONLY: &[&str] = &["name", "status"];
}
