//! Rows of `update_policies`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

table! {
    "update_policies", resource "os_update_policy_resource";
    #[derive(Deserialize)]
    pub struct Model {
        pub name: String,
        pub description: String,
        pub mode: String,
        pub target_os_id: Option<i32>,
        pub packages: String,
        pub sources: Vec<String>,
        pub kernel_command: String,
        pub created_at: DateTimeUtc,
        pub allow_downgrade: bool,
        pub offline_days: i32,
        pub rules: Json,
        pub image_rules: Json,
    }
}
