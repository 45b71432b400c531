//! Rows of `single_schedules`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

table! {
    "single_schedules", resource "single_schedule_resource";
    #[derive(Deserialize)]
    pub struct Model {
        pub name: String,
        pub status: String,
        pub start_at: DateTimeUtc,
        pub end_at: Option<DateTimeUtc>,
        pub target_host_id: Option<i32>,
        pub target_site_id: Option<i32>,
        pub target_region_id: Option<i32>,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
    }
}
