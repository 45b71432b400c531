//! Rows of `change_log`.

use sea_orm::entity::prelude::*;

table! {
    "change_log";
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub seq: i64,
        pub at: DateTimeUtc,
        pub kind: String,
        pub id: i32,
        pub operation: String,
        pub actor: Option<String>,
        pub request_id: Option<String>,
        pub before: Option<Json>,
        pub after: Option<Json>,
    }
}
