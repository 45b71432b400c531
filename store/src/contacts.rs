//! When nodes were last heard: written in batches, and not part of the change log.

use evenkeel_domain::Time;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::tenant::TenantId;
use sea_orm::Value;
use sea_orm::sea_query::ArrayType;
use uuid::Uuid;

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, execute, one};

/// Notes when nodes were heard, in one statement. An older time never replaces a newer one; a node that is gone is left
/// out. One node stands in a batch once.
///
/// # Errors
/// The database cannot be reached.
pub async fn heard(
    tx: &FleetTx,
    mut batch: Vec<(TenantId, InstanceId, Time)>,
) -> Result<u64, StoreError> {
    // In one order, or two batches would wait for each other.
    batch.sort_unstable();
    let tenants: Vec<Uuid> = batch.iter().map(|(tenant, ..)| tenant.uuid()).collect();
    let instances: Vec<i32> = batch
        .iter()
        .map(|(_, id, _)| id.bits().cast_signed())
        .collect();
    let times: Vec<Time> = batch.iter().map(|(.., at)| *at).collect();
    let sql = "INSERT INTO last_contacts (tenant_id, instance_id, heard_at) \
               SELECT b.tenant_id, b.instance_id, b.heard_at \
               FROM unnest($1::uuid[], $2::integer[], $3::timestamptz[]) AS b (tenant_id, instance_id, heard_at) \
               JOIN instances i ON i.tenant_id = b.tenant_id AND i.id = b.instance_id \
               ON CONFLICT (tenant_id, instance_id) DO UPDATE SET heard_at = excluded.heard_at \
               WHERE last_contacts.heard_at < excluded.heard_at";
    let times = Value::Array(
        ArrayType::ChronoDateTimeUtc,
        Some(Box::new(times.into_iter().map(Value::from).collect())),
    );
    execute(tx.conn(), sql, [tenants.into(), instances.into(), times]).await
}

/// When a node was last heard.
///
/// # Errors
/// The database cannot be reached.
pub async fn last(tx: &Tx, instance: InstanceId) -> Result<Option<Time>, StoreError> {
    let sql = "SELECT heard_at FROM last_contacts WHERE tenant_id = $1 AND instance_id = $2";
    let key = [
        tx.tenant().uuid().into(),
        instance.bits().cast_signed().into(),
    ];
    match one(tx.conn(), sql, key).await? {
        Some(row) => Ok(Some(row.try_get_by_index(0)?)),
        None => Ok(None),
    }
}
