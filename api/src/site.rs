//! Sites: where hosts are.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::provider::ProviderResource;
use crate::region::RegionResource;
use crate::status::MetadataItem;
use crate::{Input, Timestamps};

/// A place that holds hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SiteResource {
    /// Its id.
    pub resource_id: String,
    /// Repeats `resourceId`.
    #[serde(rename = "siteID")]
    pub site_id: String,
    /// For people; not unique.
    pub name: String,
    /// The region that it lies in.
    pub region_id: String,
    /// The region that it lies in; without content if there is none, never null.
    pub region: RegionResource,
    /// Degrees north times 10,000,000.
    pub site_lat: i32,
    /// Degrees east times 10,000,000.
    pub site_lng: i32,
    /// Never filled.
    pub provider: Option<ProviderResource>,
    /// Its labels.
    pub metadata: Vec<MetadataItem>,
    /// The labels of the regions above it.
    pub inherited_metadata: Vec<MetadataItem>,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A page of sites.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SiteList {
    /// The sites of this page.
    pub sites: Vec<SiteResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// Asks for the next page; empty if there is none.
    pub next_page_token: String,
}

/// What a site should be. A change (PATCH) counts only for the fields that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SiteInput {
    /// For people; may be empty, not unique.
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// The region that it lies in; empty for none.
    #[schema(pattern = "^$|^region-[0-9a-f]{8}$")]
    pub region_id: String,
    /// Degrees north times 10,000,000.
    #[schema(minimum = -900_000_000, maximum = 900_000_000)]
    pub site_lat: i32,
    /// Degrees east times 10,000,000.
    #[schema(minimum = -1_800_000_000, maximum = 1_800_000_000)]
    pub site_lng: i32,
    /// Its labels, no key twice.
    #[schema(max_items = 100)]
    pub metadata: Vec<MetadataItem>,
}

impl Input for SiteInput {
    const READ_ONLY: &[&str] = &[
        "resourceId",
        "siteID",
        "region",
        "provider",
        "inheritedMetadata",
        "timestamps",
    ];
}
