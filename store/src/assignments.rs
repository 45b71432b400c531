//! What policies are assigned to.

use evenkeel_domain::assignment::{Level, Scope};
use evenkeel_domain::id::{HostId, InstanceId, PolicyId};
use evenkeel_domain::policy::UpdatePolicy;
use sea_orm::sea_query::OnConflict;
use sea_orm::{ColumnTrait, Condition, EntityTrait, QueryFilter, Set};

use crate::error::StoreError;
use crate::policies;
use crate::rows::assignment::{ActiveModel, Column, Entity};
use crate::rows::named;
use crate::tx::{Tx, among};

/// Assigns a policy, in place of the one that was assigned to the same.
///
/// # Errors
/// There is no such policy in the project.
pub async fn set(tx: &Tx, scope: Scope, policy: PolicyId) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        target_kind: Set(scope.level().name().to_owned()),
        target_id: Set(scope.bits().cast_signed()),
        policy_id: Set(policy.bits().cast_signed()),
    };
    let same = OnConflict::columns([Column::TenantId, Column::TargetKind, Column::TargetId])
        .update_column(Column::PolicyId)
        .to_owned();
    Entity::insert(row)
        .on_conflict(same)
        .exec_without_returning(tx.conn())
        .await?;
    Ok(())
}

/// Takes back what was assigned; nothing if nothing was.
///
/// # Errors
/// The database cannot be reached.
pub async fn clear(tx: &Tx, scope: Scope) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    let delete = tx.remove::<Entity>().filter(is(scope));
    delete.exec(tx.conn()).await?;
    Ok(())
}

/// The policies that are assigned directly to these instances.
///
/// # Errors
/// The database cannot be reached.
pub async fn of_instances(
    tx: &Tx,
    ids: &[InstanceId],
) -> Result<Vec<(InstanceId, PolicyId)>, StoreError> {
    let bits = ids.iter().map(|id| id.bits().cast_signed());
    let rows = tx
        .scope::<Entity>()
        .filter(Column::TargetKind.eq(Level::Instance.name()))
        .filter(among(Column::TargetId, bits))
        .all(tx.conn())
        .await?;
    let pair = |row: crate::rows::assignment::Model| {
        (
            InstanceId::from_bits(row.target_id.cast_unsigned()),
            PolicyId::from_bits(row.policy_id.cast_unsigned()),
        )
    };
    Ok(rows.into_iter().map(pair).collect())
}

/// The policies that are assigned along the chain of an instance, nearest first.
///
/// # Errors
/// The database cannot be reached.
pub async fn along(
    tx: &Tx,
    instance: InstanceId,
    host: HostId,
) -> Result<Vec<(Level, UpdatePolicy)>, StoreError> {
    let chain = [Scope::Instance(instance), Scope::Host(host), Scope::Project];
    let any = chain
        .into_iter()
        .fold(Condition::any(), |any, scope| any.add(is(scope)));
    let rows = tx.scope::<Entity>().filter(any).all(tx.conn()).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<_> = rows
        .iter()
        .map(|row| PolicyId::from_bits(row.policy_id.cast_unsigned()))
        .collect();
    let policies = policies::find_many(tx, &ids).await?;
    let mut found = Vec::new();
    for row in rows {
        let level = named(
            Level::from_name(&row.target_kind),
            "assignments",
            row.target_id,
            "target_kind",
        )?;
        let bits = row.policy_id.cast_unsigned();
        if let Some(policy) = policies.iter().find(|policy| policy.id.bits() == bits) {
            found.push((level, policy.clone()));
        }
    }
    found.sort_by_key(|(level, _)| *level);
    Ok(found)
}

fn is(scope: Scope) -> Condition {
    Condition::all()
        .add(Column::TargetKind.eq(scope.level().name()))
        .add(Column::TargetId.eq(scope.bits().cast_signed()))
}
