//! Fixtures that the tests share.

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Scope, UpdateLimits};
use evenkeel_domain::decide::AgentProtocol;
use evenkeel_domain::filter::{self, Filter, Resource};
use evenkeel_domain::host::{Host, Registration};
use evenkeel_domain::id::{InstanceId, PolicyId, RegionId, SiteId};
use evenkeel_domain::instance::{Instance, InstanceKind, NewInstance};
use evenkeel_domain::location::{Metadata, Region, RegionSpec, Site, SiteSpec};
use evenkeel_domain::os::{OsRelease, OsSpec, SecurityFeature};
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec, UpdatePolicy};
use evenkeel_domain::run::{AttemptId, Origin, RunEvent, RunEventRecord};
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget, SingleSpec};
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_domain::text::Name;
use evenkeel_store::contacts::Contact;
use evenkeel_store::decisions::{self, DecisionInput, PlanningLimits, ReadMode};
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::nodes::{self, MachineKey};
use evenkeel_store::runs::{RunOpening, Subject};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{
    Store, Tx, assignments, hosts, instances, os_profiles, policies, projects, regions, sites,
};
use uuid::Uuid;

pub const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

pub async fn create_project(store: &Store, name: &str) -> TenantId {
    let tx = store.fleet().await.expect("a transaction");
    let name = ProjectName::parse("name", name).expect("a name");
    let project = projects::create(&tx, &name, "", NOON).await.expect("a project");
    tx.commit().await.expect("committed");
    project.id
}

/// A store on a database of its own, and its project `ours`.
pub async fn store_with_project() -> (Store, TenantId) {
    let store = fresh_store().await;
    let ours = create_project(&store, "ours").await;
    (store, ours)
}

/// A store with the projects `ours` and `theirs`.
pub async fn store_with_two_projects() -> (Store, TenantId, TenantId) {
    let (store, ours) = store_with_project().await;
    let theirs = create_project(&store, "theirs").await;
    (store, ours, theirs)
}

pub fn registration(n: u128) -> Registration {
    let uuid = Uuid::from_u128(n).to_string();
    Registration::parse("edge", &uuid, "", true).expect("a registration")
}

pub fn bookworm() -> OsSpec {
    let release = OsRelease {
        id: "debian".into(),
        version_id: "12".into(),
        pretty_name: "Debian GNU/Linux 12 (bookworm)".into(),
        codename: "bookworm".into(),
    };
    OsSpec::from_release(&release, "amd64").expect("a profile")
}

pub async fn create_node(store: &Store, tenant: TenantId, n: u128) -> (Host, Instance) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(n), NOON).await.expect("a host");
    let os = os_profiles::find_or_create(&tx, &bookworm(), NOON).await.expect("an os");
    let new = NewInstance {
        host: host.id,
        os: os.id,
        name: Name::default(),
        kind: InstanceKind::Metal,
        security_feature: SecurityFeature::None,
        policy: None,
        local_account: None,
        custom_configs: Vec::new(),
    };
    let instance = instances::create(&tx, &new, NOON).await.expect("an instance");
    tx.commit().await.expect("committed");
    (host, instance)
}

/// Creates a policy that desires the latest version of everything.
pub async fn create_latest_policy(store: &Store, tenant: TenantId) -> UpdatePolicy {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = PolicySpec::parse("all", "", DesiredUpdate::Latest).expect("a policy");
    let policy = policies::create(&tx, &spec, NOON).await.expect("created");
    tx.commit().await.expect("committed");
    policy
}

pub async fn assign(
    store: &Store,
    tenant: TenantId,
    scope: Scope,
    policy: PolicyId,
    limits: (Option<u32>, Option<u32>),
) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let limits = UpdateLimits::parse(limits.0, limits.1).expect("limits");
    assignments::set(&tx, scope, policy, limits, NOON).await.expect("assigned");
    tx.commit().await.expect("committed");
}

/// A window for a host, a site or a region.
pub fn window(target: ScheduleTarget, from_hours: i64, to_hours: i64) -> SingleSpec {
    SingleSpec {
        name: Name::default(),
        status: ScheduleStatus::OsUpdate,
        start: NOON + TimeDelta::hours(from_hours),
        end: Some(NOON + TimeDelta::hours(to_hours)),
        target: Some(target),
    }
}

/// Creates a region, inside `parent` if it is given.
pub async fn create_region(
    store: &Store,
    tenant: TenantId,
    name: &str,
    parent: Option<RegionId>,
) -> Region {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = RegionSpec {
        name: Name::parse("name", name).expect("a name"),
        parent,
        metadata: Metadata::default(),
    };
    let region = regions::create(&tx, &spec, NOON).await.expect("a region");
    tx.commit().await.expect("committed");
    region
}

pub async fn create_site(store: &Store, tenant: TenantId, region: Option<RegionId>) -> Site {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = SiteSpec { region, ..SiteSpec::default() };
    let site = sites::create(&tx, &spec, NOON).await.expect("a site");
    tx.commit().await.expect("committed");
    site
}

pub fn site_change(site: Option<SiteId>) -> hosts::HostChange {
    hosts::HostChange { site: Some(site), ..hosts::HostChange::default() }
}

pub async fn move_to_site(store: &Store, tenant: TenantId, host: &Host, site: SiteId) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    hosts::change(&tx, host.id, &site_change(Some(site)), NOON).await.expect("moved");
    tx.commit().await.expect("committed");
}

/// Saves a node as one with our agent.
pub async fn save_as_own_agent(store: &Store, tenant: TenantId, host: &Host) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.provisioned = true;
    node.protocol = AgentProtocol::Own { modules: vec!["packages".into()] };
    nodes::save(&tx, &node).await.expect("saved");
    tx.commit().await.expect("committed");
}

/// A contact of a node that has no due time.
pub fn contact(tenant: TenantId, instance: InstanceId, at: Time) -> Contact {
    Contact { tenant, instance, at, due: None }
}

pub async fn read_decision_input(tx: &Tx, host: &Host, reading: ReadMode) -> DecisionInput {
    let (host, node) = nodes::find_with_host(tx, MachineKey::Host(host.id)).await.expect("a node");
    decisions::load_decision_input(tx, &host, &node, &PlanningLimits::default(), reading)
        .await
        .expect("a decision input")
}

/// Runs SQL with the scope of the fleet, bypassing the functions of the store.
pub async fn execute_sql(store: &Store, sql: &str) {
    let statement = format!("BEGIN; SET LOCAL evenkeel.tenant = '*'; {sql}; COMMIT");
    store.execute_unprepared(&statement).await.expect("executed");
}

/// A list with a filter and an order in the filter language; an empty text means none.
pub fn parse_listing(resource: Resource, filter: &str, order: &str) -> Listing {
    let read = |text: &str| -> Filter { filter::parse_filter(resource, text).expect(text) };
    Listing {
        resource,
        filter: (!filter.is_empty()).then(|| read(filter)),
        within: None,
        order: filter::parse_order(resource, order).expect(order),
    }
}

/// Number of matching resources.
pub async fn count(tx: &Tx, resource: Resource, filter: &str) -> u64 {
    let listing = parse_listing(resource, filter, "");
    listing::count(tx, &listing).await.expect("a number")
}

pub fn new_attempt(instance: &Instance, n: u128) -> Subject {
    Subject::New(Box::new(RunOpening {
        instance: instance.id,
        name: "edge update".into(),
        description: "OS update".into(),
        attempt: Some(AttemptId(Uuid::from_u128(n))),
        origin: Origin { target: None, policy: None, order: None },
        follows: None,
        assignment: None,
    }))
}

pub fn numbered_record(event: RunEvent, number: u32) -> RunEventRecord {
    RunEventRecord { sequence: Some(number), ..RunEventRecord::from_event(event) }
}

/// Removes everything that belongs to deleted projects, as housekeeping does.
pub async fn remove_deleted_projects(store: &Store, batch_size: u32) -> u64 {
    let mut batches = 0;
    loop {
        let tx = store.fleet().await.expect("a transaction");
        let removed = projects::remove_batch(&tx, batch_size).await.expect("removed");
        tx.commit().await.expect("committed");
        if removed == 0 {
            return batches;
        }
        batches += 1;
    }
}
