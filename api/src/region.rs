//! Regions: areas that contain sites and other regions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::status::MetadataItem;
use crate::{Input, Timestamps};

/// Area that contains sites and other regions.
///
/// Clients read `parentRegion` of a region and `region` of a site without a check for null. Where
/// there is no region, these fields are empty objects ([`RegionResource::empty`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegionResource {
    /// Resource ID.
    pub resource_id: String,
    /// Same as `resourceId`.
    #[serde(rename = "regionID")]
    pub region_id: String,
    /// Display name; need not be unique.
    pub name: String,
    /// ID of the parent region; empty for none.
    pub parent_id: String,
    /// Parent region, without its own parent.
    #[schema(no_recursion)]
    pub parent_region: Option<Box<RegionResource>>,
    /// Labels.
    pub metadata: Vec<MetadataItem>,
    /// Labels inherited from the regions above.
    pub inherited_metadata: Vec<MetadataItem>,
    /// Number of sites in the region and in the regions below. Filled only in lists that request
    /// it.
    pub total_sites: i32,
    /// Times of creation and last change; null in an empty object.
    pub timestamps: Option<Timestamps>,
}

impl RegionResource {
    /// Returns the empty object that stands for no region.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }
}

/// A page of regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegionList {
    /// Regions on this page.
    pub regions: Vec<RegionResource>,
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

/// Region to create or change. PATCH changes only the fields in the body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RegionInput {
    /// Display name: at most 50 letters, digits, spaces and `-_./:`; may be empty and need not be
    /// unique.
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// ID of the parent region; empty for none. At most 5 levels of regions contain each other.
    #[schema(pattern = "^$|^region-[0-9a-f]{8}$")]
    pub parent_id: String,
    /// Labels; every key at most once.
    #[schema(max_items = 100)]
    pub metadata: Vec<MetadataItem>,
}

impl Input for RegionInput {
    const READ_ONLY: &[&str] = &[
        "resourceId",
        "regionID",
        "parentRegion",
        "inheritedMetadata",
        "totalSites",
        "timestamps",
    ];
}
