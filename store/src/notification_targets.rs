//! Notification targets of a project. The column `url` has the address of a target: the URL of a
//! webhook, or `mailto:` and e-mail addresses, which an older release refuses as a URL.

use evenkeel_domain::Time;
use evenkeel_domain::id::NotificationTargetId;
use evenkeel_domain::notification::{
    NotificationEvent, NotificationTarget, NotificationTargetSpec, TargetAddress, WebhookSecret,
};
use evenkeel_domain::text::Name;
use sea_orm::{QueryResult, Value};

use crate::error::StoreError;
use crate::ids;
use crate::rows::readable;
use crate::tx::{Tx, execute, query_all, query_one};

/// What a target is called in messages.
pub const RESOURCE: &str = "notification_target_resource";

const COLUMNS: &str = "id, name, url, events, enabled, created_at, updated_at";

/// Creates an enabled target. A caller that limits the number of targets or compares their names has
/// called [`Tx::lock_for_change`] before it reads them.
pub async fn create(
    tx: &Tx,
    spec: &NotificationTargetSpec,
    secret: &WebhookSecret,
    now: Time,
) -> Result<NotificationTarget, StoreError> {
    let number = ids::next(tx.conn(), "notification_target_numbers").await?;
    let id = NotificationTargetId::nth(number);
    let events: Vec<String> = spec.events.iter().map(|event| event.name().to_owned()).collect();
    let sql = format!(
        "INSERT INTO notification_targets (tenant_id, id, name, url, events, enabled, secret, created_at, updated_at) \
         VALUES ($1, $2, $3, $4, $5, true, $6, $7, $7) RETURNING {COLUMNS}"
    );
    let [tenant, target] = target_key(tx, id);
    let values = [
        tenant,
        target,
        spec.name.as_str().into(),
        spec.address.to_string().into(),
        events.into(),
        secret.reveal().to_vec().into(),
        now.into(),
    ];
    let created = query_target(tx, sql, values).await?;
    let sql = "INSERT INTO notification_queues (tenant_id, target_id) VALUES ($1, $2)";
    execute(tx.conn(), sql, target_key(tx, id)).await?;
    Ok(created)
}

/// The targets, by id. Leaves out those that cannot be read.
pub async fn all(tx: &Tx) -> Result<Vec<NotificationTarget>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM notification_targets WHERE tenant_id = $1");
    let rows = query_all(tx.conn(), sql, [tx.tenant().uuid().into()]).await?;
    let read = rows.iter().filter_map(|row| readable(RESOURCE, read_target(row)));
    let mut targets: Vec<NotificationTarget> = read.collect();
    targets.sort_by_key(|target| target.id);
    Ok(targets)
}

/// The target with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: NotificationTargetId) -> Result<NotificationTarget, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} FROM notification_targets WHERE tenant_id = $1 AND id = $2");
    query_target(tx, sql, target_key(tx, id)).await
}

/// Enables or disables a target. A disabled target gets no new deliveries, and its pending ones wait.
///
/// # Errors
/// It does not exist in the project.
pub async fn set_enabled(
    tx: &Tx,
    id: NotificationTargetId,
    enabled: bool,
    now: Time,
) -> Result<NotificationTarget, StoreError> {
    let sql = format!(
        "UPDATE notification_targets SET enabled = $3, \
         updated_at = CASE WHEN enabled = $3 THEN updated_at ELSE $4 END \
         WHERE tenant_id = $1 AND id = $2 RETURNING {COLUMNS}"
    );
    let [tenant, target] = target_key(tx, id);
    let changed = query_target(tx, sql, [tenant, target, enabled.into(), now.into()]).await?;
    // The user has probably repaired the receiver.
    let sql =
        "UPDATE notification_queues SET retry_at = NULL WHERE tenant_id = $1 AND target_id = $2";
    execute(tx.conn(), sql, target_key(tx, id)).await?;
    Ok(changed)
}

/// Replaces the secret of a target. The next attempt uses the new one.
///
/// # Errors
/// It does not exist in the project.
pub async fn replace_secret(
    tx: &Tx,
    id: NotificationTargetId,
    secret: &WebhookSecret,
    now: Time,
) -> Result<NotificationTarget, StoreError> {
    let sql = format!(
        "UPDATE notification_targets SET secret = $3, updated_at = $4 \
         WHERE tenant_id = $1 AND id = $2 RETURNING {COLUMNS}"
    );
    let [tenant, target] = target_key(tx, id);
    let secret = secret.reveal().to_vec();
    query_target(tx, sql, [tenant, target, secret.into(), now.into()]).await
}

/// Deletes a target with its deliveries. One that another transaction queues meanwhile is never
/// delivered.
///
/// # Errors
/// It does not exist in the project.
pub async fn delete(tx: &Tx, id: NotificationTargetId) -> Result<(), StoreError> {
    // The record of an attempt locks the delivery first and then the queue, which is deleted with the
    // target. The other order could end in a deadlock.
    let sql = "DELETE FROM notification_deliveries WHERE tenant_id = $1 AND target_id = $2";
    execute(tx.conn(), sql, target_key(tx, id)).await?;
    let sql = "DELETE FROM notification_targets WHERE tenant_id = $1 AND id = $2";
    if execute(tx.conn(), sql, target_key(tx, id)).await? == 0 {
        return Err(StoreError::NotFound { what: RESOURCE });
    }
    Ok(())
}

/// The key columns of a target.
pub(crate) fn target_key(tx: &Tx, id: NotificationTargetId) -> [Value; 2] {
    [tx.tenant().uuid().into(), id.bits().cast_signed().into()]
}

async fn query_target(
    tx: &Tx,
    sql: String,
    values: impl IntoIterator<Item = Value>,
) -> Result<NotificationTarget, StoreError> {
    let row = query_one(tx.conn(), sql, values).await?;
    read_target(&row.ok_or(StoreError::NotFound { what: RESOURCE })?)
}

/// Leaves out events that another release has written and this one does not know.
fn read_target(row: &QueryResult) -> Result<NotificationTarget, StoreError> {
    let (id, name): (i32, String) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
    let events: Vec<String> = row.try_get_by_index(3)?;
    let known = events.iter().filter_map(|event| NotificationEvent::from_name(event));
    Ok(NotificationTarget {
        id: NotificationTargetId::from_bits(id.cast_unsigned()),
        spec: NotificationTargetSpec {
            name: Name::from_stored(&name),
            address: TargetAddress::from_stored(row.try_get_by_index(2)?),
            events: known.collect(),
        },
        enabled: row.try_get_by_index(4)?,
        created_at: row.try_get_by_index(5)?,
        updated_at: row.try_get_by_index(6)?,
    })
}
