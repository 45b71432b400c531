//! The clock of the database, and the ages that count by it.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::id::{HostId, InstanceId};
use evenkeel_domain::package::ObservedVersion;
use evenkeel_kit::{Clock, SystemClock, TestClock};
use evenkeel_store::change_seals::ChangeSealer;
use evenkeel_store::daily_usage::{self, ProjectCharge};
use evenkeel_store::operator_tokens::{self, OperatorToken};
use evenkeel_store::testing::{counting_store, fresh_database, fresh_store};
use evenkeel_store::{
    Actor, ClockAgreement, Lease, hosts, logins, oldest_rows, package_versions, projects,
    sequence_usage,
};
use sea_orm::{ConnectionTrait, Database, DbBackend, Statement};
use uuid::Uuid;

use crate::fixtures::{NOON, registration, store_with_project, store_with_two_projects};

#[tokio::test]
async fn time_is_trusted_only_if_both_clocks_agree() {
    let store = fresh_store().await;
    // The database of the test runs on the same machine.
    let reading = store.read_clocks(&SystemClock).await.expect("a reading");
    assert_eq!(reading.agreement(), ClockAgreement::Agrees);
    let time = store.trusted_time(&SystemClock).await.expect("an answer").expect("a time");
    assert!((SystemClock.now() - time).abs() < TimeDelta::minutes(1));
    for year in [TimeDelta::days(365), TimeDelta::days(-365)] {
        let wrong = TestClock::new(SystemClock.now() + year);
        let reading = store.read_clocks(&wrong).await.expect("a reading");
        assert_eq!(reading.agreement(), ClockAgreement::Differs);
        assert_eq!(store.trusted_time(&wrong).await.expect("an answer"), None);
    }
}

/// A report must not cost another round trip.
#[tokio::test]
async fn a_transaction_reads_the_time_of_the_database_without_a_statement() {
    let (store, tenant) = store_with_project().await;
    let (counting, counts) = counting_store(&store);
    let tx = counting.tenant(tenant).await.expect("a transaction");
    let fleet = counting.fleet().await.expect("a transaction");
    let opened = counts.totals();
    for read in [tx.database_time(), fleet.database_time()] {
        assert!((SystemClock.now() - read).abs() < TimeDelta::minutes(1), "{read}");
    }
    let earlier = tx.database_time();
    assert!(earlier <= tx.database_time());
    assert_eq!(counts.totals(), opened);
}

/// What a new database has no rows of. Projects that were created have changes of the server.
const EMPTY_AT_FIRST: [&str; 13] = [
    "runs",
    "contents",
    "slots",
    "versions",
    "tokens",
    "node_daily_usage",
    "project_daily_usage",
    "operator_tokens",
    "logins",
    "notification_deliveries",
    "os_attachments",
    "user_changes",
    "projects",
];

/// Tables with a time that housekeeping does not clean: their rows stay until a call deletes or
/// replaces them, or go with the row that they belong to.
const NOT_CLEANED: &[&str] = &[
    "assignments",
    "custom_configs",
    "host_hardware",
    "hosts",
    "instances",
    "join_tokens",
    "last_contacts",
    "local_accounts",
    "node_states",
    "node_subjects",
    "notification_queues",
    "notification_targets",
    "notified_certificates",
    "notified_stops",
    "os_artifacts",
    "os_cycles",
    "os_details",
    "os_profiles",
    "os_sync_findings",
    "os_sync_reports",
    "pauses",
    "providers",
    "regions",
    "repeated_schedules",
    "revoked_subjects",
    "run_events",
    "server_keys",
    "single_schedules",
    "sites",
    "task_passes",
    "update_orders",
    "update_policies",
    "users",
];

/// A new table with a time belongs to one of both lists.
#[tokio::test]
async fn the_oldest_row_of_each_table_that_ages_is_read() {
    let db = Database::connect(fresh_database().await).await.expect("connected");
    let query = "SELECT DISTINCT c.relname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
                 WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace AND NOT a.attisdropped \
                 AND a.atttypid = 'timestamptz'::regtype AND c.relname <> 'seaql_migrations'";
    let query = Statement::from_string(DbBackend::Postgres, query);
    let rows = db.query_all_raw(query).await.expect("the catalogue");
    let with_time: BTreeSet<String> =
        rows.iter().map(|row| row.try_get_by_index(0).expect("a name")).collect();
    let listed = oldest_rows::tables().chain(NOT_CLEANED.iter().copied());
    let listed: BTreeSet<String> = listed.map(str::to_owned).collect();
    assert_eq!(with_time, listed);
    let cleaned: BTreeSet<&str> = oldest_rows::tables().collect();
    assert!(NOT_CLEANED.iter().all(|table| !cleaned.contains(table)), "{cleaned:?}");
}

#[tokio::test]
async fn the_oldest_row_of_all_projects_is_found() {
    let (store, one, other) = store_with_two_projects().await;
    let read = async || {
        let tx = store.fleet().await.expect("a transaction");
        oldest_rows::read(&tx).await.expect("an answer")
    };
    let find = |all: &[(&str, _)], name: &str| {
        all.iter().find(|(what, _)| *what == name).map(|(_, oldest)| *oldest).expect("listed")
    };
    ChangeSealer::new(store.clone()).pass().await.expect("a pass");
    let empty = read().await;
    let without_rows = empty.iter().filter(|(_, oldest)| oldest.is_none()).map(|(what, _)| *what);
    assert_eq!(without_rows.collect::<BTreeSet<_>>(), BTreeSet::from(EMPTY_AT_FIRST));
    assert!(find(&empty, "changes").is_some(), "the projects were created");
    let version =
        ObservedVersion { name: "curl".into(), architecture: "amd64".into(), version: "1".into() };
    for (tenant, at) in [(one, NOON), (other, NOON - TimeDelta::days(1))] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let (reporter, version) = (InstanceId::nth(1), std::slice::from_ref(&version));
        let recorded = package_versions::record_seen(&tx, reporter, version, at).await;
        recorded.expect("recorded");
        tx.commit().await.expect("committed");
    }
    for (n, at) in [(1, NOON), (2, NOON - TimeDelta::days(2))] {
        let tx = store.fleet().await.expect("a transaction");
        let id = Uuid::from_u128(n);
        logins::begin(&tx, id, "alice", at, NOON).await.expect("recorded");
        let token = OperatorToken {
            id,
            subject: "alice".to_owned(),
            roles: Vec::new(),
            issued_at: at - TimeDelta::days(1),
            expires_at: at,
            revoked_at: None,
            revoked_by: None,
            name: None,
            project: None,
            last_used_at: None,
        };
        operator_tokens::record(&tx, &token).await.expect("recorded");
        let charge = ProjectCharge { tenant: one, amount: "runs", cost: Duration::from_mins(1) };
        daily_usage::charge_projects(&tx, &[charge]).await.expect("charged");
        tx.commit().await.expect("committed");
    }
    let tx = store.tenant(other).await.expect("a transaction");
    let charged =
        daily_usage::charge_node(&tx, HostId::nth(1), "runs", Duration::from_mins(1)).await;
    assert_eq!(charged.expect("an answer"), None);
    tx.commit().await.expect("committed");
    let all = read().await;
    assert_eq!(find(&all, "versions"), Some(NOON - TimeDelta::days(1)));
    for name in ["logins", "operator_tokens"] {
        assert_eq!(find(&all, name), Some(NOON - TimeDelta::days(2)), "{name}");
    }
    for name in ["node_daily_usage", "project_daily_usage"] {
        assert!(find(&all, name).is_some(), "{name}");
    }
    let actor =
        Actor { name: "erika".into(), request_id: "r1".into(), client_address: String::new() };
    let tx = store.tenant_as(one, &actor).await.expect("a transaction");
    hosts::register(&tx, &registration(1), NOON).await.expect("a host");
    tx.commit().await.expect("committed");
    ChangeSealer::new(store.clone()).pass().await.expect("a pass");
    let all = read().await;
    assert!(find(&all, "user_changes") > find(&all, "changes"), "{all:?}");
    for (tenant, at) in [(one, NOON), (other, NOON - TimeDelta::days(3))] {
        let tx = store.fleet().await.expect("a transaction");
        projects::delete(&tx, tenant, true, at).await.expect("deleted");
        tx.commit().await.expect("committed");
    }
    assert_eq!(find(&read().await, "projects"), Some(NOON - TimeDelta::days(3)));
}

#[tokio::test]
async fn the_used_part_of_the_numbers_of_each_kind_is_read() {
    let (store, _) = store_with_project().await;
    let read = async |kind: &str| {
        let tx = store.fleet().await.expect("a transaction");
        let usages = sequence_usage::read(&tx).await.expect("an answer");
        usages.iter().find(|(name, _)| name == kind).map(|(_, used)| *used)
    };
    let is_near = |used: Option<f64>, expected: f64| {
        used.is_some_and(|used| (used - expected).abs() < 0.000_1)
    };
    assert!(is_near(read("run").await, 0.0));
    assert!(read("host").await.is_some() && read("instance").await.is_some());
    assert_eq!(read("ip_address").await, None, "its numbers begin again");
    let most = "SELECT setval('run_numbers', 4294967295 / 10 * 9)";
    store.execute_unprepared(most).await.expect("set");
    assert!(is_near(read("run").await, 0.9));
}

#[tokio::test]
async fn a_lease_has_one_holder() {
    let store = fresh_store().await;
    let take = async || store.try_lease(Lease::RunTimeouts).await.expect("an answer");
    let first = take().await.expect("it is free");
    assert!(take().await.is_none());
    first.commit().await.expect("ended");
    assert!(take().await.is_some());
}
