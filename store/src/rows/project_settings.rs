//! Rows of `project_settings`.

use sea_orm::entity::prelude::*;

table! {
    "project_settings";
    pub struct Model {
        pub retention_days: Option<i32>,
        pub any_schedule_status: bool,
    }
}
