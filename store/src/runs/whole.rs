//! Runs with where they happened.

use std::sync::LazyLock;

use evenkeel_domain::id::RunId;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::run::UpdateRun;
use evenkeel_domain::text::Name;
use sea_orm::QueryResult;

use crate::error::StoreError;
use crate::fields::{self, Reader};
use crate::instances;
use crate::keyed::Keyed;
use crate::related::{self, Related, Sought};
use crate::rows::named;
use crate::rows::update_run::{Entity, Model};
use crate::tx::{Tx, each, ids_in, one};

/// A run with where it happened.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeRun {
    /// The run.
    pub run: UpdateRun,
    /// The instance that it is of.
    pub instance: Instance,
    /// The name of its host; may be empty.
    pub host_name: Name,
}

/// What is read of runs `r`.
fn shown() -> String {
    let run = fields::columns::<Model>("r");
    format!("{run}, {}, h.name", instances::columns())
}

/// Where that is.
fn joined() -> String {
    format!(
        "update_runs r \
         JOIN instances i ON i.tenant_id = r.tenant_id AND i.id = r.instance_id \
         JOIN hosts h ON h.tenant_id = i.tenant_id AND h.id = i.host_id {}",
        instances::JOINED,
    )
}

static MANY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {} FROM {} WHERE r.tenant_id = $1 AND r.id = ANY ({})",
        shown(),
        joined(),
        ids_in(2),
    )
});

static ONE: LazyLock<String> = LazyLock::new(|| {
    let policy = || Some("ARRAY[r.policy_id]".to_owned());
    let sought = Sought {
        policies: policy(),
        wishes: policy(),
        ..Sought::default()
    };
    format!(
        "SELECT {}, {} FROM {} WHERE r.tenant_id = $1 AND r.id = $2",
        shown(),
        sought.columns(),
        joined(),
    )
});

/// The run with this id, whole, and its policy with what that wishes for, as far as they are there: one statement.
///
/// # Errors
/// There is none in the project.
pub async fn find_whole(tx: &Tx, id: RunId) -> Result<(WholeRun, Related), StoreError> {
    let values = [tx.tenant().uuid().into(), id.bits().cast_signed().into()];
    let row = one(tx.conn(), ONE.as_str(), values).await?;
    let row = row.ok_or(StoreError::NotFound { what: Entity::WHAT })?;
    Ok((whole(&row)?, related::from_row(&row)?))
}

/// The runs with these ids that there are, whole and in no order: one statement for any number of them.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_many_whole(tx: &Tx, ids: &[RunId]) -> Result<Vec<WholeRun>, StoreError> {
    let ids: Vec<i32> = ids.iter().map(|id| id.bits().cast_signed()).collect();
    let values = [tx.tenant().uuid().into(), ids.into()];
    each(tx.conn(), MANY.as_str(), values, whole).await
}

fn whole(row: &QueryResult) -> Result<WholeRun, StoreError> {
    let mut row = Reader::new(row);
    let run: Model = row.fields()?;
    let id = run.id;
    let instance = instances::read_one(&mut row)?;
    let name: String = row.take()?;
    let name = Name::parse("name", &name).ok();
    Ok(WholeRun {
        run: run.try_into()?,
        instance: named(instance, "update_runs", id, "instance_id")?,
        host_name: named(name, "hosts", id, "name")?,
    })
}
