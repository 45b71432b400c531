//! Locations: sites and regions, as hosts, schedules and other resources show them.

use std::collections::HashMap;
use std::iter;

use evenkeel_api::Timestamps;
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::SiteResource;
use evenkeel_api::status::MetadataItem;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{RegionId, SiteId};
use evenkeel_domain::location::{MAX_REGION_DEPTH, Metadata, Region, Site};
use evenkeel_store::related::Related;

use crate::problem::Problem;

/// Some sites and regions, with all regions that contain them.
#[derive(Clone, Copy, Debug)]
pub struct LocationTree<'a> {
    sites: &'a HashMap<SiteId, Site>,
    regions: &'a HashMap<RegionId, Region>,
}

impl<'a> LocationTree<'a> {
    /// The locations among the related resources.
    pub fn from_related(related: &'a Related) -> Self {
        Self { sites: &related.sites, regions: &related.regions }
    }

    /// All sites, in no particular order.
    pub fn sites(self) -> impl Iterator<Item = &'a Site> {
        self.sites.values()
    }

    /// All regions, in no particular order.
    pub fn regions(self) -> impl Iterator<Item = &'a Region> {
        self.regions.values()
    }

    /// A region and those that contain it, innermost first.
    pub fn region_chain(self, from: Option<RegionId>) -> impl Iterator<Item = &'a Region> {
        let find = move |id: Option<RegionId>| id.and_then(|id| self.regions.get(&id));
        iter::successors(find(from), move |region| find(region.spec.parent)).take(MAX_REGION_DEPTH)
    }

    /// Labels that a host inherits.
    pub fn inherited_by(self, host: &Host) -> Vec<MetadataItem> {
        let Some(site) = host.site.and_then(|id| self.sites.get(&id)) else {
            return Vec::new();
        };
        let above = self.region_chain(site.spec.region);
        let above = above.map(|region| &region.spec.metadata);
        let metadata_chain = iter::once(&site.spec.metadata).chain(above);
        labels(&host.metadata.inherited_from(metadata_chain))
    }

    pub fn region_of(self, site: SiteId) -> Option<RegionId> {
        self.sites.get(&site)?.spec.region
    }

    /// REST form of the site with this id, including its region.
    pub fn site(self, id: SiteId) -> Option<SiteResource> {
        self.sites.get(&id).map(|site| self.site_resource(site))
    }

    /// REST form of a site, including its region.
    pub fn site_resource(self, site: &Site) -> SiteResource {
        let region = site.spec.region.and_then(|id| self.regions.get(&id));
        let above = self.region_chain(site.spec.region);
        let above = above.map(|region| &region.spec.metadata);
        SiteResource {
            region: region.map_or_else(RegionResource::empty, |region| RegionResource {
                parent_region: Some(Box::new(RegionResource::empty())),
                ..shallow_region(region)
            }),
            inherited_metadata: labels(&site.spec.metadata.inherited_from(above)),
            ..shallow_site(site)
        }
    }

    /// REST form of the region with this id, including its parent region.
    pub fn region(self, id: RegionId) -> Option<RegionResource> {
        self.regions.get(&id).map(|region| self.region_resource(region))
    }

    /// REST form of a region, including its parent region.
    pub fn region_resource(self, region: &Region) -> RegionResource {
        let parent = region.spec.parent.and_then(|id| self.regions.get(&id));
        let above = self.region_chain(region.spec.parent);
        let above = above.map(|region| &region.spec.metadata);
        RegionResource {
            parent_region: Some(Box::new(
                parent.map_or_else(RegionResource::empty, shallow_region),
            )),
            inherited_metadata: labels(&region.spec.metadata.inherited_from(above)),
            ..shallow_region(region)
        }
    }
}

/// REST form of a region without its parent region.
fn shallow_region(region: &Region) -> RegionResource {
    RegionResource {
        resource_id: region.id.to_string(),
        region_id: region.id.to_string(),
        name: region.spec.name.to_string(),
        parent_id: region.spec.parent.map(|id| id.to_string()).unwrap_or_default(),
        metadata: labels(&region.spec.metadata),
        timestamps: Some(Timestamps::new(region.created_at, region.updated_at)),
        ..RegionResource::default()
    }
}

/// REST form of a site without its region.
fn shallow_site(site: &Site) -> SiteResource {
    SiteResource {
        resource_id: site.id.to_string(),
        site_id: site.id.to_string(),
        name: site.spec.name.to_string(),
        region_id: site.spec.region.map(|id| id.to_string()).unwrap_or_default(),
        site_lat: site.spec.latitude,
        site_lng: site.spec.longitude,
        metadata: labels(&site.spec.metadata),
        timestamps: Some(Timestamps::new(site.created_at, site.updated_at)),
        ..SiteResource::default()
    }
}

/// REST form of labels.
pub fn labels(metadata: &Metadata) -> Vec<MetadataItem> {
    let item = |label: &evenkeel_domain::location::Label| MetadataItem {
        key: label.key.clone(),
        value: label.value.clone(),
    };
    metadata.as_slice().iter().map(item).collect()
}

/// Parses labels from their REST form.
pub fn metadata(items: Vec<MetadataItem>) -> Result<Metadata, Problem> {
    let pairs = items.into_iter().map(|item| (item.key, item.value));
    Ok(Metadata::parse(pairs)?)
}
