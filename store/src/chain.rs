//! The scopes that contain a node, from its instance up to its project.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{HostId, InstanceId, RegionId, SiteId};
use evenkeel_domain::schedule::ScheduleTarget;

/// The scopes that contain a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeChain {
    pub instance: InstanceId,
    pub host: HostId,
    /// The site of the host.
    pub site: Option<SiteId>,
    /// The region of the site and its parent regions, nearest first.
    pub regions: Vec<RegionId>,
}

impl ScopeChain {
    /// All scopes, nearest first.
    #[must_use]
    pub fn scopes(&self) -> Vec<Scope> {
        let mut scopes = vec![Scope::Instance(self.instance), Scope::Host(self.host)];
        scopes.extend(self.site.map(Scope::Site));
        scopes.extend(self.regions.iter().copied().map(Scope::Region));
        scopes.push(Scope::Project);
        scopes
    }

    /// The host, the site and the regions, as targets of schedules.
    pub(crate) fn schedule_targets(&self) -> impl Iterator<Item = ScheduleTarget> {
        let host = [ScheduleTarget::Host(self.host)].into_iter();
        let site = self.site.map(ScheduleTarget::Site);
        let regions = self.regions.iter().copied().map(ScheduleTarget::Region);
        host.chain(site).chain(regions)
    }
}
