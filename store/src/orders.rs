//! Orders: instructions of an operator for single instances, outside the schedule.

use evenkeel_domain::id::InstanceId;
use evenkeel_domain::order::{Order, OrderKind};
use sea_orm::{ColumnTrait, QueryFilter};

use crate::error::StoreError;
use crate::rows::or_corrupt;
use crate::rows::update_order::{Column, Entity, Model};
use crate::tx::{Tx, query_all};

/// Gives an order to instances and replaces their previous orders. Returns the instances that
/// exist.
pub async fn set(
    tx: &Tx,
    instances: &[InstanceId],
    order: &Order,
) -> Result<Vec<InstanceId>, StoreError> {
    tx.lock_for_change().await?;
    let sql = "INSERT INTO update_orders (tenant_id, instance_id, kind, given_at, until_at, reason, created_by) \
               SELECT tenant_id, id, $3, $4, $5, $6, $7 FROM instances WHERE tenant_id = $1 AND id = ANY ($2) ORDER BY id \
               ON CONFLICT (tenant_id, instance_id) DO UPDATE SET kind = excluded.kind, given_at = excluded.given_at, \
               until_at = excluded.until_at, reason = excluded.reason, created_by = excluded.created_by \
               RETURNING instance_id";
    let bits: Vec<i32> = instances.iter().map(|id| id.bits().cast_signed()).collect();
    let values = [
        tx.tenant().uuid().into(),
        bits.into(),
        order.kind.name().into(),
        order.at.into(),
        order.until.max(order.at).into(),
        order.reason.as_str().into(),
        order.by.as_str().into(),
    ];
    let mut accepted = Vec::new();
    for row in query_all(tx.conn(), sql, values).await? {
        let bits: i32 = row.try_get_by_index(0)?;
        accepted.push(InstanceId::from_bits(bits.cast_unsigned()));
    }
    Ok(accepted)
}

/// Removes the order of an instance, if there is one.
pub async fn clear(tx: &Tx, instance: InstanceId) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    tx.remove::<Entity>()
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
        .exec(tx.conn())
        .await?;
    Ok(())
}

pub async fn find(tx: &Tx, instance: InstanceId) -> Result<Option<Order>, StoreError> {
    let row = tx
        .scope::<Entity>()
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
        .one(tx.conn())
        .await?;
    row.map(Order::try_from).transpose()
}

impl TryFrom<Model> for Order {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let kind = OrderKind::from_name(&row.kind);
        Ok(Self {
            kind: or_corrupt(kind, "update_orders", row.instance_id, "kind")?,
            at: row.given_at,
            until: row.until_at,
            reason: row.reason,
            by: row.created_by,
        })
    }
}
