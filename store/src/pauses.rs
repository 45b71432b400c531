//! Pauses: where nothing new starts.

use evenkeel_domain::pause::{Pause, PauseScope};
use sea_orm::sea_query::OnConflict;
use sea_orm::{ColumnTrait, Condition, EntityTrait, QueryFilter, QueryOrder, Set};

use crate::error::StoreError;
use crate::keyed::{self, Keyed};
use crate::rows::pause::{ActiveModel, Column, Entity, Model};
use crate::rows::{named, site, update_policy};
use crate::tx::Tx;

/// Pauses something, in place of an earlier pause of the same.
///
/// # Errors
/// The site or policy is not in the project.
pub async fn set(tx: &Tx, pause: &Pause) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    let bits = pause.scope.bits();
    let what = match pause.scope {
        PauseScope::Project => None,
        PauseScope::Site(_) => {
            (!keyed::exists::<site::Entity>(tx, bits).await?).then_some(site::Entity::WHAT)
        }
        PauseScope::Policy(_) => (!keyed::exists::<update_policy::Entity>(tx, bits).await?)
            .then_some(update_policy::Entity::WHAT),
    };
    if let Some(what) = what {
        return Err(StoreError::NotFound { what });
    }
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        scope_kind: Set(pause.scope.kind().to_owned()),
        scope_id: Set(bits.cast_signed()),
        reason: Set(pause.reason.clone()),
        made_by: Set(pause.by.clone()),
        since_at: Set(pause.at),
    };
    let same = OnConflict::columns([Column::TenantId, Column::ScopeKind, Column::ScopeId])
        .update_columns([Column::Reason, Column::MadeBy, Column::SinceAt])
        .to_owned();
    Entity::insert(row)
        .on_conflict(same)
        .exec_without_returning(tx.conn())
        .await?;
    Ok(())
}

/// Takes a pause back; nothing if there is none. What else keeps updates from starting stays.
///
/// # Errors
/// The database cannot be reached.
pub async fn clear(tx: &Tx, scope: PauseScope) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    tx.remove::<Entity>()
        .filter(is(scope))
        .exec(tx.conn())
        .await?;
    Ok(())
}

/// The pause of one thing.
///
/// # Errors
/// The database cannot be reached.
pub async fn find(tx: &Tx, scope: PauseScope) -> Result<Option<Pause>, StoreError> {
    let row = tx
        .scope::<Entity>()
        .filter(is(scope))
        .one(tx.conn())
        .await?;
    row.map(Pause::try_from).transpose()
}

/// The pauses, longest first.
///
/// # Errors
/// The database cannot be reached.
pub async fn all(tx: &Tx) -> Result<Vec<Pause>, StoreError> {
    let rows = tx
        .scope::<Entity>()
        .order_by_asc(Column::SinceAt)
        .order_by_asc(Column::ScopeKind)
        .order_by_asc(Column::ScopeId)
        .all(tx.conn())
        .await?;
    rows.into_iter().map(Pause::try_from).collect()
}

fn is(scope: PauseScope) -> Condition {
    Condition::all()
        .add(Column::ScopeKind.eq(scope.kind()))
        .add(Column::ScopeId.eq(scope.bits().cast_signed()))
}

impl TryFrom<Model> for Pause {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let scope = PauseScope::from_bits(&row.scope_kind, row.scope_id.cast_unsigned());
        Ok(Self {
            scope: named(scope, "pauses", row.scope_id, "scope_kind")?,
            reason: row.reason,
            by: row.made_by,
            at: row.since_at,
        })
    }
}
