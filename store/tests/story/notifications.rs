//! Which events queue a notification, and who delivers it.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::NotificationTargetId;
use evenkeel_domain::notification::{
    NotificationEvent, NotificationTargetSpec, TargetAddress, WebhookSecret,
};
use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_domain::package::is_security_update;
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::assignments::Resumption;
use evenkeel_store::notifications::queue::{self, ClaimedTarget, LEASE_PERIOD};
use evenkeel_store::os_reports::SyncReport;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Store, assignments, nodes, notification_targets, notifications, os_reports};
use serde_json::json;
use uuid::Uuid;

use crate::fixtures::{NOON, create_node, create_project};
use crate::limit_usage::{
    LimitedFleet, create_fleet, end_run, failed_event, request_start, stage_run,
};
use crate::os_details::report;

async fn create_target(
    store: &Store,
    tenant: TenantId,
    event: NotificationEvent,
) -> NotificationTargetId {
    let spec = NotificationTargetSpec {
        name: Name::default(),
        address: TargetAddress::from_stored("https://hooks.example/".to_owned()),
        events: vec![event],
    };
    let secret = WebhookSecret::from_bytes(vec![1; WebhookSecret::BYTES]);
    let tx = store.tenant(tenant).await.expect("a transaction");
    let target = notification_targets::create(&tx, &spec, &secret, NOON).await;
    tx.commit().await.expect("committed");
    target.expect("a target").id
}

async fn set_enabled(store: &Store, tenant: TenantId, id: NotificationTargetId, enabled: bool) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    notification_targets::set_enabled(&tx, id, enabled, NOON).await.expect("changed");
    tx.commit().await.expect("committed");
}

/// The events and targets of all deliveries of a project, the latest first.
async fn deliveries(store: &Store, tenant: TenantId) -> Vec<(String, NotificationTargetId)> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let list = notifications::list(&tx, None).await.expect("a list");
    list.into_iter().map(|delivery| (delivery.event, delivery.target)).collect()
}

async fn report_sync(store: &Store, tenant: TenantId, outcome: CycleOutcome) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let report = SyncReport { outcome, ..report(Vec::new()) };
    os_reports::replace(&tx, &report).await.expect("replaced");
    tx.commit().await.expect("committed");
}

#[tokio::test]
async fn the_first_of_consecutive_failed_syncs_is_queued_for_targets_that_selected_it() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "shop").await;
    let other = create_project(&store, "other").await;
    report_sync(&store, tenant, CycleOutcome::Failed).await;
    assert_eq!(deliveries(&store, tenant).await, [], "the project has no target");

    let target = create_target(&store, tenant, NotificationEvent::SyncFailed).await;
    create_target(&store, tenant, NotificationEvent::NodeSilent).await;
    create_target(&store, other, NotificationEvent::SyncFailed).await;
    let failure = ("sync-failed".to_owned(), target);
    for (outcome, count) in [
        (CycleOutcome::Failed, 0),
        (CycleOutcome::Good, 0),
        (CycleOutcome::Failed, 1),
        (CycleOutcome::Failed, 1),
        (CycleOutcome::Partial, 1),
        (CycleOutcome::Failed, 2),
    ] {
        report_sync(&store, tenant, outcome).await;
        assert_eq!(deliveries(&store, tenant).await, vec![failure.clone(); count], "{outcome:?}");
    }
    set_enabled(&store, tenant, target, false).await;
    report_sync(&store, tenant, CycleOutcome::Good).await;
    report_sync(&store, tenant, CycleOutcome::Failed).await;
    assert_eq!(deliveries(&store, tenant).await.len(), 2, "the target is disabled");
    report_sync(&store, other, CycleOutcome::Failed).await;
    assert_eq!(deliveries(&store, other).await.len(), 1, "the first report of a project");
}

async fn queue_stops(store: &Store) -> u64 {
    let tx = store.fleet().await.expect("a transaction");
    let queued = queue::queue_stops(&tx, NOON, 100).await.expect("queued");
    tx.commit().await.expect("committed");
    queued
}

async fn fail_run(store: &Store, fleet: &LimitedFleet, n: usize, at: Time) {
    let run = stage_run(store, fleet, n).await;
    assert!(request_start(store, fleet, n, at).await.expect("an answer"));
    end_run(store, fleet, run.id, failed_event(), at).await;
}

#[tokio::test]
async fn each_stop_of_an_assignment_is_queued_once() {
    let store = fresh_store().await;
    let fleet = create_fleet(&store, 2, (None, Some(1))).await;
    create_target(&store, fleet.tenant, NotificationEvent::RunFailed).await;
    fail_run(&store, &fleet, 0, NOON).await;
    assert_eq!(queue_stops(&store).await, 0, "the project has no target for stops");
    let target = create_target(&store, fleet.tenant, NotificationEvent::AssignmentStopped).await;
    set_enabled(&store, fleet.tenant, target, false).await;
    assert_eq!(queue_stops(&store).await, 0, "the target is disabled");
    set_enabled(&store, fleet.tenant, target, true).await;
    assert_eq!(queue_stops(&store).await, 1);
    assert_eq!(queue_stops(&store).await, 0, "the stop is queued already");

    let later = NOON + TimeDelta::minutes(1);
    let resumption = Resumption { at: later, by: "alice".into(), reason: "fixed".into() };
    let tx = store.tenant(fleet.tenant).await.expect("a transaction");
    assignments::resume(&tx, Scope::Project, &resumption).await.expect("resumed");
    tx.commit().await.expect("committed");
    assert_eq!(queue_stops(&store).await, 0, "the assignment is resumed");
    fail_run(&store, &fleet, 1, later + TimeDelta::minutes(1)).await;
    assert_eq!(queue_stops(&store).await, 1, "it stopped again");
    let stop = ("assignment-stopped".to_owned(), target);
    let queued = deliveries(&store, fleet.tenant).await;
    assert_eq!(queued.iter().filter(|delivery| **delivery == stop).count(), 2);
}

#[tokio::test]
async fn the_end_of_a_certificate_is_queued_once_for_each_enabled_target() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "shop").await;
    let queue_end = async |certificate: &str, expires_at: Time| {
        let tx = store.fleet().await.expect("a transaction");
        let queued = queue::queue_certificate_expiry(&tx, certificate, expires_at, NOON).await;
        tx.commit().await.expect("committed");
        queued.expect("queued")
    };
    let end = NOON + TimeDelta::days(9);
    assert_eq!(queue_end("rest", end).await, 0, "the project has no target");
    let event = NotificationEvent::CertificateExpiry;
    let target = create_target(&store, tenant, event).await;
    set_enabled(&store, tenant, target, false).await;
    assert_eq!(queue_end("rest", end).await, 0, "the target is disabled");
    set_enabled(&store, tenant, target, true).await;
    create_target(&store, tenant, event).await;
    create_target(&store, tenant, NotificationEvent::NodeSilent).await;
    assert_eq!(queue_end("rest", end).await, 2);
    assert_eq!(queue_end("rest", end).await, 0, "it is queued already");
    assert_eq!(queue_end("southbound", end).await, 2);
    assert_eq!(queue_end("rest", end + TimeDelta::days(1)).await, 2, "another certificate");
}

#[tokio::test]
async fn the_database_and_the_domain_agree_what_a_security_update_is() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "shop").await;
    let (host, _) = create_node(&store, tenant, 1).await;
    create_target(&store, tenant, NotificationEvent::SecurityUpdatePending).await;
    let cases: [(&[&str], &[&str]); 12] = [
        (&["bookworm-security"], &["Debian-Security"]),
        (&["bookworm", "stable-security"], &[]),
        (&["Noble-Security"], &["Ubuntu"]),
        (&["buster/updates"], &[]),
        (&[], &["Debian-Security"]),
        (&["jammy"], &["Ubuntu", "UbuntuESM"]),
        (&["jammy"], &["UbuntuESMApps"]),
        (&["bookworm"], &["Debian"]),
        (&["security-tools"], &["Security Tools"]),
        (&["bookworm-security-old"], &["debian-security"]),
        (&["stable"], &["Debian-Security-Mirror"]),
        (&[], &[]),
    ];
    for (n, (suites, origins)) in cases.into_iter().enumerate() {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let (suites, origins) = (texts(suites), texts(origins));
        let version = n.to_string();
        let update = json!([{
            "name": "curl", "available_version": version, "suites": suites, "origins": origins,
        }]);
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut node = nodes::lock(&tx, host.id).await.expect("locked");
        node.os_update_available = update.to_string();
        node.facts_summary.security_updates = Some(1);
        nodes::save(&tx, &node).await.expect("saved");
        tx.commit().await.expect("committed");
        let tx = store.fleet().await.expect("a transaction");
        let queued = queue::queue_security_updates(&tx, NOON, 100).await.expect("queued");
        tx.commit().await.expect("committed");
        assert_eq!(queued == 1, is_security_update(&suites, &origins), "{update}");
    }
}

async fn claim(store: &Store, holder: Uuid, now: Time) -> Vec<ClaimedTarget> {
    let tx = store.fleet().await.expect("a transaction");
    let claimed = queue::claim(&tx, holder, now, 10).await.expect("claimed");
    tx.commit().await.expect("committed");
    claimed
}

async fn has_next(store: &Store, claimed: &ClaimedTarget, now: Time) -> bool {
    let tx = store.fleet().await.expect("a transaction");
    let next = queue::load_next(&tx, claimed, now).await.expect("answered");
    tx.commit().await.expect("committed");
    next.is_some()
}

#[tokio::test]
async fn a_target_is_claimed_by_one_replica_until_its_lease_ends() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "shop").await;
    let target = create_target(&store, tenant, NotificationEvent::RunFailed).await;
    let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
    assert_eq!(claim(&store, first, NOON).await, [], "nothing is pending");
    let tx = store.tenant(tenant).await.expect("a transaction");
    notifications::queue_test(&tx, target, NOON).await.expect("queued");
    tx.commit().await.expect("committed");

    let held = ClaimedTarget { tenant, target, holder: first };
    assert_eq!(claim(&store, first, NOON).await, [held]);
    let almost = NOON + LEASE_PERIOD - TimeDelta::seconds(1);
    assert_eq!(claim(&store, second, almost).await, []);
    assert!(has_next(&store, &held, almost).await, "extends the lease");
    assert_eq!(claim(&store, second, NOON + LEASE_PERIOD).await, []);

    let expired = almost + LEASE_PERIOD;
    let taken = ClaimedTarget { holder: second, ..held };
    assert!(!has_next(&store, &held, expired).await, "the lease has ended");
    assert_eq!(claim(&store, second, expired).await, [taken]);
    assert!(!has_next(&store, &held, expired).await, "another replica holds the lease");
    assert!(has_next(&store, &taken, expired).await);
}
