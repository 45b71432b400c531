//! Orders and pauses.

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::decide::Reason;
use evenkeel_domain::id::{InstanceId, PolicyId, SiteId};
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_store::decisions::Reading;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Actor, StoreError, changes, orders, pauses, policies, schedules, sites};

use crate::house::{NOON, assign, latest, node, project, site, spoke, stands_at, window, world};

fn order(kind: OrderKind) -> Order {
    Order {
        kind,
        at: NOON,
        until: NOON + TimeDelta::hours(1),
        reason: "the shop is closed today".into(),
        by: "alice".into(),
    }
}

fn pause(scope: PauseScope) -> Pause {
    Pause {
        scope,
        reason: "inventory".into(),
        by: "alice".into(),
        at: NOON,
    }
}

#[tokio::test]
async fn many_instances_are_ordered_at_once() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let theirs = project(&store, "theirs").await;
    let (_, one) = node(&store, tenant, 1).await;
    let (_, other) = node(&store, tenant, 2).await;
    let (_, foreign) = node(&store, theirs, 3).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let wanted = [one.id, other.id, foreign.id, InstanceId::nth(4_000)];
    let mut given = orders::set(&tx, &wanted, &order(OrderKind::Now))
        .await
        .expect("ordered");
    given.sort_unstable();
    let mut ours = [one.id, other.id];
    ours.sort_unstable();
    assert_eq!(given, ours);
    // The latest order of an instance replaces the one before.
    let cancel = order(OrderKind::Cancel);
    orders::set(&tx, &[one.id], &cancel).await.expect("ordered");
    let kept = orders::find(&tx, one.id).await.expect("an answer");
    assert_eq!(kept, Some(cancel));
    orders::clear(&tx, other.id).await.expect("taken back");
    assert_eq!(orders::find(&tx, other.id).await.expect("an answer"), None);
}

#[tokio::test]
async fn an_ordered_update_needs_no_window() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    spoke(&store, tenant, &host).await;
    let policy = latest(&store, tenant).await;
    assign(&store, tenant, Scope::Project, policy.id, (None, None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let before = world(&tx, &host, Reading::Look(NOON)).await.decide(NOON);
    assert_eq!(before.because, Reason::NoWindow);
    let now = order(OrderKind::Now);
    orders::set(&tx, &[instance.id], &now)
        .await
        .expect("ordered");
    let read = world(&tx, &host, Reading::Look(NOON)).await;
    assert_eq!(read.wanted.order, Some(now));
    assert_eq!(read.decide(NOON).act.name(), "apply");
}

#[tokio::test]
async fn a_pause_concerns_what_it_is_for() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    spoke(&store, tenant, &host).await;
    let (here, there) = (
        site(&store, tenant, None).await,
        site(&store, tenant, None).await,
    );
    stands_at(&store, tenant, &host, here.id).await;
    let (policy, other) = (latest(&store, tenant).await, latest(&store, tenant).await);
    assign(&store, tenant, Scope::Project, policy.id, (None, None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let open = window(ScheduleTarget::Site(here.id), -1, 1);
    schedules::create(&tx, &open, NOON)
        .await
        .expect("scheduled");
    for (scope, stops) in [
        (PauseScope::Project, true),
        (PauseScope::Site(here.id), true),
        (PauseScope::Site(there.id), false),
        (PauseScope::Policy(policy.id), true),
        (PauseScope::Policy(other.id), false),
    ] {
        let pause = pause(scope);
        pauses::set(&tx, &pause).await.expect("paused");
        assert_eq!(
            pauses::all(&tx).await.expect("a list"),
            std::slice::from_ref(&pause)
        );
        let found = pauses::find(&tx, scope).await.expect("an answer");
        assert_eq!(found, Some(pause));
        let decision = world(&tx, &host, Reading::Look(NOON)).await.decide(NOON);
        let paused = matches!(decision.because, Reason::Paused { .. });
        assert_eq!(paused, stops, "{scope}: {}", decision.because);
        pauses::clear(&tx, scope).await.expect("resumed");
    }
    let decision = world(&tx, &host, Reading::Look(NOON)).await.decide(NOON);
    assert_eq!(decision.act.name(), "apply");
}

#[tokio::test]
async fn a_pause_goes_with_what_it_is_for() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let site = site(&store, tenant, None).await;
    let policy = latest(&store, tenant).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for scope in [PauseScope::Site(site.id), PauseScope::Policy(policy.id)] {
        pauses::set(&tx, &pause(scope)).await.expect("paused");
    }
    sites::delete(&tx, site.id).await.expect("deleted");
    policies::delete(&tx, policy.id).await.expect("deleted");
    assert_eq!(pauses::all(&tx).await.expect("a list"), []);
    for scope in [
        PauseScope::Site(SiteId::nth(9)),
        PauseScope::Policy(PolicyId::nth(9)),
    ] {
        let refused = pauses::set(&tx, &pause(scope)).await;
        assert!(
            matches!(refused, Err(StoreError::NotFound { .. })),
            "{scope}"
        );
    }
}

#[tokio::test]
async fn who_paused_and_ordered_is_in_the_change_log() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let actor = Actor {
        name: "alice".into(),
        request_id: "r-1".into(),
    };
    let tx = store
        .tenant_as(tenant, &actor)
        .await
        .expect("a transaction");
    pauses::set(&tx, &pause(PauseScope::Project))
        .await
        .expect("paused");
    orders::set(&tx, &[instance.id], &order(OrderKind::Now))
        .await
        .expect("ordered");
    tx.commit().await.expect("committed");
    let tx = store.tenant(tenant).await.expect("a transaction");
    for (kind, id) in [("pause", 0), ("update_order", instance.id.bits())] {
        let log = changes::of(&tx, kind, id).await.expect("a log");
        let last = log.last().expect("an entry");
        assert_eq!(last.actor.as_deref(), Some("alice"), "{kind}");
    }
}
