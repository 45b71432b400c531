//! Rows of `custom_configs`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

table! {
    "custom_configs", resource "custom_config_resource";
    #[derive(Deserialize)]
    pub struct Model {
        pub name: String,
        pub description: String,
        pub config: String,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
    }
}
