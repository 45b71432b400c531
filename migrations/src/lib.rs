//! The database schema: one pair of SQL files per step.
//!
//! A released file is never edited: a later change is a new step. Checks and unique indexes in the
//! database repeat the rules of the domain types.

use sea_orm_migration::prelude::*;

/// Runs the steps and records the steps that have run.
#[derive(Debug)]
pub struct Migrator;

/// All steps, oldest first. A new step is a new line here.
const STEPS: &[Step] = &[
    step!("20261129_000001_baseline"),
    step!("20261129_000002_assignment_of_runs"),
    step!("20261129_000003_removed_projects"),
    step!("20261129_000004_log_heartbeat"),
    step!("20261129_000005_server_keys"),
    step!("20261129_000006_host_uuid_text"),
    step!("20261129_000007_indexes_of_due_runs"),
];

impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        STEPS.iter().map(|step| Box::new(*step) as _).collect()
    }
}

/// Names of all steps, oldest first.
pub fn step_names() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|step| step.name)
}

/// SQL of all steps, up and down, for callers that must notice a change of the schema.
pub fn all_sql() -> impl Iterator<Item = &'static str> {
    STEPS.iter().flat_map(|step| [step.up, step.down])
}

#[derive(Clone, Copy)]
struct Step {
    name: &'static str,
    up: &'static str,
    down: &'static str,
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
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        execute_sql(manager, self.up).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        execute_sql(manager, self.down).await
    }
}

async fn execute_sql(manager: &SchemaManager<'_>, sql: &str) -> Result<(), DbErr> {
    let connection = manager.get_connection();
    connection.execute_unprepared(sql).await.map(drop)
}
