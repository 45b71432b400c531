//! Rows of `update_orders`.

use sea_orm::entity::prelude::*;

table! {
    "update_orders";
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub instance_id: i32,
        pub kind: String,
        pub given_at: DateTimeUtc,
        pub until_at: DateTimeUtc,
        pub reason: String,
        pub created_by: String,
    }
}
