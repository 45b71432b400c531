//! Rows of `node_states`.

use sea_orm::entity::prelude::*;

table! {
    "node_states";
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub instance_id: i32,
        pub os_id: i32,
        pub provisioned: bool,
        pub protocol: String,
        pub modules: Vec<String>,
        pub agent_version: String,
        pub boot_id: String,
        pub facts_digest: Vec<u8>,
        pub facts: Json,
        pub facts_version: i16,
        pub status: String,
        pub status_indication: String,
        pub status_at: DateTimeUtc,
        pub update_status: String,
        pub update_status_indication: String,
        pub update_status_at: DateTimeUtc,
        pub os_update_available: String,
        pub last_end_run_id: Option<i32>,
        pub last_end_target: Option<String>,
        pub last_end_at: Option<DateTimeUtc>,
        pub last_end_verdict: Option<String>,
        pub sample: Option<Json>,
        pub delivered: Json,
        pub conditions: Json,
        pub previous_boot_id: String,
        pub recent_starts: Json,
        pub packages_digest: Option<Vec<u8>>,
        pub booted_profile: Option<String>,
        pub booted_image: Option<String>,
        pub waiting: String,
        pub reported_packages_digest: Option<Vec<u8>>,
        pub available_digest: Vec<u8>,
        pub bad_images: Json,
        pub kernel_release: Option<String>,
        pub reboot_required: Option<bool>,
        pub package_lists_refreshed_at: Option<DateTimeUtc>,
        pub package_lists_error: Option<String>,
        pub security_updates: Option<i32>,
        pub held_back_updates: Option<i32>,
        pub stale_services: Option<i32>,
        pub boot_time: Option<DateTimeUtc>,
        pub reboot_required_by: Option<Vec<String>>,
    }
}
