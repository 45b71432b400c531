//! Rows of `local_accounts`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

table! {
    "local_accounts", resource "local_account_resource";
    #[derive(Deserialize)]
    pub struct Model {
        pub username: String,
        pub ssh_key: String,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
    }
}
