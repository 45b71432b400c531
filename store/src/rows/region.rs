//! Rows of `regions`.

use evenkeel_domain::location::Metadata;
use sea_orm::entity::prelude::*;
use serde::Deserialize;

use crate::rows::JsonColumn;

table! {
    "regions", resource "region_resource";
    #[derive(Deserialize)]
    pub struct Model {
        pub name: String,
        pub parent_id: Option<i32>,
        pub metadata: JsonColumn<Metadata>,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
    }
}
