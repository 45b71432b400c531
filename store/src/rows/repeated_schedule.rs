//! Rows of `repeated_schedules`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

table! {
    "repeated_schedules", resource "repeated_schedule_resource";
    #[derive(Deserialize)]
    pub struct Model {
        pub name: String,
        pub status: String,
        pub duration_seconds: i32,
        pub cron_minutes: String,
        pub cron_hours: String,
        pub cron_day_month: String,
        pub cron_month: String,
        pub cron_day_week: String,
        pub time_zone: String,
        pub target_host_id: Option<i32>,
        pub target_site_id: Option<i32>,
        pub target_region_id: Option<i32>,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
    }
}
