//! What nodes have in common, and in which pass it was changed last: their project, the site where they stand, and the
//! limits of the assignment that they go by.

use std::collections::HashMap;

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{RegionId, SiteId};
use evenkeel_domain::tenant::TenantId;

use super::Ground;

/// Of how many assignments it is remembered when their slots changed.
const MOST: usize = 100_000;

/// All projects and all places where nodes stand.
#[derive(Debug, Default)]
pub struct Grounds {
    numbers: HashMap<TenantId, u32>,
    tenants: Vec<Tenant>,
    sites: HashMap<(u32, Option<SiteId>), u32>,
    places: Vec<Place>,
    /// When the slots of an assignment changed last.
    counted: HashMap<(u32, Scope), u32>,
    /// When those changed last that are not remembered singly.
    counted_floor: u32,
}

#[derive(Debug, Default)]
struct Tenant {
    /// The last pass that changed something for all of it.
    stale: u32,
    /// Its places.
    places: Vec<u32>,
}

#[derive(Debug, Default)]
struct Place {
    /// The last pass that changed something for all who stand there.
    stale: u32,
    /// Since which pass the regions were gathered.
    since: u32,
    /// The regions that it lies in. While it is being moved, those before and those after.
    regions: Vec<RegionId>,
}

/// What an answer depends on besides its node.
#[derive(Clone, Copy, Debug)]
pub struct Grounded {
    /// The number of its project.
    pub tenant: u32,
    /// The place where it stands.
    pub ground: Ground,
    /// The assignment whose limits it depends on.
    pub counted: Option<Scope>,
}

impl Grounds {
    /// The number of a project.
    pub fn tenant(&mut self, id: TenantId) -> u32 {
        let tenants = &mut self.tenants;
        *self.numbers.entry(id).or_insert_with(|| {
            let number = u32::try_from(tenants.len()).unwrap_or(u32::MAX);
            tenants.push(Tenant::default());
            number
        })
    }

    /// The number of a project that is known.
    pub fn known(&self, id: TenantId) -> Option<u32> {
        self.numbers.get(&id).copied()
    }

    /// The number of a site in a project, or of what stands nowhere in it.
    pub fn ground(&mut self, tenant: u32, site: Option<SiteId>) -> Ground {
        let (tenants, places) = (&mut self.tenants, &mut self.places);
        let number = self.sites.entry((tenant, site)).or_insert_with(|| {
            let number = u32::try_from(places.len()).unwrap_or(u32::MAX);
            places.push(Place::default());
            if let Some(tenant) = tenants.get_mut(tenant as usize) {
                tenant.places.push(number);
            }
            number
        });
        Ground(*number)
    }

    /// The last pass that changed something for all answers that depend on the same. Such as are of before do not hold.
    pub fn stale(&self, on: Grounded) -> u32 {
        let tenant = self.tenants.get(on.tenant as usize);
        let tenant = tenant.map_or(u32::MAX, |tenant| tenant.stale);
        let place = self.places.get(on.ground.0 as usize);
        let place = place.map_or(u32::MAX, |place| place.stale);
        let counted = on.counted.map_or(0, |scope| {
            let singly = self.counted.get(&(on.tenant, scope)).copied();
            singly.unwrap_or_default().max(self.counted_floor)
        });
        tenant.max(place).max(counted)
    }

    /// A node that stands at a place was found to be in these regions. What is remembered of others there, none of it of
    /// before the pass `stale`, may have been found while the place lay in others.
    pub fn lies_in(&mut self, ground: Ground, regions: &[RegionId], stale: u32) {
        let Some(place) = self.places.get_mut(ground.0 as usize) else {
            return;
        };
        if place.since < stale {
            place.since = stale;
            place.regions.clear();
        }
        for region in regions {
            if !place.regions.contains(region) {
                place.regions.reserve_exact(1);
                place.regions.push(*region);
            }
        }
    }

    /// A pass changed something for a whole project.
    pub fn mark_tenant(&mut self, tenant: u32, pass: u32) {
        if let Some(tenant) = self.tenants.get_mut(tenant as usize) {
            tenant.stale = pass;
        }
    }

    /// A pass changed something for all who stand at a site. Says which place that is, if anybody stands there.
    pub fn mark_site(&mut self, tenant: u32, site: SiteId, pass: u32) -> Option<Ground> {
        let number = *self.sites.get(&(tenant, Some(site)))?;
        self.places.get_mut(number as usize)?.stale = pass;
        Some(Ground(number))
    }

    /// A pass changed something for all who are in a region. Says which places lie in it.
    pub fn mark_region(&mut self, tenant: u32, region: RegionId, pass: u32) -> Vec<Ground> {
        let Some(tenant) = self.tenants.get(tenant as usize) else {
            return Vec::new();
        };
        let mut marked = Vec::new();
        for number in &tenant.places {
            let place = self.places.get_mut(*number as usize);
            if let Some(place) = place.filter(|place| place.regions.contains(&region)) {
                place.stale = pass;
                marked.push(Ground(*number));
            }
        }
        marked
    }

    /// A pass changed the slots of an assignment.
    pub fn mark_counted(&mut self, tenant: u32, scope: Scope, pass: u32) {
        if self.counted.len() >= MOST {
            self.counted.clear();
            self.counted_floor = pass;
        }
        self.counted.insert((tenant, scope), pass);
    }

    /// How many places there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// How many bytes that takes up.
    pub fn bytes(&self) -> usize {
        let of_tenants = self.tenants.iter().map(|tenant| tenant.places.capacity());
        let of_places = self.places.iter().map(|place| place.regions.capacity());
        self.numbers.capacity() * (size_of::<(TenantId, u32)>() + 1)
            + self.sites.capacity() * (size_of::<((u32, Option<SiteId>), u32)>() + 1)
            + self.counted.capacity() * (size_of::<((u32, Scope), u32)>() + 1)
            + self.tenants.capacity() * size_of::<Tenant>()
            + self.places.capacity() * size_of::<Place>()
            + of_tenants.sum::<usize>() * size_of::<u32>()
            + of_places.sum::<usize>() * size_of::<RegionId>()
    }
}
