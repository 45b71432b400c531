//! What a project takes of a registry of operating systems, and how that went.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;
use crate::number::U64;

/// What a project takes of a registry, where it says so: what is null is as the server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OsSettings {
    /// The registry, by the name that the server knows it by.
    pub registry: Option<String>,
    /// Which tags: `0.8.11` or another tag means exactly that one, `~0.8.11` what is at least that and still 0.8.
    pub revision: Option<String>,
    /// Which profiles.
    pub enabled_profiles: Option<Vec<String>>,
    /// The profile for nodes that nothing is said of: one of those that are taken; empty for none.
    pub default_profile: Option<String>,
    /// What holds: the same, with what the server has where it says nothing.
    pub effective: EffectiveOsSettings,
    /// The newest operating system of the default profile; empty if there is none.
    #[serde(rename = "defaultOsID")]
    pub default_os_id: String,
    /// The registries that the server knows.
    pub registries: Vec<String>,
}

/// What a project takes of a registry. Without a registry and a revision it takes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EffectiveOsSettings {
    /// The registry, by the name that the server knows it by; empty if there is none.
    pub registry: String,
    /// Which tags; empty if nothing is said.
    pub revision: String,
    /// Which profiles.
    pub enabled_profiles: Vec<String>,
    /// The profile for nodes that nothing is said of; empty if there is none.
    pub default_profile: String,
}

/// What a project should take of a registry. What is left out or null is as the server has it; a change (PATCH) counts
/// only for the fields that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OsSettingsInput {
    /// The registry, by the name that the server knows it by.
    #[schema(min_length = 1, max_length = 63)]
    pub registry: Option<String>,
    /// Which tags: `0.8.11` or another tag means exactly that one, `~0.8.11` what is at least that and still 0.8.
    #[schema(min_length = 1, max_length = 128)]
    pub revision: Option<String>,
    /// Which profiles, each once.
    #[schema(max_items = 200)]
    pub enabled_profiles: Option<Vec<String>>,
    /// The profile for nodes that nothing is said of: one of those that are taken; empty for none.
    #[schema(max_length = 128)]
    pub default_profile: Option<String>,
}

impl Input for OsSettingsInput {
    const READ_ONLY: &[&str] = &["effective", "defaultOsID", "registries"];
}

wire_enum! {
    /// What is being done for a sync.
    OsSyncStep {
        Idle = "idle",
        Listing = "listing",
        Fetching = "fetching",
        Sides = "sides",
        Applying = "applying",
    }
}

wire_enum! {
    /// How a sync went: all that was wanted is there; something was refused or is missing; the registry could not be
    /// asked, and what was there before stays.
    OsSyncOutcome {
        Good = "good",
        Partly = "partly",
        Failed = "failed",
    }
}

/// Where the syncs with the registry of a project stand. A registry is asked once for all projects that take something
/// of it; how the last sync went for one of them is in its report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OsSync {
    /// The registry, by the name that the server knows it by; empty if there is none.
    pub registry: String,
    /// The number of the last request for a sync. It is met, and the report says how it went, as soon as `done` is no
    /// less.
    pub request: U64,
    /// The number of the last request that was met.
    pub done: U64,
    /// What is being done.
    pub step: OsSyncStep,
    /// How much of the step is done.
    pub finished: u32,
    /// How much there is to do in the step; 0 if that is not known.
    pub total: u32,
    /// How the last one went, for all projects; null before the first end.
    pub outcome: Option<OsSyncOutcome>,
    /// When the last one began.
    pub started_at: Option<DateTime<Utc>>,
    /// When the last one ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// When the last one ended in which nothing was wrong.
    pub good_at: Option<DateTime<Utc>>,
    /// Before this the registry is not asked again, because it said so or could not be reached.
    pub not_before: Option<DateTime<Utc>>,
}

/// How the last sync went for a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OsSyncReport {
    /// The registry, by the name that the server knows it by; empty if there was no sync yet.
    pub registry: String,
    /// Which tags were wanted.
    pub revision: String,
    /// How it went; null if there was none yet.
    pub outcome: Option<OsSyncOutcome>,
    /// What is to be said of all of it, for people.
    pub message: String,
    /// The number of the last request that is met with it.
    pub request: U64,
    /// When it began; null if there was none yet.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended; null if there was none yet.
    pub ended_at: Option<DateTime<Utc>>,
    /// How many operating systems are new.
    pub made: u32,
    /// How many operating systems were brought up to date.
    pub refreshed: u32,
    /// How many operating systems are as they were.
    pub same: u32,
    /// How many were not taken.
    pub refused: u32,
    /// What was found, at most 1,000.
    pub findings: Vec<OsSyncFinding>,
}

/// Something that is to be said of a profile. The others do not suffer from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OsSyncFinding {
    /// The repository.
    pub repository: String,
    /// The tag; empty if it is about the whole repository.
    pub tag: String,
    /// What kind of thing it is, such as `wrong_digest`, `tag_moved` or `bad_field`.
    pub kind: String,
    /// Which part of the profile it is about; empty if none.
    pub field: String,
    /// What exactly, for people.
    pub message: String,
    /// The operating system that it is about; empty if none.
    #[serde(rename = "osID")]
    pub os_id: String,
    /// Since when it is found.
    pub since: DateTime<Utc>,
}
