//! Locations: regions and sites by their names, with the way to each.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

wire_enum! {
    /// What a location is.
    LocationKind {
        Unspecified = "RESOURCE_KIND_UNSPECIFIED",
        Region = "RESOURCE_KIND_REGION",
        Site = "RESOURCE_KIND_SITE",
    }
}

/// A region or a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LocationNode {
    /// Its id.
    pub resource_id: String,
    /// The region that it lies in; empty if there is none.
    pub parent_id: String,
    /// For people; not unique.
    pub name: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: LocationKind,
}

/// The locations that were found, and all regions that they lie in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocationList {
    /// Regions from the outside in, then sites.
    pub nodes: Vec<LocationNode>,
    /// How many fit in all.
    pub total_elements: i32,
    /// How many of those are shown, without the regions that they lie in.
    pub output_elements: i32,
}
