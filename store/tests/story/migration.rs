//! Steps of the schema that run while others use the database.

use std::time::Duration;

use evenkeel_store::testing::{Migrator, Step, fresh_database, query_text, run_migrator};
use evenkeel_store::{SchemaCheck, Store, StoreError, StoreOptions, projects};
use futures_util::future::join;
use sea_orm::{ConnectionTrait, Database, DatabaseConnection, TransactionTrait};

use crate::fixtures::{create_project, store_with_project, store_with_two_projects};

/// Longer than any migration of these tests takes.
const LONG: Duration = Duration::from_mins(2);

/// A step that needs a lock which excludes all others for an instant.
const SHORT_LOCK: Step = Step {
    name: "29990101_000001_short_lock",
    up: "ALTER TABLE projects ADD COLUMN label text;",
    down: "ALTER TABLE projects DROP COLUMN label;",
};

/// Its last part fails while two projects have the same label.
const SEVERAL_PARTS: Step = Step {
    name: "29990101_000002_several_parts",
    up: "-- part: transaction
ALTER TABLE projects ADD COLUMN label text;
-- part: batches projects
UPDATE projects SET label = 'same' WHERE label IS NULL AND ctid >= :first AND ctid < :end;
-- part: index projects_label
CREATE UNIQUE INDEX CONCURRENTLY projects_label ON projects (label);
",
    down: "ALTER TABLE projects DROP COLUMN label;",
};

/// A session that reads for a long time, like `pg_dump`: it holds the weakest lock on a table.
async fn begin_long_read(url: &str) -> sea_orm::DatabaseTransaction {
    let db: DatabaseConnection = Database::connect(url).await.expect("connected");
    let tx = db.begin().await.expect("a transaction");
    tx.execute_unprepared("LOCK TABLE projects IN ACCESS SHARE MODE").await.expect("locked");
    tx
}

/// Waits until a step waits for a lock.
async fn wait_for_lock_wait(store: &Store) {
    let sql = "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() \
               AND application_name = 'evenkeeld migrate' AND wait_event_type = 'Lock'";
    while query_text(store, sql).await == "0" {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_step_that_waits_for_a_long_reader_does_not_block_others() {
    let url = fresh_database().await;
    let store = Store::connect(&url, StoreOptions::default()).await.expect("a store");
    create_project(&store, "ours").await;
    let reader = begin_long_read(&url).await;
    let migrator = Migrator::default().with_step(SHORT_LOCK);
    let work = async {
        for _ in 0..3 {
            wait_for_lock_wait(&store).await;
            // The long reader does not end before this read, so a step that waited for it would
            // make this read time out.
            let tx = store.fleet().await.expect("a transaction");
            projects::find_by_name(&tx, "ours").await.expect("the project is read");
        }
        reader.rollback().await.expect("ended");
    };
    let (migrated, ()) = join(run_migrator(&store, &migrator, LONG), work).await;
    migrated.expect("migrated");
    let newer = SchemaCheck::Newer { step: SHORT_LOCK.name.to_owned() };
    assert_eq!(store.check().await.expect("checked"), newer);
}

#[tokio::test]
async fn a_step_that_does_not_get_its_locks_in_time_fails_and_changes_nothing() {
    let url = fresh_database().await;
    let store = Store::connect(&url, StoreOptions::default()).await.expect("a store");
    let reader = begin_long_read(&url).await;
    let migrator = Migrator::default().with_step(SHORT_LOCK);
    let refused = run_migrator(&store, &migrator, Duration::from_millis(1)).await;
    assert!(matches!(refused, Err(StoreError::Busy(_))), "{refused:?}");
    assert_eq!(store.check().await.expect("checked"), SchemaCheck::Current);
    reader.rollback().await.expect("ended");
    run_migrator(&store, &migrator, LONG).await.expect("migrated");
}

#[tokio::test]
async fn an_interrupted_step_continues_with_the_part_that_failed() {
    let (store, _, _) = store_with_two_projects().await;
    let migrator = Migrator::default().with_step(SEVERAL_PARTS);
    let failed = run_migrator(&store, &migrator, LONG).await;
    assert!(matches!(failed, Err(StoreError::Conflict(_))), "{failed:?}");
    let index =
        "SELECT indisvalid::text FROM pg_index WHERE indexrelid = 'projects_label'::regclass";
    assert_eq!(query_text(&store, index).await, "false");
    assert_eq!(store.check().await.expect("checked"), SchemaCheck::Current);
    let fix = "SELECT set_config('evenkeel.tenant', '*', true); UPDATE projects SET label = name";
    store.execute_unprepared(fix).await.expect("fixed");
    run_migrator(&store, &migrator, LONG).await.expect("migrated");
    assert_eq!(query_text(&store, index).await, "true");
    // The batches did not run again.
    let labels = "SELECT set_config('evenkeel.tenant', '*', true); DO $$ BEGIN \
                  IF EXISTS (SELECT FROM projects WHERE label <> name) THEN RAISE 'changed'; END IF; END $$";
    store.execute_unprepared(labels).await.expect("the labels as they were fixed");
}

#[tokio::test]
async fn batches_change_every_row_of_a_table_of_many_blocks() {
    let (store, _) = store_with_project().await;
    let fill = "SELECT set_config('evenkeel.tenant', '*', true); \
                INSERT INTO projects (tenant_id, name, description, created_at, updated_at) \
                SELECT gen_random_uuid(), 'p' || n, repeat('x', 1500), now(), now() \
                FROM generate_series(1, 2000) n";
    store.execute_unprepared(fill).await.expect("filled");
    let blocks = "SELECT (pg_relation_size('projects') / 8192)::text";
    let blocks: u32 = query_text(&store, blocks).await.parse().expect("a number");
    assert!(blocks > 256, "{blocks} blocks are one batch or two");
    let step = Step {
        name: "29990101_000003_batches",
        up: "-- part: transaction
ALTER TABLE projects ADD COLUMN label text;
-- part: batches projects
UPDATE projects SET label = name WHERE label IS NULL AND ctid >= :first AND ctid < :end;
",
        down: "ALTER TABLE projects DROP COLUMN label;",
    };
    let migrator = Migrator::default().with_step(step);
    run_migrator(&store, &migrator, LONG).await.expect("migrated");
    let labels = "SELECT set_config('evenkeel.tenant', '*', true); DO $$ BEGIN \
                  IF (SELECT count(*) FROM projects WHERE label = name) <> 2001 THEN RAISE 'missing'; END IF; END $$";
    store.execute_unprepared(labels).await.expect("every row was changed");
}
