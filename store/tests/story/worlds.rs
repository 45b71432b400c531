//! What decisions are made from is the same for a node among many others and for it alone.

use std::sync::atomic::Ordering;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Limits, Scope};
use evenkeel_domain::decide::Protocol;
use evenkeel_domain::host::{Host, Note};
use evenkeel_domain::id::{HostId, OsId};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::os::{OsKind, OsProfile, OsSpec};
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::place::Site;
use evenkeel_domain::policy::{PolicySpec, TargetWish, Wish};
use evenkeel_domain::run::{Patience, RunEvent};
use evenkeel_domain::schedule::{Cron, RepeatedSpec, ScheduleStatus, ScheduleTarget, Zone};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::decisions::{About, Horizon, Reading, World, worlds};
use evenkeel_store::nodes::{self, Machine, NodeState};
use evenkeel_store::schedules::{self, repeated};
use evenkeel_store::testing::fill::{self, Size};
use evenkeel_store::testing::{counting, fresh_store, reads, recorded};
use evenkeel_store::{
    Store, StoreError, Tx, assignments, brake, hosts, instances, orders, os_profiles, pauses,
    policies, runs,
};

use crate::house::{
    NOON, assign, attempt, bookworm, latest, node, numbered, project, region, site, spoke,
    stands_at, window, world,
};

/// Hosts with what is known of their nodes.
pub async fn read(tx: &Tx, of: impl IntoIterator<Item = HostId>) -> Vec<(Host, NodeState)> {
    let mut found = Vec::new();
    for host in of {
        let one = nodes::read(tx, Machine::Host(host)).await;
        found.push(one.expect("a node"));
    }
    found
}

/// Whom it is about.
pub fn about(of: &[(Host, NodeState)]) -> Vec<About<'_>> {
    let of = of.iter().map(|(host, node)| About::node(host, node));
    of.collect()
}

/// What is seen of them at an instant.
pub async fn seen(tx: &Tx, of: &[About<'_>], now: Time) -> Vec<World> {
    let read = worlds(tx, of, &Horizon::default(), now).await;
    let read = read.expect("worlds").into_iter();
    read.map(|world| world.expect("a world")).collect()
}

/// Eight nodes. The first two stand at the first site, the next two at the second, the fifth at the third, and the sixth
/// nowhere; the last two stand as the first and the third do.
pub struct Fleet {
    pub tenant: TenantId,
    pub nodes: Vec<(Host, Instance)>,
    pub sites: [Site; 3],
    images: [OsProfile; 2],
}

impl Fleet {
    /// One with something of everything.
    pub async fn furnished(store: &Store) -> Self {
        let fleet = Self::new(store).await;
        assignments(store, &fleet).await;
        schedules(store, &fleet).await;
        news(store, &fleet).await;
        wishes(store, &fleet).await;
        fleet
    }

    async fn new(store: &Store) -> Self {
        let tenant = project(store, "ours").await;
        let outer = region(store, tenant, "outer", None).await;
        let inner = region(store, tenant, "inner", Some(outer.id)).await;
        let sites = [
            site(store, tenant, Some(inner.id)).await,
            site(store, tenant, Some(outer.id)).await,
            site(store, tenant, None).await,
        ];
        let places = [
            Some(0),
            Some(0),
            Some(1),
            Some(1),
            Some(2),
            None,
            Some(0),
            Some(1),
        ];
        let mut nodes = Vec::new();
        for (n, place) in (1..).zip(places) {
            let (host, instance) = node(store, tenant, n).await;
            if let Some(place) = place {
                let there: &Site = &sites[place];
                stands_at(store, tenant, &host, there.id).await;
            }
            nodes.push((host, instance));
        }
        let images = images(store, tenant).await;
        Self {
            tenant,
            nodes,
            sites,
            images,
        }
    }

    pub fn hosts(&self) -> impl DoubleEndedIterator<Item = HostId> {
        self.nodes.iter().map(|(host, _)| host.id)
    }

    pub async fn tx(&self, store: &Store) -> Tx {
        store.tenant(self.tenant).await.expect("a transaction")
    }
}

/// Two images of a line.
async fn images(store: &Store, tenant: TenantId) -> [OsProfile; 2] {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let image = async |version: &str| {
        let spec = OsSpec {
            kind: OsKind::Immutable,
            name: format!("Edge {version}"),
            profile_name: "edge".into(),
            image_id: version.into(),
            ..bookworm()
        };
        let made = os_profiles::create(&tx, &spec, NOON).await;
        made.expect("an image")
    };
    let made = [image("1").await, image("2").await];
    tx.commit().await.expect("committed");
    made
}

/// Policies at every level, some of them with limits, and one that wishes for an image.
async fn assignments(store: &Store, fleet: &Fleet) {
    let tx = fleet.tx(store).await;
    let wish = Wish::Target(TargetWish {
        os: Some(fleet.images[1].id),
        ..TargetWish::default()
    });
    let wish = PolicySpec::parse("image", "", wish).expect("a policy");
    let wish = policies::create(&tx, &wish, NOON).await.expect("created");
    let far = PolicySpec {
        offline_days: 30,
        ..PolicySpec::parse("far", "", Wish::Latest).expect("a policy")
    };
    let far = policies::create(&tx, &far, NOON).await.expect("created");
    tx.commit().await.expect("committed");
    let usual = latest(store, fleet.tenant).await;
    let region = fleet.sites[0].spec.region.expect("a region");
    let unlimited = (None, None);
    for (scope, policy, limits) in [
        (Scope::Project, usual.id, (Some(2), Some(5))),
        (Scope::Region(region), far.id, unlimited),
        (Scope::Site(fleet.sites[1].id), usual.id, (Some(1), None)),
        (Scope::Host(fleet.nodes[4].0.id), far.id, (None, Some(1))),
        (Scope::Instance(fleet.nodes[0].1.id), wish.id, unlimited),
        (Scope::Instance(fleet.nodes[6].1.id), wish.id, unlimited),
    ] {
        assign(store, fleet.tenant, scope, policy, limits).await;
    }
    let tx = fleet.tx(store).await;
    let (soon, over) = (NOON + TimeDelta::hours(1), NOON - TimeDelta::hours(1));
    for (scope, n, until) in [
        (Scope::Project, 5, None),
        (Scope::Project, 0, Some(over)),
        (Scope::Site(fleet.sites[1].id), 2, Some(soon)),
    ] {
        let instance = fleet.nodes[n].1.id;
        let held = brake::hold(&tx, scope, instance, until, NOON - TimeDelta::hours(2)).await;
        held.expect("held");
    }
    tx.commit().await.expect("committed");
}

/// Schedules of both kinds for hosts, sites and regions, and one that opens no windows.
async fn schedules(store: &Store, fleet: &Fleet) {
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
        let made = schedules::create(&tx, &window(target, from, to), NOON).await;
        made.expect("scheduled");
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
        let made = repeated::create(&tx, &nightly(target, hour, status), NOON).await;
        made.expect("scheduled");
    }
    tx.commit().await.expect("committed");
}

/// How the nodes speak, and what happened to them.
async fn news(store: &Store, fleet: &Fleet) {
    for n in [0, 1, 4, 7] {
        spoke(store, fleet.tenant, &fleet.nodes[n].0).await;
    }
    let hour = TimeDelta::hours(1);
    for n in [2, 3, 5] {
        let tx = fleet.tx(store).await;
        let mut node = nodes::lock(&tx, fleet.nodes[n].0.id).await.expect("locked");
        node.provisioned = true;
        node.protocol = Protocol::Eim;
        // It let a window pass.
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
        let subject = attempt(&fleet.nodes[n].1, 7);
        let event = numbered(event, 1);
        let opened = runs::advance(&tx, subject, &event, &Patience::default(), NOON).await;
        opened.expect("opened");
    }
    instances::invalidate(&tx, fleet.nodes[3].1.id, NOON)
        .await
        .expect("invalidated");
    let running = Status::new("Running", Indication::Idle, NOON);
    let stolen = fleet.nodes[7].0.id;
    hosts::set_status(&tx, stolen, &running)
        .await
        .expect("it runs");
    hosts::invalidate(&tx, stolen, &Note::default(), NOON)
        .await
        .expect("invalidated");
    tx.commit().await.expect("committed");
}

/// What people want besides the plan.
async fn wishes(store: &Store, fleet: &Fleet) {
    let tx = fleet.tx(store).await;
    let project = assignments::find(&tx, Scope::Project, NOON).await;
    let policy = project.expect("it is assigned").policy;
    for scope in [
        PauseScope::Site(fleet.sites[1].id),
        PauseScope::Policy(policy),
    ] {
        let pause = Pause {
            scope,
            reason: "inventory".into(),
            by: "alice".into(),
            at: NOON,
        };
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

/// Else it would be no news that all agree.
fn is_as_told(fleet: &Fleet, worlds: &[World]) {
    let trusted: Vec<_> = worlds.iter().map(|world| world.known.trusted).collect();
    assert_eq!(trusted, [true, true, true, false, true, true, true, false]);
    let scopes = worlds.iter().map(|world| {
        let applies = world.applies().expect("something applies");
        applies.scope
    });
    let region = fleet.sites[0].spec.region.expect("a region");
    let second = Scope::Site(fleet.sites[1].id);
    let expected = [
        // Its own policy wishes for an image, which it does not run.
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
    let held = |n: usize| {
        let applies = worlds[n].applies().expect("something applies");
        (applies.brake.held, applies.brake.mine)
    };
    assert_eq!(
        [held(2), held(3), held(5)],
        [(0, true), (1, false), (0, true)]
    );
    let count = |counted: fn(&World) -> usize| worlds.iter().map(counted).collect::<Vec<_>>();
    let images = count(|world| world.wanted.images.len());
    assert_eq!(images, [0, 0, 0, 0, 0, 0, 2, 0]);
    let pauses = count(|world| world.wanted.pauses.len());
    assert_eq!(pauses, [1, 1, 2, 2, 1, 1, 1, 2]);
    let repeated = count(|world| world.wanted.repeated.len());
    assert_eq!(repeated, [2, 2, 2, 2, 1, 0, 2, 2]);
    let open = count(|world| world.run.iter().count());
    assert_eq!(open, [0, 1, 0, 1, 0, 0, 0, 0]);
    let orders = count(|world| world.wanted.order.iter().count());
    assert_eq!(orders, [1, 0, 0, 0, 0, 1, 0, 0]);
    let windows = count(|world| world.wanted.windows.as_slice().len().min(1));
    assert_eq!(windows, [1, 1, 1, 1, 1, 1, 1, 1]);
}

#[tokio::test]
async fn each_of_many_is_seen_as_it_is_alone() {
    let store = fresh_store().await;
    let fleet = Fleet::furnished(&store).await;
    let tx = fleet.tx(&store).await;
    let read_back = read(&tx, fleet.hosts()).await;
    let together = seen(&tx, &about(&read_back), NOON).await;
    is_as_told(&fleet, &together);
    assert_eq!(together.len(), fleet.nodes.len());
    for ((host, _), among) in fleet.nodes.iter().zip(&together) {
        let alone = world(&tx, host, Reading::Look(NOON)).await;
        assert_eq!(*among, alone, "{}", host.id);
    }
    // In another order, and one of them twice.
    let hosts = fleet.hosts().rev().chain(fleet.hosts().take(1));
    let read_back = read(&tx, hosts).await;
    let again = seen(&tx, &about(&read_back), NOON).await;
    let expected: Vec<_> = together.iter().rev().chain(&together[..1]).collect();
    assert_eq!(again.iter().collect::<Vec<_>>(), expected);
}

/// However many there are, and whatever they have of their own.
#[tokio::test]
async fn many_take_as_many_statements_as_one() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let size = Size {
        hosts: 200,
        sites: 20,
    };
    let filled = fill::project(&store, tenant, size, NOON).await;
    let filled = filled.expect("a project");
    let tx = store.tenant(tenant).await.expect("a transaction");
    let night = window(ScheduleTarget::Host(filled.hosts[7]), 1, 2);
    schedules::create(&tx, &night, NOON)
        .await
        .expect("scheduled");
    tx.commit().await.expect("committed");

    let (counted, sent) = counting(&store);
    for (limit, cost) in [(None, 2), (Some(3), 3)] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let limits = Limits::parse(limit, None).expect("limits");
        assignments::limit(&tx, Scope::Project, limits)
            .await
            .expect("limited");
        tx.commit().await.expect("committed");
        let tx = counted.tenant(tenant).await.expect("a transaction");
        let read_back = read(&tx, filled.hosts.iter().copied()).await;
        let all = about(&read_back);
        for of in [&all[..1], &all[..]] {
            let before = sent.statements.load(Ordering::Relaxed);
            let seen = seen(&tx, of, NOON).await;
            let after = sent.statements.load(Ordering::Relaxed);
            assert_eq!((seen.len(), after - before), (of.len(), cost));
        }
    }
}

#[tokio::test]
async fn for_nobody_nothing_is_read() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (counted, sent) = counting(&store);
    let tx = counted.tenant(tenant).await.expect("a transaction");
    let before = sent.statements.load(Ordering::Relaxed);
    assert_eq!(seen(&tx, &[], NOON).await, []);
    assert_eq!(sent.statements.load(Ordering::Relaxed), before);
}

#[tokio::test]
async fn who_runs_what_is_not_in_the_catalogue_has_no_world() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut read_back = read(&tx, [host.id]).await;
    read_back[0].1.os = OsId::nth(99);
    let of = about(&read_back);
    let refused = worlds(&tx, &of, &Horizon::default(), NOON).await;
    let refused = refused.expect("read").pop();
    assert!(
        matches!(refused, Some(Err(StoreError::NotFound { .. }))),
        "{refused:?}"
    );
}

/// What is answered is remembered until the log says that something has changed: what is read and tells of no change would be
/// a hole.
#[tokio::test]
async fn whatever_a_decision_is_made_from_tells_of_its_changes() {
    let store = fresh_store().await;
    let fleet = Fleet::furnished(&store).await;
    let tx = fleet.tx(&store).await;
    let before = reads(&tx).await;
    let machines: Vec<Machine> = fleet.hosts().map(Machine::Host).collect();
    let briefs = nodes::briefs(&tx, &machines).await.expect("briefs");
    assert_eq!(briefs.len(), fleet.nodes.len());
    let read_back = read(&tx, fleet.hosts()).await;
    is_as_told(&fleet, &seen(&tx, &about(&read_back), NOON).await);

    let mut after = reads(&tx).await;
    after.retain(|table, count| before.get(table).is_none_or(|before| before < count));
    let recorded = recorded(&tx).await;
    let untold: Vec<_> = after
        .keys()
        .filter(|one| !recorded.contains(*one))
        .collect();
    assert_eq!(untold, Vec::<&String>::new());
    for table in ["node_states", "regions", "update_policies", "brake_slots"] {
        assert!(after.contains_key(table), "{table} was not read: {after:?}");
    }
    assert_eq!(after.len(), 15, "{after:?}");
}
