//! Rows of `instances`.

use sea_orm::entity::prelude::*;

table! {
    "instances", resource "instance_resource";
    pub struct Model {
        pub host_id: i32,
        pub name: String,
        pub kind: String,
        pub desired_state: String,
        pub current_state: String,
        pub security_feature: String,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
        pub local_account_id: Option<i32>,
    }
}
