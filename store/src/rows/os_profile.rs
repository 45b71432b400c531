//! Rows of `os_profiles`.

use sea_orm::entity::prelude::*;
use serde::Deserialize;

table! {
    "os_profiles", resource "operating_system_resource";
    #[derive(Deserialize)]
    pub struct Model {
        pub name: String,
        pub kind: String,
        pub provider: String,
        pub architecture: String,
        pub profile_name: String,
        pub image_id: String,
        pub image_url: String,
        pub sha256: String,
        pub security_feature: String,
        pub description: String,
        pub metadata: String,
        pub repo_url: String,
        pub tls_ca_cert: String,
        pub installed_packages_url: String,
        pub existing_cves_url: String,
        pub fixed_cves_url: String,
        pub created_at: DateTimeUtc,
        pub updated_at: DateTimeUtc,
        pub image_signatures: Vec<String>,
    }
}
