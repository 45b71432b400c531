//! Rows of `pauses`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

table! {
    "pauses";
    #[derive(Deserialize)]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub scope_kind: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub scope_id: i32,
        pub reason: String,
        pub created_by: String,
        pub since_at: DateTimeUtc,
    }
}
