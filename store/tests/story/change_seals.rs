//! The change log is append-only, and its seals show what was altered.

mod prepared;

use std::cell::Cell;
use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::change_seals::{
    self, AuditReport, AuditRequest, ChainFault, ChangeRetention, ChangeSealer, SealDigest,
};
use evenkeel_store::log::{self, RemovalLimits};
use evenkeel_store::testing::{counting_store, fresh_store, query_text, without_protection};
use evenkeel_store::{Actor, Store, hosts};
use futures_util::future::{join_all, join3};

use crate::fixtures::{
    NOON, create_project, execute_sql, registration, store_with_project, store_with_two_projects,
};

/// Later than all times that a test writes: seals have the time of the clock of the database.
const FAR_FUTURE: Time = DateTime::from_timestamp_nanos(4_000_000_000_000_000_000);

async fn register_host(store: &Store, tenant: TenantId, n: u128) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    hosts::register(&tx, &registration(n), NOON).await.expect("a host");
    tx.commit().await.expect("committed");
}

/// Runs one pass. Returns the number of sealed changes.
async fn seal(store: &Store) -> u64 {
    ChangeSealer::new(store.clone()).pass().await.expect("a pass").changes
}

async fn verify_with(store: &Store, request: AuditRequest) -> AuditReport {
    change_seals::verify(store, &request).await.expect("a report")
}

async fn verify(store: &Store) -> AuditReport {
    verify_with(store, AuditRequest::default()).await
}

fn faults_of(report: &AuditReport, tenant: TenantId) -> &[ChainFault] {
    &report.projects[&tenant].chain.faults
}

fn newest_digest(report: &AuditReport, tenant: TenantId) -> SealDigest {
    report.projects[&tenant].chain.newest.as_ref().expect("a seal").digest
}

/// A project with three seals.
async fn store_with_seals() -> (Store, TenantId) {
    let (store, tenant) = store_with_project().await;
    for n in 1..=3 {
        register_host(&store, tenant, n).await;
        assert!(seal(&store).await > 0);
    }
    (store, tenant)
}

#[tokio::test]
async fn rows_of_the_log_and_of_its_seals_are_only_added() {
    let (store, _) = store_with_seals().await;
    for table in ["change_log", "change_seals"] {
        for statement in [
            format!("UPDATE {table} SET tenant_id = tenant_id"),
            format!("DELETE FROM {table}"),
            format!("DELETE FROM {table} WHERE false"),
            format!("TRUNCATE {table}"),
        ] {
            let scoped = format!(
                "DO $do$ BEGIN PERFORM set_config('evenkeel.tenant', '*', true); {statement}; END $do$"
            );
            let refused = store.execute_unprepared(&scoped).await.expect_err(&statement);
            assert!(format!("{refused:?}").contains("is refused"), "{statement}: {refused:?}");
        }
    }
    // Not even by the setting that lets the retention remove changes.
    let seals = "DO $do$ BEGIN PERFORM set_config('evenkeel.removing_changes', 'on', true); \
                 DELETE FROM change_seals; END $do$";
    store.execute_unprepared(seals).await.expect_err("refused");
    let report = verify(&store).await;
    assert!(report.is_unaltered(), "{report:?}");
}

#[tokio::test]
async fn a_change_is_sealed_after_all_earlier_numbers_are_complete() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let third = create_project(&store, "third").await;
    let mut sealer = ChangeSealer::new(store.clone());
    assert!(sealer.pass().await.expect("a pass").changes > 0, "the projects");
    let slow = store.tenant(ours).await.expect("a transaction");
    hosts::register(&slow, &registration(1), NOON).await.expect("a host");
    register_host(&store, theirs, 2).await;
    assert_eq!(sealer.pass().await.expect("a pass").changes, 0, "the slow one has a lower number");
    let later = store.tenant(third).await.expect("a transaction");
    hosts::register(&later, &registration(3), NOON).await.expect("a host");
    let pass = sealer.pass().await.expect("a pass");
    assert_eq!(pass.changes, 0);
    assert!(!pass.oldest_unsealed.is_zero());
    slow.commit().await.expect("committed");
    // The one that began later delays nothing.
    assert!(sealer.pass().await.expect("a pass").changes >= 2);
    let report = verify(&store).await;
    assert!(report.is_unaltered(), "{report:?}");
    assert!(report.projects.values().all(|project| project.unsealed.is_none()), "{report:?}");
    later.commit().await.expect("committed");
    assert!(sealer.pass().await.expect("a pass").changes >= 1);
    let report = verify(&store).await;
    assert!(report.is_unaltered(), "{report:?}");
}

/// A failover to a standby that has not received the last changes, or a restored backup, sets the numbers back while the
/// task waits for a writer.
#[tokio::test]
async fn numbers_that_are_assigned_again_are_not_sealed_before_their_writers_end() {
    let (store, tenant) = store_with_seals().await;
    let mut sealer = ChangeSealer::new(store.clone());
    let start = query_text(&store, "SELECT last_value::text FROM change_log_seq_seq").await;
    let lost = store.tenant(tenant).await.expect("a transaction");
    for n in 4..=9 {
        hosts::register(&lost, &registration(n), NOON).await.expect("a host");
    }
    assert_eq!(sealer.pass().await.expect("a pass").changes, 0, "the writer has not ended");
    drop(lost);
    let writers = "SELECT count(*)::text FROM pg_locks w JOIN pg_database d ON d.oid = w.database \
                   WHERE d.datname = current_database() AND w.locktype = 'advisory' AND w.objid = 7031";
    while query_text(&store, writers).await != "0" {
        tokio::task::yield_now().await;
    }
    execute_sql(&store, &format!("SELECT setval('change_log_seq_seq', {start})")).await;
    let slow = store.tenant(tenant).await.expect("a transaction");
    hosts::register(&slow, &registration(10), NOON).await.expect("a host");
    assert_eq!(sealer.pass().await.expect("a pass").changes, 0, "another writer has its numbers");
    slow.commit().await.expect("committed");
    assert!(sealer.pass().await.expect("a pass").changes > 0);
    let report = verify(&store).await;
    assert!(report.is_unaltered(), "{report:?}");
    assert_eq!(report.projects[&tenant].unsealed, None);
}

/// Registers hosts one by one, in transactions of different length. Some of them roll back.
async fn register_hosts(store: &Store, tenant: TenantId, writer: u128) {
    for turn in 0..10 {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let new = registration(writer * 100 + turn + 1);
        let host = hosts::register(&tx, &new, NOON).await.expect("a host");
        for _ in 0..(writer * 3 + turn * 5) % 11 {
            hosts::find(&tx, host.id).await.expect("found");
        }
        if (writer + turn) % 4 == 3 {
            drop(tx);
        } else {
            tx.commit().await.expect("committed");
        }
    }
}

#[tokio::test]
async fn every_change_is_sealed_once_while_writers_commit_out_of_order() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let is_done = Cell::new(false);
    let write = async {
        let writers = (0..6).map(|n| register_hosts(&store, if n < 3 { ours } else { theirs }, n));
        join_all(writers).await;
        is_done.set(true);
    };
    // As on two replicas.
    let seal_meanwhile = async || {
        let (mut sealer, mut count) = (ChangeSealer::new(store.clone()), 0);
        while !is_done.get() {
            count += sealer.pass().await.expect("a pass").changes;
            tokio::task::yield_now().await;
        }
        count
    };
    let ((), first, second) = join3(write, seal_meanwhile(), seal_meanwhile()).await;
    let mut count = first + second;
    // A rollback may not have arrived yet.
    let mut sealer = ChangeSealer::new(store.clone());
    while verify(&store).await.projects.values().any(|project| project.unsealed.is_some()) {
        count += sealer.pass().await.expect("a pass").changes;
    }
    let report = verify(&store).await;
    assert!(report.is_unaltered(), "{report:?}");
    let verified: u64 = report.projects.values().map(|project| project.chain.unaltered).sum();
    assert_eq!(count, verified);
    assert!(verified >= 2 + 45, "{verified}");
}

/// By a role that owns the tables, with the trigger disabled.
#[tokio::test]
async fn every_kind_of_tampering_is_found() {
    let (store, tenant) = store_with_seals().await;
    let save = "CREATE TABLE saved_log AS SELECT * FROM change_log; \
                CREATE TABLE saved_seals AS SELECT * FROM change_seals";
    execute_sql(&store, save).await;
    let restore = without_protection(
        "DELETE FROM change_log; INSERT INTO change_log OVERRIDING SYSTEM VALUE SELECT * FROM saved_log; \
         DELETE FROM change_seals; INSERT INTO change_seals SELECT * FROM saved_seals",
    );
    let middle = "(SELECT up_to FROM saved_seals WHERE number = 2)";
    for (name, tampering) in [
        ("altered", format!("UPDATE change_log SET request_id = 'x' WHERE seq = {middle}")),
        ("actor", format!("UPDATE change_log SET actor = 'mallory' WHERE seq = {middle}")),
        ("deleted", format!("DELETE FROM change_log WHERE seq = {middle}")),
        (
            "added",
            format!(
                "INSERT INTO change_log (tenant_id, seq, kind, id, operation) OVERRIDING SYSTEM VALUE \
                 SELECT tenant_id, seq, kind, id, operation FROM change_log WHERE seq = {middle}"
            ),
        ),
        ("digest", "UPDATE change_seals SET digest_by_server = digest WHERE number = 2".to_owned()),
        ("time", "UPDATE change_seals SET sealed_at = now() WHERE number = 2".to_owned()),
        ("seal", "DELETE FROM change_seals WHERE number = 2".to_owned()),
        ("last seal", "DELETE FROM change_seals WHERE number = 3".to_owned()),
    ] {
        execute_sql(&store, &without_protection(&tampering)).await;
        let report = verify(&store).await;
        assert!(!faults_of(&report, tenant).is_empty(), "{name}: {report:?}");
        // With a time, changes that were sealed before are not compared, but all seals are checked.
        let since = Some(FAR_FUTURE);
        let report = verify_with(&store, AuditRequest { since, ..AuditRequest::default() }).await;
        let is_of_seals = matches!(name, "digest" | "time" | "seal" | "last seal");
        assert_eq!(!report.is_unaltered(), is_of_seals, "{name}: {report:?}");
        execute_sql(&store, &restore).await;
        let report = verify(&store).await;
        assert!(report.is_unaltered(), "{name}: {report:?}");
    }
}

#[tokio::test]
async fn a_chain_that_was_sealed_again_is_found_by_a_digest_that_was_stored_elsewhere() {
    let (store, tenant) = store_with_seals().await;
    let digest = newest_digest(&verify(&store).await, tenant);
    register_host(&store, tenant, 4).await;
    seal(&store).await;
    let expect = || AuditRequest { expected: BTreeSet::from([digest]), ..AuditRequest::default() };
    let report = verify_with(&store, expect()).await;
    assert!(report.is_unaltered(), "an older digest is in the chain: {report:?}");
    let forge = "UPDATE change_log SET actor = 'mallory'; DELETE FROM change_seals; \
                 UPDATE change_seal_state SET sealed_to = 0";
    execute_sql(&store, &without_protection(forge)).await;
    seal(&store).await;
    let report = verify(&store).await;
    assert!(report.is_unaltered(), "by itself it is valid: {report:?}");
    let report = verify_with(&store, expect()).await;
    assert_eq!(report.missing, BTreeSet::from([digest]));
    assert!(!report.is_unaltered());
}

#[tokio::test]
async fn the_retention_removes_sealed_changes_of_a_class_only() {
    let (store, tenant) = store_with_project().await;
    let actor =
        Actor { name: "erika".into(), request_id: "r1".into(), client_address: "192.0.2.1".into() };
    let tx = store.tenant_as(tenant, &actor).await.expect("a transaction");
    hosts::register(&tx, &registration(1), NOON).await.expect("a host");
    tx.commit().await.expect("committed");
    register_host(&store, tenant, 2).await;
    seal(&store).await;
    register_host(&store, tenant, 3).await;
    let report = verify(&store).await;
    let unsealed = report.projects[&tenant].unsealed.expect("unsealed changes").count;
    // The creation of the project is also outside of projects.
    let count_unaltered = |report: &AuditReport| -> u64 {
        report.projects.values().map(|project| project.chain.unaltered).sum()
    };
    let sealed = count_unaltered(&report);
    let at_once = Some(TimeDelta::zero());
    let prune = async |retention, now| {
        let tx = store.fleet().await.expect("a transaction");
        let limits = RemovalLimits { retention, now, max_changes: 1 };
        let removed = log::prune(&tx, limits).await.expect("removed");
        tx.commit().await.expect("committed");
        removed
    };
    let server_only = ChangeRetention { by_users: None, by_server: at_once };
    assert_eq!(prune(server_only, Time::UNIX_EPOCH).await, 0, "too young");
    assert_eq!(prune(ChangeRetention::default(), FAR_FUTURE).await, 0, "kept for ever");
    let removed = prune(server_only, FAR_FUTURE).await;
    assert!(removed > 0 && removed < sealed, "{removed} of {sealed}");
    assert_eq!(prune(server_only, FAR_FUTURE).await, 0, "nothing else");
    let request = |retention| AuditRequest { retention, ..AuditRequest::default() };
    let report = verify_with(&store, request(server_only)).await;
    let project = &report.projects[&tenant];
    assert!(report.is_unaltered(), "{report:?}");
    let spans = report.projects.values().filter_map(|project| project.chain.removed);
    assert_eq!(spans.map(|span| span.count).sum::<u64>(), removed);
    assert_eq!(count_unaltered(&report), sealed - removed);
    assert_eq!(project.unsealed.map(|span| span.count), Some(unsealed));
    // Without a retention they are missing.
    assert!(!verify(&store).await.is_unaltered());
    let both = ChangeRetention { by_users: at_once, by_server: at_once };
    assert_eq!(prune(both, FAR_FUTURE).await, sealed - removed);
    let report = verify_with(&store, request(both)).await;
    assert!(report.is_unaltered(), "{report:?}");
}

fn short_retention() -> ChangeRetention {
    let at_once = Some(TimeDelta::zero());
    ChangeRetention { by_users: at_once, by_server: at_once }
}

async fn prune(store: &Store, retention: ChangeRetention, max_changes: u32) -> u64 {
    let tx = store.fleet().await.expect("a transaction");
    let limits = RemovalLimits { retention, now: FAR_FUTURE, max_changes };
    let removed = log::prune(&tx, limits).await.expect("removed");
    tx.commit().await.expect("committed");
    removed
}

async fn count_seals(store: &Store, tenant: TenantId) -> u64 {
    let request = AuditRequest { retention: short_retention(), ..AuditRequest::default() };
    let report = verify_with(store, request).await;
    assert!(report.is_unaltered(), "{report:?}");
    report.projects[&tenant].chain.seals
}

#[tokio::test]
async fn old_seals_without_changes_are_removed_but_the_last_one() {
    let (store, tenant) = store_with_seals().await;
    let server_only = ChangeRetention { by_users: None, ..short_retention() };
    assert!(prune(&store, server_only, 1_000).await > 0);
    assert_eq!(prune(&store, server_only, 1_000).await, 0, "seals are kept as long as changes");
    assert_eq!(count_seals(&store, tenant).await, 3);
    register_host(&store, tenant, 4).await;
    seal(&store).await;
    let keep = "UPDATE change_seal_state SET minimum_retention = '1 day'";
    execute_sql(&store, keep).await;
    assert_eq!(prune(&store, short_retention(), 1_000).await, 0, "the owner keeps them");
    execute_sql(&store, "UPDATE change_seal_state SET minimum_retention = '0'").await;
    while prune(&store, short_retention(), 1).await > 0 {}
    assert_eq!(count_seals(&store, tenant).await, 1);
    // The chain continues.
    register_host(&store, tenant, 5).await;
    seal(&store).await;
    assert_eq!(count_seals(&store, tenant).await, 2);
    // Without a retention, no seal may be missing.
    let report = verify(&store).await;
    assert!(
        matches!(faults_of(&report, tenant)[0], ChainFault::MissingSeals { found: 4, .. }),
        "{report:?}"
    );
}

/// A removal that skipped its work while another replica seals would end its pass, and fall behind on a busy server.
#[tokio::test]
async fn removals_and_seals_wait_for_each_other() {
    let (store, tenant) = store_with_seals().await;
    register_host(&store, tenant, 4).await;
    let first = store.fleet().await.expect("a transaction");
    let limits = RemovalLimits { retention: short_retention(), now: FAR_FUTURE, max_changes: 1 };
    assert!(log::prune(&first, limits).await.expect("removed") > 0);
    let has_ended = Cell::new(false);
    let second = async {
        let removed = prune(&store, short_retention(), 1).await;
        has_ended.set(true);
        removed
    };
    let sealed = async {
        let sealed = seal(&store).await;
        has_ended.set(true);
        sealed
    };
    let waiting = "SELECT count(*)::text FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let commit = async {
        while !has_ended.get() && query_text(&store, waiting).await != "2" {
            tokio::task::yield_now().await;
        }
        first.commit().await.expect("committed");
    };
    let (removed, sealed, ()) = join3(second, sealed, commit).await;
    assert!(removed > 0 && sealed > 0, "{removed} removed, {sealed} sealed");
}

/// A retention that is set for the first time finds many seals, and few of them cover changes of users.
#[tokio::test]
async fn the_retention_of_users_skips_seals_without_their_changes() {
    let (store, tenant) = store_with_seals().await;
    let actor =
        Actor { name: "erika".into(), request_id: "r1".into(), client_address: String::new() };
    let tx = store.tenant_as(tenant, &actor).await.expect("a transaction");
    hosts::register(&tx, &registration(4), NOON).await.expect("a host");
    tx.commit().await.expect("committed");
    assert!(seal(&store).await > 0);
    let fill = "INSERT INTO change_seals SELECT tenant_id, n - 5000, encoding, n - 5001, n - 5000, 0, digest_by_users, 1, \
                digest_by_server, first_at, last_at, sealed_at, previous, digest \
                FROM change_seals, generate_series(1, 4000) n WHERE number = 1; \
                UPDATE change_seal_state SET users_removed_to = -5000";
    execute_sql(&store, fill).await;
    let users_only = ChangeRetention { by_server: None, ..short_retention() };
    assert!(prune(&store, users_only, 1).await > 0, "in the first call");
    assert_eq!(prune(&store, users_only, 1).await, 0);
}

#[tokio::test]
async fn an_idle_pass_is_one_short_statement_and_many_projects_cost_no_more() {
    let store = fresh_store().await;
    let (counting, counts) = counting_store(&store);
    let mut sealer = ChangeSealer::new(counting);
    let mut cost_of_pass = async |projects: u32, prefix: &str| {
        for n in 0..projects {
            create_project(&store, &format!("{prefix}{n}")).await;
        }
        let before = counts.totals();
        let pass = sealer.pass().await.expect("a pass");
        let after = counts.totals();
        (pass.seals, after.0 - before.0, after.1 - before.1)
    };
    let (seals, statements, transactions) = cost_of_pass(1, "one").await;
    // One chain is that of changes outside of projects.
    assert_eq!((seals, transactions), (2, 1));
    assert_eq!(cost_of_pass(20, "many").await, (21, statements, transactions));
    // The short statement is not counted.
    assert_eq!(cost_of_pass(0, "none").await, (0, 0, 0));
}

#[tokio::test]
async fn many_unsealed_changes_are_sealed_in_bounded_batches() {
    let (store, tenant) = store_with_project().await;
    seal(&store).await;
    let fill = format!(
        "INSERT INTO change_log (tenant_id, kind, id, operation) \
         SELECT '{tenant}', 'host', n, 'update' FROM generate_series(1, 22500) n"
    );
    execute_sql(&store, &fill).await;
    let mut sealer = ChangeSealer::new(store.clone());
    let first = sealer.pass().await.expect("a pass");
    assert_eq!((first.changes, first.seals), (20_000, 20));
    assert!(!first.oldest_unsealed.is_zero());
    let second = sealer.pass().await.expect("a pass");
    assert_eq!((second.changes, second.seals), (2_500, 3));
    assert!(second.oldest_unsealed.is_zero());
    let report = verify(&store).await;
    assert!(report.is_unaltered());
    assert!(report.projects[&tenant].chain.unaltered > 22_500);
}

/// After a restore on another server, transaction ids begin again below those of the restored changes.
#[tokio::test]
async fn changes_after_a_restore_continue_the_chain() {
    let (store, tenant) = store_with_seals().await;
    let restored = "INSERT INTO change_log (tenant_id, xid, kind, id, operation) \
                    SELECT tenant_id, '9000000000000'::xid8, kind, id, operation FROM change_log";
    execute_sql(&store, restored).await;
    assert!(seal(&store).await > 0);
    register_host(&store, tenant, 9).await;
    assert!(seal(&store).await > 0);
    let report = verify(&store).await;
    assert!(report.is_unaltered(), "{report:?}");
    assert_eq!(report.projects[&tenant].chain.seals, 5);
}

#[tokio::test]
async fn changes_outside_of_projects_have_a_chain_of_their_own() {
    let (store, tenant) = store_with_seals().await;
    let none = TenantId::NO_PROJECT;
    let report = verify(&store).await;
    assert_eq!(report.projects.keys().collect::<Vec<_>>(), [&none, &tenant]);
    assert_eq!(report.projects[&none].chain.unaltered, 1, "the creation of the project");
    let forge = format!("UPDATE change_log SET actor = 'mallory' WHERE tenant_id = '{none}'");
    execute_sql(&store, &without_protection(&forge)).await;
    let request = AuditRequest { project: Some(none.uuid()), ..AuditRequest::default() };
    let report = verify_with(&store, request).await;
    assert_eq!(report.projects.keys().collect::<Vec<_>>(), [&none]);
    assert!(!faults_of(&report, none).is_empty(), "{report:?}");
}

#[tokio::test]
async fn one_project_can_be_verified_alone() {
    let (store, ours, theirs) = store_with_two_projects().await;
    register_host(&store, ours, 1).await;
    register_host(&store, theirs, 2).await;
    seal(&store).await;
    let forge = format!("UPDATE change_log SET request_id = 'x' WHERE tenant_id = '{theirs}'");
    execute_sql(&store, &without_protection(&forge)).await;
    for (project, is_unaltered) in [(ours, true), (theirs, false)] {
        let request = AuditRequest { project: Some(project.uuid()), ..AuditRequest::default() };
        let report = verify_with(&store, request).await;
        assert_eq!(report.is_unaltered(), is_unaltered, "{report:?}");
        assert_eq!(report.projects.keys().collect::<Vec<_>>(), [&project]);
    }
    assert_eq!(query_text(&store, "SELECT count(*)::text FROM change_seals").await, "0", "hidden");
}
