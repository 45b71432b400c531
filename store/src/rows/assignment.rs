//! Rows of `assignments`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

table! {
    "assignments";
    #[derive(Deserialize)]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub target_kind: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub target_id: i32,
        pub policy_id: i32,
        pub max_concurrent: Option<i32>,
        pub stop_after_failures: Option<i32>,
        pub since_at: DateTimeUtc,
        pub resumed_at: Option<DateTimeUtc>,
        pub resumed_by: Option<String>,
        pub resume_reason: Option<String>,
    }
}
