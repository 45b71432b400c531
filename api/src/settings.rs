//! Settings of a project.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;

/// What a project wants otherwise than the server does by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectSettings {
    /// For how many days after their end update runs are kept, 0 for ever; null for the server's default.
    pub retention_days: Option<u32>,
    /// Whether schedules of any status open windows for updates, as the ancestor had it; else only those for updates do.
    pub any_schedule_status: bool,
}

/// What a project should want otherwise than the server does by default. What is left out is as the server does; a change
/// (PATCH) counts only for the fields that it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProjectSettingsInput {
    /// For how many days after their end update runs are kept, 0 for ever; null for the server's default.
    #[schema(maximum = 36_500)]
    pub retention_days: Option<u32>,
    /// Whether schedules of any status open windows for updates, as the ancestor had it; else only those for updates do.
    pub any_schedule_status: bool,
}

impl Input for ProjectSettingsInput {
    const READ_ONLY: &[&str] = &[];
}
