//! Providers: who brings machines.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamps;

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
    /// A JSON object as text.
    pub config: String,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}
