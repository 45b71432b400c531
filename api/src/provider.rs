//! Providers: systems that supply machines.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Input, Timestamps};

wire_enum! {
    /// Kind of machines that a provider supplies.
    ProviderKind {
        Unspecified = "PROVIDER_KIND_UNSPECIFIED",
        Baremetal = "PROVIDER_KIND_BAREMETAL",
    }
}

wire_enum! {
    /// Vendor of a provider's tools.
    ProviderVendor {
        Unspecified = "PROVIDER_VENDOR_UNSPECIFIED",
        LenovoLxca = "PROVIDER_VENDOR_LENOVO_LXCA",
        LenovoLoca = "PROVIDER_VENDOR_LENOVO_LOCA",
    }
}

/// Provider: a system that supplies machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderResource {
    /// Resource ID.
    pub resource_id: String,
    /// Same as `resourceId`.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// Kind of machines.
    pub provider_kind: ProviderKind,
    /// Vendor of the provider's tools.
    pub provider_vendor: ProviderVendor,
    /// Name; unique in the project.
    pub name: String,
    /// URL of the provider's API; may be empty.
    pub api_endpoint: String,
    /// Credentials for the provider's API.
    pub api_credentials: Vec<String>,
    /// Configuration for the provider's tools, usually JSON as text.
    pub config: String,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// A page of providers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderList {
    /// Providers on this page.
    pub providers: Vec<ProviderResource>,
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

/// Provider to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderInput {
    /// Kind of machines; `PROVIDER_KIND_UNSPECIFIED` is refused.
    pub provider_kind: ProviderKind,
    /// Vendor of the provider's tools.
    #[serde(default)]
    pub provider_vendor: ProviderVendor,
    /// Name: at most 40 letters, digits, spaces and `-_./:`; not empty, unique in the project.
    #[schema(min_length = 1, max_length = 40, pattern = "^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// URL of the provider's API; not empty.
    #[schema(min_length = 1, max_length = 500, pattern = "^[a-zA-Z-_0-9./:;=?@!#,<>*() ]+$")]
    pub api_endpoint: String,
    /// Credentials for the provider's API: each one line of at most 500 characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub api_credentials: Vec<String>,
    /// Configuration for the provider's tools, usually JSON as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 2_000)]
    pub config: String,
}

impl Input for ProviderInput {
    const READ_ONLY: &[&str] = &["resourceId", "providerID", "timestamps"];
}
