//! When nodes last made contact: written in batches, and not part of the change log.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::tenant::TenantId;
use sea_orm::Value;
use sea_orm::sea_query::ArrayType;
use uuid::Uuid;

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, execute, query_one};

/// A recorded contact that is further ahead of the database is wrong. Contacts of the present may be
/// a little ahead of a time that was read before them.
const MAX_CONTACT_LEAD: TimeDelta = TimeDelta::minutes(10);

/// A contact of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contact {
    pub tenant: TenantId,
    pub instance: InstanceId,
    pub at: Time,
    /// Until this time the node does not count as silent; without it, only `at` decides.
    pub due: Option<Time>,
}

/// Records contacts in one statement. An older contact never replaces a newer one; of two at the
/// same time, the one with the later `due` wins. Deleted nodes are skipped. A batch must not
/// contain a node twice.
///
/// The times are those of the database, and `now` is its current time. A contact after `now` comes
/// from a process whose clock was set back meanwhile: it is recorded as a contact at `now`. A
/// recorded contact that is more than ten minutes ahead is replaced by any new one.
pub async fn record_contacts(
    tx: &FleetTx,
    mut batch: Vec<Contact>,
    now: Time,
) -> Result<u64, StoreError> {
    for contact in &mut batch {
        if now < contact.at {
            contact.due = contact.due.map(|due| now + (due - contact.at));
            contact.at = now;
        }
    }
    // Sorted: two batches in different orders could deadlock.
    batch.sort_unstable();
    let tenants = batch.iter().map(|contact| contact.tenant.uuid());
    let instances = batch.iter().map(|contact| contact.instance);
    let instances = instances.map(|instance| instance.bits().cast_signed());
    let values = [
        tenants.collect::<Vec<Uuid>>().into(),
        instances.collect::<Vec<i32>>().into(),
        time_array(batch.iter().map(|contact| contact.at)),
        // The array has no nulls, so a missing `due` is sent as the time of contact.
        time_array(batch.iter().map(|contact| contact.due.unwrap_or(contact.at))),
        (now + MAX_CONTACT_LEAD).into(),
    ];
    let sql = "INSERT INTO last_contacts AS c (tenant_id, instance_id, heard_at, due_at) \
               SELECT b.tenant_id, b.instance_id, b.heard_at, nullif(b.due_at, b.heard_at) \
               FROM unnest($1::uuid[], $2::integer[], $3::timestamptz[], $4::timestamptz[]) \
               AS b (tenant_id, instance_id, heard_at, due_at) \
               JOIN instances i ON i.tenant_id = b.tenant_id AND i.id = b.instance_id \
               ON CONFLICT (tenant_id, instance_id) DO UPDATE \
               SET heard_at = excluded.heard_at, due_at = excluded.due_at \
               WHERE (c.heard_at, coalesce(c.due_at, '-infinity')) \
               < (excluded.heard_at, coalesce(excluded.due_at, '-infinity')) OR c.heard_at > $5";
    execute(tx.conn(), sql, values).await
}

/// Sets at most `limit` contacts that are more than ten minutes ahead to `now`, the time of the
/// database, and returns their number. A process whose clock was ahead has recorded them; such a node
/// would not become silent before that time. Safe on several replicas at once.
pub async fn correct_future_contacts(
    tx: &FleetTx,
    now: Time,
    limit: u32,
) -> Result<u64, StoreError> {
    // Contacts have no index on their time, so that updates stay in place.
    let allow_seqscan = "SELECT set_config('enable_seqscan', 'on', true)";
    execute(tx.conn(), allow_seqscan, []).await?;
    let sql = "WITH wrong AS (SELECT tenant_id, instance_id FROM last_contacts WHERE heard_at > $3 \
               ORDER BY tenant_id, instance_id LIMIT $2 FOR UPDATE SKIP LOCKED) \
               UPDATE last_contacts c SET heard_at = $1, due_at = NULL FROM wrong w \
               WHERE c.tenant_id = w.tenant_id AND c.instance_id = w.instance_id";
    let values = [now.into(), i64::from(limit).into(), (now + MAX_CONTACT_LEAD).into()];
    execute(tx.conn(), sql, values).await
}

pub(crate) fn time_array(all: impl Iterator<Item = Time>) -> Value {
    let all = all.map(Value::from).collect();
    Value::Array(ArrayType::ChronoDateTimeUtc, Some(Box::new(all)))
}

/// When a node last made contact, by the clock of the database.
pub async fn last_contact(tx: &Tx, instance: InstanceId) -> Result<Option<Time>, StoreError> {
    let sql = "SELECT heard_at FROM last_contacts WHERE tenant_id = $1 AND instance_id = $2";
    let key = [tx.tenant().uuid().into(), instance.bits().cast_signed().into()];
    match query_one(tx.conn(), sql, key).await? {
        Some(row) => Ok(Some(row.try_get_by_index(0)?)),
        None => Ok(None),
    }
}
