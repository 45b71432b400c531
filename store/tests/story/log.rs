//! The change log as a program follows it: every change once, and a word where that cannot be said any more.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use chrono::DateTime;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{HostId, InstanceId, SiteId};
use evenkeel_domain::tenant::TenantId;
use evenkeel_pg::{Options, PrivatePostgres};
use evenkeel_store::log::{self, Break, Change, Kind, LogError, Operation, Position, Reader};
use evenkeel_store::testing::{fresh_database, fresh_store};
use evenkeel_store::{Misfit, Store, StoreError, StoreOptions, hosts};
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::house::{NOON, by_hand, project, registration};
use crate::walls::everything;

/// Later than everything that a test writes: the log goes by the clock of the database.
const LONG_AFTER: Time = DateTime::from_timestamp_nanos(4_000_000_000_000_000_000);

async fn open(store: &Store) -> Reader {
    Reader::open(store).await.expect("a reader").0
}

/// Reads until everything was read that was there before.
async fn catch_up(reader: &mut Reader) -> Vec<Change> {
    let (mut read, mut end) = (Vec::new(), None);
    loop {
        let tail = reader.next(100).await.expect("a pass");
        let end = *end.get_or_insert(tail.xmax);
        read.extend(tail.changes);
        if !tail.more && tail.limit >= end {
            return read;
        }
    }
}

async fn broken(reader: &mut Reader) -> Break {
    match reader.next(100).await {
        Err(LogError::Broken(why)) => why,
        other => panic!("{other:?}"),
    }
}

async fn register(store: &Store, tenant: TenantId, n: u128) -> HostId {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(n), NOON).await;
    tx.commit().await.expect("committed");
    host.expect("a host").id
}

/// The hosts that were made, as the log tells of them.
fn made(changes: &[Change]) -> Vec<HostId> {
    let made = changes.iter().filter(|change| {
        let what = (change.kind, change.operation);
        what == (Kind::Host, Operation::Insert)
    });
    made.map(|change| HostId::from_bits(change.id)).collect()
}

async fn prune(store: &Store, before: Time, limit: u32) -> u64 {
    let tx = store.fleet().await.expect("a transaction");
    let gone = log::prune(&tx, before, limit).await.expect("pruned");
    tx.commit().await.expect("committed");
    gone
}

/// Registers hosts one after the other, and takes its time within each transaction, now longer and now shorter. Some of
/// them come to nothing.
async fn write(store: &Store, tenant: TenantId, writer: u128) -> Vec<HostId> {
    let mut written = Vec::new();
    for turn in 0..10 {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let new = registration(writer * 100 + turn + 1);
        let host = hosts::register(&tx, &new, NOON).await.expect("a host");
        for _ in 0..(writer * 3 + turn * 5) % 11 {
            hosts::find(&tx, host.id).await.expect("it is there");
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
async fn of_many_writers_every_change_is_read_once_and_in_order() {
    let options = StoreOptions {
        max_connections: 20,
        acquire_timeout: Duration::from_secs(30),
        ..StoreOptions::default()
    };
    let store = Store::connect(&fresh_database().await, options).await;
    let store = store.expect("connected");
    let tenant = project(&store, "ours").await;
    let mut reader = open(&store).await;
    let is_over = Cell::new(false);
    let writing = async {
        let written = join_all((0..16).map(|writer| write(&store, tenant, writer))).await;
        is_over.set(true);
        written.concat()
    };
    let reading = async {
        let mut read = Vec::new();
        while !is_over.get() {
            let tail = reader.next(7).await.expect("a pass");
            read.extend(tail.changes);
        }
        read.extend(catch_up(&mut reader).await);
        read
    };
    let (mut written, read) = tokio::join!(writing, reading);
    let places: Vec<Position> = read.iter().map(|change| change.at).collect();
    assert!(places.is_sorted_by(|one, next| one < next), "{places:?}");
    let mut told = made(&read);
    told.sort_unstable();
    written.sort_unstable();
    assert_eq!(told, written);
    assert!(read.iter().all(|change| change.tenant == tenant));
}

#[tokio::test]
async fn what_came_after_an_open_transaction_is_read_when_that_is_over() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut reader = open(&store).await;
    let slow = store.tenant(tenant).await.expect("a transaction");
    let first = hosts::register(&slow, &registration(1), NOON).await;
    let second = register(&store, tenant, 2).await;
    let tail = reader.next(100).await.expect("a pass");
    assert_eq!(tail.changes, []);
    assert!(tail.limit < tail.xmax, "{tail:?}");
    slow.commit().await.expect("committed");
    let read = catch_up(&mut reader).await;
    assert_eq!(made(&read), [first.expect("a host").id, second]);
}

/// On a server where nobody else writes: what is open is the newest transaction, or older than one that has ended.
#[tokio::test]
async fn what_was_open_while_there_was_nothing_to_read_is_read_when_it_is_over() {
    let postgres = PrivatePostgres::throwaway().await.expect("a Postgres");
    let store = Store::connect(&postgres.url(), StoreOptions::default()).await;
    let store = store.expect("connected");
    store.migrate().await.expect("migrated");
    let tenant = project(&store, "ours").await;
    let mut reader = open(&store).await;
    catch_up(&mut reader).await;
    let slow = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&slow, &registration(1), NOON).await;
    for _ in 0..3 {
        let tail = reader.next(100).await.expect("a pass");
        assert_eq!((tail.changes, tail.more), (vec![], false));
    }
    slow.commit().await.expect("committed");
    let tail = reader.next(100).await.expect("a pass");
    assert_eq!(made(&tail.changes), [host.expect("a host").id]);

    // An older one ends, and the first that has not ended is the same as before.
    let slow = store.tenant(tenant).await.expect("a transaction");
    let older = hosts::register(&slow, &registration(2), NOON).await;
    let newer = register(&store, tenant, 3).await;
    let before = reader.next(100).await.expect("a pass");
    assert_eq!((made(&before.changes), before.more), (vec![], false));
    slow.commit().await.expect("committed");
    let tail = reader.next(100).await.expect("a pass");
    assert_eq!(tail.xmax, before.xmax, "another transaction ended");
    assert_eq!(made(&tail.changes), [older.expect("a host").id, newer]);
}

#[tokio::test]
async fn an_open_transaction_in_another_database_holds_nothing_up() {
    let (store, other) = (fresh_store().await, fresh_store().await);
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&other, "theirs").await,
    );
    let mut reader = open(&store).await;
    let slow = other.tenant(theirs).await.expect("a transaction");
    let host = hosts::register(&slow, &registration(1), NOON).await;
    host.expect("a host");
    let host = register(&store, ours, 1).await;
    let tail = reader.next(100).await.expect("a pass");
    assert_eq!(made(&tail.changes), [host]);
    slow.commit().await.expect("committed");
}

#[tokio::test]
async fn a_reader_begins_at_the_end_and_is_told_in_pieces() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    register(&store, tenant, 1).await;
    let mut reader = open(&store).await;
    assert_eq!(made(&catch_up(&mut reader).await), []);
    let hosts = [2, 3, 4].map(|n| register(&store, tenant, n));
    let hosts = join_all(hosts).await;
    let mut told = BTreeSet::new();
    loop {
        let tail = reader.next(1).await.expect("a pass");
        assert!(tail.changes.len() <= 1);
        told.extend(made(&tail.changes));
        if !tail.more {
            break;
        }
    }
    assert_eq!(told, hosts.into_iter().collect());
}

/// Whom the changes of a kind concern.
fn concerned(changes: &[Change], kind: Kind) -> Vec<Option<Scope>> {
    let of_kind = changes.iter().filter(|change| change.kind == kind);
    let concerned: BTreeSet<_> = of_kind.map(|change| change.scope).collect();
    concerned.into_iter().collect()
}

#[tokio::test]
async fn a_change_says_whom_it_concerns() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut reader = open(&store).await;
    everything(&store, tenant).await;
    let read = catch_up(&mut reader).await;
    let bits = |kind| {
        let first = read.iter().find(|change| change.kind == kind);
        first.expect("one of everything").id
    };
    let host = Scope::Host(HostId::from_bits(bits(Kind::Host)));
    let instance = Scope::Instance(InstanceId::from_bits(bits(Kind::Instance)));
    let site = Scope::Site(SiteId::from_bits(bits(Kind::Site)));
    for (kind, scope) in [
        (Kind::Host, Some(host)),
        (Kind::Single, Some(host)),
        (Kind::Repeated, Some(host)),
        (Kind::Instance, Some(instance)),
        (Kind::Run, Some(instance)),
        (Kind::Order, Some(instance)),
        (Kind::Site, Some(site)),
        (Kind::Assignment, Some(Scope::Project)),
        (Kind::Slot, Some(Scope::Project)),
        (Kind::Pause, Some(Scope::Project)),
        (Kind::Region, None),
        (Kind::Policy, None),
        (Kind::Os, None),
        (Kind::Settings, None),
    ] {
        assert_eq!(concerned(&read, kind), [scope], "{kind:?}");
    }

    // Where a window was is concerned as well as where it went.
    let schedules = "UPDATE single_schedules SET";
    by_hand(&store, &format!("{schedules} name = 'night'")).await;
    let read = catch_up(&mut reader).await;
    assert_eq!(concerned(&read, Kind::Single), [Some(host)]);
    let elsewhere = format!(
        "{schedules} target_host_id = NULL, target_site_id = {}",
        bits(Kind::Site).cast_signed()
    );
    by_hand(&store, &elsewhere).await;
    let read = catch_up(&mut reader).await;
    assert_eq!(concerned(&read, Kind::Single), [None]);
    by_hand(&store, &format!("{schedules} name = 'day'")).await;
    let read = catch_up(&mut reader).await;
    assert_eq!(concerned(&read, Kind::Single), [Some(site)]);
}

#[tokio::test]
async fn a_failure_that_goes_concerns_all_who_are_under_the_assignment() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    everything(&store, tenant).await;
    let mut reader = open(&store).await;
    let runs = "UPDATE update_runs SET";
    let end = "state = 'abandoned', cause = 'timed_out', ended_at = now(), changed = NULL, \
               failure_kind = NULL, failure = NULL";
    by_hand(
        &store,
        &format!("{runs} granted_kind = 'project', granted_id = 0, {end}"),
    )
    .await;
    catch_up(&mut reader).await;
    by_hand(&store, &format!("{runs} name = 'another'")).await;
    let read = catch_up(&mut reader).await;
    let whom = concerned(&read, Kind::Run);
    assert!(matches!(whom[..], [Some(Scope::Instance(_))]), "{whom:?}");
    for sql in [
        format!("{runs} cause = 'superseded'"),
        "DELETE FROM update_runs".to_owned(),
    ] {
        by_hand(&store, &sql).await;
        let read = catch_up(&mut reader).await;
        assert_eq!(concerned(&read, Kind::Run), [None], "{sql}");
    }
}

#[tokio::test]
async fn what_is_written_as_it_was_is_no_change() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    everything(&store, tenant).await;
    let mut reader = open(&store).await;
    catch_up(&mut reader).await;
    for (table, column) in [
        ("hosts", "note"),
        ("node_states", "facts"),
        ("update_runs", "state"),
        ("brake_slots", "since_at"),
        ("update_policies", "sources"),
    ] {
        by_hand(&store, &format!("UPDATE {table} SET {column} = {column}")).await;
        assert_eq!(catch_up(&mut reader).await, [], "{table}");
    }
}

#[tokio::test]
async fn whoever_removes_changes_by_hand_is_noticed() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    register(&store, tenant, 1).await;
    for sql in [
        "DELETE FROM change_log WHERE seq = (SELECT min(seq) FROM change_log)",
        "TRUNCATE change_log",
        "TRUNCATE change_log RESTART IDENTITY",
    ] {
        let mut reader = open(&store).await;
        by_hand(&store, sql).await;
        assert_eq!(broken(&mut reader).await, Break::OtherEpoch, "{sql}");
        assert_eq!(broken(&mut reader).await, Break::OtherEpoch, "for good");
    }
    // And where nothing counts it: the last change that was read is missed.
    let mut reader = open(&store).await;
    register(&store, tenant, 2).await;
    assert!(!catch_up(&mut reader).await.is_empty());
    let unseen = "ALTER TABLE change_log DISABLE TRIGGER USER; DELETE FROM change_log; \
                  ALTER TABLE change_log ENABLE TRIGGER USER";
    by_hand(&store, unseen).await;
    assert_eq!(broken(&mut reader).await, Break::Truncated);
}

#[tokio::test]
async fn what_was_read_is_thrown_away_unnoticed_and_what_was_not_is_missed() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (mut quick, mut late) = (open(&store).await, open(&store).await);
    register(&store, tenant, 1).await;
    catch_up(&mut quick).await;
    assert_eq!(prune(&store, Time::UNIX_EPOCH, 100).await, 0);
    assert_eq!(catch_up(&mut quick).await, []);
    assert_eq!(prune(&store, LONG_AFTER, 1).await, 1);
    let rest = join_all((0..4).map(|_| prune(&store, LONG_AFTER, 100))).await;
    assert!(rest.iter().sum::<u64>() >= 1, "the project and its host");
    let host = register(&store, tenant, 2).await;
    assert_eq!(made(&catch_up(&mut quick).await), [host]);
    assert_eq!(broken(&mut late).await, Break::Pruned);
}

#[tokio::test]
async fn a_database_that_went_back_in_time_is_noticed() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut reader = open(&store).await;
    for n in 1..=3 {
        register(&store, tenant, n).await;
    }
    catch_up(&mut reader).await;
    let back = "ALTER TABLE change_log ALTER COLUMN seq RESTART";
    by_hand(&store, back).await;
    assert_eq!(broken(&mut reader).await, Break::Backwards);
}

/// A backup that is restored elsewhere brings numbers of transactions that are not there yet.
#[tokio::test]
async fn a_log_from_another_server_can_be_followed_from_its_end() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut reader = open(&store).await;
    let ahead = "UPDATE log_state SET floor_xid = '9000000000000', floor_seq = 1";
    by_hand(&store, ahead).await;
    assert_eq!(broken(&mut reader).await, Break::Pruned);
    let mut reader = open(&store).await;
    let host = register(&store, tenant, 1).await;
    assert_eq!(made(&catch_up(&mut reader).await), [host]);

    // Changes that came with it are removed when they are old, and no reader is told of it.
    let restored = "INSERT INTO change_log (tenant_id, xid, kind, id, operation) \
                    SELECT tenant_id, '9000000000000'::xid8, kind, id, operation FROM change_log";
    by_hand(&store, restored).await;
    assert_eq!(catch_up(&mut reader).await, []);
    assert_eq!(prune(&store, Time::UNIX_EPOCH, 100).await, 0);
    while prune(&store, LONG_AFTER, 2).await > 0 {}
    let none = "DO $$ BEGIN IF EXISTS (SELECT FROM change_log) THEN RAISE 'changes are left'; END IF; END $$";
    by_hand(&store, none).await;
    let host = register(&store, tenant, 2).await;
    assert_eq!(made(&catch_up(&mut reader).await), [host]);
}

#[tokio::test]
async fn a_server_that_was_started_again_is_another_one() {
    let folder = tempfile::tempdir().expect("a folder");
    // Also the user of Postgres gets into it.
    let open_to_all = fs::Permissions::from_mode(0o711);
    fs::set_permissions(folder.path(), open_to_all).expect("changed");
    let options = Options::new(folder.path().join("postgres"));
    let postgres = PrivatePostgres::start(options.clone()).await;
    let postgres = postgres.expect("a Postgres");
    let store = Store::connect(&postgres.url(), StoreOptions::default()).await;
    let store = store.expect("connected");
    store.migrate().await.expect("migrated");
    let mut reader = open(&store).await;
    project(&store, "ours").await;
    assert!(!catch_up(&mut reader).await.is_empty());

    postgres.stop().await;
    for _ in 0..2 {
        let away = reader.next(100).await;
        assert!(
            matches!(away, Err(LogError::Store(StoreError::Unreachable(_)))),
            "{away:?}"
        );
    }
    let postgres = PrivatePostgres::start(options).await;
    let postgres = postgres.expect("the same Postgres");
    assert_eq!(broken(&mut reader).await, Break::OtherServer);
    postgres.stop().await;
}

/// It could not tell who writes here from who writes elsewhere.
#[tokio::test]
async fn a_role_that_does_not_see_the_transactions_of_others_is_no_reader() {
    let url = fresh_database().await;
    let store = Store::connect(&url, StoreOptions::default()).await;
    let store = store.expect("connected");
    let above = url.replace("user=evenkeel", "user=postgres");
    let superuser = Store::connect(&above, StoreOptions::default()).await;
    let superuser = superuser.expect("connected");
    let hide = "REVOKE SELECT ON pg_catalog.pg_stat_activity FROM PUBLIC";
    superuser.unprepared(hide).await.expect("hidden");
    let refused = Reader::open(&store).await;
    let Err(LogError::Misfit(misfit @ Misfit::BlindReader { .. })) = refused else {
        panic!("{refused:?}");
    };
    let told = misfit.to_string();
    let (_, mend) = told.split_once('\n').expect("how to mend it");
    superuser.unprepared(mend).await.expect("mended");
    open(&store).await;
}

#[tokio::test]
async fn a_commit_wakes_who_listens_also_in_another_process() {
    let url = fresh_database().await;
    let here = Store::connect(&url, StoreOptions::default()).await;
    let here = here.expect("connected");
    let tenant = project(&here, "ours").await;
    // As in another process: what it commits, it tells.
    let there = Store::connect(&url, StoreOptions::default()).await;
    let there = there.expect("connected");
    let stopping = CancellationToken::new();
    let telling = there.clone().tell_hints(stopping.clone());
    let listening = async {
        let mut hints = log::hints(&here).await.expect("it listens");
        register(&there, tenant, 1).await;
        hints.next().await;
        // It may have missed one meanwhile, and hears again.
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND query LIKE 'LISTEN%'";
        here.unprepared(cut).await.expect("cut off");
        hints.next().await;
        register(&there, tenant, 2).await;
        hints.next().await;
        stopping.cancel();
    };
    let both = async { tokio::join!(telling, listening) };
    let within = Duration::from_mins(1);
    let heard = tokio::time::timeout(within, both).await;
    heard.expect("each commit is told");
}
