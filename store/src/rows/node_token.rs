//! Rows of `node_tokens`.

use sea_orm::entity::prelude::*;

table! {
    "node_tokens";
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub digest: Vec<u8>,
        pub host_id: i32,
        pub first_used_at: DateTimeUtc,
        pub expires_at: DateTimeUtc,
    }
}
