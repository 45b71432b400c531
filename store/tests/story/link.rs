//! The connection to the database: transport, settings of sessions, and a database that cannot be
//! written.

mod pgbouncer;
mod proxies;
mod silence;
mod tls;

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_pg::PrivatePostgres;
use evenkeel_store::log::{self, ChangeKind, LogError, LogReader};
use evenkeel_store::testing::{fresh_database, query_text};
use evenkeel_store::{
    Actor, IncompatibleDatabase, SchemaCheck, Store, StoreError, StoreOptions, hosts,
};
use sqlx::{Connection as _, PgConnection};

use crate::fixtures::{NOON, create_project, execute_sql, registration, store_with_project};
use pgbouncer::PgBouncer;
use proxies::Proxy;

async fn connect(url: &str) -> Store {
    Store::connect(url, StoreOptions::default()).await.expect("connected")
}

/// Repeats until there is a result.
async fn until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let attempts = async {
        loop {
            if let Some(done) = attempt().await {
                return done;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), attempts).await.expect(what)
}

/// Settings that safety depends on, as a session of the pool has them.
async fn session_settings(store: &Store) -> String {
    let names = [
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "enable_seqscan",
        "jit",
        "synchronous_commit",
    ];
    let values = names.map(|name| format!("current_setting('{name}')")).join(", ");
    query_text(store, &format!("SELECT concat_ws(' ', {values})")).await
}

/// The test server has `synchronous_commit` off.
const EXPECTED_SETTINGS: &str = "10s 5s 3s off off on";

/// Fails unless a server can use the database through this URL.
async fn assert_works(url: &str, direct: &str) {
    let store = connect(url).await;
    assert_eq!(session_settings(&store).await, EXPECTED_SETTINGS);
    assert_eq!(store.check().await.expect("checked"), SchemaCheck::Current);
    store.migrate().await.expect("migrated");
    let (mut reader, _) = LogReader::open(&store).await.expect("a reader");
    create_project(&connect(direct).await, "ours").await;
    let heartbeat = until("the reader sees the change", async || {
        let tail = reader.next(100).await.expect("a pass");
        tail.changes
            .iter()
            .any(|change| change.kind == ChangeKind::Project)
            .then_some(tail.heartbeat_at)
    });
    assert!(heartbeat.await.is_some(), "it has seen the heartbeat of its opening");
}

/// Tokens are revoked up to such a time.
#[tokio::test]
async fn a_time_that_is_read_from_the_database_is_not_earlier_than_the_call() {
    let direct = fresh_database().await;
    let delay = Duration::from_millis(300);
    let proxy = Proxy::delaying_answers(&direct, delay).await;
    let (store, observer) = (connect(&proxy.url(&direct)).await, connect(&direct).await);
    let tx = store.fleet().await.expect("a transaction");

    let called = observer.database_time().await.expect("a time");
    let read = tx.read_database_time().await.expect("a time");

    assert!(called <= read, "{called} {read}");
    // The answer with the first time arrived late.
    let estimate = tx.database_time();
    let now = observer.database_time().await.expect("a time");
    assert!(now - estimate >= TimeDelta::from_std(delay).expect("a delay"), "{now} {estimate}");
}

/// The driver knows of a transaction only after the answer to its begin.
#[tokio::test]
async fn a_begin_that_is_dropped_leaves_no_open_transaction() {
    let direct = fresh_database().await;
    let proxy = Proxy::delaying_answers(&direct, Duration::from_millis(50)).await;
    let options = StoreOptions { max_connections: 1, ..StoreOptions::default() };
    let store = Store::connect(&proxy.url(&direct), options).await.expect("connected");
    let observer = connect(&direct).await;
    execute_sql(&observer, "CREATE TABLE marks (mark bigint)").await;
    for mark in 1..=4 {
        // On a busy machine, the answer may arrive before this task runs again.
        while tokio::time::timeout(Duration::from_millis(10 * mark), store.fleet()).await.is_ok() {}

        let insert = format!("INSERT INTO marks VALUES ({mark}) RETURNING mark::text");
        query_text(&store, &insert).await;
        let committed = query_text(&observer, "SELECT max(mark)::text FROM marks").await;
        assert_eq!(committed, mark.to_string(), "the single statement is committed");
    }
}

/// For example a command of an operator on a machine that is busy.
#[tokio::test]
async fn the_first_connection_may_take_longer_than_a_request_waits() {
    let direct = fresh_database().await;
    let (proxy, silent_connections) = Proxy::withholding_answers(&direct).await;
    silent_connections.send_replace(1);
    let options =
        StoreOptions { acquire_timeout: Duration::from_millis(500), ..StoreOptions::default() };
    let store = Store::connect(&proxy.url(&direct), options).await.expect("connected");
    assert_eq!(store.check().await.expect("checked"), SchemaCheck::Current);
}

#[tokio::test]
async fn the_error_of_the_first_connection_names_the_cause() {
    let url = "postgres:///evenkeel?host=/nowhere&user=evenkeel";
    let error = Store::connect(url, StoreOptions::default()).await.expect_err("no database");
    let error = evenkeel_kit::chain(&error).to_string();
    assert!(error.contains("No such file or directory"), "{error}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = listener.local_addr().expect("an address");
    drop(listener);
    let options =
        StoreOptions { acquire_timeout: Duration::from_millis(100), ..StoreOptions::default() };
    let url = format!("postgres://evenkeel@{closed}/evenkeel");
    let error = Store::connect(&url, options).await.expect_err("no database");
    let error = evenkeel_kit::chain(&error).to_string();
    assert!(error.contains("Connection refused"), "{error}");
}

/// A store with one connection that does not wait long for answers.
async fn impatient_store(url: &str) -> Store {
    let options = StoreOptions {
        max_connections: 1,
        acquire_timeout: Duration::from_secs(2),
        // None, so that the limit for an answer is that for a connection.
        statement_timeout: Duration::ZERO,
        ..StoreOptions::default()
    };
    Store::connect(url, options).await.expect("connected")
}

/// For example after the machine of the database has lost its power.
#[tokio::test]
async fn a_begin_without_an_answer_frees_its_connection_soon() {
    let direct = fresh_database().await;
    let (proxy, silent_connections) = Proxy::withholding_answers(&direct).await;
    let store = impatient_store(&proxy.url(&direct)).await;
    silent_connections.send_replace(1);

    store.fleet().await.expect_err("no answer");

    let given_up = Instant::now();
    until("the pool opens another connection", async || store.ping().await.ok()).await;
    assert!(given_up.elapsed() < Duration::from_secs(20), "{:?}", given_up.elapsed());
}

/// The pool tests the connection when the answer arrives.
#[tokio::test]
async fn an_answer_to_a_begin_that_was_given_up_leaves_no_open_transaction() {
    let direct = fresh_database().await;
    let (proxy, silent_connections) = Proxy::withholding_answers(&direct).await;
    let store = impatient_store(&proxy.url(&direct)).await;
    let observer = connect(&direct).await;
    execute_sql(&observer, "CREATE TABLE marks (mark bigint)").await;
    silent_connections.send_replace(1);

    store.fleet().await.expect_err("no answer");
    silent_connections.send_replace(0);

    query_text(&store, "INSERT INTO marks VALUES (1) RETURNING mark::text").await;
    let committed = query_text(&observer, "SELECT count(*)::text FROM marks").await;
    assert_eq!(committed, "1", "the single statement is committed");
}

/// Poolers can be configured to ignore unknown settings of the startup packet.
#[tokio::test]
async fn a_pooler_that_drops_settings_of_the_startup_packet_changes_nothing() {
    let direct = fresh_database().await;
    let proxy = Proxy::dropping_startup_options(&direct).await;
    assert_works(&proxy.url(&direct), &direct).await;
}

#[tokio::test]
async fn pgbouncer_in_session_mode_changes_nothing() {
    let direct = fresh_database().await;
    let pooler = PgBouncer::start(&direct, "session").await;
    assert_works(&pooler.url(&direct), &direct).await;
}

#[tokio::test]
async fn pgbouncer_in_transaction_mode_is_refused() {
    let direct = fresh_database().await;
    let pooler = PgBouncer::start(&direct, "transaction").await;
    let store = connect(&pooler.url(&direct)).await;
    let checked = store.check().await.expect("checked");
    assert_eq!(checked, IncompatibleDatabase::SessionNotKept.into(), "{}", pooler.log());
}

#[tokio::test]
async fn pgbouncer_in_statement_mode_is_refused() {
    let direct = fresh_database().await;
    let pooler = PgBouncer::start(&direct, "statement").await;
    let refused = connect(&pooler.url(&direct)).await.check().await.expect_err("no transactions");
    let text = evenkeel_kit::chain::chain(&refused).to_string();
    assert!(text.contains("statement pooling mode"), "{text}\n{}", pooler.log());
}

#[tokio::test]
async fn a_pooler_that_gives_each_transaction_another_session_is_refused() {
    let direct = fresh_database().await;
    let proxy = Proxy::pooling_transactions(&direct).await;
    let store = connect(&proxy.url(&direct)).await;
    let refused = IncompatibleDatabase::SessionNotKept;
    assert_eq!(store.check().await.expect("checked"), refused.clone().into());
    assert!(refused.to_string().contains("session mode"), "{refused}");
}

/// It sets the settings in one session and reads them back in another one.
#[tokio::test]
async fn a_pooler_that_loses_the_settings_of_a_session_is_refused() {
    let direct = fresh_database().await;
    let proxy = Proxy::opening_sessions(&direct).await;
    let url = proxy.url(&direct);
    // The pool tries again until this time is over.
    let acquire_timeout = Duration::from_millis(500);
    let options = StoreOptions { acquire_timeout, ..StoreOptions::default() };
    let refused = until("the settings are compared", async || {
        match Store::connect(&url, options.clone()).await {
            // A busy machine.
            Err(StoreError::Unreachable(_)) => None,
            answer => Some(answer),
        }
    });
    let lost = IncompatibleDatabase::SettingLost { name: "statement_timeout" };
    let refused = refused.await;
    assert!(
        matches!(&refused, Err(StoreError::Incompatible(error)) if *error == lost),
        "{refused:?}"
    );
    assert!(lost.to_string().contains("the setting statement_timeout"), "{lost}");
}

/// Postgres 17 added this limit. It would end a long list or a migration.
#[tokio::test]
async fn a_limit_of_the_database_for_transactions_does_not_apply_to_the_server() {
    let url = fresh_database().await;
    let limit = "DO $$ BEGIN IF current_setting('server_version_num')::integer >= 170000 THEN \
                 EXECUTE format('ALTER DATABASE %I SET transaction_timeout = 60000', current_database()); \
                 END IF; END $$";
    connect(&url).await.execute_unprepared(limit).await.expect("altered");
    let limit = "SELECT coalesce(current_setting('transaction_timeout', true), '0')";
    assert_eq!(query_text(&connect(&url).await, limit).await, "0");
}

#[tokio::test]
async fn a_stricter_durability_of_the_database_is_kept() {
    let url = fresh_database().await;
    let strict = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = remote_apply', \
                  current_database()); END $$";
    connect(&url).await.execute_unprepared(strict).await.expect("altered");
    let settings = session_settings(&connect(&url).await).await;
    assert!(settings.ends_with("remote_apply"), "{settings}");
}

/// The pool writes, and the reader sees nothing of it.
#[tokio::test]
async fn a_reader_that_does_not_see_a_heartbeat_cannot_read_the_log() {
    let (store, _) = store_with_project().await;
    let (mut reader, _) = LogReader::open(&store).await.expect("a reader");
    let first = reader.next(100).await.expect("a pass").heartbeat_at;
    log::send_heartbeat(&store).await.expect("sent");
    let second = reader.next(100).await.expect("a pass").heartbeat_at;
    assert!(first.is_some() && first < second, "{first:?} {second:?}");
    // Sessions of readers are read-only.
    let hide = "ALTER POLICY fleet ON log_heartbeat \
                USING (current_setting('default_transaction_read_only') = 'off')";
    execute_sql(&store, hide).await;
    for _ in 0..2 {
        log::send_heartbeat(&store).await.expect("sent");
        let refused = reader.next(100).await;
        let why = IncompatibleDatabase::HeartbeatNotSeen;
        assert!(
            matches!(&refused, Err(LogError::Incompatible(error)) if *error == why),
            "{refused:?}"
        );
    }
    let refused = LogReader::open(&store).await;
    assert!(matches!(refused, Err(LogError::Incompatible(_))), "{refused:?}");
}

async fn set_read_only(postgres: &PrivatePostgres, is_read_only: bool) {
    let mut admin = PgConnection::connect(&postgres.admin_url()).await.expect("a session");
    let sql = if is_read_only {
        "ALTER SYSTEM SET default_transaction_read_only = on"
    } else {
        "ALTER SYSTEM RESET default_transaction_read_only"
    };
    for sql in [sql, "SELECT pg_reload_conf()"] {
        sqlx::raw_sql(sql).execute(&mut admin).await.expect(sql);
    }
}

async fn read_only_postgres() -> PrivatePostgres {
    let postgres = PrivatePostgres::throwaway().await.expect("a Postgres");
    set_read_only(&postgres, true).await;
    postgres
}

/// As after a demotion, or while a managed disk is full.
#[tokio::test]
async fn a_database_that_turns_read_only_counts_as_unreachable_until_it_can_be_written() {
    let postgres = PrivatePostgres::throwaway().await.expect("a Postgres");
    let store = connect(&postgres.url()).await;
    store.migrate().await.expect("migrated");
    let tenant = create_project(&store, "ours").await;
    let before = query_text(&store, "SELECT pg_backend_pid()::text").await;
    set_read_only(&postgres, true).await;
    let refused = until("it is read-only", async || store.ping().await.err()).await;
    assert!(matches!(refused, StoreError::Unreachable(_)), "{refused:?}");
    let text = evenkeel_kit::chain::chain(&refused).to_string();
    assert!(text.contains("the database is read-only"), "{text}");
    let actor = Actor {
        name: "a user".to_owned(),
        request_id: String::new(),
        client_address: String::new(),
    };
    for refused in [
        store.tenant(tenant).await.err(),
        store.tenant_as(tenant, &actor).await.err(),
        store.snapshot(tenant).await.err(),
        store.fleet().await.err(),
        log::send_heartbeat(&store).await.err(),
    ] {
        assert!(matches!(refused, Some(StoreError::Unreachable(_))), "{refused:?}");
    }
    set_read_only(&postgres, false).await;
    until("it can be written", async || store.ping().await.ok()).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    hosts::register(&tx, &registration(2), NOON).await.expect("a host");
    tx.commit().await.expect("committed");
    let sessions = format!("SELECT count(*)::text FROM pg_stat_activity WHERE pid = {before}");
    assert_eq!(query_text(&store, &sessions).await, "0", "the pool has closed the connection");
    postgres.stop().await;
}

/// The same database before and after a failover, on two servers.
#[tokio::test]
async fn of_several_hosts_the_one_that_can_be_written_is_used() {
    let (one, two) = (read_only_postgres().await, read_only_postgres().await);
    let proxies = [
        Proxy::dropping_startup_options(&one.url()).await,
        Proxy::dropping_startup_options(&two.url()).await,
    ];
    let [first, second] = proxies.each_ref().map(Proxy::address);
    let url =
        format!("postgres://evenkeel@{first},{second}/evenkeel?target_session_attrs=read-write");
    let started = "SELECT pg_postmaster_start_time()::text";
    let server = async |postgres: &PrivatePostgres| {
        query_text(&connect(&postgres.admin_url()).await, started).await
    };
    set_read_only(&two, false).await;
    let store = connect(&url).await;
    until("the second one is used", async || store.ping().await.ok()).await;
    assert_eq!(query_text(&store, started).await, server(&two).await);
    set_read_only(&two, true).await;
    until("the second one is read-only", async || store.ping().await.err()).await;
    set_read_only(&one, false).await;
    until("the first one is used", async || store.ping().await.ok()).await;
    assert_eq!(query_text(&store, started).await, server(&one).await);
    set_read_only(&two, false).await;
    one.stop().await;
    until("the second one is used again", async || store.ping().await.ok()).await;
    assert_eq!(query_text(&store, started).await, server(&two).await);
    two.stop().await;
}
