//! Copies many rows in one statement.

use sea_orm::QueryResult;
use serde_json::Value;

use crate::error::StoreError;
use crate::rows::or_corrupt;
use crate::tx::{Tx, execute, query_all};

/// A table whose rows can be copied.
#[derive(Clone, Copy, Debug)]
pub struct CopyTable {
    pub name: &'static str,
    /// The key column: rows with the same key are copied together.
    pub key: &'static str,
}

/// Copies the rows of a table with a key once per object. An object contains the columns that
/// differ.
pub async fn copy(
    tx: &Tx,
    table: CopyTable,
    key: u32,
    differences: impl IntoIterator<Item = Value>,
) -> Result<(), StoreError> {
    let CopyTable { name, key: column } = table;
    let differences: Vec<String> =
        differences.into_iter().map(|difference| difference.to_string()).collect();
    let expected = u64::try_from(differences.len()).unwrap_or(u64::MAX);
    let columns = writable_columns(tx, name).await?;
    let selected: Vec<_> = columns.iter().map(|written| format!("made.{written}")).collect();
    let sql = format!(
        "INSERT INTO {name} ({}) SELECT {} FROM {name} one \
         CROSS JOIN unnest($3::text[]) AS given (difference) \
         CROSS JOIN LATERAL jsonb_populate_record(one, given.difference::jsonb) AS made \
         WHERE one.tenant_id = $1 AND one.{column} = $2",
        columns.join(", "),
        selected.join(", "),
    );
    let values = [tx.tenant().uuid().into(), key.cast_signed().into(), differences.into()];
    let inserted = execute(tx.conn(), sql, values).await?;
    if inserted < expected {
        return Err(StoreError::NotFound { what: name });
    }
    Ok(())
}

/// The columns of a table that are not generated.
async fn writable_columns(tx: &Tx, table: &str) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT quote_ident(attname) FROM pg_attribute \
               WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''";
    let rows = query_all(tx.conn(), sql, [table.into()]).await?;
    let name = |row: QueryResult| -> Result<String, StoreError> { Ok(row.try_get_by_index(0)?) };
    rows.into_iter().map(name).collect()
}

/// Takes `many` numbers of a sequence.
pub async fn numbers(tx: &Tx, sequence: &str, many: usize) -> Result<Vec<u32>, StoreError> {
    let sql = "SELECT nextval($1::regclass) FROM generate_series(1, $2::integer)";
    let many = i32::try_from(many).unwrap_or(i32::MAX);
    let rows = query_all(tx.conn(), sql, [sequence.into(), many.into()]).await?;
    let number = |row: QueryResult| -> Result<u32, StoreError> {
        let number: i64 = row.try_get_by_index(0)?;
        or_corrupt(u32::try_from(number).ok(), "sequence", 0, "nextval")
    };
    rows.into_iter().map(number).collect()
}
