//! Checks whether the program can use the database.

#[cfg(feature = "testing")]
use sea_orm::ConnectionTrait;

use crate::address::InvalidDatabaseUrl;
use crate::bounded::BoundedTransaction;
use crate::error::StoreError;
use crate::migration::release_version;
use crate::pool::Store;
use crate::session::keeps_sessions;
use crate::tx::{query_all, query_one};

/// The release of this program. A candidate of a release counts as that release.
fn own_release() -> &'static str {
    let version = release_version();
    version.split(['-', '+']).next().unwrap_or(version)
}

/// Why the program refuses to use a database. The message says how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IncompatibleDatabase {
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
    /// A newer release has migrated the schema, and this release is too old for it.
    #[error(
        "the database schema is newer than this program: it has the step {step}, which release {release} does not know; install \
         evenkeeld {min_release}",
        release = own_release()
    )]
    SchemaNewer {
        /// The first unknown migration.
        step: String,
        /// The releases that can use the schema.
        min_release: String,
    },
    /// A development version created the schema, before the first step of this program.
    #[error(
        "a development version of evenkeeld created this database: it has the step {step}, which is older than the first step of this \
         program, and there is no migration from it; create the database again, with\n  \
         DROP DATABASE evenkeel; CREATE DATABASE evenkeel OWNER evenkeel;\nor, for the private Postgres of `evenkeeld all`, \
         remove `postgres` in data_dir"
    )]
    SchemaBeforeBaseline {
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
    /// The reader of the change log is connected to another server than the pool, or its session
    /// does not see all projects.
    #[error(
        "the connection that reads the change log does not see what this server has just written; database.url must lead every \
         connection to the same database server, the primary"
    )]
    HeartbeatNotSeen,
    #[error(transparent)]
    InvalidUrl(#[from] InvalidDatabaseUrl),
    /// A pooler has dropped it, or has given the connection another session of the database.
    #[error(
        "the database does not keep the setting {name} of a session; connect to it directly, or through a pooler in session mode"
    )]
    SettingLost { name: &'static str },
    #[error(
        "the pooler in front of the database gives each transaction another session, and a session has settings that the server \
         depends on; connect to the database directly, or through a pooler in session mode"
    )]
    SessionNotKept,
}

/// The schema, compared with what the program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaCheck {
    /// Up to date.
    Current,
    /// No migration has run; [`Store::migrate`] creates the schema.
    Empty,
    /// Migrations are missing; [`Store::migrate`] runs them.
    Outdated,
    /// A newer program has migrated it, and this one can still use it.
    Newer {
        /// The first unknown migration.
        step: String,
    },
    /// The program refuses the database.
    Incompatible(IncompatibleDatabase),
}

impl From<IncompatibleDatabase> for SchemaCheck {
    fn from(why: IncompatibleDatabase) -> Self {
        Self::Incompatible(why)
    }
}

impl Store {
    /// Checks whether the program can use this database, and whether the schema must be migrated
    /// first.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn check(&self) -> Result<SchemaCheck, StoreError> {
        let sql = "SELECT current_setting('server_version_num')::integer, current_setting('server_version'), \
                   current_user::text, rolsuper OR rolbypassrls, to_regclass('seaql_migrations') IS NOT NULL, \
                   to_regclass('schema_compatibility') IS NOT NULL FROM pg_roles WHERE rolname = current_user";
        if !keeps_sessions(&self.address, &self.settings, self.answer_timeout).await? {
            return Ok(IncompatibleDatabase::SessionNotKept.into());
        }
        let tx = self.begin(None).await?;
        let Some(row) = query_one(&tx, sql, []).await? else {
            let role = "?".to_owned();
            return Ok(IncompatibleDatabase::RoleBypassesRls { role }.into());
        };
        let (number, version): (i32, String) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
        if number < 150_000 {
            return Ok(IncompatibleDatabase::ServerTooOld { found: version }.into());
        }
        if row.try_get_by_index::<bool>(3)? {
            let role = row.try_get_by_index(2)?;
            return Ok(IncompatibleDatabase::RoleBypassesRls { role }.into());
        }
        let applied =
            if row.try_get_by_index::<bool>(4)? { applied_steps(&tx).await? } else { Vec::new() };
        if applied.is_empty() {
            return Ok(SchemaCheck::Empty);
        }
        let min_release = if row.try_get_by_index::<bool>(5)? {
            query_one(&tx, "SELECT min_release FROM schema_compatibility", []).await?
        } else {
            None
        };
        let min_release = min_release.map(|row| row.try_get_by_index::<String>(0)).transpose()?;
        let known_steps: Vec<&str> = evenkeel_migrations::step_names().collect();
        Ok(compare_steps(&applied, &known_steps, min_release.as_deref()))
    }

    /// Runs one statement, for tests and tools only.
    #[cfg(feature = "testing")]
    pub async fn execute_unprepared(&self, sql: &str) -> Result<(), StoreError> {
        Ok(self.db().execute_unprepared(sql).await.map(drop)?)
    }
}

/// Names of the applied migrations, oldest first.
pub(crate) async fn applied_steps(tx: &BoundedTransaction) -> Result<Vec<String>, StoreError> {
    let rows = query_all(tx, "SELECT version FROM seaql_migrations ORDER BY version", []).await?;
    rows.iter().map(|row| Ok(row.try_get_by_index(0)?)).collect()
}

/// Compares the applied steps with the known ones, both in their order. Names begin with a date.
fn compare_steps(done: &[String], known_steps: &[&str], min_release: Option<&str>) -> SchemaCheck {
    let is_current = known_steps.iter().all(|step| done.iter().any(|done| done == step));
    let Some(step) = done.iter().find(|step| !known_steps.contains(&step.as_str())) else {
        return if is_current { SchemaCheck::Current } else { SchemaCheck::Outdated };
    };
    let step = step.clone();
    if known_steps.first().is_some_and(|first| step.as_str() < *first) {
        return IncompatibleDatabase::SchemaBeforeBaseline { step }.into();
    }
    let own = parse_release(own_release());
    let needed = min_release.and_then(parse_release);
    // A known step is missing only if another development version has migrated the schema.
    if is_current && needed.is_some_and(|needed| own.is_some_and(|own| own >= needed)) {
        return SchemaCheck::Newer { step };
    }
    let min_release = min_release.map(|release| format!("{release} or newer"));
    let min_release = min_release.unwrap_or_else(|| "of a newer release".to_owned());
    IncompatibleDatabase::SchemaNewer { step, min_release }.into()
}

/// The numbers of a release such as `1.2.3`.
fn parse_release(text: &str) -> Option<[u32; 3]> {
    let numbers: Result<Vec<u32>, _> = text.split('.').map(str::parse).collect();
    numbers.ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 2] = ["20261129_000001_baseline", "20270110_000001_next"];

    const LATER: &str = "20280101_000001_later";

    fn compare(done: &[&str], min_release: Option<&str>) -> SchemaCheck {
        let done: Vec<_> = done.iter().map(|&step| step.to_owned()).collect();
        compare_steps(&done, &KNOWN, min_release)
    }

    fn refusal(done: &[&str], min_release: Option<&str>) -> String {
        match compare(done, min_release) {
            SchemaCheck::Incompatible(why) => why.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_schema_is_current_when_all_known_steps_were_applied() {
        assert_eq!(compare(&KNOWN, None), SchemaCheck::Current);
        assert_eq!(compare(&KNOWN[..1], Some(own_release())), SchemaCheck::Outdated);
        assert_eq!(compare(&[], None), SchemaCheck::Outdated);
    }

    #[test]
    fn a_program_that_is_not_too_old_uses_a_newer_schema() {
        let newer = SchemaCheck::Newer { step: LATER.to_owned() };
        for min_release in ["0.0.9", own_release()] {
            assert_eq!(compare(&[KNOWN[0], KNOWN[1], LATER], Some(min_release)), newer);
        }
    }

    #[test]
    fn a_program_that_is_too_old_is_refused() {
        for (done, min_release, install) in [
            (&[KNOWN[0], KNOWN[1], LATER][..], Some("99.0.0"), "install evenkeeld 99.0.0 or newer"),
            (&[KNOWN[0], KNOWN[1], LATER], None, "install evenkeeld of a newer release"),
            (&[KNOWN[0], KNOWN[1], LATER], Some("?"), "install evenkeeld"),
            // Another development version.
            (&[KNOWN[0], LATER], Some(own_release()), "install evenkeeld"),
        ] {
            let newer = refusal(done, min_release);
            assert!(newer.contains("newer than this program"), "{newer}");
            assert!(newer.contains(LATER) && newer.contains(install), "{newer}");
        }
    }

    #[test]
    fn releases_are_compared_by_their_numbers() {
        assert!(parse_release("0.10.0") > parse_release("0.9.12"));
        assert_eq!(parse_release("1.2"), None);
        assert!(parse_release(own_release()).is_some());
    }

    #[test]
    fn a_step_before_the_baseline_requires_a_new_database() {
        let development = ["20261121_000001_tenants_and_ids", "20261121_000002_inventory"];
        let older = refusal(&development, None);
        assert!(!older.contains("newer"), "{older}");
        assert!(older.contains("20261121_000001_tenants_and_ids"), "{older}");
        assert!(older.contains("create the database again"), "{older}");
    }
}
