//! Migrates the schema while servers use it.
//!
//! A statement that waits for a lock makes later statements wait as well. So a step stops after [`LOCK_TIMEOUT`], lets
//! the others continue, and is retried until the migration times out.

use std::pin::pin;
use std::time::Duration;

use evenkeel_migrations::{LOCK_TIMEOUT, Migrator};
use futures_util::TryFutureExt as _;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};
use sea_orm_migration::MigratorTraitSelf;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection as _, PgConnection};
use tokio::time::{Instant, sleep};

use crate::check::applied_steps;
use crate::error::StoreError;
use crate::pool::{FIRST_CONNECTION_TIMEOUT, Store, connect_pool};
use crate::session::{
    SessionSettings, TENANT_SETTING, await_answers, connection_error, open_session, select_texts,
    silence_error, wait_for_close,
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

/// During a step, a machine or its storage may stall for this multiple of the usual limit for answers.
/// After the error, the database still completes the statement of the step.
const STALL_FACTOR: u32 = 5;

/// Name of the connections of a migration in `pg_stat_activity`.
const APPLICATION_NAME: &str = "evenkeeld migrate";

/// The connection that holds the lock of the migration, and checks for what the other one waits.
#[derive(Debug)]
struct MigrationObserver {
    session: PgConnection,
    /// How long to wait for the answer to a short statement.
    answer_timeout: Duration,
}

impl MigrationObserver {
    async fn select(
        &mut self,
        action: &str,
        expressions: Vec<String>,
        limit: Duration,
    ) -> Result<Vec<Option<String>>, StoreError> {
        let selecting = select_texts(&mut self.session, expressions).map_err(connection_error);
        await_answers(Instant::now() + limit, action, selecting).await
    }
}

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
        let session = open_session(&self.address, &settings, CONNECT_TIMEOUT).await?;
        let mut observer = MigrationObserver { session, answer_timeout: self.answer_timeout };
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
        wait_for_close(db.close()).await;
        // Releases the lock.
        wait_for_close(observer.session.close()).await;
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
async fn lock_migration(
    observer: &mut MigrationObserver,
    limit: Duration,
) -> Result<(), StoreError> {
    let attempt = vec![format!("pg_try_advisory_lock({MIGRATION_LOCK})::text")];
    let deadline = Instant::now() + limit;
    let mut waits = false;
    loop {
        let answer_timeout = observer.answer_timeout;
        let locking =
            observer.select("take the lock of the migration", attempt.clone(), answer_timeout);
        let is_free = locking.await?;
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
    observer: &mut MigrationObserver,
    migrator: &Migrator,
    deadline: Instant,
) -> Result<(), StoreError> {
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        // For what delays no others: the creation of an index waits for old transactions to end.
        let limit = format!("SET lock_timeout = {}", remaining.as_millis().max(1));
        let limiting = async {
            db.execute_unprepared(&limit).await?;
            query_one(db, "SELECT pg_backend_pid()", []).await
        };
        let answer_deadline = Instant::now() + observer.answer_timeout;
        let pid = await_answers(answer_deadline, "limit the waits for locks", limiting).await?;
        let pid: i32 = pid.map_or(Ok(0), |row| row.try_get_by_index(0))?;
        let search = ("the search for missing steps", pid);
        let pending = log_waits(migrator.get_pending_migrations(db), observer, search).await??;
        let Some(step) = pending.first().map(|step| step.name().to_owned()) else {
            return Ok(());
        };
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
/// The connection of the observer is lost, or does not answer. Or the database has answered the other
/// connection, or has ended its session, and the answer does not arrive.
async fn log_waits<T>(
    applying: impl Future<Output = T>,
    observer: &mut MigrationObserver,
    (step, pid): (&str, i32),
) -> Result<T, StoreError> {
    let mut applying = pin!(applying);
    let answer_timeout = observer.answer_timeout;
    let mut last = None;
    let mut unanswered_since: Option<Instant> = None;
    loop {
        tokio::select! {
            applied = &mut applying => return Ok(applied),
            () = sleep(WAIT_CHECK_INTERVAL) => {}
        }
        let state = vec![lock_wait(pid), has_answered(pid, answer_timeout)];
        let state = observer
            .select("check what the migration waits for", state, answer_timeout * STALL_FACTOR)
            .await?;
        let mut state = state.into_iter();
        let (wait, has_answered) = (state.next().flatten(), state.next().flatten());
        if has_answered.as_deref() != Some("true") {
            unanswered_since = None;
        } else if unanswered_since.get_or_insert_with(Instant::now).elapsed() >= answer_timeout {
            return Err(silence_error(&format!("complete {step}"), answer_timeout));
        }
        if let Some(wait) = wait.as_ref().filter(|wait| last.as_ref() != Some(*wait)) {
            tracing::info!(step, "waiting for {wait}");
        }
        last = wait;
    }
}

/// SQL: whether a session has ended, or has waited for the next statement for this long.
fn has_answered(pid: i32, period: Duration) -> String {
    format!(
        "(NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = {pid} \
          AND (a.state IS NULL OR a.state NOT LIKE 'idle%' \
          OR clock_timestamp() - a.state_change < interval '{} milliseconds')))::text",
        period.as_millis()
    )
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
