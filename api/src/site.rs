//! Sites: where hosts are.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamps;
use crate::provider::ProviderResource;
use crate::region::RegionResource;
use crate::status::MetadataItem;

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
