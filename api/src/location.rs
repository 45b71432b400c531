//! Locations: regions and sites by name, with the regions above them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

wire_enum! {
    /// Kind of a location.
    LocationKind {
        Unspecified = "RESOURCE_KIND_UNSPECIFIED",
        Region = "RESOURCE_KIND_REGION",
        Site = "RESOURCE_KIND_SITE",
    }
}

/// Region or site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LocationNode {
    /// Resource ID.
    pub resource_id: String,
    /// ID of the region that contains the location; empty if there is none.
    pub parent_id: String,
    /// Display name; need not be unique.
    pub name: String,
    /// Kind of the location.
    #[serde(rename = "type")]
    pub kind: LocationKind,
}

/// Matching locations, and all regions that contain them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocationList {
    /// Regions, outermost first, then sites.
    pub nodes: Vec<LocationNode>,
    /// Total number of matching locations.
    pub total_elements: i32,
    /// Number of matching locations in `nodes`, without the regions that contain them.
    pub output_elements: i32,
}
