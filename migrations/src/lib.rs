//! The database schema: one pair of SQL files per step.
//!
//! A released file is never edited: a later change is a new step. Checks and unique indexes in the
//! database repeat the rules of the domain types. docs/design/migrations.md describes how a step
//! changes a schema that servers are using.

mod part;
mod run;

use std::sync::OnceLock;

use sea_orm_migration::MigratorTraitSelf;
use sea_orm_migration::prelude::*;

pub use part::Part;
pub use run::LOCK_TIMEOUT;

/// Runs steps and records the steps that have run.
#[derive(Clone, Debug)]
pub struct Migrator {
    /// Oldest first.
    steps: Vec<Step>,
}

/// All steps, oldest first. A new step is a new line here.
const STEPS: &[Step] = &[
    step!("20261129_000001_baseline"),
    step!("20261129_000002_assignment_of_runs"),
    step!("20261129_000003_removed_projects"),
    step!("20261129_000004_log_heartbeat"),
    step!("20261129_000005_server_keys"),
    step!("20261129_000006_host_uuid_text"),
    step!("20261129_000007_indexes_of_due_runs"),
    step!("20261129_000008_decryption_certificate"),
    step!("20261129_000009_revocable_tokens"),
    step!("20261129_000010_online_upgrades"),
    step!("20261129_000011_limits_per_node"),
    step!("20261129_000012_facts_of_instances"),
    step!("20261129_000013_recent_starts"),
    step!("20261130_000014_facts_version"),
    step!("20261130_000015_audit"),
    step!("20261130_000016_change_seals"),
    step!("20261130_000017_users_and_tokens"),
    step!("20261130_000018_facts_of_hosts"),
    step!("20261130_000019_notifications"),
    step!("20261201_000020_more_notifications"),
    step!("20261201_000021_task_passes"),
    step!("20261201_000022_read_revocations"),
];

/// The release for which this program stands; empty if it is itself.
static NEXT_RELEASE: OnceLock<NextRelease> = OnceLock::new();

/// A release after this one: another version, and one more step.
#[derive(Clone, Copy, Debug)]
pub struct NextRelease {
    pub version: &'static str,
    pub step: Step,
}

/// Lets this program stand for the next release, for a test of an upgrade. Call it before anything
/// else; only the first call has an effect.
pub fn become_next_release(release: NextRelease) {
    NEXT_RELEASE.get_or_init(|| release);
}

/// The version of this program.
#[must_use]
pub fn release_version() -> &'static str {
    NEXT_RELEASE.get().map_or(env!("CARGO_PKG_VERSION"), |release| release.version)
}

/// All steps of this program, oldest first.
fn all_steps() -> impl Iterator<Item = &'static Step> {
    STEPS.iter().chain(NEXT_RELEASE.get().map(|release| &release.step))
}

impl Default for Migrator {
    fn default() -> Self {
        Self { steps: all_steps().copied().collect() }
    }
}

impl Migrator {
    /// Adds a step after all others, for tests.
    #[must_use]
    pub fn with_step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// All steps, oldest first.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

impl MigratorTraitSelf for Migrator {
    fn migrations(&self) -> Vec<Box<dyn MigrationTrait>> {
        self.steps.iter().map(|step| Box::new(*step) as _).collect()
    }
}

/// Names of all steps, oldest first.
pub fn step_names() -> impl Iterator<Item = &'static str> {
    all_steps().map(|step| step.name)
}

/// One change of the schema, and the way back.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The name, which sorts after those of older steps.
    pub name: &'static str,
    /// The SQL file, possibly of several parts.
    pub up: &'static str,
    /// SQL that undoes the step in one transaction. Tests use it.
    pub down: &'static str,
}

impl Step {
    /// The parts of the step.
    ///
    /// # Errors
    /// The SQL file is not valid.
    pub fn parts(&self) -> Result<Vec<Part<'static>>, DbErr> {
        Part::parse_all(self.up).map_err(|why| DbErr::Migration(format!("{}: {why}", self.name)))
    }

    /// Whether the step is one transaction, which also records it. A file that is not valid is
    /// refused when it runs.
    fn is_one_transaction(&self) -> bool {
        matches!(self.parts().as_deref(), Ok([Part::Transaction(_)]))
    }
}

macro_rules! step {
    ($name:literal) => {
        Step {
            name: $name,
            up: include_str!(concat!("../sql/", $name, ".up.sql")),
            down: include_str!(concat!("../sql/", $name, ".down.sql")),
        }
    };
}
use step;

impl MigrationName for Step {
    fn name(&self) -> &str {
        self.name
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Step {
    fn use_transaction(&self) -> Option<bool> {
        Some(self.is_one_transaction())
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        match &self.parts()?[..] {
            [Part::Transaction(sql)] => run::run_in_transaction(connection, sql).await,
            parts => run::run_parts(connection, self.name, parts).await,
        }
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        connection.execute_unprepared(self.down).await?;
        if self.is_one_transaction() {
            return Ok(());
        }
        run::forget_parts(connection, self.name).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_valid_and_follows_the_one_before() {
        for step in STEPS {
            assert!(step.parts().is_ok(), "{}", step.name);
        }
        assert!(STEPS.is_sorted_by_key(|step| step.name));
    }
}
