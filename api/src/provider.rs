//! Providers: who brings machines.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Input, Timestamps};

wire_enum! {
    /// What a provider brings.
    ProviderKind {
        Unspecified = "PROVIDER_KIND_UNSPECIFIED",
        Baremetal = "PROVIDER_KIND_BAREMETAL",
    }
}

wire_enum! {
    /// Whose tools a provider uses.
    ProviderVendor {
        Unspecified = "PROVIDER_VENDOR_UNSPECIFIED",
        LenovoLxca = "PROVIDER_VENDOR_LENOVO_LXCA",
        LenovoLoca = "PROVIDER_VENDOR_LENOVO_LOCA",
    }
}

/// Who brings machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderResource {
    /// Its id.
    pub resource_id: String,
    /// Repeats `resourceId`.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// What it brings.
    pub provider_kind: ProviderKind,
    /// Whose tools it uses.
    pub provider_vendor: ProviderVendor,
    /// Unique in its project.
    pub name: String,
    /// Where it is asked.
    pub api_endpoint: String,
    /// With what it is asked.
    pub api_credentials: Vec<String>,
    /// For its tools, usually JSON as text.
    pub config: String,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A page of providers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderList {
    /// The providers of this page.
    pub providers: Vec<ProviderResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// Asks for the next page; empty if there is none.
    pub next_page_token: String,
}

/// A provider to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderInput {
    /// What it brings; must be said.
    pub provider_kind: ProviderKind,
    /// Whose tools it uses.
    #[serde(default)]
    pub provider_vendor: ProviderVendor,
    /// Unique in its project.
    #[schema(min_length = 1, max_length = 40, pattern = "^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// Where it is asked; may be empty.
    #[schema(max_length = 500, pattern = "^$|^[a-zA-Z-_0-9./:;=?@!#,<>*() ]+$")]
    pub api_endpoint: String,
    /// With what it is asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub api_credentials: Vec<String>,
    /// For its tools, usually JSON as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 2_000)]
    pub config: String,
}

impl Input for ProviderInput {
    const READ_ONLY: &[&str] = &["resourceId", "providerID", "timestamps"];
}
