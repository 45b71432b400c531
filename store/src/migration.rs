//! Migrates the schema while servers use it.
//!
//! A statement that waits for a lock makes later statements wait as well. So a step stops after [`LOCK_TIMEOUT`], lets
//! the others continue, and is retried until the migration times out.

use std::pin::pin;
use std::time::{Duration, Instant};

use evenkeel_migrations::{LOCK_TIMEOUT, Migrator};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};
use sea_orm_migration::MigratorTraitSelf;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection as _, PgConnection};
use tokio::time::sleep;

use crate::check::applied_steps;
use crate::error::StoreError;
use crate::pool::{FIRST_CONNECTION_TIMEOUT, Store, connect_pool};
use crate::session::{
    SessionSettings, TENANT_SETTING, connection_error, open_session, select_texts,
};
use crate::tx::query_one;

/// Name of the newest step of the schema that this program knows.
#[must_use]
pub fn newest_schema_step() -> &'static str {
    evenkeel_migrations::step_names().last().unwrap_or_default()
}

/// The version of this program.
#[must_use]
pub fn release_version() -> &'static str {
    evenkeel_migrations::release_version()
}

/// Default of the total time that a migration waits for locks.
pub const DEFAULT_MIGRATION_TIMEOUT: Duration = Duration::from_mins(30);

/// Maximum of this time. Postgres accepts time-outs for locks of up to 24 days.
const MAX_MIGRATION_TIMEOUT: Duration = Duration::from_hours(24 * 20);

/// How long a migration waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay before a step is retried. Meanwhile others get the locks that they waited for.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Interval between two checks of the locks that a step waits for.
const WAIT_CHECK_INTERVAL: Duration = Duration::from_millis(300);

/// The advisory lock of the process that migrates.
const MIGRATION_LOCK: i64 = 7030;

/// Name of the connections of a migration in `pg_stat_activity`.
const APPLICATION_NAME: &str = "evenkeeld migrate";

impl Store {
    /// Migrates the schema to the current version, and waits for locks for as long as a command does
    /// by default.
    ///
    /// # Errors
    /// As those of [`Store::migrate_within`].
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.migrate_within(DEFAULT_MIGRATION_TIMEOUT).await
    }

    /// Migrates the schema to the current version. Waits for locks for at most `limit` in all, and at
    /// most 20 days. Safe to call from several processes at once.
    ///
    /// # Errors
    /// The database cannot be reached, locks were not free in time, or a step fails. Completed parts
    /// of steps are kept, and the next call continues after them.
    pub async fn migrate_within(&self, limit: Duration) -> Result<(), StoreError> {
        self.run_migrator(&Migrator::default(), limit).await
    }

    /// Applies the steps of a migrator. Uses two extra connections: one holds the lock of the migration and checks for
    /// waits, one migrates.
    ///
    /// # Errors
    /// As those of [`Store::migrate_within`].
    pub(crate) async fn run_migrator(
        &self,
        migrator: &Migrator,
        limit: Duration,
    ) -> Result<(), StoreError> {
        let limit = limit.min(MAX_MIGRATION_TIMEOUT);
        let deadline = Instant::now() + limit;
        // A migration sees every project: one that fills a column must not miss any.
        let settings = SessionSettings::new([
            ("statement_timeout", "0"),
            ("lock_timeout", "0"),
            ("idle_in_transaction_session_timeout", "0"),
            ("application_name", APPLICATION_NAME),
            (TENANT_SETTING, "*"),
        ]);
        let mut observer = open_session(&self.address, &settings, CONNECT_TIMEOUT).await?;
        lock_migration(&mut observer, limit).await?;
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(CONNECT_TIMEOUT)
            .test_before_acquire(false)
            // A new session would lose the limit for locks.
            .idle_timeout(None)
            .max_lifetime(None);
        let db = connect_pool(pool, &self.address, settings, FIRST_CONNECTION_TIMEOUT).await?;
        let done = apply_steps(&db, &mut observer, migrator, deadline).await;
        db.close().await?;
        // Releases the lock. An error while closing has no consequences.
        observer.close().await.ok();
        done
    }

    /// The steps that a migration would apply: a line for each missing step, followed by its parts.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn describe_migration(&self) -> Result<Vec<String>, StoreError> {
        let tx = self.begin(None).await?;
        let exists = "SELECT to_regclass('seaql_migrations') IS NOT NULL";
        let exists = match query_one(&tx, exists, []).await? {
            Some(row) => row.try_get_by_index::<bool>(0)?,
            None => false,
        };
        let done = if exists { applied_steps(&tx).await? } else { Vec::new() };
        let migrator = Migrator::default();
        let mut lines = Vec::new();
        for step in
            migrator.steps().iter().filter(|step| !done.iter().any(|done| done == step.name))
        {
            lines.push(step.name.to_owned());
            let parts = step.parts()?;
            lines.extend(parts.iter().map(|part| format!("  {}", part.describe())));
        }
        Ok(lines)
    }
}

/// Takes the lock of the migration. Waits for a migration of another process with short statements: the creation of an index
/// waits for every statement that is older, so a statement that waits for the migration would never end.
async fn lock_migration(observer: &mut PgConnection, limit: Duration) -> Result<(), StoreError> {
    let attempt = vec![format!("pg_try_advisory_lock({MIGRATION_LOCK})::text")];
    let deadline = Instant::now() + limit;
    let mut waits = false;
    loop {
        let is_free = select_texts(observer, attempt.clone()).await.map_err(connection_error)?;
        if is_free.iter().flatten().any(|is_free| is_free == "true") {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let message = format!("another process still migrates the schema after {limit:?}");
            return Err(StoreError::Busy(DbErr::Custom(message)));
        }
        if !waits {
            tracing::info!("another process migrates the schema, waiting for it");
            waits = true;
        }
        sleep(WAIT_CHECK_INTERVAL.min(limit)).await;
    }
}

/// Applies the missing steps, one after the other.
async fn apply_steps(
    db: &DatabaseConnection,
    observer: &mut PgConnection,
    migrator: &Migrator,
    deadline: Instant,
) -> Result<(), StoreError> {
    loop {
        let pending = migrator.get_pending_migrations(db).await?;
        let Some(step) = pending.first().map(|step| step.name().to_owned()) else {
            return Ok(());
        };
        let remaining = deadline.saturating_duration_since(Instant::now());
        // For what delays no others: the creation of an index waits for old transactions to end.
        let limit = format!("SET lock_timeout = {}", remaining.as_millis().max(1));
        db.execute_unprepared(&limit).await?;
        let pid = query_one(db, "SELECT pg_backend_pid()", []).await?;
        let pid: i32 = pid.map_or(Ok(0), |row| row.try_get_by_index(0))?;
        let applied = log_waits(migrator.up(db, Some(1)), observer, (&step, pid)).await?;
        match applied.map_err(StoreError::from) {
            Ok(()) => {}
            Err(StoreError::Busy(error)) if Instant::now() + RETRY_DELAY < deadline => {
                tracing::info!(
                    step,
                    lock_timeout = ?LOCK_TIMEOUT,
                    retry_after = ?RETRY_DELAY,
                    %error,
                    "a step of the schema did not get its locks, trying again"
                );
                sleep(RETRY_DELAY).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Awaits a step and logs which locks it waits for, and who holds them.
///
/// # Errors
/// The connection that holds the lock of the migration is lost.
async fn log_waits<T>(
    applying: impl Future<Output = T>,
    observer: &mut PgConnection,
    (step, pid): (&str, i32),
) -> Result<T, StoreError> {
    let mut applying = pin!(applying);
    let mut last = None;
    loop {
        tokio::select! {
            applied = &mut applying => return Ok(applied),
            () = sleep(WAIT_CHECK_INTERVAL) => {}
        }
        let wait = select_texts(observer, vec![lock_wait(pid)]).await.map_err(connection_error)?;
        let wait = wait.into_iter().flatten().next();
        if let Some(wait) = wait.as_ref().filter(|wait| last.as_ref() != Some(*wait)) {
            tracing::info!(step, "waiting for {wait}");
        }
        last = wait;
    }
}

/// SQL: the lock that a session waits for and the sessions that hold it; null if it does not wait.
fn lock_wait(pid: i32) -> String {
    format!(
        "(SELECT format('the lock %s, held by %s', \
            (SELECT concat_ws(' on ', l.mode, coalesce(l.relation::regclass::text, l.locktype)) \
             FROM pg_locks l WHERE l.pid = {pid} AND NOT l.granted LIMIT 1), \
            string_agg(format('pid %s (application %s, state %s, transaction since %s)', b.pid, \
                coalesce(nullif(a.application_name, ''), 'unknown'), coalesce(a.state, 'unknown'), \
                coalesce(a.xact_start::text, 'unknown')), ', ' ORDER BY b.pid)) \
          FROM unnest(pg_blocking_pids({pid})) AS b (pid) LEFT JOIN pg_stat_activity a ON a.pid = b.pid \
          HAVING count(*) > 0)"
    )
}
