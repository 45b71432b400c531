//! The scopes that contain a node, from its instance up to its project.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{HostId, InstanceId, RegionId, SiteId};

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
}
