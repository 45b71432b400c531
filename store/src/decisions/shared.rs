//! What people want of the nodes of a project, read in one statement for any number of them: where sites lie, what is
//! assigned, policies, images, schedules, pauses and settings. In one, so that what is moved from one thing to another
//! meanwhile is seen at the one or at the other, and never at neither.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::iter;
use std::sync::LazyLock;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Assigned, Brake, Scope};
use evenkeel_domain::decide::NodeFacts;
use evenkeel_domain::id::{HostId, InstanceId, OsId, PolicyId, RegionId, SiteId};
use evenkeel_domain::os::{Image, OsKind};
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::policy::{UpdatePolicy, Wish};
use evenkeel_domain::schedule::{Opens, ScheduleTarget};
use sea_orm::QueryResult;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::own::Own;
use super::scheduled::Scheduled;
use super::{About, gathered};
use crate::assignments::Given;
use crate::chain::Chain;
use crate::error::StoreError;
use crate::keyed::Keyed;
use crate::os_profiles::{ImageRow, KindOfImage};
use crate::rows::{assignment, os_profile, pause, update_policy};
use crate::tx::{Tx, ids_in, one};

/// What people want of some nodes of a project, by what it is looked up by.
#[derive(Debug, Default)]
pub struct Shared {
    opens: Opens,
    oses: HashMap<OsId, KindOfImage>,
    /// The images of each profile line that is updated by images, by id.
    lines: HashMap<String, Vec<Image>>,
    /// The region of each site.
    sites: HashMap<SiteId, Option<RegionId>>,
    /// What each region lies in.
    regions: HashMap<RegionId, Option<RegionId>>,
    policies: HashMap<PolicyId, UpdatePolicy>,
    assigned: HashMap<Scope, Given>,
    scheduled: HashMap<ScheduleTarget, Scheduled>,
    pauses: HashMap<PauseScope, Pause>,
}

/// A row of a place: its id, and the region that it lies in.
#[derive(Deserialize)]
struct Place {
    id: i32,
    region: Option<i32>,
}

/// Parameters: the project, sites, operating systems, instances, hosts, the time.
static SHARED: LazyLock<String> = LazyLock::new(|| {
    let (sites, oses, instances, hosts) = (ids_in(2), ids_in(3), ids_in(4), ids_in(5));
    let regions = "ARRAY(SELECT id FROM up)";
    let meant_for = format!(
        "t.target_host_id = ANY ({hosts}) OR t.target_site_id = ANY ({sites}) \
         OR t.target_region_id = ANY ({regions})"
    );
    let scheduled = Scheduled::columns(&meant_for, 6);
    let image = ImageRow::COLUMNS;
    // Regions are followed one by one, by their ids: to the planner it could be many, and then it would read all of them.
    format!(
        "WITH RECURSIVE up (id) AS ( \
         SELECT region_id FROM sites WHERE tenant_id = $1 AND id = ANY ({sites}) \
         UNION SELECT (SELECT r.parent_id FROM regions r WHERE r.tenant_id = $1 AND r.id = up.id) \
         FROM up WHERE up.id IS NOT NULL), \
         given AS MATERIALIZED (SELECT * FROM assignments WHERE tenant_id = $1 AND ( \
         (target_kind = 'instance' AND target_id = ANY ({instances})) \
         OR (target_kind = 'host' AND target_id = ANY ({hosts})) \
         OR (target_kind = 'site' AND target_id = ANY ({sites})) \
         OR (target_kind = 'region' AND target_id = ANY ({regions})) \
         OR (target_kind = 'project' AND target_id = 0))), \
         meant AS MATERIALIZED (SELECT * FROM update_policies WHERE tenant_id = $1 \
         AND id = ANY (ARRAY(SELECT policy_id FROM given))) \
         SELECT coalesce((SELECT any_schedule_status FROM project_settings WHERE tenant_id = $1), false) AS any_status, \
         (SELECT json_agg(t) FROM (SELECT {image} FROM os_profiles WHERE tenant_id = $1 \
         AND id = ANY ({oses} || ARRAY(SELECT target_os_id FROM meant))) t) AS oses, \
         (SELECT json_agg(t ORDER BY t.id) FROM (SELECT {image} FROM os_profiles WHERE tenant_id = $1 \
         AND kind = 'immutable' AND profile_name = ANY (ARRAY(SELECT profile_name FROM os_profiles \
         WHERE tenant_id = $1 AND id = ANY ({oses}) AND kind = 'immutable'))) t) AS lines, \
         (SELECT json_agg(t) FROM (SELECT id, region_id AS region FROM sites \
         WHERE tenant_id = $1 AND id = ANY ({sites})) t) AS sites, \
         (SELECT json_agg(t) FROM (SELECT id, parent_id AS region FROM regions \
         WHERE tenant_id = $1 AND id = ANY ({regions})) t) AS regions, \
         (SELECT json_agg(t) FROM given t) AS given, \
         (SELECT json_agg(t) FROM meant t) AS meant, {scheduled}, \
         (SELECT json_agg(t) FROM pauses t WHERE t.tenant_id = $1 AND ( \
         (t.scope_kind = 'project' AND t.scope_id = 0) \
         OR (t.scope_kind = 'site' AND t.scope_id = ANY ({sites})) \
         OR (t.scope_kind = 'policy' AND t.scope_id = ANY (ARRAY(SELECT id FROM meant))))) AS pauses"
    )
});

impl Shared {
    /// Reads what is wanted of these nodes; without an instant, without schedules.
    pub(super) async fn read(
        &mut self,
        tx: &Tx,
        of: &[About<'_>],
        now: Option<Time>,
    ) -> Result<(), StoreError> {
        let sites = of.iter().filter_map(|about| about.host.site);
        let oses = of.iter().map(|about| about.os);
        let instances = of.iter().map(|about| about.instance);
        let hosts = of.iter().map(|about| about.host.id);
        let values = [
            tx.tenant().uuid().into(),
            once(sites.map(SiteId::bits)).into(),
            once(oses.map(OsId::bits)).into(),
            once(instances.map(InstanceId::bits)).into(),
            once(hosts.map(HostId::bits)).into(),
            now.into(),
        ];
        match one(tx.conn(), SHARED.as_str(), values).await? {
            Some(row) => self.take(&row),
            None => Ok(()),
        }
    }

    /// Takes what the columns of a row have gathered.
    fn take(&mut self, row: &QueryResult) -> Result<(), StoreError> {
        self.opens = Opens::from_setting(row.try_get("", "any_status")?);
        let oses = things::<ImageRow, KindOfImage>(row, "oses")?;
        self.oses.extend(by(oses, |os| os.image.os));
        let lines = things::<ImageRow, KindOfImage>(row, "lines")?;
        for KindOfImage { image, .. } in lines {
            let line = self.lines.entry(image.profile_name.clone());
            line.or_default().push(image);
        }
        for place in gathered::<Place>(row, "sites")? {
            let site = SiteId::from_bits(place.id.cast_unsigned());
            self.sites.insert(site, place.lies_in());
        }
        for place in gathered::<Place>(row, "regions")? {
            let region = RegionId::from_bits(place.id.cast_unsigned());
            self.regions.insert(region, place.lies_in());
        }
        let given = things::<assignment::Model, Given>(row, "given")?;
        self.assigned.extend(by(given, |given| given.scope));
        let policies = things::<update_policy::Model, UpdatePolicy>(row, "meant")?;
        self.policies.extend(by(policies, |policy| policy.id));
        let pauses = things::<pause::Model, Pause>(row, "pauses")?;
        self.pauses.extend(by(pauses, |pause| pause.scope));
        self.schedule(Scheduled::of(row)?);
        Ok(())
    }

    /// Sorts schedules by what they are meant for.
    fn schedule(&mut self, found: Scheduled) {
        for schedule in found.singles {
            if let Some(target) = schedule.spec.target {
                let same = self.scheduled.entry(target).or_default();
                same.singles.push(schedule);
            }
        }
        for schedule in found.repeated {
            if let Some(target) = schedule.spec.target {
                let same = self.scheduled.entry(target).or_default();
                same.repeated.push(schedule);
            }
        }
    }

    /// Which schedules of the project open windows.
    pub fn opens(&self) -> Opens {
        self.opens
    }

    /// What a node belongs to.
    pub fn chain(&self, about: &About<'_>) -> Chain {
        Chain {
            instance: about.instance,
            host: about.host.id,
            site: about.host.site,
            regions: self.regions(about.host.site),
        }
    }

    /// The region of a site and those that this lies in, nearest first.
    fn regions(&self, site: Option<SiteId>) -> Vec<RegionId> {
        let nearest = site.and_then(|site| self.sites.get(&site).copied().flatten());
        let outer = |region: &RegionId| self.regions.get(region).copied().flatten();
        // None is among its own outer ones; if one were, this would still end.
        let all = iter::successors(nearest, outer).take(self.regions.len());
        all.collect()
    }

    /// What is known about a node.
    pub fn known(&self, about: &About<'_>, own: &Own) -> Result<NodeFacts, StoreError> {
        let what = os_profile::Entity::WHAT;
        let os = self.oses.get(&about.os);
        let os = os.ok_or(StoreError::NotFound { what })?;
        Ok(NodeFacts {
            trusted: about.host.is_trusted() && own.trusted,
            provisioned: about.provisioned,
            os_kind: os.kind,
            running: os.image.clone(),
            speaks: about.protocol.clone(),
            last_end: about.last_end.cloned(),
            bad_images: about.bad_images.to_vec(),
        })
    }

    /// The images that a node is updated to; none for one that is updated by packages.
    pub fn images(&self, known: &NodeFacts) -> Vec<Image> {
        match known.os_kind {
            OsKind::Mutable => Vec::new(),
            OsKind::Immutable => {
                let line = self.lines.get(&known.running.profile_name);
                line.cloned().unwrap_or_default()
            }
        }
    }

    /// The policies that are assigned along the chain of a node, nearest first. How far the limits are used up is not
    /// known.
    pub fn policies(&self, chain: &Chain) -> Vec<Assigned> {
        let scopes = chain.scopes();
        let given = scopes.iter().filter_map(|scope| self.assigned.get(scope));
        given.filter_map(|given| self.with_policy(given)).collect()
    }

    /// An assignment with its policy, which a foreign key holds.
    fn with_policy(&self, given: &Given) -> Option<Assigned> {
        let policy = self.policies.get(&given.policy)?;
        let os = match &policy.spec.wish {
            Wish::Latest => None,
            Wish::Target(target) => target.os.and_then(|os| self.oses.get(&os)),
        };
        Some(Assigned {
            scope: given.scope,
            policy: policy.clone(),
            image: os.map(|os| os.image.clone()),
            limits: given.limits,
            brake: Brake::default(),
        })
    }

    /// The schedules that are meant for a host or a place; none if there are none.
    pub fn scheduled(&self, target: ScheduleTarget) -> Option<&Scheduled> {
        self.scheduled.get(&target)
    }

    /// The pauses that concern a node at a site with these policies: that of the project first, then that of the site.
    pub fn pauses(
        &self,
        site: Option<SiteId>,
        policies: impl Iterator<Item = PolicyId>,
    ) -> Vec<Pause> {
        let mut scopes = BTreeSet::from([PauseScope::Project]);
        scopes.extend(site.map(PauseScope::Site));
        scopes.extend(policies.map(PauseScope::Policy));
        let found = scopes.iter().filter_map(|scope| self.pauses.get(scope));
        found.cloned().collect()
    }
}

impl Place {
    fn lies_in(&self) -> Option<RegionId> {
        self.region
            .map(|region| RegionId::from_bits(region.cast_unsigned()))
    }
}

/// Each id once, as the database has it.
fn once(ids: impl Iterator<Item = u32>) -> Vec<i32> {
    let ids: BTreeSet<i32> = ids.map(u32::cast_signed).collect();
    ids.into_iter().collect()
}

/// What the rows mean that a column gathers.
fn things<M, T>(row: &QueryResult, column: &'static str) -> Result<Vec<T>, StoreError>
where
    M: DeserializeOwned,
    T: TryFrom<M, Error = StoreError>,
{
    let rows = gathered::<M>(row, column)?.into_iter();
    rows.map(T::try_from).collect()
}

/// Things by what they are looked up by.
fn by<K: Eq + Hash, T>(things: Vec<T>, key: fn(&T) -> K) -> impl Iterator<Item = (K, T)> {
    things.into_iter().map(move |thing| (key(&thing), thing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::own::OWN;

    /// Read in two statements, a schedule that is moved from a site to a host between them would be at neither, and an
    /// attempt be taken back that nobody wants back.
    #[test]
    fn what_people_want_is_read_at_one_instant() {
        for wanted in [
            "assignments",
            "update_policies",
            "single_schedules",
            "repeated_schedules",
            "pauses",
        ] {
            assert!(SHARED.contains(wanted), "{wanted}");
            assert!(!OWN.contains(wanted), "{wanted}");
        }
    }
}
