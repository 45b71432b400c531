//! Texts that many nodes share: one row for each distinct content of a project.

use std::collections::HashMap;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use sea_orm::Value;

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, execute, query_all, query_one};

/// SHA-256 of a content.
pub type ContentDigest = [u8; 32];

/// The time of last use is written at most once per interval.
const TOUCH_INTERVAL: TimeDelta = TimeDelta::hours(12);

/// How long an unreferenced content is kept after its last recorded use. Uses are recorded every 12
/// hours, so a content stays for at least 24 hours after its last use.
pub const UNUSED_CONTENT_TTL: TimeDelta = TimeDelta::hours(36);

/// Stores a content unless it exists, and returns whether it did not. The caller must refer to it
/// within a day.
pub async fn insert_if_missing(
    tx: &Tx,
    digest: &ContentDigest,
    body: &str,
    now: Time,
) -> Result<bool, StoreError> {
    // A large text is not sent if the database already has it.
    if touch(tx, digest, now).await? {
        return Ok(false);
    }
    let sql = "INSERT INTO contents (tenant_id, digest, body, used_at) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (tenant_id, digest) DO UPDATE SET used_at = excluded.used_at";
    let [tenant, digest] = content_key(tx, digest);
    execute(tx.conn(), sql, [tenant, digest, body.into(), now.into()]).await?;
    Ok(true)
}

/// Whether a content exists. If so, it stays for at least a day, so that the caller can refer to
/// it.
pub async fn touch(tx: &Tx, digest: &ContentDigest, now: Time) -> Result<bool, StoreError> {
    // Many nodes share a content. Recording its use only now and then keeps them from waiting for
    // each other.
    let sql = "WITH noted AS (UPDATE contents SET used_at = $3 WHERE tenant_id = $1 AND digest = $2 AND used_at < $4 \
               RETURNING 1) \
               SELECT EXISTS (SELECT FROM noted) \
               OR EXISTS (SELECT FROM contents WHERE tenant_id = $1 AND digest = $2 AND used_at >= $4)";
    let [tenant, digest] = content_key(tx, digest);
    let values = [tenant, digest, now.into(), (now - TOUCH_INTERVAL).into()];
    match query_one(tx.conn(), sql, values).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// Reads a content, if it exists.
pub async fn get(tx: &Tx, digest: &ContentDigest) -> Result<Option<String>, StoreError> {
    let sql = "SELECT body FROM contents WHERE tenant_id = $1 AND digest = $2";
    match query_one(tx.conn(), sql, content_key(tx, digest)).await? {
        Some(row) => Ok(Some(row.try_get_by_index(0)?)),
        None => Ok(None),
    }
}

/// The contents with these digests that exist.
pub async fn get_many(
    tx: &Tx,
    digests: &[ContentDigest],
) -> Result<HashMap<ContentDigest, String>, StoreError> {
    if digests.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = "SELECT digest, body FROM contents WHERE tenant_id = $1 AND digest = ANY ($2)";
    let digests: Vec<Vec<u8>> = digests.iter().map(|digest| digest.to_vec()).collect();
    let values = [tx.tenant().uuid().into(), digests.into()];
    let mut contents = HashMap::new();
    for row in query_all(tx.conn(), sql, values).await? {
        let digest: Vec<u8> = row.try_get_by_index(0)?;
        // The column holds SHA-256 digests only.
        if let Ok(digest) = ContentDigest::try_from(digest) {
            contents.insert(digest, row.try_get_by_index(1)?);
        }
    }
    Ok(contents)
}

/// Deletes at most `limit` contents that were not used within [`UNUSED_CONTENT_TTL`] and that no
/// instance, run or operating system refers to. Returns their number. Safe on several replicas at
/// once.
pub async fn delete_unused(tx: &FleetTx, now: Time, limit: u32) -> Result<u64, StoreError> {
    // A transaction that is about to refer to a content has touched it and holds its row lock.
    let sql = "WITH idle AS (SELECT c.tenant_id, c.digest FROM contents c WHERE c.used_at < $1 \
               AND NOT EXISTS (SELECT FROM node_states n WHERE n.tenant_id = c.tenant_id AND n.packages_digest = c.digest) \
               AND NOT EXISTS (SELECT FROM update_runs r WHERE r.tenant_id = c.tenant_id AND r.packages_digest = c.digest) \
               AND NOT EXISTS (SELECT FROM os_details o \
               WHERE o.tenant_id = c.tenant_id AND o.packages_digest = c.digest) \
               AND NOT EXISTS (SELECT FROM os_details o \
               WHERE o.tenant_id = c.tenant_id AND o.existing_cves_digest = c.digest) \
               AND NOT EXISTS (SELECT FROM os_details o \
               WHERE o.tenant_id = c.tenant_id AND o.fixed_cves_digest = c.digest) \
               ORDER BY c.tenant_id, c.used_at LIMIT $2 FOR UPDATE OF c SKIP LOCKED) \
               DELETE FROM contents c USING idle WHERE c.tenant_id = idle.tenant_id AND c.digest = idle.digest";
    let values = [(now - UNUSED_CONTENT_TTL).into(), i64::from(limit).into()];
    execute(tx.conn(), sql, values).await
}

fn content_key(tx: &Tx, digest: &ContentDigest) -> [Value; 2] {
    [tx.tenant().uuid().into(), digest.to_vec().into()]
}
