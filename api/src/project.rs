//! Projects: what belongs together and is seen by nobody else.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;
use crate::status::StatusIndication;

/// A project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectResource {
    /// Unique; stands in the paths of what belongs to it.
    pub name: String,
    /// What people wrote.
    pub spec: ProjectSpec,
    /// What the server knows.
    pub status: ProjectStatus,
}

/// What people wrote of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ProjectSpec {
    /// For people.
    pub description: String,
}

/// What the server knows of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectStatus {
    /// The only part of it.
    pub project_status: ProjectCondition,
}

/// Whether a project is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectCondition {
    /// How to take it.
    pub status_indicator: StatusIndication,
    /// In words.
    pub message: String,
    /// Since when, in Unix seconds.
    pub time_stamp: u64,
    /// The project's UUID.
    #[serde(rename = "uID")]
    pub uid: String,
}

/// A project to be made or described anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProjectInput {
    /// For people.
    #[schema(max_length = 200)]
    pub description: String,
}

impl Input for ProjectInput {
    const READ_ONLY: &[&str] = &["name", "status"];
}
