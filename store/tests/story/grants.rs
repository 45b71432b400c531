//! A service with a role that does not own the tables.

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::change_seal::ChangeRetention;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::change_seals::{AuditRequest, ChangeSealer, verify};
use evenkeel_store::log::{self, LogReader, RemovalLimits};
use evenkeel_store::testing::{fresh_database, query_text, tenant_rows};
use evenkeel_store::{SchemaCheck, Store, StoreOptions};

use crate::fixtures::{create_project, remove_deleted_projects};
use crate::isolation::create_everything;

const TIMEOUT: Duration = Duration::from_mins(1);

/// The role of the service in these tests.
const SERVICE: &str = "evenkeel";

/// A store of the service, and one of the owner of the tables.
async fn service_and_owner() -> (Store, Store) {
    let url = fresh_database().await;
    let connect =
        async |url: &str| Store::connect(url, StoreOptions::default()).await.expect("connected");
    let owner = connect(&url.replace("user=evenkeel", "user=postgres")).await;
    // The template has tables that belong to the role of the service.
    let empty = "DROP SCHEMA public CASCADE; CREATE SCHEMA public";
    owner.execute_unprepared(empty).await.expect("an empty database");
    owner.migrate_for_service(SERVICE, TIMEOUT).await.expect("migrated");
    (connect(&url).await, owner)
}

async fn expect_refused(store: &Store, statement: &str) {
    let refused = store.execute_unprepared(statement).await.expect_err(statement);
    let refused = format!("{refused:?}");
    let expected = ["permission denied", "must be owner"];
    assert!(expected.iter().any(|text| refused.contains(text)), "{statement}: {refused}");
}

#[tokio::test]
async fn the_service_can_only_read_and_add_rows_of_the_log() {
    let (service, _owner) = service_and_owner().await;
    for table in ["change_log", "change_seals"] {
        for statement in [
            format!("UPDATE {table} SET tenant_id = tenant_id"),
            format!("DELETE FROM {table}"),
            format!("TRUNCATE {table}"),
            format!("ALTER TABLE {table} DISABLE TRIGGER refuse_change"),
            format!("ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY"),
            format!("DROP TABLE {table}"),
        ] {
            expect_refused(&service, &statement).await;
        }
    }
    for statement in [
        "UPDATE change_seal_state SET users_removed_to = 0",
        "UPDATE change_seal_state SET server_removed_to = 0",
        "UPDATE change_seal_state SET minimum_retention = '0'",
        "DELETE FROM change_seal_state",
        "SELECT setval('change_log_seq_seq', 1)",
        "DELETE FROM seaql_migrations",
        "DROP FUNCTION refuse_change() CASCADE",
        "ALTER FUNCTION refuse_change() OWNER TO CURRENT_USER",
    ] {
        expect_refused(&service, statement).await;
    }
}

#[tokio::test]
async fn the_service_works_seals_and_removes_old_changes() {
    let (service, owner) = service_and_owner().await;
    assert_eq!(service.check().await.expect("checked"), SchemaCheck::Current);
    let ours = create_project(&service, "ours").await;
    let theirs = create_project(&service, "theirs").await;
    create_everything(&service, ours).await;
    create_everything(&service, theirs).await;
    assert_sees_only_its_project(&service, ours, theirs).await;
    LogReader::open(&service).await.expect("a reader");
    let mut sealer = ChangeSealer::new(service.clone());
    create_project(&service, "third").await;
    assert!(sealer.pass().await.expect("a pass").changes > 0);
    let at_once = Some(TimeDelta::zero());
    let retention = ChangeRetention { by_users: at_once, by_server: at_once };
    let prune = async || {
        let tx = service.fleet().await.expect("a transaction");
        let limits = RemovalLimits { retention, now: tx.database_time(), max_changes: 1_000 };
        let removed = log::prune(&tx, limits).await.expect("removed");
        tx.commit().await.expect("committed");
        removed
    };
    // The owner decides what is kept in any case.
    let keep =
        |interval: &str| format!("UPDATE change_seal_state SET minimum_retention = '{interval}'");
    owner.execute_unprepared(&keep("1 day")).await.expect("set");
    assert_eq!(prune().await, 0);
    owner.execute_unprepared(&keep("0")).await.expect("set");
    assert!(prune().await > 0);
    while prune().await > 0 {}
    let request = AuditRequest { retention, ..AuditRequest::default() };
    let report = verify(&service, &request).await.expect("a report");
    assert!(report.is_unaltered(), "{report:?}");
    assert!(report.projects[&theirs].chain.removed_seals > 0, "{report:?}");
    assert_eq!(remove_deleted_projects(&service, 100).await, 0);
}

/// They run with the privileges of the owner.
#[tokio::test]
async fn no_other_role_can_call_the_functions_that_remove_changes() {
    let (service, _owner) = service_and_owner().await;
    for function in [
        "remove_sealed_changes(boolean, timestamptz, bigint)",
        "remove_old_seals(timestamptz, bigint)",
    ] {
        for (role, expected) in [("public", "false"), (SERVICE, "true")] {
            let sql =
                format!("SELECT has_function_privilege('{role}', '{function}', 'EXECUTE')::text");
            assert_eq!(query_text(&service, &sql).await, expected, "{role}: {function}");
        }
    }
}

/// Row-level security applies to the service, although it does not own the tables.
async fn assert_sees_only_its_project(service: &Store, ours: TenantId, theirs: TenantId) {
    for (scope, hidden) in [(String::new(), ours), (ours.to_string(), theirs)] {
        let look = format!(
            "DO $do$ BEGIN PERFORM set_config('evenkeel.tenant', '{scope}', true); \
             IF EXISTS (SELECT FROM change_log WHERE tenant_id = '{hidden}') \
             OR EXISTS (SELECT FROM hosts WHERE tenant_id = '{hidden}') THEN RAISE 'visible'; END IF; END $do$"
        );
        service.execute_unprepared(&look).await.expect("hidden");
    }
    let rows = tenant_rows(service, ours).await;
    assert!(rows.iter().any(|row| row.starts_with("change_log ")), "{rows:?}");
}

/// A replaced table in a schema of the session would let the function remove other changes.
#[tokio::test]
async fn the_function_that_removes_changes_reads_no_table_of_the_session() {
    let (service, _owner) = service_and_owner().await;
    let ours = create_project(&service, "ours").await;
    let before = tenant_rows(&service, ours).await;
    let attack = "BEGIN; SET LOCAL evenkeel.tenant = '*'; \
                  CREATE TEMP TABLE change_seals ON COMMIT DROP AS SELECT 9223372036854775807 AS up_to, \
                  timestamptz '-infinity' AS sealed_at, 1 AS changes_by_users, 1 AS changes_by_server; \
                  SELECT remove_sealed_changes(false, 'infinity', 1000); COMMIT";
    service.execute_unprepared(attack).await.expect("ran");
    assert_eq!(tenant_rows(&service, ours).await, before);
}

#[tokio::test]
async fn the_owner_of_the_tables_must_be_another_role() {
    let url = fresh_database().await;
    let store = Store::connect(&url, StoreOptions::default()).await.expect("connected");
    let refused = store.migrate_for_service(SERVICE, TIMEOUT).await.expect_err("the same role");
    assert!(format!("{refused:?}").contains("of the migration"), "{refused:?}");
    let refused = store.migrate_for_service("unknown's", TIMEOUT).await.expect_err("no such role");
    assert!(format!("{refused:?}").contains("does not exist"), "{refused:?}");
}
