//! Custom configurations: cloud-init configuration for the first boot of an instance.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Input, Timestamps};

/// Cloud-init configuration for the first boot of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomConfigResource {
    /// Resource ID.
    pub resource_id: String,
    /// Name; unique in the project.
    pub name: String,
    /// Description, as free text.
    pub description: String,
    /// Configuration in the format of cloud-init.
    pub config: String,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// A page of custom configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomConfigList {
    /// Custom configurations on this page.
    pub custom_configs: Vec<CustomConfigResource>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
    /// Number of resources on this page that cannot be read, because a newer server wrote them; the
    /// server's log names them. Omitted if all can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_elements: Option<u32>,
}

/// Custom configuration to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CustomConfigInput {
    /// Name: a lower-case letter and at most 31 lower-case letters, digits and dashes; unique in
    /// the project.
    #[schema(pattern = "^[a-z][a-z0-9-]{0,31}$")]
    pub name: String,
    /// Description: at most 256 letters, digits, spaces and `-_./:;=?@!#,<>*()"`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 256)]
    pub description: String,
    /// Configuration in the format of cloud-init: not empty, at most 16,384 characters, not parsed
    /// by the server.
    #[schema(min_length = 1, max_length = 16_384)]
    pub config: String,
}

impl Input for CustomConfigInput {
    const READ_ONLY: &[&str] = &["resourceId", "timestamps"];
}
