//! Queries for runs and their history, and deletion.

use evenkeel_domain::id::{InstanceId, RunId};
use evenkeel_domain::run::{AttemptId, RunHistoryEntry, UpdateRun};
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, ConnectionTrait, Iterable, QueryFilter, QueryOrder, QuerySelect, QueryTrait,
    Select,
};

use super::convert;
use crate::contents::ContentDigest;
use crate::error::{Conflict, StoreError};
use crate::keyed::{self, KeyedEntity};
use crate::rows::run_event;
use crate::rows::update_run::{Column, Entity, Model};
use crate::tx::Tx;

/// The run with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: RunId) -> Result<UpdateRun, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The run with this id, if its node had this list of installed packages when it was opened; none
/// if it cannot be read.
pub async fn find_opened_with(
    tx: &Tx,
    id: RunId,
    packages: &ContentDigest,
) -> Result<Option<UpdateRun>, StoreError> {
    let query = tx
        .scope::<Entity>()
        .filter(Column::Id.eq(id.bits().cast_signed()))
        .filter(Column::PackagesDigest.eq(packages.to_vec()))
        .into_query();
    let rows = tx.conn().query_all(&query).await?;
    Ok(keyed::readable_rows::<Model, UpdateRun>(Entity::RESOURCE, &rows).pop())
}

/// Selects runs without their planned packages, which may be megabytes long: most calls of a node do
/// not need them.
pub(super) fn select_without_packages(tx: &Tx) -> Select<Entity> {
    let columns = Column::iter().filter(|column| !matches!(column, Column::Packages));
    let select = tx.scope::<Entity>().select_only().columns(columns);
    select.expr_as(Expr::cust(NO_PACKAGES_SQL), "packages")
}

/// An empty list instead of the planned packages.
pub(crate) const NO_PACKAGES_SQL: &str = "'[]'::jsonb";

/// The open run of an instance, without its planned packages.
pub async fn find_open(tx: &Tx, instance: InstanceId) -> Result<Option<UpdateRun>, StoreError> {
    let row = select_without_packages(tx)
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
        .filter(Column::EndedAt.is_null())
        .one(tx.conn())
        .await?;
    row.map(UpdateRun::try_from).transpose()
}

/// The run of an attempt of an instance, without its planned packages.
pub async fn find_attempt(
    tx: &Tx,
    instance: InstanceId,
    attempt: AttemptId,
) -> Result<Option<UpdateRun>, StoreError> {
    let row = select_without_packages(tx)
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
        .filter(Column::Attempt.eq(attempt.0))
        .one(tx.conn())
        .await?;
    row.map(UpdateRun::try_from).transpose()
}

/// The last opened run of an instance without an attempt id, as EIM agents have them, and without
/// its planned packages.
pub async fn find_last_sampled(
    tx: &Tx,
    instance: InstanceId,
) -> Result<Option<UpdateRun>, StoreError> {
    let row = select_without_packages(tx)
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
        .filter(Column::Attempt.is_null())
        .order_by_desc(Column::StartedAt)
        .limit(1)
        .one(tx.conn())
        .await?;
    row.map(UpdateRun::try_from).transpose()
}

/// The history of a run, oldest first.
pub async fn events(tx: &Tx, id: RunId) -> Result<Vec<RunHistoryEntry>, StoreError> {
    let rows = tx
        .scope::<run_event::Entity>()
        .filter(run_event::Column::RunId.eq(id.bits().cast_signed()))
        .order_by_asc(run_event::Column::Position)
        .all(tx.conn())
        .await?;
    Ok(rows.into_iter().map(convert::recorded_event).collect())
}

/// The runs with these ids that exist, in no particular order.
pub async fn find_many(tx: &Tx, ids: &[RunId]) -> Result<Vec<UpdateRun>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// Deletes an ended run with its history.
///
/// # Errors
/// It does not exist in the project, or it has not ended: its node would open it again.
pub async fn delete(tx: &Tx, id: RunId) -> Result<(), StoreError> {
    let delete = tx
        .remove::<Entity>()
        .filter(Column::Id.eq(id.bits().cast_signed()))
        .filter(Column::EndedAt.is_not_null());
    if delete.exec(tx.conn()).await?.rows_affected == 1 {
        return Ok(());
    }
    if !keyed::exists::<Entity>(tx, id.bits()).await? {
        return Err(StoreError::NotFound { what: Entity::RESOURCE });
    }
    Err(StoreError::Conflict(Conflict::InUse {
        what: Entity::RESOURCE,
        by: "an attempt that has not ended",
    }))
}
