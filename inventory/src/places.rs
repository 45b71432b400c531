//! Where things are: sites and regions as hosts, schedules and other places show them.

use std::collections::HashMap;
use std::iter;

use evenkeel_api::Timestamps;
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::SiteResource;
use evenkeel_api::status::MetadataItem;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{RegionId, SiteId};
use evenkeel_domain::place::{MAX_DEPTH, Metadata, Region, Site};
use evenkeel_store::related::Related;

use crate::problem::Problem;

/// Some sites and regions, with all regions above them.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    sites: &'a HashMap<SiteId, Site>,
    regions: &'a HashMap<RegionId, Region>,
}

impl<'a> Places<'a> {
    /// The places among what was read.
    pub fn of(related: &'a Related) -> Self {
        Self {
            sites: &related.sites,
            regions: &related.regions,
        }
    }

    /// All of the sites, in no order.
    pub fn sites(self) -> impl Iterator<Item = &'a Site> {
        self.sites.values()
    }

    /// All of the regions, in no order.
    pub fn regions(self) -> impl Iterator<Item = &'a Region> {
        self.regions.values()
    }

    /// A region and those above it, nearest first.
    pub fn upwards(self, from: Option<RegionId>) -> impl Iterator<Item = &'a Region> {
        let find = move |id: Option<RegionId>| id.and_then(|id| self.regions.get(&id));
        iter::successors(find(from), move |region| find(region.spec.parent)).take(MAX_DEPTH)
    }

    /// What a host inherits.
    pub fn inherited_by(self, host: &Host) -> Vec<MetadataItem> {
        let Some(site) = host.site.and_then(|id| self.sites.get(&id)) else {
            return Vec::new();
        };
        let above = self.upwards(site.spec.region);
        let above = above.map(|region| &region.spec.metadata);
        let places = iter::once(&site.spec.metadata).chain(above);
        labels(&host.metadata.inherited(places))
    }

    /// The region that a site lies in.
    pub fn region_of(self, site: SiteId) -> Option<RegionId> {
        self.sites.get(&site)?.spec.region
    }

    /// A site with its region.
    pub fn site(self, id: SiteId) -> Option<SiteResource> {
        self.sites.get(&id).map(|site| self.site_resource(site))
    }

    /// A site with its region.
    pub fn site_resource(self, site: &Site) -> SiteResource {
        let region = site.spec.region.and_then(|id| self.regions.get(&id));
        let above = self.upwards(site.spec.region);
        let above = above.map(|region| &region.spec.metadata);
        SiteResource {
            region: region.map_or_else(RegionResource::nowhere, |region| RegionResource {
                parent_region: Some(Box::new(RegionResource::nowhere())),
                ..shallow(region)
            }),
            inherited_metadata: labels(&site.spec.metadata.inherited(above)),
            ..shallow_site(site)
        }
    }

    /// A region with the one above it.
    pub fn region(self, id: RegionId) -> Option<RegionResource> {
        self.regions
            .get(&id)
            .map(|region| self.region_resource(region))
    }

    /// A region with the one above it.
    pub fn region_resource(self, region: &Region) -> RegionResource {
        let parent = region.spec.parent.and_then(|id| self.regions.get(&id));
        let above = self.upwards(region.spec.parent);
        let above = above.map(|region| &region.spec.metadata);
        RegionResource {
            parent_region: Some(Box::new(
                parent.map_or_else(RegionResource::nowhere, shallow),
            )),
            inherited_metadata: labels(&region.spec.metadata.inherited(above)),
            ..shallow(region)
        }
    }
}

/// A region by itself.
fn shallow(region: &Region) -> RegionResource {
    RegionResource {
        resource_id: region.id.to_string(),
        region_id: region.id.to_string(),
        name: region.spec.name.to_string(),
        parent_id: region
            .spec
            .parent
            .map(|id| id.to_string())
            .unwrap_or_default(),
        metadata: labels(&region.spec.metadata),
        timestamps: Some(Timestamps::new(region.created_at, region.updated_at)),
        ..RegionResource::default()
    }
}

/// A site by itself.
fn shallow_site(site: &Site) -> SiteResource {
    SiteResource {
        resource_id: site.id.to_string(),
        site_id: site.id.to_string(),
        name: site.spec.name.to_string(),
        region_id: site
            .spec
            .region
            .map(|id| id.to_string())
            .unwrap_or_default(),
        site_lat: site.spec.latitude,
        site_lng: site.spec.longitude,
        metadata: labels(&site.spec.metadata),
        timestamps: Some(Timestamps::new(site.created_at, site.updated_at)),
        ..SiteResource::default()
    }
}

/// Labels on the wire.
pub fn labels(metadata: &Metadata) -> Vec<MetadataItem> {
    let item = |label: &evenkeel_domain::place::Label| MetadataItem {
        key: label.key.clone(),
        value: label.value.clone(),
    };
    metadata.as_slice().iter().map(item).collect()
}

/// Labels from the wire.
pub fn metadata(items: Vec<MetadataItem>) -> Result<Metadata, Problem> {
    let pairs = items.into_iter().map(|item| (item.key, item.value));
    Ok(Metadata::parse(pairs)?)
}
