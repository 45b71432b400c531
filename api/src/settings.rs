//! Settings of a project.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;

/// Settings of a project that differ from the server's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectSettings {
    /// Number of days for which finished update runs are stored; 0 for ever, null for the server's
    /// default.
    pub retention_days: Option<u32>,
    /// Whether schedules of any status open maintenance windows, as in EIM. If false, only
    /// schedules for operating system updates do.
    pub any_schedule_status: bool,
}

/// Settings of a project to set. Omitted fields have their default values. PATCH changes only the
/// fields in the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProjectSettingsInput {
    /// Number of days for which finished update runs are stored; 0 for ever, null for the server's
    /// default.
    #[schema(maximum = 36_500)]
    pub retention_days: Option<u32>,
    /// Whether schedules of any status open maintenance windows, as in EIM; default false. If
    /// false, only schedules for operating system updates do.
    pub any_schedule_status: bool,
}

impl Input for ProjectSettingsInput {
    const READ_ONLY: &[&str] = &[];
}
