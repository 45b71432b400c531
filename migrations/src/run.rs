//! Runs the parts of a step. Each completed part is recorded, so an interrupted step continues where it stopped.

use std::time::Duration;

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::{
    DatabaseTransaction, DbBackend, QueryResult, Statement, TransactionTrait, Value,
};

use crate::part::Part;

/// How long a statement of a migration waits for a lock that others need, and so blocks them. Longer
/// than Postgres waits before it cancels an automatic vacuum that holds the lock (`deadlock_timeout`,
/// one second).
pub const LOCK_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Number of blocks of 8 KiB per batch: some thousand short rows, a fraction of a second.
const BLOCKS_PER_BATCH: i64 = 128;

/// Number of batches after which the progress is logged.
const BATCHES_PER_LOG_LINE: i64 = 500;

/// Runs statements in a transaction that fails early if a lock is not free.
pub(crate) async fn run_in_transaction(
    transaction: &impl ConnectionTrait,
    sql: &str,
) -> Result<(), DbErr> {
    limit_lock_waits(transaction).await?;
    transaction.execute_unprepared(sql).await.map(drop)
}

async fn limit_lock_waits(transaction: &impl ConnectionTrait) -> Result<(), DbErr> {
    let limit = format!("SET LOCAL lock_timeout = {}", LOCK_TIMEOUT.as_millis());
    transaction.execute_unprepared(&limit).await.map(drop)
}

/// Runs the parts that are not done yet.
pub(crate) async fn run_parts(
    connection: &SchemaManagerConnection<'_>,
    step: &str,
    parts: &[Part<'_>],
) -> Result<(), DbErr> {
    let insert = "INSERT INTO migration_progress (step) VALUES ($1) ON CONFLICT DO NOTHING";
    execute(connection, insert, [step.into()]).await?;
    let done = "SELECT parts_done FROM migration_progress WHERE step = $1";
    let row = query_one(connection, done, [step.into()]).await?;
    let done: i32 = row.try_get_by_index(0)?;
    for (part, number) in parts.iter().zip(1_i32..).skip_while(|(_, number)| *number <= done) {
        tracing::info!(step, part = number, "{}", part.describe());
        match *part {
            Part::Transaction(sql) => {
                let transaction = connection.begin().await?;
                run_in_transaction(&transaction, sql).await?;
                record_part(&transaction, step, number).await?;
                transaction.commit().await?;
            }
            Part::Index { name, sql } => {
                create_index(connection, name, sql).await?;
                record_part(connection, step, number).await?;
            }
            Part::Batches { table, sql } => {
                while run_batch(connection, step, (table, sql)).await? {}
                record_part(connection, step, number).await?;
            }
        }
    }
    Ok(())
}

/// Forgets the progress of a step that was undone.
pub(crate) async fn forget_parts(
    connection: &SchemaManagerConnection<'_>,
    step: &str,
) -> Result<(), DbErr> {
    let delete = "DELETE FROM migration_progress WHERE step = $1";
    execute(connection, delete, [step.into()]).await
}

async fn record_part(
    connection: &impl ConnectionTrait,
    step: &str,
    number: i32,
) -> Result<(), DbErr> {
    let sql = "UPDATE migration_progress \
               SET parts_done = $2, table_file = NULL, next_block = NULL, end_block = NULL WHERE step = $1";
    execute(connection, sql, [step.into(), number.into()]).await
}

/// Creates an index. Does nothing if it exists; first removes an invalid index of an interrupted run.
async fn create_index(
    connection: &SchemaManagerConnection<'_>,
    name: &str,
    sql: &str,
) -> Result<(), DbErr> {
    let state = "SELECT (SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1))";
    let row = query_one(connection, state, [name.into()]).await?;
    match row.try_get_by_index::<Option<bool>>(0)? {
        Some(true) => return Ok(()),
        Some(false) => {
            let drop_invalid = format!("DROP INDEX CONCURRENTLY {name}");
            connection.execute_unprepared(&drop_invalid).await?;
        }
        None => {}
    }
    connection.execute_unprepared(sql).await.map(drop)
}

/// Blocks of a table: those before `next` are done, and the last one is before `end`.
#[derive(Clone, Copy, Debug)]
struct BlockRange {
    next: i64,
    end: i64,
}

/// Changes the rows of the next blocks. Returns whether there are more.
async fn run_batch(
    connection: &SchemaManagerConnection<'_>,
    step: &str,
    (table, sql): (&str, &str),
) -> Result<bool, DbErr> {
    let transaction = connection.begin().await?;
    limit_lock_waits(&transaction).await?;
    let (file, BlockRange { next, end }) = read_block_range(&transaction, step, table).await?;
    let batch_end = std::cmp::min(next + BLOCKS_PER_BATCH, end);
    if next < batch_end {
        let batch = sql
            .replace(":first", &format!("'({next},0)'::tid"))
            .replace(":end", &format!("'({batch_end},0)'::tid"));
        transaction.execute_unprepared(&batch).await?;
    }
    let update = "UPDATE migration_progress SET table_file = $2, next_block = $3, end_block = $4 \
                  WHERE step = $1";
    execute(&transaction, update, [step.into(), file.into(), batch_end.into(), end.into()]).await?;
    transaction.commit().await?;
    if next % (BLOCKS_PER_BATCH * BATCHES_PER_LOG_LINE) == 0 {
        tracing::info!(step, table, block = next, blocks = end, "changing rows in batches");
    }
    Ok(batch_end < end)
}

/// The file of the table, and the blocks that are not done. Rows that are written meanwhile need no
/// batch, so the end is fixed by the first batch. A new file (`VACUUM FULL`, `CLUSTER`) has moved all
/// rows, so the batches begin again.
async fn read_block_range(
    transaction: &DatabaseTransaction,
    step: &str,
    table: &str,
) -> Result<(i64, BlockRange), DbErr> {
    let sql = "SELECT pg_relation_filenode($2::text::regclass)::bigint, \
               pg_relation_size($2::text::regclass) / current_setting('block_size')::bigint, \
               table_file, next_block, end_block FROM migration_progress WHERE step = $1";
    let row = query_one(transaction, sql, [step.into(), table.into()]).await?;
    let (file, end): (i64, i64) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
    let started: Option<i64> = row.try_get_by_index(2)?;
    let range = if started == Some(file) {
        BlockRange { next: row.try_get_by_index(3)?, end: row.try_get_by_index(4)? }
    } else {
        BlockRange { next: 0, end }
    };
    Ok((file, range))
}

async fn execute(
    connection: &impl ConnectionTrait,
    sql: &str,
    values: impl IntoIterator<Item = Value>,
) -> Result<(), DbErr> {
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    connection.execute_raw(statement).await.map(drop)
}

async fn query_one(
    connection: &impl ConnectionTrait,
    sql: &str,
    values: impl IntoIterator<Item = Value>,
) -> Result<QueryResult, DbErr> {
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    let row = connection.query_one_raw(statement).await?;
    row.ok_or_else(|| DbErr::RecordNotFound("the progress of the migration".to_owned()))
}
