//! Texts that many nodes share: one row for each distinct content of a project.

use std::collections::HashMap;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use sea_orm::Value;

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, all, execute, one};

/// The SHA-256 of a content.
pub type Digest = [u8; 32];

/// A content that was asked for within this time is not noted again.
const FRESH: TimeDelta = TimeDelta::hours(12);

/// For how long a content that nobody refers to is kept after somebody asked for it; at least a day, as it is noted.
pub const UNUSED: TimeDelta = TimeDelta::hours(36);

/// Keeps a content, if it is not there yet. Whoever refers to it does so within a day.
///
/// # Errors
/// The database cannot be reached.
pub async fn put(tx: &Tx, digest: &Digest, body: &str, now: Time) -> Result<(), StoreError> {
    // A large text is not sent when the database has it.
    if touch(tx, digest, now).await? {
        return Ok(());
    }
    let sql = "INSERT INTO contents (tenant_id, digest, body, used_at) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (tenant_id, digest) DO UPDATE SET used_at = excluded.used_at";
    let [tenant, digest] = key(tx, digest);
    execute(tx.conn(), sql, [tenant, digest, body.into(), now.into()]).await?;
    Ok(())
}

/// Whether a content is there. If it is, it stays for a day at least, so that the caller can refer to it.
///
/// # Errors
/// The database cannot be reached.
pub async fn touch(tx: &Tx, digest: &Digest, now: Time) -> Result<bool, StoreError> {
    // Many nodes share it: noting it now and then is enough, and they do not wait for each other.
    let sql = "WITH noted AS (UPDATE contents SET used_at = $3 WHERE tenant_id = $1 AND digest = $2 AND used_at < $4 \
               RETURNING 1) \
               SELECT EXISTS (SELECT FROM noted) \
               OR EXISTS (SELECT FROM contents WHERE tenant_id = $1 AND digest = $2 AND used_at >= $4)";
    let [tenant, digest] = key(tx, digest);
    let values = [tenant, digest, now.into(), (now - FRESH).into()];
    match one(tx.conn(), sql, values).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// A content; none if it is not there.
///
/// # Errors
/// The database cannot be reached.
pub async fn get(tx: &Tx, digest: &Digest) -> Result<Option<String>, StoreError> {
    let sql = "SELECT body FROM contents WHERE tenant_id = $1 AND digest = $2";
    match one(tx.conn(), sql, key(tx, digest)).await? {
        Some(row) => Ok(Some(row.try_get_by_index(0)?)),
        None => Ok(None),
    }
}

/// The contents of these that there are.
///
/// # Errors
/// The database cannot be reached.
pub async fn get_many(tx: &Tx, digests: &[Digest]) -> Result<HashMap<Digest, String>, StoreError> {
    if digests.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = "SELECT digest, body FROM contents WHERE tenant_id = $1 AND digest = ANY ($2)";
    let digests: Vec<Vec<u8>> = digests.iter().map(|digest| digest.to_vec()).collect();
    let values = [tx.tenant().uuid().into(), digests.into()];
    let mut found = HashMap::new();
    for row in all(tx.conn(), sql, values).await? {
        let digest: Vec<u8> = row.try_get_by_index(0)?;
        // The table holds no others.
        if let Ok(digest) = Digest::try_from(digest) {
            found.insert(digest, row.try_get_by_index(1)?);
        }
    }
    Ok(found)
}

/// Removes contents that nobody asked for within [`UNUSED`] and that no instance, no run and no operating system refers
/// to, at most so many. Says how many. Safe on several replicas at once.
///
/// # Errors
/// The database cannot be reached.
pub async fn clean(tx: &FleetTx, now: Time, limit: u32) -> Result<u64, StoreError> {
    // Whoever is about to refer to one has touched it, and so holds its row.
    let sql = "WITH idle AS (SELECT c.tenant_id, c.digest FROM contents c WHERE c.used_at < $1 \
               AND NOT EXISTS (SELECT FROM node_states n WHERE n.tenant_id = c.tenant_id AND n.packages_digest = c.digest) \
               AND NOT EXISTS (SELECT FROM update_runs r WHERE r.tenant_id = c.tenant_id AND r.packages_digest = c.digest) \
               AND NOT EXISTS (SELECT FROM os_inside o \
               WHERE o.tenant_id = c.tenant_id AND o.packages_digest = c.digest) \
               AND NOT EXISTS (SELECT FROM os_inside o \
               WHERE o.tenant_id = c.tenant_id AND o.existing_cves_digest = c.digest) \
               AND NOT EXISTS (SELECT FROM os_inside o \
               WHERE o.tenant_id = c.tenant_id AND o.fixed_cves_digest = c.digest) \
               ORDER BY c.tenant_id, c.used_at LIMIT $2 FOR UPDATE OF c SKIP LOCKED) \
               DELETE FROM contents c USING idle WHERE c.tenant_id = idle.tenant_id AND c.digest = idle.digest";
    let values = [(now - UNUSED).into(), i64::from(limit).into()];
    execute(tx.conn(), sql, values).await
}

fn key(tx: &Tx, digest: &Digest) -> [Value; 2] {
    [tx.tenant().uuid().into(), digest.to_vec().into()]
}
