//! Rows of `hosts`.

use evenkeel_domain::location::Metadata;
use sea_orm::entity::prelude::*;

use crate::rows::JsonColumn;

table! {
    "hosts", resource "host_resource";
    pub struct Model {
        pub name: String,
        pub uuid: Option<Uuid>,
        pub serial: Option<String>,
        pub hostname: String,
        pub desired_state: String,
        pub current_state: String,
        pub note: String,
        pub public_key: Vec<u8>,
        pub status: String,
        pub status_indication: String,
        pub status_at: DateTimeUtc,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
        pub site_id: Option<i32>,
        pub metadata: JsonColumn<Metadata>,
        pub provider_id: Option<i32>,
        pub user_lvm_size: i32,
        pub uuid_text: String,
    }
}
