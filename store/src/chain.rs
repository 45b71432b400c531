//! What a node belongs to, from its instance up to its project.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{HostId, InstanceId, RegionId, SiteId};

/// What a node belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its instance.
    pub instance: InstanceId,
    /// Its host.
    pub host: HostId,
    /// The site where the host stands.
    pub site: Option<SiteId>,
    /// The region of the site and those that this lies in, nearest first.
    pub regions: Vec<RegionId>,
}

impl Chain {
    /// All of it, nearest first.
    #[must_use]
    pub fn scopes(&self) -> Vec<Scope> {
        let mut scopes = vec![Scope::Instance(self.instance), Scope::Host(self.host)];
        scopes.extend(self.site.map(Scope::Site));
        scopes.extend(self.regions.iter().copied().map(Scope::Region));
        scopes.push(Scope::Project);
        scopes
    }
}
