//! Checks whether the program can use the database.

#[cfg(feature = "testing")]
use sea_orm::ConnectionTrait;
use sea_orm::TransactionTrait as _;

use crate::bounded::{BoundedTransaction, with_timeout};
use crate::error::StoreError;
use crate::pool::Store;
use crate::tx::{query_all, query_one};

/// Why the program refuses to use a database. The message says how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IncompatibleDatabase {
    /// The server is too old.
    #[error("the database server is Postgres {found}, and 15 or newer is needed")]
    ServerTooOld {
        /// The version as the server reports it.
        found: String,
    },
    /// Row-level security would not apply to the role.
    #[error(
        "the database role {role:?} is a superuser or has BYPASSRLS, so row-level security would not apply to it; fix it with\n  \
         ALTER ROLE \"{role}\" NOSUPERUSER NOBYPASSRLS;\nor use a role made with\n  \
         CREATE ROLE evenkeel LOGIN NOSUPERUSER NOBYPASSRLS; CREATE DATABASE evenkeel OWNER evenkeel;"
    )]
    RoleBypassesRls { role: String },
    /// A newer version of the program has migrated the schema.
    #[error(
        "the database schema is newer than this program: it has the step {step}, which this program does not know; install a newer evenkeeld"
    )]
    SchemaNewer {
        /// The first unknown migration.
        step: String,
    },
    /// The role cannot see the open transactions of other databases, which the reader of the change
    /// log needs.
    #[error(
        "the database role {role:?} cannot see the open transactions of other roles in pg_stat_activity, and the change log cannot be \
         followed without them; fix it as a superuser, in the same database, with\n  \
         GRANT SELECT ON pg_catalog.pg_stat_activity TO \"{role}\";"
    )]
    ActivityNotVisible { role: String },
}

/// State of the schema, compared with what the program needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaState {
    /// Up to date.
    Current,
    /// Migrations are missing; [`Store::migrate`] runs them.
    Outdated,
}

impl Store {
    /// Checks whether the program can use this database, and whether the schema must be migrated
    /// first.
    ///
    /// # Errors
    /// Outer error: the database cannot be reached. Inner error: why the program refuses the
    /// database.
    pub async fn check(&self) -> Result<Result<SchemaState, IncompatibleDatabase>, StoreError> {
        let sql = "SELECT current_setting('server_version_num')::integer, current_setting('server_version'), \
                   current_user::text, rolsuper OR rolbypassrls, to_regclass('seaql_migrations') IS NOT NULL \
                   FROM pg_roles WHERE rolname = current_user";
        let tx = with_timeout(self.answer_timeout, self.db.begin()).await?;
        let tx = BoundedTransaction::new(tx, self.answer_timeout);
        let Some(row) = query_one(&tx, sql, []).await? else {
            return Ok(Err(IncompatibleDatabase::RoleBypassesRls { role: "?".to_owned() }));
        };
        let (number, version): (i32, String) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
        if number < 150_000 {
            return Ok(Err(IncompatibleDatabase::ServerTooOld { found: version }));
        }
        if row.try_get_by_index::<bool>(3)? {
            let role = row.try_get_by_index(2)?;
            return Ok(Err(IncompatibleDatabase::RoleBypassesRls { role }));
        }
        if !row.try_get_by_index::<bool>(4)? {
            return Ok(Ok(SchemaState::Outdated));
        }
        compare_schema(&tx).await
    }

    /// Runs one statement, for tests and tools only.
    #[cfg(feature = "testing")]
    pub async fn execute_unprepared(&self, sql: &str) -> Result<(), StoreError> {
        Ok(self.db.execute_unprepared(sql).await.map(drop)?)
    }
}

/// Compares the applied migrations with those that the program knows.
async fn compare_schema(
    tx: &BoundedTransaction,
) -> Result<Result<SchemaState, IncompatibleDatabase>, StoreError> {
    let rows = query_all(tx, "SELECT version FROM seaql_migrations ORDER BY version", []).await?;
    let mut done = Vec::new();
    for row in rows {
        done.push(row.try_get_by_index::<String>(0)?);
    }
    let known_steps: Vec<&str> = evenkeel_migrations::step_names().collect();
    if let Some(step) = done.iter().find(|step| !known_steps.contains(&step.as_str())) {
        return Ok(Err(IncompatibleDatabase::SchemaNewer { step: step.clone() }));
    }
    let current = known_steps.iter().all(|step| done.iter().any(|done| done == step));
    Ok(Ok(if current { SchemaState::Current } else { SchemaState::Outdated }))
}
