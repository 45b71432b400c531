//! Counts of the whole fleet, and how replicas exchange them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::instance::FactsSummary;
use evenkeel_domain::join_token::JoinTokenSpec;
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_kit::TestClock;
use evenkeel_store::fleet_counts::{
    self, CountLimits, FleetCounts, HOST_STATUSES, PublishedCounts, listen_for_counts,
    publish_counts,
};
use evenkeel_store::testing::{fresh_store, with_database_clock};
use evenkeel_store::{Store, hosts, join_tokens, nodes};

use crate::fixtures::{
    NOON, create_node, create_project, execute_sql, registration, save_as_own_agent,
    store_with_two_projects,
};
use crate::limit_usage::{create_fleet, end_run, failed_event, request_start, stage_run};

/// Counts the fleet at once and in pages of three hosts.
async fn read_counts(store: &Store) -> FleetCounts {
    let tx = store.fleet().await.expect("a transaction");
    let in_pages = CountLimits { hosts_at_once: 0, hosts_per_page: 3 };
    let in_pages = fleet_counts::read(&tx, in_pages).await.expect("counts");
    let at_once = fleet_counts::read(&tx, CountLimits::default()).await.expect("counts");
    assert_eq!(in_pages, at_once);
    at_once
}

fn at_noon(store: &Store) -> Store {
    with_database_clock(store, Arc::new(TestClock::new(NOON)))
}

fn host_counts(counts: &FleetCounts) -> [u64; 6] {
    HOST_STATUSES.map(|status| counts.hosts.get(status).copied().unwrap_or_default())
}

#[tokio::test]
async fn each_host_of_all_projects_is_counted_once_by_its_status() {
    let (store, ours, theirs) = store_with_two_projects().await;
    for (tenant, size) in [(ours, 4), (theirs, 3)] {
        for n in 1..=size {
            let (host, _) = create_node(&store, tenant, n).await;
            save_as_own_agent(&store, tenant, &host).await;
        }
    }
    let tx = store.tenant(ours).await.expect("a transaction");
    hosts::register(&tx, &registration(5), NOON).await.expect("a host");
    tx.commit().await.expect("committed");
    let counts = read_counts(&store).await;
    assert_eq!(counts.hosts.values().sum::<u64>(), 8, "{counts:?}");
    assert_eq!((counts.projects, counts.nodes.total), (2, 7));

    let set = "UPDATE node_states SET status = 'Running', status_indication = 'idle'; \
         UPDATE instances SET current_state = 'running'; \
         UPDATE hosts SET status_indication = 'idle'";
    execute_sql(&store, set).await;
    // Untrusted, silent, error, updating, running, other.
    assert_eq!(host_counts(&read_counts(&store).await), [0, 0, 0, 0, 7, 1]);

    let ids = "(SELECT instance_id FROM node_states WHERE tenant_id = t.tenant_id ORDER BY instance_id LIMIT 1)";
    let change = |text: &str, tenant: TenantId| {
        format!(
            "UPDATE node_states t SET {text} WHERE tenant_id = '{tenant}' AND instance_id = {ids}"
        )
    };
    execute_sql(&store, &change("status = 'No Connection', status_indication = 'error'", ours))
        .await;
    execute_sql(&store, &change("update_status_indication = 'in_progress'", theirs)).await;
    assert_eq!(host_counts(&read_counts(&store).await), [0, 1, 0, 1, 5, 1]);
    execute_sql(&store, &change("update_status_indication = 'error'", theirs)).await;
    assert_eq!(host_counts(&read_counts(&store).await), [0, 1, 1, 0, 5, 1]);
    execute_sql(&store, "UPDATE hosts SET current_state = 'untrusted'").await;
    assert_eq!(host_counts(&read_counts(&store).await), [8, 0, 0, 0, 0, 0]);
}

#[tokio::test]
async fn nodes_are_counted_by_what_they_reported() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "ours").await;
    for n in 1..=5 {
        let (host, _) = create_node(&store, tenant, n).await;
        if n == 5 {
            // It has never reported.
            continue;
        }
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut node = nodes::lock(&tx, host.id).await.expect("locked");
        node.provisioned = true;
        if n <= 3 {
            node.os_update_available = "[{}]".into();
            node.facts_summary = FactsSummary {
                security_updates: Some(u32::from(n <= 2) * 4),
                reboot_required: Some(n == 1),
                ..FactsSummary::default()
            };
        }
        nodes::save(&tx, &node).await.expect("saved");
        tx.commit().await.expect("committed");
    }
    let nodes = read_counts(&store).await.nodes;
    assert_eq!((nodes.total, nodes.with_updates, nodes.with_security_updates), (4, 3, 2));
    assert_eq!((nodes.requiring_reboot, nodes.security_updates), (1, 8));
}

#[tokio::test]
async fn runs_and_stopped_assignments_are_counted() {
    let store = at_noon(&fresh_store().await);
    let fleet = create_fleet(&store, 4, (None, Some(2))).await;
    let counts = read_counts(&store).await;
    assert_eq!((counts.stopped_assignments, counts.stored_runs), (0, 0));
    for n in 0..2 {
        let run = stage_run(&store, &fleet, n).await;
        assert!(request_start(&store, &fleet, n, NOON).await.expect("an answer"));
        end_run(&store, &fleet, run.id, failed_event(), NOON).await;
    }
    let old = stage_run(&store, &fleet, 2).await;
    end_run(&store, &fleet, old.id, failed_event(), NOON).await;
    let earlier = format!(
        "UPDATE update_runs SET ended_at = ended_at - interval '2 hours' WHERE id = {}",
        old.id.bits().cast_signed()
    );
    execute_sql(&store, &earlier).await;
    stage_run(&store, &fleet, 3).await;
    let counts = read_counts(&store).await;
    assert_eq!(counts.open_runs.get("staged"), Some(&1), "{counts:?}");
    assert_eq!(counts.ended_runs.get("failed"), Some(&2), "{counts:?}");
    assert_eq!((counts.stopped_assignments, counts.stored_runs), (1, 4));
    execute_sql(&store, "UPDATE projects SET removed_at = now()").await;
    let counts = read_counts(&store).await;
    assert_eq!((counts.projects, counts.nodes.total, counts.stopped_assignments), (0, 0, 0));
    assert!(counts.open_runs.is_empty() && counts.ended_runs.is_empty(), "{counts:?}");
}

#[tokio::test]
async fn credentials_that_end_within_a_week_are_counted() {
    let store = at_noon(&fresh_store().await);
    let tenant = create_project(&store, "ours").await;
    let create = async |digest: u8, created_days: i64, expires_days: i64| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let spec = JoinTokenSpec {
            name: Name::default(),
            expires_at: NOON + TimeDelta::days(expires_days),
            one_time: false,
            may_create_hosts: true,
            may_replace_eim_agents: false,
        };
        let created_at = NOON + TimeDelta::days(created_days);
        join_tokens::create(&tx, &spec, [digest; 32], created_at).await.expect("a token");
        tx.commit().await.expect("committed");
    };
    create(1, -30, 6).await;
    create(2, -30, 8).await;
    create(3, -30, -1).await;
    // It was never meant to last for longer.
    create(4, -1, 1).await;
    let kinds = read_counts(&store).await.expiring_credentials;
    assert_eq!(kinds.get("join_token"), Some(&1), "{kinds:?}");
    assert_eq!(kinds.get("operator_token"), Some(&0), "{kinds:?}");
    execute_sql(&store, "UPDATE join_tokens SET revoked_at = now()").await;
    assert_eq!(read_counts(&store).await.expiring_credentials.get("join_token"), Some(&0));
}

#[tokio::test]
async fn a_replica_receives_the_counts_of_another() {
    let store = fresh_store().await;
    create_project(&store, "ours").await;
    let counts = read_counts(&store).await;
    assert_eq!(counts.projects, 1);
    let published = PublishedCounts { counts, took: Duration::from_millis(1_234) };
    let mut listener = listen_for_counts(&store);
    let received = async {
        tokio::select! {
            received = listener.next() => received,
            never = send_repeatedly(&store, &published) => match never {},
        }
    };
    let received = tokio::time::timeout(Duration::from_mins(1), received).await;
    assert_eq!(received.expect("counts"), published);
}

/// Sends counts again and again: they are received only once the listener is connected.
async fn send_repeatedly(store: &Store, published: &PublishedCounts) -> Infallible {
    loop {
        let tx = store.fleet().await.expect("a transaction");
        publish_counts(&tx, published).await.expect("sent");
        tx.commit().await.expect("committed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
