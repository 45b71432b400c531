//! Sites: locations of hosts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::provider::ProviderResource;
use crate::region::RegionResource;
use crate::status::MetadataItem;
use crate::{Input, Timestamps};

/// Location of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SiteResource {
    /// Resource ID.
    pub resource_id: String,
    /// Same as `resourceId`.
    #[serde(rename = "siteID")]
    pub site_id: String,
    /// Display name; need not be unique.
    pub name: String,
    /// ID of the region; empty for none.
    pub region_id: String,
    /// Region; an empty object for none, never null.
    pub region: RegionResource,
    /// Latitude in degrees times 10,000,000; north is positive.
    pub site_lat: i32,
    /// Longitude in degrees times 10,000,000; east is positive.
    pub site_lng: i32,
    /// Always null.
    pub provider: Option<ProviderResource>,
    /// Labels.
    pub metadata: Vec<MetadataItem>,
    /// Labels inherited from the regions above.
    pub inherited_metadata: Vec<MetadataItem>,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// A page of sites.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SiteList {
    /// Sites on this page.
    pub sites: Vec<SiteResource>,
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

/// Site to create or change. PATCH changes only the fields in the body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SiteInput {
    /// Display name: at most 50 letters, digits, spaces and `-_./:`; may be empty and need not be
    /// unique.
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// ID of the region; empty for none. The region must exist.
    #[schema(pattern = "^$|^region-[0-9a-f]{8}$")]
    pub region_id: String,
    /// Latitude in degrees times 10,000,000; north is positive.
    #[schema(minimum = -900_000_000, maximum = 900_000_000)]
    pub site_lat: i32,
    /// Longitude in degrees times 10,000,000; east is positive.
    #[schema(minimum = -1_800_000_000, maximum = 1_800_000_000)]
    pub site_lng: i32,
    /// Labels; every key at most once.
    #[schema(max_items = 100)]
    pub metadata: Vec<MetadataItem>,
}

impl Input for SiteInput {
    const READ_ONLY: &[&str] =
        &["resourceId", "siteID", "region", "provider", "inheritedMetadata", "timestamps"];
}
