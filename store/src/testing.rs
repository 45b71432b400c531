//! A database for each test.
//!
//! Each test program starts one private Postgres with its first test and stops it at its end, unless
//! the environment names a Postgres for all of them. Its template is migrated once and copied for each
//! test. The role is no superuser, because row-level security does not apply to superusers.

mod dropping;
pub mod fill;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use dropping::drop_after_polls;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Clock;
pub use evenkeel_migrations::{Migrator, NextRelease, Step, become_next_release};
use evenkeel_pg::PrivatePostgres;
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbErr};
use sqlx::AssertSqlSafe;
use tokio::sync::OnceCell;

use crate::error::StoreError;
use crate::pool::{Store, StoreOptions};
use crate::tx::{Tx, is_first_statement, query_all, query_one};

/// URL of a Postgres that all test programs share.
const SHARED_SERVER_VARIABLE: &str = "EVENKEEL_TEST_POSTGRES";

/// The database that is copied for each test.
const TEMPLATE: &str = "template_of_tests";

static SERVER: OnceCell<Server> = OnceCell::const_new();

struct Server {
    url: String,
    /// Runs as long as this program.
    _postgres: Option<PrivatePostgres>,
}

/// A store on an empty, migrated database.
pub async fn fresh_store() -> Store {
    let url = fresh_database().await;
    let options = StoreOptions { max_connections: 10, ..StoreOptions::default() };
    // While other tests use all processors, a connection may take longer than the store waits.
    for _ in 0..9 {
        match Store::connect(&url, options.clone()).await {
            Err(StoreError::Unreachable(_)) => {}
            connected => return connected.expect("connect to the test's database"),
        }
    }
    Store::connect(&url, options).await.expect("connect to the test's database")
}

/// The URL of an empty, migrated database.
pub async fn fresh_database() -> String {
    let server = SERVER.get_or_init(start).await;
    let name = format!("test_{}_{}", std::process::id(), uuid::Uuid::now_v7().simple());
    let admin = connect(&server.url).await;
    drop_abandoned(&admin).await;
    run(&admin, &format!("CREATE DATABASE {name} TEMPLATE {TEMPLATE}")).await;
    admin.close().await.expect("close the connection");
    in_database(&server.url, &name)
}

/// Counters of a store.
#[derive(Debug, Default)]
pub struct StatementCounts {
    /// Statements inside transactions, without their begin and end.
    pub statements: AtomicU64,
    /// Opened transactions.
    pub transactions: AtomicU64,
    texts: Mutex<BTreeSet<String>>,
}

impl StatementCounts {
    /// The numbers of statements and transactions so far.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        let statements = self.statements.load(Ordering::Relaxed);
        (statements, self.transactions.load(Ordering::Relaxed))
    }

    /// The different texts of the statements so far.
    #[must_use]
    pub fn texts(&self) -> BTreeSet<String> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[must_use]
pub fn counting_store(store: &Store) -> (Store, Arc<StatementCounts>) {
    let mut counting = store.clone();
    let counts = Arc::new(StatementCounts::default());
    let counters = Arc::clone(&counts);
    counting.observe_statements(move |call| {
        counters.statements.fetch_add(1, Ordering::Relaxed);
        if is_first_statement(&call.statement.sql) {
            counters.transactions.fetch_add(1, Ordering::Relaxed);
        }
        let mut texts = counters.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if !texts.contains(&call.statement.sql) {
            texts.insert(call.statement.sql.clone());
        }
    });
    (counting, counts)
}

/// A transaction of a faulty program: its queries use tenant `queried`, while the session is that
/// of tenant `visible`.
pub async fn wrong_tenant(store: &Store, queried: TenantId, visible: TenantId) -> Tx {
    let tx = store.tenant(visible).await.expect("a transaction");
    tx.with_tenant(queried)
}

/// Two projects that a faulty program mixes up: a transaction for one of them queries the data of
/// the other.
#[derive(Clone, Copy, Debug)]
pub struct TenantMixup {
    pub between: [TenantId; 2],
    /// Whether the session is that of the wrong project as well, so that row-level security does
    /// not help.
    pub bypasses_rls: bool,
}

impl TenantMixup {
    /// The transaction as the faulty program opens it.
    pub(crate) async fn apply(&self, tx: Tx) -> Result<Tx, StoreError> {
        let [one, other] = self.between;
        let queried = match tx.tenant() {
            tenant if tenant == one => other,
            tenant if tenant == other => one,
            _ => return Ok(tx),
        };
        if self.bypasses_rls {
            tx.set("evenkeel.tenant", &queried.to_string()).await?;
        }
        Ok(tx.with_tenant(queried))
    }
}

/// The store of a program that mixes up two projects.
#[must_use]
pub fn mixed_up_store(store: &Store, mixup: TenantMixup) -> Store {
    let mut mixed_up = store.clone();
    mixed_up.mixup = Some(mixup);
    mixed_up
}

/// A store whose database shows the time of a clock that the test moves.
#[must_use]
pub fn with_database_clock(store: &Store, clock: Arc<dyn Clock>) -> Store {
    let mut store = store.clone();
    store.database_clock = Some(clock);
    store
}

/// Applies the steps of a migrator, like [`Store::migrate_within`].
pub async fn run_migrator(
    store: &Store,
    migrator: &Migrator,
    limit: Duration,
) -> Result<(), StoreError> {
    store.run_migrator(migrator, limit).await
}

/// All rows of a project in the database: one text per row, prefixed with the name of its table.
pub async fn tenant_rows(store: &Store, tenant: TenantId) -> Vec<String> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut texts = Vec::new();
    for table in tenant_tables(&tx).await {
        let rows =
            format!("SELECT to_jsonb(t)::text FROM {table} t WHERE t.tenant_id = $1 ORDER BY 1");
        let values = [tenant.uuid().into()];
        for row in query_all(tx.conn(), rows, values).await.expect("the rows") {
            let row: String = row.try_get_by_index(0).expect("a text");
            texts.push(format!("{table} {row}"));
        }
    }
    texts
}

/// The tables whose rows belong to projects.
pub async fn tenant_tables(tx: &Tx) -> BTreeSet<String> {
    let sql = "SELECT c.relname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
               WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attname = 'tenant_id'";
    let mut tables = BTreeSet::new();
    for row in query_all(tx.conn(), sql, []).await.expect("the tables") {
        tables.insert(row.try_get_by_index(0).expect("a name"));
    }
    tables
}

/// The text that a statement returns on a connection of the store's pool.
pub async fn query_text(store: &Store, sql: &str) -> String {
    let row = store.query_alone(AssertSqlSafe(sql)).await.expect(sql);
    row.try_get_by_index(0).expect("a text")
}

/// The tables that the connection of a transaction has read by sequential scans, with the number of
/// scans, as far as it remembers (`pg_stat_xact_user_tables`).
pub async fn sequential_scans(tx: &Tx) -> Vec<String> {
    let sql = "SELECT relname || ' ' || seq_scan FROM pg_stat_xact_user_tables WHERE seq_scan > 0 ORDER BY 1";
    let mut scans = Vec::new();
    for row in query_all(tx.conn(), sql, []).await.expect("the tables") {
        scans.push(row.try_get_by_index(0).expect("a text"));
    }
    scans
}

/// The number of scans per table of the connection of a transaction, as far as it remembers
/// (`pg_stat_xact_user_tables`).
pub async fn scan_counts(tx: &Tx) -> BTreeMap<String, i64> {
    let sql = "SELECT relname::text, coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_xact_user_tables";
    let mut counts = BTreeMap::new();
    for row in query_all(tx.conn(), sql, []).await.expect("the tables") {
        let table = row.try_get_by_index(0).expect("a text");
        counts.insert(table, row.try_get_by_index(1).expect("a number"));
    }
    counts
}

/// The number of rows of a table that the connection of a transaction has read, as far as it
/// remembers (`pg_stat_xact_user_tables`).
pub async fn rows_read(tx: &Tx, table: &str) -> i64 {
    let sql = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables \
               WHERE relname = $1";
    let row = query_one(tx.conn(), sql, [table.into()]).await.expect("the table");
    let row = row.expect("there is such a table");
    row.try_get_by_index(0).expect("a number")
}

/// The tables whose changes are recorded in the change log.
pub async fn audited_tables(tx: &Tx) -> BTreeSet<String> {
    let sql = "SELECT c.relname::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid \
               WHERE t.tgname = 'record_change' AND t.tgenabled = 'O'";
    let mut tables = BTreeSet::new();
    for row in query_all(tx.conn(), sql, []).await.expect("the triggers") {
        tables.insert(row.try_get_by_index(0).expect("a text"));
    }
    tables
}

/// SQL that changes or removes rows of the change log or of its seals, as only the owner of the tables can.
#[must_use]
pub fn without_protection(sql: &str) -> String {
    let switch = |state: &str| {
        format!(
            "ALTER TABLE change_log {state} TRIGGER refuse_change; ALTER TABLE change_seals {state} TRIGGER refuse_change"
        )
    };
    format!("{}; {sql}; {}", switch("DISABLE"), switch("ENABLE"))
}

/// The error of a call that waits too long for a lock.
#[must_use]
pub fn busy_error() -> StoreError {
    StoreError::Busy(DbErr::Custom("canceling statement due to lock timeout".to_owned()))
}

/// The error of a call without a database.
#[must_use]
pub fn unreachable_error() -> StoreError {
    StoreError::Unreachable(DbErr::Custom("connection refused".to_owned()))
}

/// Lets a test write rows as a newer schema permits them, which knows more values than this one.
pub async fn drop_check_constraints(store: &Store) {
    let sql = "DO $$ DECLARE c record; BEGIN FOR c IN \
               SELECT conrelid::regclass AS t, conname AS n FROM pg_constraint \
               WHERE contype = 'c' AND connamespace = 'public'::regnamespace \
               LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.t, c.n); END LOOP; END $$";
    run(store.db(), sql).await;
}

#[expect(clippy::disallowed_methods, reason = "a switch of these tests")]
async fn start() -> Server {
    let shared = std::env::var(SHARED_SERVER_VARIABLE).ok();
    let own = match &shared {
        Some(_) => None,
        None => Some(PrivatePostgres::throwaway().await.expect("a private Postgres")),
    };
    let url = shared.or_else(|| own.as_ref().map(PrivatePostgres::url)).expect("a URL");
    create_template(&url).await;
    Server { url, _postgres: own }
}

/// Drops some databases of programs that have ended. The next test drops the rest: a database takes
/// 14 MB and its end 0.2 s.
async fn drop_abandoned(admin: &DatabaseConnection) {
    let sql = "SELECT datname::text FROM pg_database WHERE datname LIKE 'test\\_%'";
    let mut names = Vec::new();
    for row in query_all(admin, sql, []).await.expect("the databases") {
        names.push(row.try_get_by_index::<String>(0).expect("a name"));
    }
    let is_abandoned = |name: &&String| {
        let process = name.split('_').nth(1).unwrap_or_default();
        !Path::new("/proc").join(process).exists()
    };
    for name in names.iter().filter(is_abandoned).take(2) {
        // Another program may drop it at the same time.
        admin
            .execute_unprepared(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
            .await
            .ok();
    }
}

/// Creates the template, unless another program has created it. The lock makes programs wait for each
/// other; the name is given last, so a template is complete.
async fn create_template(url: &str) {
    let admin = connect(url).await;
    run(&admin, "SELECT pg_advisory_lock(1)").await;
    let sql = "SELECT 1 FROM pg_database WHERE datname = $1";
    if query_one(&admin, sql, [TEMPLATE.into()]).await.expect("the databases").is_none() {
        let unfinished = format!("{TEMPLATE}_unfinished");
        run(&admin, &format!("DROP DATABASE IF EXISTS {unfinished}")).await;
        run(&admin, &format!("CREATE DATABASE {unfinished}")).await;
        let url = in_database(url, &unfinished);
        let store = Store::connect(&url, StoreOptions::default()).await.expect("connect");
        store.migrate().await.expect("run the migrations");
        // A template must not have open connections while it is renamed or copied.
        store.close().await;
        run(&admin, &format!("ALTER DATABASE {unfinished} RENAME TO {TEMPLATE}")).await;
    }
    admin.close().await.expect("close the connection");
}

/// The URL of another database of the same server: `postgres:///evenkeel?host=…` becomes
/// `postgres:///name?host=…`.
fn in_database(url: &str, name: &str) -> String {
    let (prefix, query) = url.split_once('?').unwrap_or((url, ""));
    let base = prefix.rsplit_once('/').map_or(prefix, |(base, _)| base);
    format!("{base}/{name}?{query}")
}

async fn connect(url: &str) -> DatabaseConnection {
    let mut options = ConnectOptions::new(url);
    options.max_connections(1).acquire_timeout(Duration::from_mins(1)).sqlx_logging(false);
    Database::connect(options).await.expect("connect to the test server")
}

async fn run(db: &DatabaseConnection, sql: &str) {
    db.execute_unprepared(sql).await.expect("run a statement");
}
