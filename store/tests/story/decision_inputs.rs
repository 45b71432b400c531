//! The decision input of a node is the same in a batch and alone.

use std::sync::atomic::Ordering;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Scope, UpdateLimits};
use evenkeel_domain::decide::AgentProtocol;
use evenkeel_domain::host::{Host, InvalidationNote};
use evenkeel_domain::id::{HostId, OsId};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::location::Site;
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::os::{OsKind, OsProfile, OsSpec};
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec, TargetUpdate};
use evenkeel_domain::run::{RunEvent, RunTimeouts};
use evenkeel_domain::schedule::{Cron, RepeatedSpec, ScheduleStatus, ScheduleTarget, Zone};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::decisions::{
    DecisionInput, DecisionSubject, PlanningLimits, ReadMode, load_decision_inputs,
};
use evenkeel_store::nodes::{self, MachineKey, NodeState};
use evenkeel_store::schedules::{self, repeated};
use evenkeel_store::testing::fill::{self, ProjectSize};
use evenkeel_store::testing::{audited_tables, counting_store, fresh_store, scan_counts};
use evenkeel_store::{
    Store, StoreError, Tx, assignments, hosts, instances, limit_usage, orders, os_profiles, pauses,
    policies, runs,
};

use crate::fixtures::{
    NOON, assign, bookworm, create_latest_policy, create_node, create_project, create_region,
    create_site, move_to_site, new_attempt, numbered_record, read_decision_input,
    save_as_own_agent, store_with_project, window,
};

/// Hosts with their stored node states.
pub async fn read_nodes(
    tx: &Tx,
    hosts: impl IntoIterator<Item = HostId>,
) -> Vec<(Host, NodeState)> {
    let mut loaded = Vec::new();
    for host in hosts {
        let one = nodes::find_with_host(tx, MachineKey::Host(host)).await;
        loaded.push(one.expect("a node"));
    }
    loaded
}

pub fn subjects(nodes: &[(Host, NodeState)]) -> Vec<DecisionSubject<'_>> {
    let nodes = nodes.iter().map(|(host, node)| DecisionSubject::from_node(host, node));
    nodes.collect()
}

/// Decision inputs of the subjects at an instant.
pub async fn load_inputs(
    tx: &Tx,
    subjects: &[DecisionSubject<'_>],
    now: Time,
) -> Vec<DecisionInput> {
    let read = load_decision_inputs(tx, subjects, &PlanningLimits::default(), now).await;
    let read = read.expect("decision inputs").into_iter();
    read.map(|input| input.expect("a decision input")).collect()
}

/// Eight nodes. The first two are at the first site, the next two at the second, the fifth at the
/// third, and the sixth has no site; the last two are at the first and the second site.
pub struct Fleet {
    pub tenant: TenantId,
    pub nodes: Vec<(Host, Instance)>,
    pub sites: [Site; 3],
    images: [OsProfile; 2],
}

impl Fleet {
    /// Creates the fleet with something of everything.
    pub async fn create_seeded(store: &Store) -> Self {
        let fleet = Self::new(store).await;
        create_assignments(store, &fleet).await;
        create_schedules(store, &fleet).await;
        create_node_states(store, &fleet).await;
        create_pauses_and_orders(store, &fleet).await;
        fleet
    }

    async fn new(store: &Store) -> Self {
        let tenant = create_project(store, "ours").await;
        let outer = create_region(store, tenant, "outer", None).await;
        let inner = create_region(store, tenant, "inner", Some(outer.id)).await;
        let sites = [
            create_site(store, tenant, Some(inner.id)).await,
            create_site(store, tenant, Some(outer.id)).await,
            create_site(store, tenant, None).await,
        ];
        let site_indexes = [Some(0), Some(0), Some(1), Some(1), Some(2), None, Some(0), Some(1)];
        let mut nodes = Vec::new();
        for (n, site_index) in (1..).zip(site_indexes) {
            let (host, instance) = create_node(store, tenant, n).await;
            if let Some(site_index) = site_index {
                let there: &Site = &sites[site_index];
                move_to_site(store, tenant, &host, there.id).await;
            }
            nodes.push((host, instance));
        }
        let images = create_images(store, tenant).await;
        Self { tenant, nodes, sites, images }
    }

    pub fn hosts(&self) -> impl DoubleEndedIterator<Item = HostId> {
        self.nodes.iter().map(|(host, _)| host.id)
    }

    pub async fn tx(&self, store: &Store) -> Tx {
        store.tenant(self.tenant).await.expect("a transaction")
    }
}

/// Creates two images of a series.
async fn create_images(store: &Store, tenant: TenantId) -> [OsProfile; 2] {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let image = async |version: &str| {
        let spec = OsSpec {
            kind: OsKind::Immutable,
            name: format!("Edge {version}"),
            profile_name: "edge".into(),
            image_id: version.into(),
            ..bookworm()
        };
        let created = os_profiles::create(&tx, &spec, NOON).await;
        created.expect("an image")
    };
    let created = [image("1").await, image("2").await];
    tx.commit().await.expect("committed");
    created
}

/// Assigns policies at every level, some with limits, and one that installs an image.
async fn create_assignments(store: &Store, fleet: &Fleet) {
    let tx = fleet.tx(store).await;
    let desired = DesiredUpdate::Target(TargetUpdate {
        os: Some(fleet.images[1].id),
        ..TargetUpdate::default()
    });
    let image_spec = PolicySpec::parse("image", "", desired).expect("a policy");
    let image_policy = policies::create(&tx, &image_spec, NOON).await.expect("created");
    let far = PolicySpec {
        offline_days: 30,
        ..PolicySpec::parse("far", "", DesiredUpdate::Latest).expect("a policy")
    };
    let far = policies::create(&tx, &far, NOON).await.expect("created");
    tx.commit().await.expect("committed");
    let usual = create_latest_policy(store, fleet.tenant).await;
    let region = fleet.sites[0].spec.region.expect("a region");
    let unlimited = (None, None);
    for (scope, policy, limits) in [
        (Scope::Project, usual.id, (Some(2), Some(5))),
        (Scope::Region(region), far.id, unlimited),
        (Scope::Site(fleet.sites[1].id), usual.id, (Some(1), None)),
        (Scope::Host(fleet.nodes[4].0.id), far.id, (None, Some(1))),
        (Scope::Instance(fleet.nodes[0].1.id), image_policy.id, unlimited),
        (Scope::Instance(fleet.nodes[6].1.id), image_policy.id, unlimited),
    ] {
        assign(store, fleet.tenant, scope, policy, limits).await;
    }
    let tx = fleet.tx(store).await;
    let (soon, past) = (NOON + TimeDelta::hours(1), NOON - TimeDelta::hours(1));
    for (scope, n, until) in [
        (Scope::Project, 5, None),
        (Scope::Project, 0, Some(past)),
        (Scope::Site(fleet.sites[1].id), 2, Some(soon)),
    ] {
        let instance = fleet.nodes[n].1.id;
        let taken =
            limit_usage::take_slot(&tx, scope, instance, until, NOON - TimeDelta::hours(2)).await;
        taken.expect("slot taken");
    }
    tx.commit().await.expect("committed");
}

/// Creates schedules of both kinds for hosts, sites and regions, and one that opens no windows.
async fn create_schedules(store: &Store, fleet: &Fleet) {
    let tx = fleet.tx(store).await;
    let region = fleet.sites[0].spec.region.expect("a region");
    let outer = fleet.sites[1].spec.region.expect("a region");
    for (target, from, to) in [
        (ScheduleTarget::Host(fleet.nodes[0].0.id), -1, 1),
        (ScheduleTarget::Host(fleet.nodes[5].0.id), 1, 2),
        (ScheduleTarget::Host(fleet.nodes[1].0.id), -3, -2),
        (ScheduleTarget::Site(fleet.sites[0].id), 10, 11),
        (ScheduleTarget::Region(outer), -1, 2),
        (ScheduleTarget::Region(region), 20, 22),
    ] {
        let created = schedules::create(&tx, &window(target, from, to), NOON).await;
        created.expect("scheduled");
    }
    let nightly = |target, hour: &str, status| RepeatedSpec {
        name: Name::default(),
        status,
        duration: TimeDelta::hours(2),
        cron: Cron::parse("30", hour, "*", "*", "*").expect("a cron"),
        zone: Zone::parse("Europe/Berlin").expect("a zone"),
        target: Some(target),
    };
    let (opens, not) = (ScheduleStatus::OsUpdate, ScheduleStatus::Maintenance);
    for (target, hour, status) in [
        (ScheduleTarget::Site(fleet.sites[1].id), "1", opens),
        (ScheduleTarget::Region(region), "2", opens),
        (ScheduleTarget::Host(fleet.nodes[4].0.id), "3", opens),
        (ScheduleTarget::Region(outer), "4", opens),
        (ScheduleTarget::Site(fleet.sites[2].id), "5", not),
    ] {
        let created = repeated::create(&tx, &nightly(target, hour, status), NOON).await;
        created.expect("scheduled");
    }
    tx.commit().await.expect("committed");
}

/// Sets the protocols of the nodes and records some runs.
async fn create_node_states(store: &Store, fleet: &Fleet) {
    for n in [0, 1, 4, 7] {
        save_as_own_agent(store, fleet.tenant, &fleet.nodes[n].0).await;
    }
    let hour = TimeDelta::hours(1);
    for n in [2, 3, 5] {
        let tx = fleet.tx(store).await;
        let mut node = nodes::lock(&tx, fleet.nodes[n].0.id).await.expect("locked");
        node.provisioned = true;
        node.protocol = AgentProtocol::Eim;
        // The node missed a window.
        node.delivered.single = Some((NOON - hour * 3, NOON - hour * 2));
        nodes::save(&tx, &node).await.expect("saved");
        tx.commit().await.expect("committed");
    }
    let tx = fleet.tx(store).await;
    let mut node = nodes::lock(&tx, fleet.nodes[6].0.id).await.expect("locked");
    node.provisioned = true;
    node.os = fleet.images[0].id;
    nodes::save(&tx, &node).await.expect("saved");
    for (n, event) in [(1, RunEvent::Downloaded), (3, RunEvent::Began)] {
        let subject = new_attempt(&fleet.nodes[n].1, 7);
        let event = numbered_record(event, 1);
        let opened = runs::advance(&tx, subject, &event, &RunTimeouts::default(), NOON).await;
        opened.expect("opened");
    }
    instances::invalidate(&tx, fleet.nodes[3].1.id, NOON).await.expect("invalidated");
    let running = Status::new("Running", Indication::Idle, NOON);
    let stolen = fleet.nodes[7].0.id;
    hosts::set_status(&tx, stolen, &running).await.expect("status set");
    hosts::invalidate(&tx, stolen, &InvalidationNote::default(), NOON).await.expect("invalidated");
    tx.commit().await.expect("committed");
}

async fn create_pauses_and_orders(store: &Store, fleet: &Fleet) {
    let tx = fleet.tx(store).await;
    let project = assignments::find(&tx, Scope::Project, NOON).await;
    let policy = project.expect("assigned").policy;
    for scope in [PauseScope::Site(fleet.sites[1].id), PauseScope::Policy(policy)] {
        let pause = Pause { scope, reason: "inventory".into(), by: "alice".into(), at: NOON };
        pauses::set(&tx, &pause).await.expect("paused");
    }
    for (n, kind) in [(0, OrderKind::Now), (5, OrderKind::Cancel)] {
        let order = Order {
            kind,
            at: NOON,
            until: NOON + TimeDelta::hours(1),
            reason: String::new(),
            by: "alice".into(),
        };
        let ordered = orders::set(&tx, &[fleet.nodes[n].1.id], &order).await;
        assert_eq!(ordered.expect("ordered").len(), 1);
    }
    tx.commit().await.expect("committed");
}

/// Fails unless the inputs differ as the fleet was created; otherwise their equality proves
/// nothing.
fn assert_expected_inputs(fleet: &Fleet, inputs: &[DecisionInput]) {
    let trusted: Vec<_> = inputs.iter().map(|input| input.facts.trusted).collect();
    assert_eq!(trusted, [true, true, true, false, true, true, true, false]);
    let scopes = inputs.iter().map(|input| {
        let applies = input.applicable_policy().expect("an applicable policy");
        applies.scope
    });
    let region = fleet.sites[0].spec.region.expect("a region");
    let second = Scope::Site(fleet.sites[1].id);
    let expected = [
        // The nearest policy installs an image, and the instance is updated by packages.
        Scope::Region(region),
        Scope::Region(region),
        second,
        second,
        Scope::Host(fleet.nodes[4].0.id),
        Scope::Project,
        Scope::Instance(fleet.nodes[6].1.id),
        second,
    ];
    assert_eq!(scopes.collect::<Vec<_>>(), expected);
    let usage = |n: usize| {
        let applies = inputs[n].applicable_policy().expect("an applicable policy");
        (applies.usage.held_by_others, applies.usage.holds_slot)
    };
    assert_eq!([usage(2), usage(3), usage(5)], [(0, true), (1, false), (0, true)]);
    let count =
        |counted: fn(&DecisionInput) -> usize| inputs.iter().map(counted).collect::<Vec<_>>();
    let images = count(|input| input.desired.images.len());
    assert_eq!(images, [0, 0, 0, 0, 0, 0, 2, 0]);
    let pauses = count(|input| input.desired.pauses.len());
    assert_eq!(pauses, [1, 1, 2, 2, 1, 1, 1, 2]);
    let repeated = count(|input| input.desired.repeated_schedules.len());
    assert_eq!(repeated, [2, 2, 2, 2, 1, 0, 2, 2]);
    let open = count(|input| input.run.iter().count());
    assert_eq!(open, [0, 1, 0, 1, 0, 0, 0, 0]);
    let orders = count(|input| input.desired.order.iter().count());
    assert_eq!(orders, [1, 0, 0, 0, 0, 1, 0, 0]);
    let windows = count(|input| input.desired.windows.as_slice().len().min(1));
    assert_eq!(windows, [1, 1, 1, 1, 1, 1, 1, 1]);
}

#[tokio::test]
async fn a_batch_reads_each_node_as_alone() {
    let store = fresh_store().await;
    let fleet = Fleet::create_seeded(&store).await;
    let tx = fleet.tx(&store).await;
    let read_back = read_nodes(&tx, fleet.hosts()).await;
    let together = load_inputs(&tx, &subjects(&read_back), NOON).await;
    assert_expected_inputs(&fleet, &together);
    assert_eq!(together.len(), fleet.nodes.len());
    for ((host, _), among) in fleet.nodes.iter().zip(&together) {
        let alone = read_decision_input(&tx, host, ReadMode::Preview(NOON)).await;
        assert_eq!(*among, alone, "{}", host.id);
    }
    // In another order, with one node twice.
    let hosts = fleet.hosts().rev().chain(fleet.hosts().take(1));
    let read_back = read_nodes(&tx, hosts).await;
    let again = load_inputs(&tx, &subjects(&read_back), NOON).await;
    let expected: Vec<_> = together.iter().rev().chain(&together[..1]).collect();
    assert_eq!(again.iter().collect::<Vec<_>>(), expected);
}

/// Regardless of how many nodes there are and which resources they have.
#[tokio::test]
async fn a_batch_takes_as_many_statements_as_one_node() {
    let (store, tenant) = store_with_project().await;
    let size = ProjectSize { hosts: 200, sites: 20 };
    let filled = fill::seed_project(&store, tenant, size, NOON).await;
    let filled = filled.expect("a project");
    let tx = store.tenant(tenant).await.expect("a transaction");
    let night = window(ScheduleTarget::Host(filled.hosts[7]), 1, 2);
    schedules::create(&tx, &night, NOON).await.expect("scheduled");
    tx.commit().await.expect("committed");

    let (counted, sent) = counting_store(&store);
    for (limit, cost) in [(None, 2), (Some(3), 3)] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let limits = UpdateLimits::parse(limit, None).expect("limits");
        assignments::set_limits(&tx, Scope::Project, limits).await.expect("limited");
        tx.commit().await.expect("committed");
        let tx = counted.tenant(tenant).await.expect("a transaction");
        let read_back = read_nodes(&tx, filled.hosts.iter().copied()).await;
        let all = subjects(&read_back);
        for subjects in [&all[..1], &all[..]] {
            let before = sent.statements.load(Ordering::Relaxed);
            let inputs = load_inputs(&tx, subjects, NOON).await;
            let after = sent.statements.load(Ordering::Relaxed);
            assert_eq!((inputs.len(), after - before), (subjects.len(), cost));
        }
    }
}

#[tokio::test]
async fn an_empty_batch_sends_no_statement() {
    let (store, tenant) = store_with_project().await;
    let (counted, sent) = counting_store(&store);
    let tx = counted.tenant(tenant).await.expect("a transaction");
    let before = sent.statements.load(Ordering::Relaxed);
    assert_eq!(load_inputs(&tx, &[], NOON).await, []);
    assert_eq!(sent.statements.load(Ordering::Relaxed), before);
}

#[tokio::test]
async fn a_node_with_an_unknown_operating_system_has_no_decision_input() {
    let (store, tenant) = store_with_project().await;
    let (host, _) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut read_back = read_nodes(&tx, [host.id]).await;
    read_back[0].1.os = OsId::nth(99);
    let subjects = subjects(&read_back);
    let refused = load_decision_inputs(&tx, &subjects, &PlanningLimits::default(), NOON).await;
    let refused = refused.expect("read").pop();
    assert!(matches!(refused, Some(Err(StoreError::NotFound { .. }))), "{refused:?}");
}

/// Answers are cached until the change log reports a change. A table that is read but not logged
/// would leave stale answers.
#[tokio::test]
async fn every_table_read_by_decisions_is_in_the_change_log() {
    let store = fresh_store().await;
    let fleet = Fleet::create_seeded(&store).await;
    let tx = fleet.tx(&store).await;
    let before = scan_counts(&tx).await;
    let machines: Vec<MachineKey> = fleet.hosts().map(MachineKey::Host).collect();
    let briefs = nodes::load_briefs(&tx, &machines).await.expect("briefs");
    assert_eq!(briefs.len(), fleet.nodes.len());
    let read_back = read_nodes(&tx, fleet.hosts()).await;
    assert_expected_inputs(&fleet, &load_inputs(&tx, &subjects(&read_back), NOON).await);

    let mut after = scan_counts(&tx).await;
    after.retain(|table, count| before.get(table).is_none_or(|before| before < count));
    let audited = audited_tables(&tx).await;
    let unlogged: Vec<_> = after.keys().filter(|one| !audited.contains(*one)).collect();
    assert_eq!(unlogged, Vec::<&String>::new());
    for table in ["node_states", "regions", "update_policies", "update_slots"] {
        assert!(after.contains_key(table), "{table} was not read: {after:?}");
    }
    assert_eq!(after.len(), 16, "{after:?}");
}
