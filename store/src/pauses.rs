//! Pauses of a project, site or policy, during which no update starts.

use evenkeel_domain::pause::{Pause, PauseScope};
use sea_orm::sea_query::OnConflict;
use sea_orm::{
    ColumnTrait, Condition, ConnectionTrait, EntityTrait, QueryFilter, QueryOrder, QueryTrait, Set,
};

use crate::error::StoreError;
use crate::keyed::{self, KeyedEntity};
use crate::rows::pause::{ActiveModel, Column, Entity, Model};
use crate::rows::{or_corrupt, site, update_policy};
use crate::tx::Tx;

/// Sets a pause and replaces a previous pause of the same scope.
///
/// # Errors
/// The site or policy does not exist in the project.
pub async fn set(tx: &Tx, pause: &Pause) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    let bits = pause.scope.bits();
    let what = match pause.scope {
        PauseScope::Project => None,
        PauseScope::Site(_) => {
            (!keyed::exists::<site::Entity>(tx, bits).await?).then_some(site::Entity::RESOURCE)
        }
        PauseScope::Policy(_) => (!keyed::exists::<update_policy::Entity>(tx, bits).await?)
            .then_some(update_policy::Entity::RESOURCE),
    };
    if let Some(what) = what {
        return Err(StoreError::NotFound { what });
    }
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        scope_kind: Set(pause.scope.kind().to_owned()),
        scope_id: Set(bits.cast_signed()),
        reason: Set(pause.reason.clone()),
        created_by: Set(pause.by.clone()),
        since_at: Set(pause.at),
    };
    let same = OnConflict::columns([Column::TenantId, Column::ScopeKind, Column::ScopeId])
        .update_columns([Column::Reason, Column::CreatedBy, Column::SinceAt])
        .to_owned();
    Entity::insert(row).on_conflict(same).exec_without_returning(tx.conn()).await?;
    Ok(())
}

/// Removes a pause, if there is one. Other reasons that prevent updates stay.
pub async fn clear(tx: &Tx, scope: PauseScope) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    tx.remove::<Entity>().filter(scope_condition(scope)).exec(tx.conn()).await?;
    Ok(())
}

pub async fn find(tx: &Tx, scope: PauseScope) -> Result<Option<Pause>, StoreError> {
    let row = tx.scope::<Entity>().filter(scope_condition(scope)).one(tx.conn()).await?;
    row.map(Pause::try_from).transpose()
}

/// All pauses, oldest first. Leaves out those that cannot be read.
pub async fn all(tx: &Tx) -> Result<Vec<Pause>, StoreError> {
    let query = tx
        .scope::<Entity>()
        .order_by_asc(Column::SinceAt)
        .order_by_asc(Column::ScopeKind)
        .order_by_asc(Column::ScopeId)
        .into_query();
    let rows = tx.conn().query_all(&query).await?;
    Ok(keyed::readable_rows::<Model, Pause>("pause", &rows))
}

fn scope_condition(scope: PauseScope) -> Condition {
    Condition::all()
        .add(Column::ScopeKind.eq(scope.kind()))
        .add(Column::ScopeId.eq(scope.bits().cast_signed()))
}

impl TryFrom<Model> for Pause {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let scope = PauseScope::from_bits(&row.scope_kind, row.scope_id.cast_unsigned());
        Ok(Self {
            scope: or_corrupt(scope, "pauses", row.scope_id, "scope_kind")?,
            reason: row.reason,
            by: row.created_by,
            at: row.since_at,
        })
    }
}
