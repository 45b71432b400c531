//! Many rows in one statement.

use sea_orm::QueryResult;
use serde_json::Value;

use crate::error::StoreError;
use crate::rows::named;
use crate::tx::{Tx, all, execute};

/// A table whose rows can be copied.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// What it is called.
    pub name: &'static str,
    /// The column that says which rows are copied together.
    pub key: &'static str,
}

/// Copies the rows of a table that have a key, once for each object. An object has the columns in which its copies differ.
pub async fn copy(
    tx: &Tx,
    table: Table,
    key: u32,
    differences: impl IntoIterator<Item = Value>,
) -> Result<(), StoreError> {
    let Table { name, key: column } = table;
    let differences: Vec<String> = differences
        .into_iter()
        .map(|difference| difference.to_string())
        .collect();
    let wanted = u64::try_from(differences.len()).unwrap_or(u64::MAX);
    let columns = written(tx, name).await?;
    let made: Vec<_> = columns
        .iter()
        .map(|written| format!("made.{written}"))
        .collect();
    let sql = format!(
        "INSERT INTO {name} ({}) SELECT {} FROM {name} one \
         CROSS JOIN unnest($3::text[]) AS given (difference) \
         CROSS JOIN LATERAL jsonb_populate_record(one, given.difference::jsonb) AS made \
         WHERE one.tenant_id = $1 AND one.{column} = $2",
        columns.join(", "),
        made.join(", "),
    );
    let values = [
        tx.tenant().uuid().into(),
        key.cast_signed().into(),
        differences.into(),
    ];
    let made = execute(tx.conn(), sql, values).await?;
    if made < wanted {
        return Err(StoreError::NotFound { what: name });
    }
    Ok(())
}

/// The columns of a table that are written, and not made from others.
async fn written(tx: &Tx, table: &str) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT quote_ident(attname) FROM pg_attribute \
               WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''";
    let rows = all(tx.conn(), sql, [table.into()]).await?;
    let name = |row: QueryResult| -> Result<String, StoreError> { Ok(row.try_get_by_index(0)?) };
    rows.into_iter().map(name).collect()
}

/// So many numbers of a sequence.
pub async fn numbers(tx: &Tx, sequence: &str, many: usize) -> Result<Vec<u32>, StoreError> {
    let sql = "SELECT nextval($1::regclass) FROM generate_series(1, $2::integer)";
    let many = i32::try_from(many).unwrap_or(i32::MAX);
    let rows = all(tx.conn(), sql, [sequence.into(), many.into()]).await?;
    let number = |row: QueryResult| -> Result<u32, StoreError> {
        let number: i64 = row.try_get_by_index(0)?;
        named(u32::try_from(number).ok(), "sequence", 0, "nextval")
    };
    rows.into_iter().map(number).collect()
}
