//! Documents beside profiles, as they are shown.

use evenkeel_domain::os::catalogue::SideKind;
use sea_orm::{QueryResult, Value};

use super::cycle::is_held;
use super::{Claim, Side, SideKey, digest};
use crate::contents::Digest;
use crate::error::StoreError;
use crate::rows::{Kept, named};
use crate::tx::{FleetTx, all, execute, one};

const TABLE: &str = "os_sides";

/// The documents of a registry, without their bodies, by where they lie.
///
/// # Errors
/// The database cannot be reached.
pub async fn sides(tx: &FleetTx, registry: &str) -> Result<Vec<Side>, StoreError> {
    let sql = "SELECT place, kind, filtered_by, digest, etag, findings, fetched_at \
               FROM os_sides WHERE registry = $1 ORDER BY place, kind, filtered_by";
    let rows = all(tx.conn(), sql, [registry.into()]).await?;
    rows.iter().map(side).collect()
}

/// The last good body of a document; none if there was none yet.
///
/// # Errors
/// The database cannot be reached.
pub async fn side_body(
    tx: &FleetTx,
    registry: &str,
    key: &SideKey,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT body FROM os_sides WHERE registry = $1 AND place = $2 AND kind = $3 AND filtered_by = $4";
    match one(tx.conn(), sql, key_of(registry, key)).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(None),
    }
}

/// Keeps what was found of a document, with its body and the digest of that; without one the last good body stays, with
/// its digest. False, and nothing is kept, if the cycle is another's by now.
///
/// # Errors
/// A body without a digest, a text that is too long or holds a NUL, or the database cannot be reached.
pub async fn keep_side(
    tx: &FleetTx,
    claim: &Claim,
    side: &Side,
    body: Option<&str>,
) -> Result<bool, StoreError> {
    if !is_held(tx, claim).await? {
        return Ok(false);
    }
    let sql = "INSERT INTO os_sides AS s (registry, place, kind, filtered_by, digest, body, etag, findings, fetched_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
               ON CONFLICT (registry, place, kind, filtered_by) DO UPDATE SET \
               digest = coalesce(excluded.digest, s.digest), body = coalesce(excluded.body, s.body), \
               etag = excluded.etag, findings = excluded.findings, fetched_at = excluded.fetched_at";
    let [registry, place, kind, filtered_by] = key_of(&claim.registry, &side.key);
    let digest = side.digest.filter(|_| body.is_some());
    let values = [
        registry,
        place,
        kind,
        filtered_by,
        digest.map(|digest| digest.to_vec()).into(),
        body.into(),
        side.etag.as_deref().into(),
        Kept(&side.findings).into(),
        side.fetched_at.into(),
    ];
    execute(tx.conn(), sql, values).await?;
    Ok(true)
}

/// Removes the documents that no tag leads to any more, and the forms that were cut down to packages that nobody lists any
/// more. Says how many; none if the cycle is another's by now.
///
/// # Errors
/// The database cannot be reached.
pub async fn forget_sides(tx: &FleetTx, claim: &Claim) -> Result<u64, StoreError> {
    if !is_held(tx, claim).await? {
        return Ok(0);
    }
    let sql = "WITH named AS MATERIALIZED (SELECT DISTINCT f ->> 'place' AS place \
               FROM os_artifacts a, jsonb_array_elements(a.files) f WHERE a.registry = $1 AND a.gone_at IS NULL), \
               lists AS MATERIALIZED (SELECT DISTINCT digest FROM os_sides \
               WHERE registry = $1 AND kind = 'packages' AND digest IS NOT NULL) \
               DELETE FROM os_sides s WHERE s.registry = $1 \
               AND (NOT EXISTS (SELECT FROM named n WHERE n.place = s.place) OR length(s.filtered_by) > 0 \
               AND NOT EXISTS (SELECT FROM lists l WHERE l.digest = s.filtered_by))";
    execute(tx.conn(), sql, [claim.registry.as_str().into()]).await
}

/// A document as the key of its row; nothing that it was cut down to is an empty digest.
fn key_of(registry: &str, key: &SideKey) -> [Value; 4] {
    let filtered_by = key.filtered_by.map(|digest| digest.to_vec());
    [
        registry.into(),
        key.place.as_str().into(),
        key.kind.name().into(),
        filtered_by.unwrap_or_default().into(),
    ]
}

fn side(row: &QueryResult) -> Result<Side, StoreError> {
    let kind: String = row.try_get_by_index(1)?;
    let filtered_by: Vec<u8> = row.try_get_by_index(2)?;
    let shown: Option<Vec<u8>> = row.try_get_by_index(3)?;
    let shown = shown.map(|shown| digest(shown, TABLE, "digest"));
    let findings: Kept<Vec<serde_json::Value>> = row.try_get_by_index(5)?;
    let key = SideKey {
        place: row.try_get_by_index(0)?,
        kind: named(SideKind::from_name(&kind), TABLE, 0, "kind")?,
        filtered_by: cut_down_to(filtered_by)?,
    };
    Ok(Side {
        key,
        digest: shown.transpose()?,
        etag: row.try_get_by_index(4)?,
        findings: findings.0,
        fetched_at: row.try_get_by_index(6)?,
    })
}

fn cut_down_to(bytes: Vec<u8>) -> Result<Option<Digest>, StoreError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    digest(bytes, TABLE, "filtered_by").map(Some)
}
