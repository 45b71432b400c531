//! The database schema: one pair of SQL files per step.
//!
//! A released file is never edited; a change is a new step. Checks and unique indexes in the
//! database repeat the rules of the domain types.

use sea_orm_migration::prelude::*;

/// Runs the steps and records the steps that have run.
#[derive(Debug)]
pub struct Migrator;

/// All steps, oldest first. A new step is a new line here.
const STEPS: &[Step] = &[
    step!("20261121_000001_tenants_and_ids"),
    step!("20261121_000002_inventory"),
    step!("20261121_000003_policies_and_schedules"),
    step!("20261121_000004_nodes_and_runs"),
    step!("20261121_000005_change_log"),
    step!("20261121_000006_row_level_security"),
    step!("20261121_000007_places"),
    step!("20261121_000008_wishes_for_places"),
    step!("20261121_000009_brake_and_contents"),
    step!("20261121_000010_walls_and_log_of_places"),
    step!("20261121_000011_resumed_assignments"),
    step!("20261122_000012_policy_rules"),
    step!("20261122_000013_package_versions"),
    step!("20261122_000014_accounts_of_runs"),
    step!("20261122_000015_lists"),
    step!("20261122_000016_machines"),
    step!("20261122_000017_day_zero"),
    step!("20261122_000018_node_tokens"),
    step!("20261122_000019_names_in_order"),
    step!("20261123_000020_long_lists"),
    step!("20261123_000021_log_for_readers"),
    step!("20261123_000022_node_digests"),
    step!("20261123_000023_hardware_as_told"),
    step!("20261123_000024_os_catalogue"),
    step!("20261124_000025_images_on_the_wire"),
    step!("20261124_000026_lists_by_place"),
    step!("20261128_000027_runs_by_key"),
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
