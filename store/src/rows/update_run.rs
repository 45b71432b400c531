//! Rows of `update_runs`.

use evenkeel_domain::package::PackageChange;
use evenkeel_domain::run::{ImageChange, Origin, RunReport};
use sea_orm::entity::prelude::*;

use crate::rows::JsonColumn;

table! {
    "update_runs", resource "os_update_run_resource";
    pub struct Model {
        pub instance_id: i32,
        pub name: String,
        pub description: String,
        pub attempt: Option<Uuid>,
        pub policy_id: Option<i32>,
        pub origin: JsonColumn<Origin>,
        pub target_digest: Option<String>,
        pub state: String,
        pub state_since: DateTimeUtc,
        pub changed: Option<bool>,
        pub cause: Option<String>,
        pub failure_kind: Option<String>,
        pub failure: Option<String>,
        pub packages: JsonColumn<Vec<PackageChange>>,
        pub log: String,
        pub sequence: i32,
        pub generation: i64,
        pub granted_at: Option<DateTimeUtc>,
        pub started_at: DateTimeUtc,
        pub ended_at: Option<DateTimeUtc>,
        pub granted_kind: Option<String>,
        pub granted_id: Option<i32>,
        pub assigned_kind: Option<String>,
        pub assigned_id: Option<i32>,
        pub packages_digest: Option<Vec<u8>>,
        pub report: JsonColumn<RunReport>,
        pub image: Option<JsonColumn<ImageChange>>,
    }
}
