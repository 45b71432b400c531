//! The schema that the migrations create, and its way down.

use evenkeel_migrations::Migrator;
use evenkeel_store::testing::fresh_database;
use evenkeel_store::{IncompatibleDatabase, SchemaCheck, Store, StoreOptions};
use futures_util::future::join;
use sea_orm::{ConnectionTrait, Database, DatabaseConnection, DbBackend, Statement};
use sea_orm_migration::MigratorTraitSelf;

async fn connect(url: &str) -> DatabaseConnection {
    Database::connect(url).await.expect("connected")
}

/// The schema of a database as text, without the table of the applied migrations.
async fn schema_text(db: &DatabaseConnection) -> String {
    let query = Statement::from_string(DbBackend::Postgres, include_str!("schema.sql"));
    let rows = db.query_all_raw(query).await.expect("the catalogue");
    let lines: Vec<String> =
        rows.iter().map(|row| row.try_get_by_index(0).expect("a line")).collect();
    lines.join("\n")
}

/// The recorded schema: the text of the snapshot after its header.
fn recorded_schema() -> &'static str {
    let snapshot = include_str!("snapshots/story__schema__schema.snap");
    let parts = snapshot.splitn(3, "---\n");
    parts.last().expect("a text").trim_end()
}

/// Whether the server was built with lz4.
async fn has_lz4(db: &DatabaseConnection) -> bool {
    let query =
        "SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'";
    let query = Statement::from_string(DbBackend::Postgres, query);
    let row = db.query_one_raw(query).await.expect("the settings");
    row.expect("a row").try_get_by_index(0).expect("an answer")
}

/// A changed schema is a changed snapshot, so a review sees it next to its migration.
#[tokio::test]
async fn the_migrations_create_the_recorded_schema() {
    let db = connect(&fresh_database().await).await;
    let schema = schema_text(&db).await;
    assert!(schema.contains("table hosts"), "{schema}");
    if has_lz4(&db).await {
        insta::assert_snapshot!("schema", schema);
    } else {
        // Only the compression of the long texts is missing.
        let expected = recorded_schema().replace(" text lz4", " text");
        assert_eq!(schema.trim_end(), expected);
    }
}

#[tokio::test]
async fn the_migrations_insert_the_state_of_the_log() {
    let db = connect(&fresh_database().await).await;
    let query = "SELECT string_agg(s::text, '; ') FROM log_state s";
    let query = Statement::from_string(DbBackend::Postgres, query);
    let row = db.query_one_raw(query).await.expect("read");
    let rows: String = row.expect("a row").try_get_by_index(0).expect("a text");
    assert_eq!(rows, "(t,1,0,0)");
}

#[tokio::test]
async fn the_steps_down_remove_everything_and_the_steps_up_create_the_same_schema() {
    let db = connect(&fresh_database().await).await;
    let schema = schema_text(&db).await;
    Migrator::default().down(&db, None).await.expect("down");
    assert_eq!(schema_text(&db).await, "");
    Migrator::default().up(&db, None).await.expect("up");
    assert_eq!(schema_text(&db).await, schema);
}

#[tokio::test]
async fn two_servers_that_start_together_migrate_once() {
    let url = fresh_database().await;
    let db = connect(&url).await;
    Migrator::default().down(&db, None).await.expect("down");
    let open = || Store::connect(&url, StoreOptions::default());
    let (one, other) = (open().await.expect("a store"), open().await.expect("a store"));
    assert_eq!(one.check().await.expect("checked"), SchemaCheck::Empty);
    let (first, second) = join(one.migrate(), other.migrate()).await;
    first.expect("migrated");
    second.expect("migrated");
    assert_eq!(other.check().await.expect("checked"), SchemaCheck::Current);
}

/// Databases of development versions have steps that the baseline has replaced.
#[tokio::test]
async fn a_database_of_before_the_baseline_must_be_created_again() {
    let url = fresh_database().await;
    let store = Store::connect(&url, StoreOptions::default()).await.expect("a store");
    let step = "20261121_000001_tenants_and_ids";
    let old =
        format!("UPDATE seaql_migrations SET version = '{step}' WHERE version LIKE '%baseline'");
    store.execute_unprepared(&old).await.expect("changed");
    let expected = IncompatibleDatabase::SchemaBeforeBaseline { step: step.to_owned() };
    assert_eq!(store.check().await.expect("checked"), SchemaCheck::Incompatible(expected));
}
