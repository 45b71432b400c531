//! Rows of `sites`.

use evenkeel_domain::location::Metadata;
use sea_orm::entity::prelude::*;
use serde::Deserialize;

use crate::rows::JsonColumn;

table! {
    "sites", resource "site_resource";
    #[derive(Deserialize)]
    pub struct Model {
        pub name: String,
        pub region_id: Option<i32>,
        pub latitude: i32,
        pub longitude: i32,
        pub metadata: JsonColumn<Metadata>,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
    }
}
