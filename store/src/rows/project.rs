//! Rows of `projects`.

use sea_orm::entity::prelude::*;

table! {
    "projects";
    pub struct Model {
        pub name: String,
        pub description: String,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
        pub removed_at: Option<DateTimeUtc>,
    }
}
