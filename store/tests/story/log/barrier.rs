//! Readers do not wait for a transaction that has written something else, and miss nothing.

use evenkeel_store::log::LongTransaction;
use evenkeel_store::testing::drop_after_polls;
use sqlx::{Connection as _, PgConnection, raw_sql};

use super::*;

/// Another program in the same database, with a transaction that has written a table of its own.
async fn begin_elsewhere(url: &str) -> PgConnection {
    let mut session = PgConnection::connect(url).await.expect("a session");
    let write = "CREATE TABLE IF NOT EXISTS notes (text text); BEGIN; INSERT INTO notes VALUES ('x'); \
                 SET LOCAL evenkeel.tenant = '*'";
    raw_sql(write).execute(&mut session).await.expect("written");
    session
}

/// A reader that waits for no transaction that may not be a writer of the log.
async fn impatient_reader(store: &Store) -> LogReader {
    let mut reader = open_reader(store).await;
    reader.set_stall_limit(Duration::ZERO);
    reader
}

async fn connect() -> (String, Store, TenantId) {
    let url = fresh_database().await;
    let store = Store::connect(&url, StoreOptions::default()).await.expect("connected");
    let tenant = create_project(&store, "ours").await;
    (url, store, tenant)
}

const RENAME_HOSTS: &str = "UPDATE hosts SET name = 'renamed'";

#[tokio::test]
async fn a_transaction_of_another_program_does_not_delay_readers() {
    let (url, store, tenant) = connect().await;
    let mut reader = impatient_reader(&store).await;
    let mut other = begin_elsewhere(&url).await;
    let pid: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut other).await.unwrap();
    let host = register_host(&store, tenant, 1).await;
    let waiting = reader.next(100).await.expect("a pass");
    assert!(waiting.limit < waiting.xmax, "{waiting:?}");
    let [long] = waiting.long_transactions.as_slice() else {
        panic!("{waiting:?}");
    };
    assert_eq!((long.pid, long.is_log_writer), (Some(pid), false));
    assert_eq!(long.role.as_deref(), Some("evenkeel"));
    assert_eq!(created_hosts(&catch_up(&mut reader).await), [host]);
    let next = register_host(&store, tenant, 2).await;
    assert_eq!(created_hosts(&catch_up(&mut reader).await), [next]);

    // Readers are past it, so it must not write the log any more.
    let refused = raw_sql(RENAME_HOSTS).execute(&mut other).await.expect_err("too old");
    let refused = refused.as_database_error().expect("an answer");
    assert_eq!(refused.code().as_deref(), Some("40001"), "{refused:?}");
    raw_sql("ROLLBACK").execute(&mut other).await.expect("ended");
    let again = "BEGIN; SET LOCAL evenkeel.tenant = '*'; UPDATE hosts SET name = 'renamed'; COMMIT";
    raw_sql(again).execute(&mut other).await.expect("a new transaction may");
    let renamed = catch_up(&mut reader).await;
    assert_eq!(renamed.len(), 2, "{renamed:?}");
}

/// It has read the state of the database before the barrier was raised.
#[tokio::test]
async fn a_transaction_with_an_older_snapshot_cannot_pass_the_barrier() {
    let (url, store, tenant) = connect().await;
    let mut reader = impatient_reader(&store).await;
    register_host(&store, tenant, 1).await;
    let mut other = PgConnection::connect(&url).await.expect("a session");
    raw_sql("CREATE TABLE notes (text text)").execute(&mut other).await.expect("created");
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO notes VALUES ('x'); \
                 SET LOCAL evenkeel.tenant = '*'";
    raw_sql(begin).execute(&mut other).await.expect("written");
    register_host(&store, tenant, 2).await;
    assert_eq!(reader.next(100).await.expect("a pass").long_transactions.len(), 1);
    assert!(!catch_up(&mut reader).await.is_empty());
    let refused = raw_sql(RENAME_HOSTS).execute(&mut other).await.expect_err("too old");
    let code = refused.as_database_error().and_then(sqlx::error::DatabaseError::code);
    assert_eq!(code.as_deref(), Some("40001"), "{refused:?}");
}

#[tokio::test]
async fn readers_wait_for_a_transaction_that_has_written_the_log() {
    let (_, store, tenant) = connect().await;
    let mut reader = impatient_reader(&store).await;
    let slow = store.tenant(tenant).await.expect("a transaction");
    let first = hosts::register(&slow, &registration(1), NOON).await.expect("a host").id;
    let second = register_host(&store, tenant, 2).await;
    for _ in 0..3 {
        let tail = reader.next(100).await.expect("a pass");
        assert_eq!(created_hosts(&tail.changes), [], "before the first one");
        assert!(tail.long_transactions.iter().all(|long| long.is_log_writer), "{tail:?}");
    }
    // It has written before, so it may continue.
    let third = hosts::register(&slow, &registration(3), NOON).await.expect("a host").id;
    slow.commit().await.expect("committed");
    assert_eq!(created_hosts(&catch_up(&mut reader).await), [first, third, second]);
}

#[tokio::test]
async fn a_pass_that_is_dropped_loses_no_changes() {
    let (url, store, tenant) = connect().await;
    let mut reader = impatient_reader(&store).await;
    for polls in 1.. {
        let number = u128::try_from(polls).expect("a number");
        let host = register_host(&store, tenant, number).await;
        // The pass reads the host and raises the barrier.
        let mut other = begin_elsewhere(&url).await;

        let read = drop_after_polls(reader.next(100), polls).await;
        let ended = read.is_some();
        let mut changes = read.map_or_else(Vec::new, |tail| tail.expect("a pass").changes);

        raw_sql("ROLLBACK").execute(&mut other).await.expect("ended");
        changes.extend(catch_up(&mut reader).await);
        assert_eq!(created_hosts(&changes), [host], "after {polls} polls");
        if ended {
            break;
        }
    }
}

/// Writes another table first in some transactions, so that the barrier may refuse them.
async fn register_some(store: &Store, tenant: TenantId, writer: u128) -> Vec<HostId> {
    let mut written = Vec::new();
    for turn in 0..20 {
        let tx = store.tenant(tenant).await.expect("a transaction");
        if (writer + turn).is_multiple_of(2) {
            // Takes a transaction id, like the write of a table without a log.
            tx.assign_id().await.expect("an id");
        }
        for _ in 0..(writer * 3 + turn * 5) % 7 {
            tx.setting("lock_timeout").await.expect("read");
        }
        match hosts::register(&tx, &registration(writer * 100 + turn + 1), NOON).await {
            Ok(host) => {
                tx.commit().await.expect("committed");
                written.push(host.id);
            }
            Err(StoreError::Busy(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    written
}

#[tokio::test]
async fn every_change_is_read_once_while_the_barrier_is_raised_all_the_time() {
    let options = StoreOptions {
        max_connections: 20,
        acquire_timeout: Duration::from_secs(30),
        ..StoreOptions::default()
    };
    let store = Store::connect(&fresh_database().await, options).await.expect("connected");
    let tenant = create_project(&store, "ours").await;
    let mut reader = impatient_reader(&store).await;
    let is_done = Cell::new(false);
    let writing = async {
        let written = join_all((0..8).map(|writer| register_some(&store, tenant, writer))).await;
        is_done.set(true);
        written.concat()
    };
    let reading = async {
        let mut read = Vec::new();
        while !is_done.get() {
            read.extend(reader.next(7).await.expect("a pass").changes);
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
    assert!(!written.is_empty());
    assert_eq!(logged, written);
}

/// The backup of another server has a barrier that this server has not reached.
#[tokio::test]
async fn a_barrier_from_another_server_refuses_no_writer_and_is_replaced() {
    let (url, store, tenant) = connect().await;
    let restored = "SELECT setval('log_barrier', 9000000000000)";
    store.execute_unprepared(restored).await.expect("restored");
    register_host(&store, tenant, 1).await;
    let mut reader = impatient_reader(&store).await;
    let mut other = begin_elsewhere(&url).await;
    let host = register_host(&store, tenant, 2).await;
    assert_eq!(reader.next(100).await.expect("a pass").long_transactions.len(), 1);
    assert_eq!(created_hosts(&catch_up(&mut reader).await), [host]);
    raw_sql(RENAME_HOSTS).execute(&mut other).await.expect_err("too old");
}

/// No process is connected for it, and it stays until an administrator ends it by its identifier.
#[tokio::test]
async fn a_prepared_transaction_of_another_program_is_reported_with_its_identifier() {
    let postgres = PrivatePostgres::throwaway_with(&[("max_prepared_transactions", "2")]).await;
    let postgres = postgres.expect("a Postgres");
    let store = Store::connect(&postgres.url(), StoreOptions::default()).await;
    let store = store.expect("connected");
    store.migrate().await.expect("migrated");
    let tenant = create_project(&store, "ours").await;
    let mut reader = impatient_reader(&store).await;
    let mut other = begin_elsewhere(&postgres.url()).await;
    raw_sql("PREPARE TRANSACTION 'forgotten'").execute(&mut other).await.expect("prepared");
    let host = register_host(&store, tenant, 1).await;
    let waiting = reader.next(100).await.expect("a pass");
    let [long] = waiting.long_transactions.as_slice() else {
        panic!("{waiting:?}");
    };
    assert!(long.age.is_some(), "{long:?}");
    let expected = LongTransaction {
        pid: None,
        gid: Some("forgotten".to_owned()),
        role: Some("evenkeel".to_owned()),
        age: long.age,
        is_log_writer: false,
    };
    assert_eq!(*long, expected);
    assert_eq!(created_hosts(&catch_up(&mut reader).await), [host]);
    raw_sql("ROLLBACK PREPARED 'forgotten'").execute(&mut other).await.expect("ended");
    other.close().await.expect("closed");
    store.close().await;
    postgres.stop().await;
}
