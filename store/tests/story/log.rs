//! Readers of the change log get every change once, or an error if that is no longer possible.

mod barrier;
mod other_servers;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::change_seal::ChangeRetention;
use evenkeel_domain::id::{HostId, InstanceId, SiteId};
use evenkeel_domain::tenant::TenantId;
use evenkeel_pg::{Options, PrivatePostgres};
use evenkeel_store::change_seals::ChangeSealer;
use evenkeel_store::log::{
    self, ChangeKind, LogBreak, LogError, LogReader, LoggedChange, Operation, Position,
    RemovalLimits,
};
use evenkeel_store::testing::{fresh_database, fresh_store, query_text, without_protection};
use evenkeel_store::{IncompatibleDatabase, Store, StoreError, StoreOptions, hosts};
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{NOON, create_project, execute_sql, registration, store_with_project};
use crate::isolation::create_everything;

/// Later than all times that a test writes: the log uses the clock of the database.
pub(crate) const FAR_FUTURE: Time = DateTime::from_timestamp_nanos(4_000_000_000_000_000_000);

async fn open_reader(store: &Store) -> LogReader {
    LogReader::open(store).await.expect("a reader").0
}

/// Reads until all changes that existed at the start have been read.
async fn catch_up(reader: &mut LogReader) -> Vec<LoggedChange> {
    let (mut read, mut end) = (Vec::new(), None);
    loop {
        let tail = reader.next(100).await.expect("a pass");
        let end = *end.get_or_insert(tail.xmax);
        read.extend(tail.changes);
        if !tail.has_more && tail.limit >= end {
            return read;
        }
    }
}

async fn expect_break(reader: &mut LogReader) -> LogBreak {
    match reader.next(100).await {
        Err(LogError::Broken(why)) => why,
        other => panic!("{other:?}"),
    }
}

async fn register_host(store: &Store, tenant: TenantId, n: u128) -> HostId {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(n), NOON).await;
    tx.commit().await.expect("committed");
    host.expect("a host").id
}

/// Hosts that were created according to the log.
fn created_hosts(changes: &[LoggedChange]) -> Vec<HostId> {
    let created = changes.iter().filter(|change| {
        let what = (change.kind, change.operation);
        what == (ChangeKind::Host, Operation::Insert)
    });
    created.map(|change| HostId::from_bits(change.id)).collect()
}

/// Seals all changes and removes those that were sealed before a time.
pub(crate) async fn prune(store: &Store, before: Time, max_changes: u32) -> u64 {
    ChangeSealer::new(store.clone()).pass().await.expect("a pass");
    let tx = store.fleet().await.expect("a transaction");
    let at_once = Some(TimeDelta::zero());
    let retention = ChangeRetention { by_users: at_once, by_server: at_once };
    let limits = RemovalLimits { retention, now: before, max_changes };
    let removed = log::prune(&tx, limits).await.expect("pruned");
    tx.commit().await.expect("committed");
    removed
}

/// Registers hosts one by one, with transactions of different length. Some of them roll back.
async fn register_hosts(store: &Store, tenant: TenantId, writer: u128) -> Vec<HostId> {
    let mut written = Vec::new();
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
            written.push(host.id);
        }
    }
    written
}

#[tokio::test]
async fn every_change_of_many_writers_is_read_once_and_in_order() {
    let options = StoreOptions {
        max_connections: 20,
        acquire_timeout: Duration::from_secs(30),
        ..StoreOptions::default()
    };
    let store = Store::connect(&fresh_database().await, options).await;
    let store = store.expect("connected");
    let tenant = create_project(&store, "ours").await;
    let mut reader = open_reader(&store).await;
    let is_done = Cell::new(false);
    let writing = async {
        let written = join_all((0..16).map(|writer| register_hosts(&store, tenant, writer))).await;
        is_done.set(true);
        written.concat()
    };
    let reading = async {
        let mut read = Vec::new();
        while !is_done.get() {
            let tail = reader.next(7).await.expect("a pass");
            read.extend(tail.changes);
        }
        read.extend(catch_up(&mut reader).await);
        read
    };
    let (mut written, read) = tokio::join!(writing, reading);
    let positions: Vec<Position> = read.iter().map(|change| change.at).collect();
    assert!(positions.is_sorted_by(|one, next| one < next), "{positions:?}");
    let mut logged = created_hosts(&read);
    logged.sort_unstable();
    written.sort_unstable();
    assert_eq!(logged, written);
    assert!(read.iter().all(|change| change.tenant == tenant));
}

#[tokio::test]
async fn changes_after_an_open_transaction_are_read_when_it_ends() {
    let (store, tenant) = store_with_project().await;
    let mut reader = open_reader(&store).await;
    let slow = store.tenant(tenant).await.expect("a transaction");
    let first = hosts::register(&slow, &registration(1), NOON).await;
    let second = register_host(&store, tenant, 2).await;
    let tail = reader.next(100).await.expect("a pass");
    assert_eq!(tail.changes, []);
    assert!(tail.limit < tail.xmax, "{tail:?}");
    slow.commit().await.expect("committed");
    let read = catch_up(&mut reader).await;
    assert_eq!(created_hosts(&read), [first.expect("a host").id, second]);
}

/// On a server with no other writers: the open transaction is the newest, or older than one that
/// has ended.
#[tokio::test]
async fn a_transaction_that_was_open_during_empty_reads_is_read_when_it_ends() {
    let postgres = PrivatePostgres::throwaway().await.expect("a Postgres");
    let store = Store::connect(&postgres.url(), StoreOptions::default()).await;
    let store = store.expect("connected");
    store.migrate().await.expect("migrated");
    let tenant = create_project(&store, "ours").await;
    let mut reader = open_reader(&store).await;
    catch_up(&mut reader).await;
    let slow = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&slow, &registration(1), NOON).await;
    for _ in 0..3 {
        let tail = reader.next(100).await.expect("a pass");
        assert_eq!((tail.changes, tail.has_more), (vec![], false));
    }
    slow.commit().await.expect("committed");
    let tail = reader.next(100).await.expect("a pass");
    assert_eq!(created_hosts(&tail.changes), [host.expect("a host").id]);

    // An older transaction ends, but the oldest open one stays the same.
    let slow = store.tenant(tenant).await.expect("a transaction");
    let older = hosts::register(&slow, &registration(2), NOON).await;
    let newer = register_host(&store, tenant, 3).await;
    let before = reader.next(100).await.expect("a pass");
    assert_eq!((created_hosts(&before.changes), before.has_more), (vec![], false));
    slow.commit().await.expect("committed");
    let tail = reader.next(100).await.expect("a pass");
    assert_eq!(tail.xmax, before.xmax, "another transaction ended");
    assert_eq!(created_hosts(&tail.changes), [older.expect("a host").id, newer]);
}

#[tokio::test]
async fn an_open_transaction_in_another_database_blocks_nothing() {
    let (store, other) = (fresh_store().await, fresh_store().await);
    let (ours, theirs) =
        (create_project(&store, "ours").await, create_project(&other, "theirs").await);
    let mut reader = open_reader(&store).await;
    let slow = other.tenant(theirs).await.expect("a transaction");
    let host = hosts::register(&slow, &registration(1), NOON).await;
    host.expect("a host");
    let host = register_host(&store, ours, 1).await;
    let tail = reader.next(100).await.expect("a pass");
    assert_eq!(created_hosts(&tail.changes), [host]);
    slow.commit().await.expect("committed");

    // A reader that has read everything, while nothing is open, and while it is.
    catch_up(&mut reader).await;
    let host = register_host(&store, ours, 2).await;
    let tail = reader.next(100).await.expect("a pass");
    assert_eq!(created_hosts(&tail.changes), [host]);
    let slow = other.tenant(theirs).await.expect("a transaction");
    hosts::register(&slow, &registration(2), NOON).await.expect("a host");
    let host = register_host(&store, ours, 3).await;
    let tail = reader.next(100).await.expect("a pass");
    assert_eq!(created_hosts(&tail.changes), [host]);
    slow.commit().await.expect("committed");
}

#[tokio::test]
async fn a_reader_starts_at_the_end_and_reads_in_batches() {
    let (store, tenant) = store_with_project().await;
    register_host(&store, tenant, 1).await;
    let mut reader = open_reader(&store).await;
    assert_eq!(created_hosts(&catch_up(&mut reader).await), []);
    let hosts = [2, 3, 4].map(|n| register_host(&store, tenant, n));
    let hosts = join_all(hosts).await;
    let mut logged = BTreeSet::new();
    loop {
        let tail = reader.next(1).await.expect("a pass");
        assert!(tail.changes.len() <= 1);
        logged.extend(created_hosts(&tail.changes));
        if !tail.has_more {
            break;
        }
    }
    assert_eq!(logged, hosts.into_iter().collect());
}

fn scopes_of(changes: &[LoggedChange], kind: ChangeKind) -> Vec<Option<Scope>> {
    let of_kind = changes.iter().filter(|change| change.kind == kind);
    let concerned: BTreeSet<_> = of_kind.map(|change| change.scope).collect();
    concerned.into_iter().collect()
}

#[tokio::test]
async fn a_change_has_the_scope_that_it_concerns() {
    let (store, tenant) = store_with_project().await;
    let mut reader = open_reader(&store).await;
    create_everything(&store, tenant).await;
    let read = catch_up(&mut reader).await;
    let bits = |kind| {
        let first = read.iter().find(|change| change.kind == kind);
        first.expect("one of everything").id
    };
    let host = Scope::Host(HostId::from_bits(bits(ChangeKind::Host)));
    let instance = Scope::Instance(InstanceId::from_bits(bits(ChangeKind::Instance)));
    let site = Scope::Site(SiteId::from_bits(bits(ChangeKind::Site)));
    for (kind, scope) in [
        (ChangeKind::Host, Some(host)),
        (ChangeKind::Single, Some(host)),
        (ChangeKind::Repeated, Some(host)),
        (ChangeKind::Instance, Some(instance)),
        (ChangeKind::Run, Some(instance)),
        (ChangeKind::Order, Some(instance)),
        (ChangeKind::Site, Some(site)),
        (ChangeKind::Assignment, Some(Scope::Project)),
        (ChangeKind::Slot, Some(Scope::Project)),
        (ChangeKind::Pause, Some(Scope::Project)),
        (ChangeKind::Region, None),
        (ChangeKind::Policy, None),
        (ChangeKind::Os, None),
        (ChangeKind::Settings, None),
    ] {
        assert_eq!(scopes_of(&read, kind), [scope], "{kind:?}");
    }

    // A moved window concerns both its old and its new target.
    let schedules = "UPDATE single_schedules SET";
    execute_sql(&store, &format!("{schedules} name = 'night'")).await;
    let read = catch_up(&mut reader).await;
    assert_eq!(scopes_of(&read, ChangeKind::Single), [Some(host)]);
    let elsewhere = format!(
        "{schedules} target_host_id = NULL, target_site_id = {}",
        bits(ChangeKind::Site).cast_signed()
    );
    execute_sql(&store, &elsewhere).await;
    let read = catch_up(&mut reader).await;
    assert_eq!(scopes_of(&read, ChangeKind::Single), [None]);
    execute_sql(&store, &format!("{schedules} name = 'day'")).await;
    let read = catch_up(&mut reader).await;
    assert_eq!(scopes_of(&read, ChangeKind::Single), [Some(site)]);
}

#[tokio::test]
async fn a_removed_failure_concerns_the_whole_assignment() {
    let (store, tenant) = store_with_project().await;
    create_everything(&store, tenant).await;
    let mut reader = open_reader(&store).await;
    let runs = "UPDATE update_runs SET";
    let end = "state = 'abandoned', cause = 'timed_out', ended_at = now(), changed = NULL, \
               failure_kind = NULL, failure = NULL";
    execute_sql(&store, &format!("{runs} granted_kind = 'project', granted_id = 0, {end}")).await;
    catch_up(&mut reader).await;
    execute_sql(&store, &format!("{runs} name = 'another'")).await;
    let read = catch_up(&mut reader).await;
    let scopes = scopes_of(&read, ChangeKind::Run);
    assert!(matches!(scopes[..], [Some(Scope::Instance(_))]), "{scopes:?}");
    for sql in [format!("{runs} cause = 'superseded'"), "DELETE FROM update_runs".to_owned()] {
        execute_sql(&store, &sql).await;
        let read = catch_up(&mut reader).await;
        assert_eq!(scopes_of(&read, ChangeKind::Run), [None], "{sql}");
    }
}

/// Nodes under the same limits depend on the number of failures.
#[tokio::test]
async fn a_failure_without_a_permit_concerns_its_assignment() {
    let (store, tenant) = store_with_project().await;
    create_everything(&store, tenant).await;
    let mut reader = open_reader(&store).await;
    let under = "UPDATE update_runs SET assigned_kind = 'project', assigned_id = 0";
    let fail = "ended_at = now(), state = 'failed', failure_kind = 'apply', failure = 'no', \
                changed = NULL, cause = NULL";
    for (sql, expected) in [
        (under.to_owned(), 0),
        (format!("UPDATE update_runs SET {fail}"), 1),
        ("UPDATE update_runs SET name = 'another'".to_owned(), 0),
        ("DELETE FROM update_runs".to_owned(), 1),
    ] {
        execute_sql(&store, &sql).await;
        let read = catch_up(&mut reader).await;
        assert_eq!(scopes_of(&read, ChangeKind::Slot).len(), expected, "{sql}");
        let is_project = |scope: &Option<Scope>| *scope == Some(Scope::Project);
        assert!(scopes_of(&read, ChangeKind::Slot).iter().all(is_project), "{sql}");
    }
}

#[tokio::test]
async fn an_update_that_changes_nothing_is_not_logged() {
    let (store, tenant) = store_with_project().await;
    create_everything(&store, tenant).await;
    let mut reader = open_reader(&store).await;
    catch_up(&mut reader).await;
    for (table, column) in [
        ("hosts", "note"),
        ("node_states", "facts"),
        ("update_runs", "state"),
        ("update_slots", "since_at"),
        ("update_policies", "sources"),
    ] {
        execute_sql(&store, &format!("UPDATE {table} SET {column} = {column}")).await;
        assert_eq!(catch_up(&mut reader).await, [], "{table}");
    }
}

#[tokio::test]
async fn changes_deleted_by_hand_are_detected() {
    let (store, tenant) = store_with_project().await;
    register_host(&store, tenant, 1).await;
    for sql in [
        "DELETE FROM change_log WHERE seq = (SELECT min(seq) FROM change_log)",
        "TRUNCATE change_log",
        "TRUNCATE change_log RESTART IDENTITY",
    ] {
        let mut reader = open_reader(&store).await;
        execute_sql(&store, &without_protection(sql)).await;
        assert_eq!(expect_break(&mut reader).await, LogBreak::OtherEpoch, "{sql}");
        assert_eq!(expect_break(&mut reader).await, LogBreak::OtherEpoch, "permanently");
    }
    // Without the trigger that counts deletions, the reader misses the last change that it read.
    let mut reader = open_reader(&store).await;
    register_host(&store, tenant, 2).await;
    assert!(!catch_up(&mut reader).await.is_empty());
    let unseen = "ALTER TABLE change_log DISABLE TRIGGER USER; DELETE FROM change_log; \
                  ALTER TABLE change_log ENABLE TRIGGER USER";
    execute_sql(&store, unseen).await;
    assert_eq!(expect_break(&mut reader).await, LogBreak::Truncated);
}

#[tokio::test]
async fn pruned_changes_are_missed_only_by_readers_that_have_not_read_them() {
    let (store, tenant) = store_with_project().await;
    let (mut quick, mut late) = (open_reader(&store).await, open_reader(&store).await);
    register_host(&store, tenant, 1).await;
    catch_up(&mut quick).await;
    assert_eq!(prune(&store, Time::UNIX_EPOCH, 100).await, 0);
    assert_eq!(catch_up(&mut quick).await, []);
    // The next call seals this change after the others.
    register_host(&store, tenant, 2).await;
    catch_up(&mut quick).await;
    assert!(prune(&store, FAR_FUTURE, 1).await >= 2, "the project and its host");
    let rest = join_all((0..4).map(|_| prune(&store, FAR_FUTURE, 100))).await;
    assert!(rest.iter().sum::<u64>() >= 1, "the other host");
    let host = register_host(&store, tenant, 3).await;
    assert_eq!(created_hosts(&catch_up(&mut quick).await), [host]);
    assert_eq!(expect_break(&mut late).await, LogBreak::Pruned);
}

/// Such a reader cannot distinguish transactions in this database from those in others.
#[tokio::test]
async fn a_role_that_cannot_see_other_transactions_cannot_read_the_log() {
    let url = fresh_database().await;
    let store = Store::connect(&url, StoreOptions::default()).await;
    let store = store.expect("connected");
    let above = url.replace("user=evenkeel", "user=postgres");
    let superuser = Store::connect(&above, StoreOptions::default()).await;
    let superuser = superuser.expect("connected");
    let hide = "REVOKE SELECT ON pg_catalog.pg_stat_activity FROM PUBLIC";
    superuser.execute_unprepared(hide).await.expect("hidden");
    let refused = LogReader::open(&store).await;
    let Err(LogError::Incompatible(incompatible @ IncompatibleDatabase::ActivityNotVisible { .. })) =
        refused
    else {
        panic!("{refused:?}");
    };
    let message = incompatible.to_string();
    let (_, repair) = message.split_once('\n').expect("the SQL that repairs it");
    superuser.execute_unprepared(repair).await.expect("repaired");
    open_reader(&store).await;
}

/// After a crash, Postgres may assign the ids of transactions again that it had not written to its
/// disk. A reader that began above them would miss the changes of the new ones.
#[tokio::test]
async fn a_reader_begins_at_a_transaction_that_survives_a_crash_of_the_database() {
    let (store, _) = store_with_project().await;
    let (_, begin) = LogReader::open(&store).await.expect("a reader");
    let status = format!("SELECT pg_xact_status('{}')", begin.xid);
    assert_eq!(query_text(&store, &status).await, "committed");
}

#[tokio::test]
async fn a_commit_wakes_listeners_also_in_another_process() {
    let url = fresh_database().await;
    let here = Store::connect(&url, StoreOptions::default()).await;
    let here = here.expect("connected");
    let tenant = create_project(&here, "ours").await;
    // A second store stands for another process: it sends hints for its commits.
    let there = Store::connect(&url, StoreOptions::default()).await;
    let there = there.expect("connected");
    let stopping = CancellationToken::new();
    let sending = there.clone().send_hints(stopping.clone());
    let listening = async {
        let mut hints = log::listen_for_hints(&here).await.expect("a listener");
        register_host(&there, tenant, 1).await;
        hints.next().await;
        // After a lost connection, the listener assumes a missed hint and listens again.
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND query LIKE 'LISTEN%'";
        here.execute_unprepared(cut).await.expect("cut off");
        hints.next().await;
        register_host(&there, tenant, 2).await;
        hints.next().await;
        stopping.cancel();
    };
    let both = Box::pin(async { tokio::join!(sending, listening) });
    let within = Duration::from_mins(1);
    let heard = tokio::time::timeout(within, both).await;
    heard.expect("a hint for each commit");
}
