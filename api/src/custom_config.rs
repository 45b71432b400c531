//! Configuration of first starts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Input, Timestamps};

/// Configuration of a first start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomConfigResource {
    /// Its id.
    pub resource_id: String,
    /// Unique in its project.
    pub name: String,
    /// For people.
    pub description: String,
    /// For cloud-init.
    pub config: String,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A page of configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomConfigList {
    /// The configurations of this page.
    pub custom_configs: Vec<CustomConfigResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// Asks for the next page; empty if there is none.
    pub next_page_token: String,
}

/// Configuration of a first start to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CustomConfigInput {
    /// Unique in its project.
    #[schema(pattern = "^[a-z][a-z0-9-]{0,31}$")]
    pub name: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 256)]
    pub description: String,
    /// For cloud-init.
    #[schema(min_length = 1, max_length = 16_384)]
    pub config: String,
}

impl Input for CustomConfigInput {
    const READ_ONLY: &[&str] = &["resourceId", "timestamps"];
}
