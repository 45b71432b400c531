//! Catalogue settings of a project, and the state of its registry syncs.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;
use crate::number::U64;

/// Catalogue settings of a project. A null field means that the server's default applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OsSettings {
    /// Registry, by its name in the server's configuration.
    pub registry: Option<String>,
    /// Revision selector. A tag, for example `0.8.11`, selects this tag only; `~0.8.11` selects all
    /// versions of 0.8 from 0.8.11 on.
    pub revision: Option<String>,
    /// Names of the enabled OS profiles.
    pub enabled_profiles: Option<Vec<String>>,
    /// Default OS profile for nodes without an assigned one. Must be an enabled profile; empty for
    /// none.
    pub default_profile: Option<String>,
    /// Effective settings: the project's settings with the server's defaults where they are null.
    pub effective: EffectiveOsSettings,
    /// ID of the newest operating system of the default profile; empty if there is none.
    #[serde(rename = "defaultOsID")]
    pub default_os_id: String,
    /// Names of all registries in the server's configuration.
    pub registries: Vec<String>,
}

/// Effective catalogue settings of a project. Without a registry and a revision, the project has no
/// operating systems from a registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EffectiveOsSettings {
    /// Registry, by its name in the server's configuration; empty if there is none.
    pub registry: String,
    /// Revision selector; empty if there is none.
    pub revision: String,
    /// Names of the enabled OS profiles.
    pub enabled_profiles: Vec<String>,
    /// Default OS profile for nodes without an assigned one; empty if there is none.
    pub default_profile: String,
}

/// Catalogue settings to set. For a null or omitted field the server's default applies. PATCH
/// changes only the fields in the body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OsSettingsInput {
    /// Registry, by its name in the server's configuration, which must have it.
    #[schema(min_length = 1, max_length = 63)]
    pub registry: Option<String>,
    /// Revision selector. A tag, for example `0.8.11`, selects this tag only; `~0.8.11` selects all
    /// versions of 0.8 from 0.8.11 on, `~0.8` all of 0.8, and `~0` all of 0.
    #[schema(min_length = 1, max_length = 128)]
    pub revision: Option<String>,
    /// Names of the enabled OS profiles; every name at most once.
    #[schema(max_items = 200)]
    pub enabled_profiles: Option<Vec<String>>,
    /// Default OS profile for nodes without an assigned one. Must be an enabled profile; empty for
    /// none.
    #[schema(max_length = 128)]
    pub default_profile: Option<String>,
}

impl Input for OsSettingsInput {
    const READ_ONLY: &[&str] = &["effective", "defaultOsID", "registries"];
}

wire_enum! {
    /// Current step of a sync.
    OsSyncStep {
        Idle = "idle",
        Listing = "listing",
        Fetching = "fetching",
        Attachments = "attachments",
        Applying = "applying",
    }
}

wire_enum! {
    /// Result of a sync. `succeeded`: the catalogue is complete. `partial`: something was refused
    /// or is missing. `failed`: the registry could not be queried; the catalogue is unchanged.
    OsSyncOutcome {
        Succeeded = "succeeded",
        Partial = "partial",
        Failed = "failed",
    }
}

/// State of the syncs with the registry of a project. One sync serves all projects that use the
/// registry. The result for one project is in its sync report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OsSync {
    /// Registry, by its name in the server's configuration; empty if there is none.
    pub registry: String,
    /// Number of the last sync request. The request is complete, and the report shows its result,
    /// as soon as `done` is at least this number.
    pub request: U64,
    /// Number of the last completed sync request.
    pub done: U64,
    /// Current step.
    pub step: OsSyncStep,
    /// Number of completed items of the step.
    pub finished: u32,
    /// Total number of items of the step; 0 if it is unknown.
    pub total: u32,
    /// Result of the last sync, for all projects together; null before the first sync has ended.
    pub outcome: Option<OsSyncOutcome>,
    /// Start of the last sync.
    pub started_at: Option<DateTime<Utc>>,
    /// End of the last sync.
    pub ended_at: Option<DateTime<Utc>>,
    /// End of the last sync that succeeded.
    pub last_success_at: Option<DateTime<Utc>>,
    /// The registry is not queried before this time, because it requested a delay or could not be
    /// reached.
    pub not_before: Option<DateTime<Utc>>,
}

/// Result of the last sync for a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OsSyncReport {
    /// Registry, by its name in the server's configuration; empty if there was no sync yet.
    pub registry: String,
    /// Requested revision selector.
    pub revision: String,
    /// Result; null if there was no sync yet.
    pub outcome: Option<OsSyncOutcome>,
    /// Message about the sync as a whole.
    pub message: String,
    /// Number of the last sync request that this sync completed.
    pub request: U64,
    /// Start of the sync; null if there was none yet.
    pub started_at: Option<DateTime<Utc>>,
    /// End of the sync; null if there was none yet.
    pub ended_at: Option<DateTime<Utc>>,
    /// Number of operating systems that were created.
    pub created: u32,
    /// Number of operating systems that were updated.
    pub refreshed: u32,
    /// Number of operating systems that were unchanged.
    pub unchanged: u32,
    /// Number of OS profiles that were refused.
    pub refused: u32,
    /// Findings; at most 1,000.
    pub findings: Vec<OsSyncFinding>,
}

/// Problem of one OS profile. It does not affect the other profiles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OsSyncFinding {
    /// Repository of the profile.
    pub repository: String,
    /// Tag; empty if the finding is about the whole repository.
    pub tag: String,
    /// Kind of the finding, for example `wrong_digest`, `tag_moved` or `bad_field`.
    pub kind: String,
    /// Field of the profile; empty if the finding is not about a field.
    pub field: String,
    /// Explanation, as text.
    pub message: String,
    /// ID of the operating system; empty if there is none.
    #[serde(rename = "osID")]
    pub os_id: String,
    /// Time at which the finding first occurred.
    pub since: DateTime<Utc>,
}
