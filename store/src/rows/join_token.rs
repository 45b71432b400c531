//! Rows of `join_tokens`.

use sea_orm::entity::prelude::*;

table! {
    "join_tokens", resource "join_token_resource";
    pub struct Model {
        pub name: String,
        pub digest: Vec<u8>,
        pub expires_at: DateTimeUtc,
        pub one_time: bool,
        pub may_create_hosts: bool,
        pub may_replace_eim_agents: bool,
        pub used: i32,
        pub last_used_at: Option<DateTimeUtc>,
        pub revoked_at: Option<DateTimeUtc>,
        pub created_at: DateTimeUtc,
    }
}
