//! A database of its own for each test.
//!
//! One private Postgres a test program, started with its first test and gone with it; one template a set of migrations;
//! one copy a test. The role is no superuser: as one, every policy of row-level security would pass.

pub mod fill;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_domain::tenant::TenantId;
use evenkeel_pg::PrivatePostgres;
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbErr};
use tokio::sync::OnceCell;

use crate::error::StoreError;
use crate::pool::{Store, StoreOptions};
use crate::tx::{Tx, all, begins, one};

static SERVER: OnceCell<Server> = OnceCell::const_new();

struct Server {
    postgres: PrivatePostgres,
}

/// A store on an empty, migrated database.
pub async fn fresh_store() -> Store {
    let url = fresh_database().await;
    let options = StoreOptions {
        max_connections: 10,
        ..StoreOptions::default()
    };
    Store::connect(&url, options)
        .await
        .expect("connect to the test's database")
}

/// The URL of an empty, migrated database.
pub async fn fresh_database() -> String {
    let server = SERVER.get_or_init(start).await;
    let name = format!("test_{}", uuid::Uuid::now_v7().simple());
    let admin = connect(&server.postgres.url()).await;
    run(
        &admin,
        &format!("CREATE DATABASE {name} TEMPLATE template_of_tests"),
    )
    .await;
    admin.close().await.expect("close the connection");
    in_database(&server.postgres.url(), &name)
}

/// What was sent through a store that counts.
#[derive(Debug, Default)]
pub struct Counts {
    /// The statements inside transactions, not their begin and end.
    pub statements: AtomicU64,
    /// The transactions that were opened.
    pub transactions: AtomicU64,
}

impl Counts {
    /// How many statements and transactions there were until now.
    #[must_use]
    pub fn both(&self) -> (u64, u64) {
        let statements = self.statements.load(Ordering::Relaxed);
        (statements, self.transactions.load(Ordering::Relaxed))
    }
}

/// A store that counts what is sent through it.
#[must_use]
pub fn counting(store: &Store) -> (Store, Arc<Counts>) {
    let mut counting = store.clone();
    let counts = Arc::new(Counts::default());
    let sent = Arc::clone(&counts);
    counting.db.set_metric_callback(move |call| {
        sent.statements.fetch_add(1, Ordering::Relaxed);
        if begins(&call.statement.sql) {
            sent.transactions.fetch_add(1, Ordering::Relaxed);
        }
    });
    (counting, counts)
}

/// A transaction as a wrong program would open it: its queries ask for one project, and the database shows it another.
pub async fn misled(store: &Store, asked: TenantId, shown: TenantId) -> Tx {
    let tx = store.tenant(shown).await.expect("a transaction");
    tx.asking_for(asked)
}

/// Two projects that a wrong program takes for each other: whoever enters one of them is served with what it asks of the
/// other one.
#[derive(Clone, Copy, Debug)]
pub struct Mistake {
    /// The projects.
    pub between: [TenantId; 2],
    /// Whether the database shows the wrong one as well: what would be told without its walls.
    pub without_walls: bool,
}

impl Mistake {
    /// A transaction as it is opened by mistake.
    pub(crate) async fn made(&self, entered: Tx) -> Result<Tx, StoreError> {
        let [one, other] = self.between;
        let asked = match entered.tenant() {
            tenant if tenant == one => other,
            tenant if tenant == other => one,
            _ => return Ok(entered),
        };
        if self.without_walls {
            entered.set("evenkeel.tenant", &asked.to_string()).await?;
        }
        Ok(entered.asking_for(asked))
    }
}

/// The store of a program that makes a mistake.
#[must_use]
pub fn mistaken(store: &Store, mistake: Mistake) -> Store {
    let mut mistaken = store.clone();
    mistaken.mistake = Some(mistake);
    mistaken
}

/// All that the database holds of a project: one text a row, behind the name of its table.
pub async fn rows_of(store: &Store, tenant: TenantId) -> Vec<String> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let tables = "SELECT c.relname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
                  WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attname = 'tenant_id' \
                  ORDER BY 1";
    let mut found = Vec::new();
    for table in all(tx.conn(), tables, []).await.expect("the tables") {
        let table: String = table.try_get_by_index(0).expect("a name");
        let rows =
            format!("SELECT to_jsonb(t)::text FROM {table} t WHERE t.tenant_id = $1 ORDER BY 1");
        let values = [tenant.uuid().into()];
        for row in all(tx.conn(), rows, values).await.expect("the rows") {
            let row: String = row.try_get_by_index(0).expect("a text");
            found.push(format!("{table} {row}"));
        }
    }
    found
}

/// The tables that a transaction's connection has read from their beginning to their end, and how often, as far as it
/// remembers (`pg_stat_xact_user_tables`).
pub async fn read_whole(tx: &Tx) -> Vec<String> {
    let sql = "SELECT relname || ' ' || seq_scan FROM pg_stat_xact_user_tables WHERE seq_scan > 0 ORDER BY 1";
    let mut found = Vec::new();
    for row in all(tx.conn(), sql, []).await.expect("the tables") {
        found.push(row.try_get_by_index(0).expect("a text"));
    }
    found
}

/// How often a transaction's connection has read each table, as far as it remembers (`pg_stat_xact_user_tables`).
pub async fn reads(tx: &Tx) -> BTreeMap<String, i64> {
    let sql = "SELECT relname::text, coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_xact_user_tables";
    let mut found = BTreeMap::new();
    for row in all(tx.conn(), sql, []).await.expect("the tables") {
        let table = row.try_get_by_index(0).expect("a text");
        found.insert(table, row.try_get_by_index(1).expect("a number"));
    }
    found
}

/// How many rows of a table a transaction's connection has looked at, as far as it remembers
/// (`pg_stat_xact_user_tables`).
pub async fn looked_at(tx: &Tx, table: &str) -> i64 {
    let sql = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables \
               WHERE relname = $1";
    let row = one(tx.conn(), sql, [table.into()])
        .await
        .expect("the table");
    let row = row.expect("there is such a table");
    row.try_get_by_index(0).expect("a number")
}

/// The tables whose changes are recorded in the change log.
pub async fn recorded(tx: &Tx) -> BTreeSet<String> {
    let sql = "SELECT c.relname::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid \
               WHERE t.tgname = 'record_change' AND t.tgenabled = 'O'";
    let mut found = BTreeSet::new();
    for row in all(tx.conn(), sql, []).await.expect("the triggers") {
        found.insert(row.try_get_by_index(0).expect("a text"));
    }
    found
}

/// What a lock that others hold for too long makes of a call.
#[must_use]
pub fn busy() -> StoreError {
    StoreError::Busy(DbErr::Custom(
        "canceling statement due to lock timeout".to_owned(),
    ))
}

/// What a database that is not there makes of a call.
#[must_use]
pub fn away() -> StoreError {
    StoreError::Unreachable(DbErr::Custom("connection refused".to_owned()))
}

async fn start() -> Server {
    let postgres = PrivatePostgres::throwaway()
        .await
        .expect("a private Postgres");
    let admin = connect(&postgres.url()).await;
    run(&admin, "CREATE DATABASE template_of_tests").await;
    admin.close().await.expect("close the connection");
    let url = in_database(&postgres.url(), "template_of_tests");
    let store = Store::connect(&url, StoreOptions::default())
        .await
        .expect("connect");
    store.migrate().await.expect("run the migrations");
    // A template must have no open connection while it is copied.
    store.close().await;
    Server { postgres }
}

/// The same server, another database: `postgres:///evenkeel?host=…` becomes `postgres:///name?host=…`.
fn in_database(url: &str, name: &str) -> String {
    let (front, query) = url.split_once('?').unwrap_or((url, ""));
    let base = front.rsplit_once('/').map_or(front, |(base, _)| base);
    format!("{base}/{name}?{query}")
}

async fn connect(url: &str) -> DatabaseConnection {
    let mut options = ConnectOptions::new(url);
    options
        .max_connections(1)
        .acquire_timeout(Duration::from_mins(1))
        .sqlx_logging(false);
    Database::connect(options)
        .await
        .expect("connect to the test server")
}

async fn run(db: &DatabaseConnection, sql: &str) {
    db.execute_unprepared(sql).await.expect("run a statement");
}
