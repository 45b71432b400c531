//! Runs with their instances and hosts.

use std::sync::LazyLock;

use evenkeel_domain::id::RunId;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::run::{StoredState, UpdateRun};
use evenkeel_domain::text::Name;
use sea_orm::QueryResult;

use super::convert;
use crate::error::StoreError;
use crate::fields::{self, RowReader};
use crate::instances;
use crate::keyed::KeyedEntity;
use crate::related::{self, Related, RelatedIdsSql};
use crate::rows::update_run::{Entity, Model};
use crate::rows::{or_corrupt, readable};
use crate::tx::{Tx, ids_in, query_map, query_one};

const TABLE: &str = "update_runs";

/// A run with its instance and the name of its host.
#[derive(Clone, Debug, PartialEq)]
pub struct RunDetails {
    pub run: UpdateRun<StoredState>,
    pub instance: Instance,
    /// The name of its host; may be empty.
    pub host_name: Name,
}

/// The columns of runs `r`.
fn select_columns() -> String {
    let run = fields::columns::<Model>("r");
    format!("{run}, {}, h.name", instances::columns())
}

/// The `FROM` clause for these columns.
fn from_clause() -> String {
    format!(
        "update_runs r \
         JOIN instances i ON i.tenant_id = r.tenant_id AND i.id = r.instance_id \
         JOIN hosts h ON h.tenant_id = i.tenant_id AND h.id = i.host_id {}",
        instances::JOINS_SQL,
    )
}

static FIND_MANY_SQL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {} FROM {} WHERE r.tenant_id = $1 AND r.id = ANY ({})",
        select_columns(),
        from_clause(),
        ids_in(2),
    )
});

static FIND_ONE_SQL: LazyLock<String> = LazyLock::new(|| {
    let policy = || Some("ARRAY[r.policy_id]".to_owned());
    let related_ids = RelatedIdsSql {
        policies: policy(),
        policies_with_os: policy(),
        ..RelatedIdsSql::default()
    };
    format!(
        "SELECT {}, {} FROM {} WHERE r.tenant_id = $1 AND r.id = $2",
        select_columns(),
        related_ids.columns(),
        from_clause(),
    )
});

/// The details of a run, and its policy with the target operating system, as far as they exist: one
/// statement.
///
/// # Errors
/// It does not exist in the project.
pub async fn find_details(tx: &Tx, id: RunId) -> Result<(RunDetails, Related), StoreError> {
    let values = [tx.tenant().uuid().into(), id.bits().cast_signed().into()];
    let row = query_one(tx.conn(), FIND_ONE_SQL.as_str(), values).await?;
    let row = row.ok_or(StoreError::NotFound { what: Entity::RESOURCE })?;
    Ok((details_from_row(&row)?, related::from_row(&row)?))
}

/// The details of the runs that exist, in no particular order: one statement for any number of
/// runs. Leaves out runs that cannot be read.
pub async fn find_many_details(tx: &Tx, ids: &[RunId]) -> Result<Vec<RunDetails>, StoreError> {
    let ids: Vec<i32> = ids.iter().map(|id| id.bits().cast_signed()).collect();
    let values = [tx.tenant().uuid().into(), ids.into()];
    let read = |row: &QueryResult| Ok(readable(TABLE, details_from_row(row)));
    let rows = query_map(tx.conn(), FIND_MANY_SQL.as_str(), values, read).await?;
    Ok(rows.into_iter().flatten().collect())
}

fn details_from_row(row: &QueryResult) -> Result<RunDetails, StoreError> {
    let mut row = RowReader::new(row);
    let run: Model = row.fields()?;
    let id = run.id;
    let instance = instances::read_instance(&mut row)?;
    let name: String = row.take()?;
    Ok(RunDetails {
        run: convert::stored_from_row(run)?,
        instance: or_corrupt(instance, TABLE, id, "instance_id")?,
        host_name: Name::from_stored(&name),
    })
}
