//! Inputs that the nodes of a project share, read in one statement for any number of nodes: sites
//! and regions, assignments, policies, images, schedules, pauses and settings. With one statement,
//! an object that is moved meanwhile is seen at its old or at its new target, and never at neither.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::iter;
use std::sync::LazyLock;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{AssignedPolicy, Level, LimitUsage, Scope};
use evenkeel_domain::decide::{NodeFacts, UnreadableObject};
use evenkeel_domain::id::{HostId, InstanceId, OsId, PolicyId, RegionId, SiteId};
use evenkeel_domain::os::{Image, OsKind};
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::policy::{DesiredUpdate, UpdatePolicy};
use evenkeel_domain::schedule::{ScheduleFilter, ScheduleTarget};
use sea_orm::QueryResult;
use serde::Deserialize;

use super::node_inputs::NodeInputs;
use super::schedule_set::ScheduleSet;
use super::unreadable::{UnreadableObjects, converted_rows};
use super::{DecisionSubject, json_rows};
use crate::assignments::AssignmentSpec;
use crate::chain::ScopeChain;
use crate::error::StoreError;
use crate::keyed::KeyedEntity;
use crate::os_profiles::{ImageRow, OsImage};
use crate::rows::{assignment, os_profile, pause, update_policy};
use crate::tx::{Tx, ids_in, query_one};

/// The shared inputs of some nodes of a project.
#[derive(Debug, Default)]
pub struct ProjectInputs {
    opens: ScheduleFilter,
    oses: HashMap<OsId, OsImage>,
    /// The images of each profile that is updated by images, by id.
    images_by_profile: HashMap<String, Vec<Image>>,
    site_regions: HashMap<SiteId, Option<RegionId>>,
    region_parents: HashMap<RegionId, Option<RegionId>>,
    policies: HashMap<PolicyId, UpdatePolicy>,
    assignments: HashMap<Scope, AssignmentSpec>,
    schedules: HashMap<ScheduleTarget, ScheduleSet>,
    pauses: HashMap<PauseScope, Pause>,
    unreadable: UnreadableObjects,
}

/// A site or region: its id and the region that contains it.
#[derive(Deserialize)]
struct LocationRow {
    id: i32,
    region: Option<i32>,
}

/// The condition that a column has a kind that this release does not know, as ranges of the index:
/// with `NOT IN`, the database would read all rows of the project for each batch.
fn unknown_kinds_sql(column: &str, known_kinds: &[&str]) -> String {
    let mut sorted = known_kinds.to_vec();
    sorted.sort_unstable();
    let before = sorted.first().map(|first| format!("{column} < '{first}'"));
    let after = sorted.last().map(|last| format!("{column} > '{last}'"));
    let between = sorted
        .windows(2)
        .map(|pair| format!("({column} > '{}' AND {column} < '{}')", pair[0], pair[1]));
    let ranges = before.into_iter().chain(between).chain(after);
    ranges.collect::<Vec<_>>().join(" OR ")
}

/// Parameters: project, sites, operating systems, instances, hosts, time.
static PROJECT_INPUTS_SQL: LazyLock<String> = LazyLock::new(|| {
    let (sites, oses, instances, hosts) = (ids_in(2), ids_in(3), ids_in(4), ids_in(5));
    let regions = "ARRAY(SELECT id FROM up)";
    let meant_for = format!(
        "t.target_host_id = ANY ({hosts}) OR t.target_site_id = ANY ({sites}) \
         OR t.target_region_id = ANY ({regions})"
    );
    let scheduled = ScheduleSet::columns(&meant_for, 6);
    let image = ImageRow::COLUMNS;
    let levels: Vec<&str> = Level::ALL.iter().copied().map(Level::name).collect();
    let unknown_levels = unknown_kinds_sql("target_kind", &levels);
    let unknown_pauses = unknown_kinds_sql("t.scope_kind", &["policy", "project", "site"]);
    // Parent regions are looked up one by one: otherwise the planner expects many and reads all
    // regions.
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
         OR (target_kind = 'project' AND target_id = 0) \
         OR {unknown_levels})), \
         meant AS MATERIALIZED (SELECT * FROM update_policies WHERE tenant_id = $1 \
         AND id = ANY (ARRAY(SELECT policy_id FROM given))) \
         SELECT coalesce((SELECT any_schedule_status FROM project_settings WHERE tenant_id = $1), false) AS any_status, \
         (SELECT json_agg(t) FROM (SELECT {image} FROM os_profiles WHERE tenant_id = $1 \
         AND id = ANY ({oses} || ARRAY(SELECT target_os_id FROM meant))) t) AS oses, \
         (SELECT json_agg(t ORDER BY t.id) FROM (SELECT {image} FROM os_profiles WHERE tenant_id = $1 \
         AND kind <> 'mutable' AND profile_name = ANY (ARRAY(SELECT profile_name FROM os_profiles \
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
         OR (t.scope_kind = 'policy' AND t.scope_id = ANY (ARRAY(SELECT id FROM meant))) \
         OR {unknown_pauses})) AS pauses"
    )
});

impl ProjectInputs {
    /// Reads the inputs of these nodes; without a time, it reads no schedules.
    pub(super) async fn load(
        &mut self,
        tx: &Tx,
        of: &[DecisionSubject<'_>],
        now: Option<Time>,
    ) -> Result<(), StoreError> {
        let sites = of.iter().filter_map(|subject| subject.host.site);
        let oses = of.iter().map(|subject| subject.os);
        let instances = of.iter().map(|subject| subject.instance);
        let hosts = of.iter().map(|subject| subject.host.id);
        let values = [
            tx.tenant().uuid().into(),
            distinct_ids(sites.map(SiteId::bits)).into(),
            distinct_ids(oses.map(OsId::bits)).into(),
            distinct_ids(instances.map(InstanceId::bits)).into(),
            distinct_ids(hosts.map(HostId::bits)).into(),
            now.into(),
        ];
        match query_one(tx.conn(), PROJECT_INPUTS_SQL.as_str(), values).await? {
            Some(row) => self.read_columns(&row),
            None => Ok(()),
        }
    }

    /// Reads the aggregated columns of a row.
    fn read_columns(&mut self, row: &QueryResult) -> Result<(), StoreError> {
        self.opens = ScheduleFilter::from_setting(row.try_get("", "any_status")?);
        for os in json_rows::<ImageRow>(row, "oses")? {
            let (os, is_readable) = OsImage::from_row(os);
            if !is_readable {
                self.unreadable.add_profile(os.image.os);
            }
            self.oses.insert(os.image.os, os);
        }
        for image in json_rows::<ImageRow>(row, "lines")? {
            let (OsImage { image, .. }, is_readable) = OsImage::from_row(image);
            if !is_readable {
                self.unreadable.add_image_of_series(&image);
            }
            let line = self.images_by_profile.entry(image.profile_name.clone());
            line.or_default().push(image);
        }
        for location in json_rows::<LocationRow>(row, "sites")? {
            let site = SiteId::from_bits(location.id.cast_unsigned());
            self.site_regions.insert(site, location.region_id());
        }
        for location in json_rows::<LocationRow>(row, "regions")? {
            let region = RegionId::from_bits(location.id.cast_unsigned());
            self.region_parents.insert(region, location.region_id());
        }
        let (specs, unreadable) =
            converted_rows(row, "given", |given: &assignment::Model| given.policy_id)?;
        let policy_id = |bits: i32| PolicyId::from_bits(bits.cast_unsigned());
        self.unreadable.add_assignments(unreadable.into_iter().map(policy_id));
        self.assignments.extend(keyed_by(specs, |spec: &AssignmentSpec| spec.scope));
        let (policies, unreadable) =
            converted_rows(row, "meant", |policy: &update_policy::Model| policy.id)?;
        self.unreadable.add_policies(unreadable.into_iter().map(policy_id));
        self.policies.extend(keyed_by(policies, |policy: &UpdatePolicy| policy.id));
        let (pauses, unreadable) =
            converted_rows(row, "pauses", |pause: &pause::Model| pause.scope_kind.clone())?;
        self.unreadable.add_pauses(unreadable);
        self.pauses.extend(keyed_by(pauses, |pause: &Pause| pause.scope));
        let (schedules, unreadable) = ScheduleSet::from_row(row)?;
        self.unreadable.add_schedules(unreadable);
        self.add_schedules(schedules);
        Ok(())
    }

    /// Groups schedules by target.
    fn add_schedules(&mut self, schedules: ScheduleSet) {
        for schedule in schedules.singles {
            if let Some(target) = schedule.spec.target {
                let same = self.schedules.entry(target).or_default();
                same.singles.push(schedule);
            }
        }
        for schedule in schedules.repeated {
            if let Some(target) = schedule.spec.target {
                let same = self.schedules.entry(target).or_default();
                same.repeated.push(schedule);
            }
        }
    }

    /// Which schedules of the project open windows.
    pub fn opens(&self) -> ScheduleFilter {
        self.opens
    }

    /// The scopes that contain a node.
    pub fn chain(&self, subject: &DecisionSubject<'_>) -> ScopeChain {
        ScopeChain {
            instance: subject.instance,
            host: subject.host.id,
            site: subject.host.site,
            regions: self.regions(subject.host.site),
        }
    }

    /// The region of a site and its parent regions, nearest first.
    fn regions(&self, site: Option<SiteId>) -> Vec<RegionId> {
        let nearest = site.and_then(|site| self.site_regions.get(&site).copied().flatten());
        let outer = |region: &RegionId| self.region_parents.get(region).copied().flatten();
        // Regions form a tree. The limit ends the walk even if they did not.
        let all = iter::successors(nearest, outer).take(self.region_parents.len());
        all.collect()
    }

    /// The known facts about a node.
    pub fn node_facts(
        &self,
        subject: &DecisionSubject<'_>,
        node_inputs: &NodeInputs,
    ) -> Result<NodeFacts, StoreError> {
        let what = os_profile::Entity::RESOURCE;
        let os = self.oses.get(&subject.os);
        let os = os.ok_or(StoreError::NotFound { what })?;
        Ok(NodeFacts {
            trusted: subject.host.is_trusted() && node_inputs.trusted,
            provisioned: subject.provisioned,
            os_kind: os.kind,
            running: os.image.clone(),
            protocol: subject.protocol.clone(),
            last_run: subject.last_end.cloned(),
            bad_images: subject.bad_images.to_vec(),
        })
    }

    /// The images that a node may be updated to; none for a node that is updated by packages.
    pub fn images(&self, facts: &NodeFacts) -> Vec<Image> {
        match facts.os_kind {
            OsKind::Mutable => Vec::new(),
            OsKind::Immutable => {
                let line = self.images_by_profile.get(&facts.running.profile_name);
                line.cloned().unwrap_or_default()
            }
        }
    }

    /// The policies assigned along the chain of a node, nearest first. The use of their limits is
    /// not filled in.
    pub fn policies(&self, chain: &ScopeChain) -> Vec<AssignedPolicy> {
        let scopes = chain.scopes();
        let specs = scopes.iter().filter_map(|scope| self.assignments.get(scope));
        specs.filter_map(|spec| self.with_policy(spec)).collect()
    }

    /// An assignment with its policy. A foreign key guarantees that the policy exists.
    fn with_policy(&self, spec: &AssignmentSpec) -> Option<AssignedPolicy> {
        let policy = self.policies.get(&spec.policy)?;
        let os = match &policy.spec.desired {
            DesiredUpdate::Latest => None,
            DesiredUpdate::Target(target) => target.os.and_then(|os| self.oses.get(&os)),
        };
        Some(AssignedPolicy {
            scope: spec.scope,
            policy: policy.clone(),
            image: os.map(|os| os.image.clone()),
            limits: spec.limits,
            usage: LimitUsage::default(),
        })
    }

    /// The first of the objects that apply to a node and cannot be read.
    pub fn unreadable(&self, chain: &ScopeChain, facts: &NodeFacts) -> Option<UnreadableObject> {
        let objects = &self.unreadable;
        if objects.is_empty() {
            return None;
        }
        let scopes = chain.scopes();
        let assigned = scopes.iter().filter_map(|scope| self.assignments.get(scope));
        let assigned: Vec<PolicyId> = assigned.map(|spec| spec.policy).collect();
        let policies = assigned.iter().filter_map(|policy| self.policies.get(policy));
        let mut images = policies.filter_map(|policy| match &policy.spec.desired {
            DesiredUpdate::Latest => None,
            DesiredUpdate::Target(target) => target.os,
        });
        objects
            .for_project()
            .or_else(|| objects.profile_of(facts))
            .or_else(|| assigned.iter().find_map(|policy| objects.policy(*policy)))
            .or_else(|| images.find_map(|os| objects.profile(os)))
            .or_else(|| chain.schedule_targets().find_map(|target| objects.schedule(target)))
    }

    /// The schedules of a host, site or region.
    pub fn schedules(&self, target: ScheduleTarget) -> Option<&ScheduleSet> {
        self.schedules.get(&target)
    }

    /// The pauses of a node at a site with these policies: first that of the project, then that of
    /// the site.
    pub fn pauses(
        &self,
        site: Option<SiteId>,
        policies: impl Iterator<Item = PolicyId>,
    ) -> Vec<Pause> {
        let mut scopes = BTreeSet::from([PauseScope::Project]);
        scopes.extend(site.map(PauseScope::Site));
        scopes.extend(policies.map(PauseScope::Policy));
        let pauses = scopes.iter().filter_map(|scope| self.pauses.get(scope));
        pauses.cloned().collect()
    }
}

impl LocationRow {
    fn region_id(&self) -> Option<RegionId> {
        self.region.map(|region| RegionId::from_bits(region.cast_unsigned()))
    }
}

/// The distinct ids, as the database stores them.
fn distinct_ids(ids: impl Iterator<Item = u32>) -> Vec<i32> {
    let ids: BTreeSet<i32> = ids.map(u32::cast_signed).collect();
    ids.into_iter().collect()
}

/// Pairs items with their lookup keys.
fn keyed_by<K: Eq + Hash, T>(things: Vec<T>, key: fn(&T) -> K) -> impl Iterator<Item = (K, T)> {
    things.into_iter().map(move |thing| (key(&thing), thing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::node_inputs::NODE_INPUTS_SQL;

    #[test]
    fn kinds_that_are_unknown_are_before_between_and_after_the_known_ones() {
        let expected = "t.kind < 'policy' OR (t.kind > 'policy' AND t.kind < 'project') \
                        OR (t.kind > 'project' AND t.kind < 'site') OR t.kind > 'site'";
        assert_eq!(unknown_kinds_sql("t.kind", &["project", "site", "policy"]), expected);
    }

    /// With two statements, a schedule that is moved from a site to a host between them would be at
    /// neither, and the server would withdraw an attempt that is still desired.
    #[test]
    fn project_inputs_are_read_in_one_statement() {
        for table in
            ["assignments", "update_policies", "single_schedules", "repeated_schedules", "pauses"]
        {
            assert!(PROJECT_INPUTS_SQL.contains(table), "{table}");
            assert!(!NODE_INPUTS_SQL.contains(table), "{table}");
        }
    }
}
