//! Rows of `providers`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

table! {
    "providers", resource "provider_resource";
    #[derive(Deserialize)]
    pub struct Model {
        pub kind: String,
        pub vendor: String,
        pub name: String,
        pub api_endpoint: String,
        pub api_credentials: Vec<String>,
        pub config: String,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
    }
}
