//! Rows of `run_events`.

use sea_orm::entity::prelude::*;

table! {
    "run_events";
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub run_id: i32,
        #[sea_orm(primary_key, auto_increment = false)]
        pub position: i32,
        pub event: String,
        pub state: String,
        pub sequence: Option<i32>,
        pub boot_id: String,
        pub node_time: Option<DateTimeUtc>,
        pub at: DateTimeUtc,
        pub detail: String,
    }
}
