//! Whether the database is one that the program can work with.

#[cfg(feature = "testing")]
use sea_orm::ConnectionTrait;
use sea_orm::TransactionTrait as _;

use crate::bounded::{Bounded, within};
use crate::error::StoreError;
use crate::pool::Store;
use crate::tx::{all, one};

/// Why the program refuses to work with a database. The text says how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// Too old a server.
    #[error("the database server is Postgres {found}, and 15 or newer is needed")]
    TooOld {
        /// Its version, as it says it.
        found: String,
    },
    /// Row-level security would not bind the role.
    #[error(
        "the database role {role:?} is a superuser or has BYPASSRLS, so row-level security would not bind it; mend it with\n  \
         ALTER ROLE \"{role}\" NOSUPERUSER NOBYPASSRLS;\nor use a role made with\n  \
         CREATE ROLE evenkeel LOGIN NOSUPERUSER NOBYPASSRLS; CREATE DATABASE evenkeel OWNER evenkeel;"
    )]
    Unbound {
        /// The role.
        role: String,
    },
    /// A newer program was here.
    #[error(
        "the database schema is newer than this program: it has the step {step}, which this program does not know; install a newer evenkeeld"
    )]
    SchemaNewer {
        /// The first step that is not known.
        step: String,
    },
    /// Who reads the change log has to know which transactions are those of other databases.
    #[error(
        "the database role {role:?} does not see in pg_stat_activity which transactions others have open, and the change log cannot be \
         followed without; mend it as a superuser, in the same database, with\n  \
         GRANT SELECT ON pg_catalog.pg_stat_activity TO \"{role}\";"
    )]
    BlindReader {
        /// The role.
        role: String,
    },
}

/// How the schema stands to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    /// As the program needs it.
    Current,
    /// Steps are missing; [`Store::migrate`] runs them.
    Older,
}

impl Store {
    /// Whether the program can work with this database, and whether the schema must be brought up to date first.
    ///
    /// # Errors
    /// The database cannot be reached. The inner error says why the program must refuse it.
    pub async fn check(&self) -> Result<Result<Schema, Misfit>, StoreError> {
        let sql = "SELECT current_setting('server_version_num')::integer, current_setting('server_version'), \
                   current_user::text, rolsuper OR rolbypassrls, to_regclass('seaql_migrations') IS NOT NULL \
                   FROM pg_roles WHERE rolname = current_user";
        let tx = within(self.patience, self.db.begin()).await?;
        let tx = Bounded::new(tx, self.patience);
        let Some(row) = one(&tx, sql, []).await? else {
            return Ok(Err(Misfit::Unbound {
                role: "?".to_owned(),
            }));
        };
        let (number, version): (i32, String) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
        if number < 150_000 {
            return Ok(Err(Misfit::TooOld { found: version }));
        }
        if row.try_get_by_index::<bool>(3)? {
            let role = row.try_get_by_index(2)?;
            return Ok(Err(Misfit::Unbound { role }));
        }
        if !row.try_get_by_index::<bool>(4)? {
            return Ok(Ok(Schema::Older));
        }
        compare_schema(&tx).await
    }

    /// Runs one statement for a test or a tool; never for a service.
    #[cfg(feature = "testing")]
    pub async fn unprepared(&self, sql: &str) -> Result<(), StoreError> {
        Ok(self.db.execute_unprepared(sql).await.map(drop)?)
    }
}

/// Compares the steps that were made with those that the program knows.
async fn compare_schema(tx: &Bounded) -> Result<Result<Schema, Misfit>, StoreError> {
    let rows = all(
        tx,
        "SELECT version FROM seaql_migrations ORDER BY version",
        [],
    )
    .await?;
    let mut done = Vec::new();
    for row in rows {
        done.push(row.try_get_by_index::<String>(0)?);
    }
    let known: Vec<&str> = evenkeel_migrations::names().collect();
    if let Some(step) = done.iter().find(|step| !known.contains(&step.as_str())) {
        return Ok(Err(Misfit::SchemaNewer { step: step.clone() }));
    }
    let current = known
        .iter()
        .all(|step| done.iter().any(|done| done == step));
    Ok(Ok(if current {
        Schema::Current
    } else {
        Schema::Older
    }))
}
