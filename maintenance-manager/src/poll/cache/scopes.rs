//! What nodes share, and the last pass that changed it: their project, their site, and the limits
//! of their assignment.

use std::collections::HashMap;

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{RegionId, SiteId};
use evenkeel_domain::tenant::TenantId;

use super::InvalidationScope;

/// The maximum number of assignments whose last slot change is stored.
const MAX_LIMIT_SCOPES: usize = 100_000;

/// The scopes of all projects and sites.
#[derive(Debug, Default)]
pub struct InvalidationScopes {
    numbers: HashMap<TenantId, u32>,
    tenants: Vec<TenantScope>,
    sites: HashMap<(u32, Option<SiteId>), u32>,
    site_scopes: Vec<SiteScope>,
    /// The last pass that changed the slots of an assignment.
    limits: HashMap<(u32, Scope), u32>,
    /// A lower bound for assignments that are not stored individually.
    limits_floor: u32,
}

#[derive(Debug, Default)]
struct TenantScope {
    /// The last pass that changed something for the whole project.
    last_changed: u32,
    /// The sites of the project.
    site_scopes: Vec<u32>,
}

#[derive(Debug, Default)]
struct SiteScope {
    /// The last pass that changed something for the whole site.
    last_changed: u32,
    /// The pass since which the regions were collected.
    since: u32,
    /// The regions of the site. While the site is being moved, both the old and the new ones.
    regions: Vec<RegionId>,
}

/// What an answer depends on, apart from its node.
#[derive(Clone, Copy, Debug)]
pub struct AnswerDependencies {
    /// The index of the project.
    pub tenant: u32,
    /// The scope of the node.
    pub scope: InvalidationScope,
    /// The assignment whose limits it depends on.
    pub limit_scope: Option<Scope>,
}

impl InvalidationScopes {
    /// The index of a project; new projects get one.
    pub fn tenant(&mut self, id: TenantId) -> u32 {
        let tenants = &mut self.tenants;
        *self.numbers.entry(id).or_insert_with(|| {
            let number = u32::try_from(tenants.len()).unwrap_or(u32::MAX);
            tenants.push(TenantScope::default());
            number
        })
    }

    /// The index of a project, if it has one.
    pub fn find_tenant(&self, id: TenantId) -> Option<u32> {
        self.numbers.get(&id).copied()
    }

    /// The scope of a site, or of the hosts of a project without a site.
    pub fn scope(&mut self, tenant: u32, site: Option<SiteId>) -> InvalidationScope {
        let (tenants, site_scopes) = (&mut self.tenants, &mut self.site_scopes);
        let number = self.sites.entry((tenant, site)).or_insert_with(|| {
            let number = u32::try_from(site_scopes.len()).unwrap_or(u32::MAX);
            site_scopes.push(SiteScope::default());
            if let Some(tenant) = tenants.get_mut(tenant as usize) {
                tenant.site_scopes.push(number);
            }
            number
        });
        InvalidationScope(*number)
    }

    /// The last pass that changed any of these dependencies. Older answers are invalid.
    pub fn last_changed(&self, dependencies: AnswerDependencies) -> u32 {
        let tenant = self.tenants.get(dependencies.tenant as usize);
        let tenant = tenant.map_or(u32::MAX, |tenant| tenant.last_changed);
        let site = self.site_scopes.get(dependencies.scope.0 as usize);
        let site = site.map_or(u32::MAX, |site| site.last_changed);
        let limits = dependencies.limit_scope.map_or(0, |scope| {
            let singly = self.limits.get(&(dependencies.tenant, scope)).copied();
            singly.unwrap_or_default().max(self.limits_floor)
        });
        tenant.max(site).max(limits)
    }

    /// Records the regions of a node's site. Cached answers of other nodes of the site, none of
    /// them older than the pass `oldest_pass`, may have been read while the site was in other
    /// regions.
    pub fn add_regions(
        &mut self,
        scope: InvalidationScope,
        regions: &[RegionId],
        oldest_pass: u32,
    ) {
        let Some(site) = self.site_scopes.get_mut(scope.0 as usize) else {
            return;
        };
        if site.since < oldest_pass {
            site.since = oldest_pass;
            site.regions.clear();
        }
        for region in regions {
            if !site.regions.contains(region) {
                site.regions.reserve_exact(1);
                site.regions.push(*region);
            }
        }
    }

    /// Marks a whole project as changed by a pass.
    pub fn mark_tenant(&mut self, tenant: u32, pass: u32) {
        if let Some(tenant) = self.tenants.get_mut(tenant as usize) {
            tenant.last_changed = pass;
        }
    }

    /// Marks a site as changed by a pass. Returns its scope, if it has one.
    pub fn mark_site(&mut self, tenant: u32, site: SiteId, pass: u32) -> Option<InvalidationScope> {
        let number = *self.sites.get(&(tenant, Some(site)))?;
        self.site_scopes.get_mut(number as usize)?.last_changed = pass;
        Some(InvalidationScope(number))
    }

    /// Marks the sites of a region as changed by a pass. Returns their scopes.
    pub fn mark_region(
        &mut self,
        tenant: u32,
        region: RegionId,
        pass: u32,
    ) -> Vec<InvalidationScope> {
        let Some(tenant) = self.tenants.get(tenant as usize) else {
            return Vec::new();
        };
        let mut marked = Vec::new();
        for number in &tenant.site_scopes {
            let site = self.site_scopes.get_mut(*number as usize);
            if let Some(site) = site.filter(|site| site.regions.contains(&region)) {
                site.last_changed = pass;
                marked.push(InvalidationScope(*number));
            }
        }
        marked
    }

    /// Marks the slots of an assignment as changed by a pass.
    pub fn mark_limits(&mut self, tenant: u32, scope: Scope, pass: u32) {
        if self.limits.len() >= MAX_LIMIT_SCOPES {
            self.limits.clear();
            self.limits_floor = pass;
        }
        self.limits.insert((tenant, scope), pass);
    }

    /// The number of scopes.
    pub fn len(&self) -> usize {
        self.site_scopes.len()
    }

    /// The memory in bytes.
    pub fn bytes(&self) -> usize {
        let site_counts = self.tenants.iter().map(|tenant| tenant.site_scopes.capacity());
        let region_counts = self.site_scopes.iter().map(|site| site.regions.capacity());
        self.numbers.capacity() * (size_of::<(TenantId, u32)>() + 1)
            + self.sites.capacity() * (size_of::<((u32, Option<SiteId>), u32)>() + 1)
            + self.limits.capacity() * (size_of::<((u32, Scope), u32)>() + 1)
            + self.tenants.capacity() * size_of::<TenantScope>()
            + self.site_scopes.capacity() * size_of::<SiteScope>()
            + site_counts.sum::<usize>() * size_of::<u32>()
            + region_counts.sum::<usize>() * size_of::<RegionId>()
    }
}
