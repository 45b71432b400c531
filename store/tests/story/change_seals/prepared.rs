//! A prepared transaction remains a writer of the log without a session, also over a crash of the
//! database. Nothing is sealed past it.

use std::time::Duration;

use evenkeel_pg::PrivatePostgres;
use evenkeel_store::StoreOptions;
use evenkeel_store::log::LongTransaction;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, raw_sql};
use tokio::time::timeout;

use super::*;

/// Longest time until everything is sealed, and until a database has recovered, on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_mins(2);

async fn start_postgres() -> (PrivatePostgres, Store, TenantId) {
    let postgres = PrivatePostgres::throwaway_with(&[("max_prepared_transactions", "2")]).await;
    let postgres = postgres.expect("a Postgres");
    let store = open_store(&postgres).await;
    store.migrate().await.expect("migrated");
    let tenant = create_project(&store, "ours").await;
    (postgres, store, tenant)
}

async fn open_store(postgres: &PrivatePostgres) -> Store {
    Store::connect(&postgres.url(), StoreOptions::default()).await.expect("connected")
}

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.expect("a session")
}

async fn run(session: &mut PgConnection, sql: &str) {
    raw_sql(AssertSqlSafe(sql)).execute(session).await.expect(sql);
}

/// Another program with a transaction that has changed hosts.
async fn begin_change(postgres: &PrivatePostgres) -> PgConnection {
    let mut session = connect(&postgres.url()).await;
    let change = "BEGIN; SET LOCAL evenkeel.tenant = '*'; UPDATE hosts SET name = name || '-2'";
    run(&mut session, change).await;
    session
}

/// Runs passes until everything is sealed. Returns the number of sealed changes. A pass may fail
/// after a crash of the database.
async fn seal_all(store: &Store, sealer: &mut ChangeSealer) -> u64 {
    let all = async {
        let mut count = 0;
        while verify(store).await.projects.values().any(|project| project.unsealed.is_some()) {
            count += sealer.pass().await.map_or(0, |pass| pass.changes);
        }
        count
    };
    let count = timeout(STEP_TIMEOUT, all).await.expect("everything is sealed");
    let report = verify(store).await;
    assert!(report.is_unaltered(), "{report:?}");
    count
}

#[tokio::test]
async fn nothing_is_sealed_past_a_prepared_transaction_until_it_ends() {
    let (postgres, store, tenant) = start_postgres().await;
    register_host(&store, tenant, 1).await;
    let mut sealer = ChangeSealer::new(store.clone());
    assert!(seal_all(&store, &mut sealer).await > 0);
    // Two hosts are registered meanwhile, and those from before are changed.
    for (n, end, expected) in [(10, "COMMIT", 3), (20, "ROLLBACK", 2)] {
        let mut other = begin_change(&postgres).await;
        register_host(&store, tenant, n).await;
        assert_eq!(sealer.pass().await.expect("a pass").changes, 0, "it is open");
        run(&mut other, "PREPARE TRANSACTION 'forgotten'").await;
        assert_eq!(sealer.pass().await.expect("a pass").changes, 0, "it is prepared");
        other.close().await.expect("closed");
        register_host(&store, tenant, n + 1).await;
        for _ in 0..3 {
            let pass = sealer.pass().await.expect("a pass");
            assert_eq!(pass.changes, 0, "its session has ended");
            assert!(!pass.oldest_unsealed.is_zero());
        }
        assert_eq!(seal(&store).await, 0, "another replica");
        let report = verify(&store).await;
        assert!(report.is_unaltered() && report.projects[&tenant].unsealed.is_some(), "{report:?}");
        let mut session = connect(&postgres.url()).await;
        run(&mut session, &format!("{end} PREPARED 'forgotten'")).await;
        let count = seal_all(&store, &mut sealer).await;
        assert!(count >= expected, "{end}: {count}");
        session.close().await.expect("closed");
    }
    store.close().await;
    postgres.stop().await;
}

#[tokio::test]
async fn a_prepared_transaction_that_has_written_the_log_is_listed_with_its_identifier() {
    let (postgres, store, tenant) = start_postgres().await;
    register_host(&store, tenant, 1).await;
    let mut other = begin_change(&postgres).await;
    let pid: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut other).await.expect("a pid");
    let list = async || {
        let listed = log::list_long_writers(&store, Duration::ZERO).await.expect("a list");
        let listed = listed.into_iter().map(|writer| LongTransaction { age: None, ..writer });
        listed.collect::<Vec<_>>()
    };
    let open = LongTransaction {
        pid: Some(pid),
        gid: None,
        role: Some("evenkeel".to_owned()),
        age: None,
        is_log_writer: true,
    };
    assert_eq!(list().await, std::slice::from_ref(&open));
    run(&mut other, "PREPARE TRANSACTION 'forgotten'").await;
    let gid = Some("forgotten".to_owned());
    assert_eq!(list().await, [LongTransaction { pid: None, gid, ..open }]);
    let young = log::list_long_writers(&store, Duration::from_hours(1)).await.expect("a list");
    assert_eq!(young, []);
    run(&mut other, "ROLLBACK PREPARED 'forgotten'").await;
    assert_eq!(list().await, []);
    other.close().await.expect("closed");
    store.close().await;
    postgres.stop().await;
}

/// Ends all processes of Postgres, as a crash of one of them does, and waits until it has
/// recovered.
async fn crash(postgres: &PrivatePostgres) {
    let mut witness = connect(&postgres.url()).await;
    let mut administrator = connect(&postgres.admin_url()).await;
    // The parent of the program is the process of the session.
    let kill = "COPY (SELECT 1) TO PROGRAM 'kill -KILL $PPID'";
    raw_sql(kill).execute(&mut administrator).await.expect_err("the session is lost");
    let recovery = async {
        while raw_sql("SELECT 1").execute(&mut witness).await.is_ok() {
            tokio::task::yield_now().await;
        }
        while PgConnection::connect(&postgres.url()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(STEP_TIMEOUT, recovery).await.expect("Postgres recovers");
}

/// Its session and its virtual transaction are others afterwards, and the start time of the server
/// is the same.
#[tokio::test]
async fn nothing_is_sealed_past_a_prepared_transaction_after_a_crash_of_the_database() {
    let (postgres, store, tenant) = start_postgres().await;
    register_host(&store, tenant, 1).await;
    let mut sealer = ChangeSealer::new(store.clone());
    seal_all(&store, &mut sealer).await;
    let mut other = begin_change(&postgres).await;
    register_host(&store, tenant, 2).await;
    run(&mut other, "PREPARE TRANSACTION 'forgotten'").await;
    assert_eq!(sealer.pass().await.expect("a pass").changes, 0, "it is prepared");
    crash(&postgres).await;
    // The sealer keeps its connections, and notices the crash by them or not at all.
    let after = open_store(&postgres).await;
    register_host(&after, tenant, 3).await;
    let passes = async {
        for _ in 0..3 {
            // A pass fails if its connection was lost in the crash.
            let pass = loop {
                if let Ok(pass) = sealer.pass().await {
                    break pass;
                }
            };
            assert_eq!(pass.changes, 0, "it is still prepared");
        }
    };
    timeout(STEP_TIMEOUT, passes).await.expect("passes after the crash");
    let mut session = connect(&postgres.url()).await;
    run(&mut session, "COMMIT PREPARED 'forgotten'").await;
    assert!(seal_all(&after, &mut sealer).await >= 3);
    session.close().await.expect("closed");
    after.close().await;
    store.close().await;
    postgres.stop().await;
}
