//! Orders and pauses.

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::decide::Reason;
use evenkeel_domain::id::{InstanceId, PolicyId, SiteId};
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_store::decisions::ReadMode;
use evenkeel_store::{Actor, StoreError, changes, orders, pauses, policies, schedules, sites};

use crate::fixtures::{
    NOON, assign, create_latest_policy, create_node, create_project, create_site, move_to_site,
    read_decision_input, save_as_own_agent, store_with_project, window,
};

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
    Pause { scope, reason: "inventory".into(), by: "alice".into(), at: NOON }
}

#[tokio::test]
async fn many_instances_are_ordered_at_once() {
    let (store, tenant) = store_with_project().await;
    let theirs = create_project(&store, "theirs").await;
    let (_, one) = create_node(&store, tenant, 1).await;
    let (_, other) = create_node(&store, tenant, 2).await;
    let (_, foreign) = create_node(&store, theirs, 3).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let requested = [one.id, other.id, foreign.id, InstanceId::nth(4_000)];
    let mut ordered = orders::set(&tx, &requested, &order(OrderKind::Now)).await.expect("ordered");
    ordered.sort_unstable();
    let mut ours = [one.id, other.id];
    ours.sort_unstable();
    assert_eq!(ordered, ours);
    // The latest order of an instance replaces the previous one.
    let cancel = order(OrderKind::Cancel);
    orders::set(&tx, &[one.id], &cancel).await.expect("ordered");
    let stored = orders::find(&tx, one.id).await.expect("an answer");
    assert_eq!(stored, Some(cancel));
    orders::clear(&tx, other.id).await.expect("cleared");
    assert_eq!(orders::find(&tx, other.id).await.expect("an answer"), None);
}

#[tokio::test]
async fn an_ordered_update_needs_no_window() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    save_as_own_agent(&store, tenant, &host).await;
    let policy = create_latest_policy(&store, tenant).await;
    assign(&store, tenant, Scope::Project, policy.id, (None, None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let before = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await.decide(NOON);
    assert_eq!(before.reason, Reason::NoWindow);
    let now = order(OrderKind::Now);
    orders::set(&tx, &[instance.id], &now).await.expect("ordered");
    let read = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await;
    assert_eq!(read.desired.order, Some(now));
    assert_eq!(read.decide(NOON).act.name(), "apply");
}

#[tokio::test]
async fn a_pause_applies_only_to_its_scope() {
    let (store, tenant) = store_with_project().await;
    let (host, _) = create_node(&store, tenant, 1).await;
    save_as_own_agent(&store, tenant, &host).await;
    let (own_site, other_site) =
        (create_site(&store, tenant, None).await, create_site(&store, tenant, None).await);
    move_to_site(&store, tenant, &host, own_site.id).await;
    let (policy, other) =
        (create_latest_policy(&store, tenant).await, create_latest_policy(&store, tenant).await);
    assign(&store, tenant, Scope::Project, policy.id, (None, None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let open = window(ScheduleTarget::Site(own_site.id), -1, 1);
    schedules::create(&tx, &open, NOON).await.expect("scheduled");
    for (scope, stops) in [
        (PauseScope::Project, true),
        (PauseScope::Site(own_site.id), true),
        (PauseScope::Site(other_site.id), false),
        (PauseScope::Policy(policy.id), true),
        (PauseScope::Policy(other.id), false),
    ] {
        let pause = pause(scope);
        pauses::set(&tx, &pause).await.expect("paused");
        assert_eq!(pauses::all(&tx).await.expect("a list"), std::slice::from_ref(&pause));
        let stored = pauses::find(&tx, scope).await.expect("an answer");
        assert_eq!(stored, Some(pause));
        let decision = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await.decide(NOON);
        let paused = matches!(decision.reason, Reason::Paused { .. });
        assert_eq!(paused, stops, "{scope}: {}", decision.reason);
        pauses::clear(&tx, scope).await.expect("resumed");
    }
    let decision = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await.decide(NOON);
    assert_eq!(decision.act.name(), "apply");
}

#[tokio::test]
async fn a_pause_is_deleted_with_its_scope() {
    let (store, tenant) = store_with_project().await;
    let site = create_site(&store, tenant, None).await;
    let policy = create_latest_policy(&store, tenant).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for scope in [PauseScope::Site(site.id), PauseScope::Policy(policy.id)] {
        pauses::set(&tx, &pause(scope)).await.expect("paused");
    }
    sites::delete(&tx, site.id).await.expect("deleted");
    policies::delete(&tx, policy.id).await.expect("deleted");
    assert_eq!(pauses::all(&tx).await.expect("a list"), []);
    for scope in [PauseScope::Site(SiteId::nth(9)), PauseScope::Policy(PolicyId::nth(9))] {
        let refused = pauses::set(&tx, &pause(scope)).await;
        assert!(matches!(refused, Err(StoreError::NotFound { .. })), "{scope}");
    }
}

#[tokio::test]
async fn the_change_log_names_who_paused_and_ordered() {
    let (store, tenant) = store_with_project().await;
    let (_, instance) = create_node(&store, tenant, 1).await;
    let actor = Actor {
        name: "alice".into(),
        request_id: "r-1".into(),
        client_address: "192.0.2.7".into(),
    };
    let tx = store.tenant_as(tenant, &actor).await.expect("a transaction");
    pauses::set(&tx, &pause(PauseScope::Project)).await.expect("paused");
    orders::set(&tx, &[instance.id], &order(OrderKind::Now)).await.expect("ordered");
    tx.commit().await.expect("committed");
    let tx = store.tenant(tenant).await.expect("a transaction");
    for (kind, id) in [("pause", 0), ("update_order", instance.id.bits())] {
        let log = changes::list_for_resource(&tx, kind, id).await.expect("a log");
        let last = log.last().expect("an entry");
        assert_eq!(last.actor.as_deref(), Some("alice"), "{kind}");
    }
}
