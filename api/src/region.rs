//! Regions: where sites are.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::status::MetadataItem;
use crate::{Input, Timestamps};

/// An area that holds sites and other regions.
///
/// Clients read `parentRegion` of a region and `region` of a site without asking whether it is there, so these are
/// objects without content where there is none ([`RegionResource::nowhere`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegionResource {
    /// Its id.
    pub resource_id: String,
    /// Repeats `resourceId`.
    #[serde(rename = "regionID")]
    pub region_id: String,
    /// For people; not unique.
    pub name: String,
    /// The region above it.
    pub parent_id: String,
    /// The region above it, without those above that.
    #[schema(no_recursion)]
    pub parent_region: Option<Box<RegionResource>>,
    /// Its labels.
    pub metadata: Vec<MetadataItem>,
    /// The labels of the regions above it.
    pub inherited_metadata: Vec<MetadataItem>,
    /// How many sites lie in it and below it, where a list was asked for that.
    pub total_sites: i32,
    /// When it was made and changed; null in an object without content.
    pub timestamps: Option<Timestamps>,
}

impl RegionResource {
    /// The object without content that stands for no region.
    #[must_use]
    pub fn nowhere() -> Self {
        Self::default()
    }
}

/// A page of regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegionList {
    /// The regions of this page.
    pub regions: Vec<RegionResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// Asks for the next page; empty if there is none.
    pub next_page_token: String,
}

/// What a region should be. A change (PATCH) counts only for the fields that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RegionInput {
    /// For people; may be empty, not unique.
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// The region that it lies in; empty for none.
    #[schema(pattern = "^$|^region-[0-9a-f]{8}$")]
    pub parent_id: String,
    /// Its labels, no key twice.
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
