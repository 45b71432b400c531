//! Attachments of profiles, after conversion.

use evenkeel_domain::os::catalogue::AttachmentKind;
use sea_orm::{QueryResult, Value};

use super::cycle::is_held;
use super::{Attachment, AttachmentKey, CycleClaim, digest};
use crate::contents::ContentDigest;
use crate::error::StoreError;
use crate::rows::{JsonColumn, or_corrupt, readable};
use crate::tx::{FleetTx, execute, query_all, query_one};

const TABLE: &str = "os_attachments";

/// The attachments of a registry without their bodies, by location.
pub async fn list_attachments(tx: &FleetTx, registry: &str) -> Result<Vec<Attachment>, StoreError> {
    let sql = "SELECT location, kind, filtered_by, digest, etag, findings, fetched_at \
               FROM os_attachments WHERE registry = $1 ORDER BY location, kind, filtered_by";
    let rows = query_all(tx.conn(), sql, [registry.into()]).await?;
    // A row that cannot be read counts as missing: its document is fetched again.
    Ok(rows.iter().filter_map(|row| readable(TABLE, attachment_from_row(row))).collect())
}

/// The last valid body of an attachment; none if there was none yet.
pub async fn attachment_body(
    tx: &FleetTx,
    registry: &str,
    key: &AttachmentKey,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT body FROM os_attachments WHERE registry = $1 AND location = $2 AND kind = $3 AND filtered_by = $4";
    match query_one(tx.conn(), sql, key_values(registry, key)).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(None),
    }
}

/// Stores an attachment with its body and the digest of the body. Without a body, the last valid
/// body and its digest stay. Returns false and stores nothing if the claim of the cycle was lost.
///
/// # Errors
/// A body has no digest, a text is too long or contains a NUL, or the database cannot be reached.
pub async fn store_attachment(
    tx: &FleetTx,
    claim: &CycleClaim,
    attachment: &Attachment,
    body: Option<&str>,
) -> Result<bool, StoreError> {
    if !is_held(tx, claim).await? {
        return Ok(false);
    }
    let sql = "INSERT INTO os_attachments AS s (registry, location, kind, filtered_by, digest, body, etag, findings, fetched_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
               ON CONFLICT (registry, location, kind, filtered_by) DO UPDATE SET \
               digest = coalesce(excluded.digest, s.digest), body = coalesce(excluded.body, s.body), \
               etag = excluded.etag, findings = excluded.findings, fetched_at = excluded.fetched_at";
    let [registry, location, kind, filtered_by] = key_values(&claim.registry, &attachment.key);
    let digest = attachment.digest.filter(|_| body.is_some());
    let values = [
        registry,
        location,
        kind,
        filtered_by,
        digest.map(|digest| digest.to_vec()).into(),
        body.into(),
        attachment.etag.as_deref().into(),
        JsonColumn(&attachment.findings).into(),
        attachment.fetched_at.into(),
    ];
    execute(tx.conn(), sql, values).await?;
    Ok(true)
}

/// Deletes at most `limit` attachments that no tag refers to, or that are filtered versions whose
/// package list no longer exists. Returns their number; 0 if the claim of the cycle was lost.
pub async fn delete_unused_attachments(
    tx: &FleetTx,
    claim: &CycleClaim,
    limit: u32,
) -> Result<u64, StoreError> {
    if !is_held(tx, claim).await? {
        return Ok(0);
    }
    let sql = "WITH named AS MATERIALIZED (SELECT DISTINCT f ->> 'source' AS location \
               FROM os_artifacts a, jsonb_array_elements(a.files) f WHERE a.registry = $1 AND a.gone_at IS NULL), \
               lists AS MATERIALIZED (SELECT DISTINCT digest FROM os_attachments \
               WHERE registry = $1 AND kind = 'packages' AND digest IS NOT NULL) \
               DELETE FROM os_attachments WHERE ctid = ANY (ARRAY(SELECT s.ctid FROM os_attachments s \
               WHERE s.registry = $1 \
               AND (NOT EXISTS (SELECT FROM named n WHERE n.location = s.location) OR length(s.filtered_by) > 0 \
               AND NOT EXISTS (SELECT FROM lists l WHERE l.digest = s.filtered_by)) LIMIT $2))";
    execute(tx.conn(), sql, [claim.registry.as_str().into(), i64::from(limit).into()]).await
}

/// The key columns of an attachment. An unfiltered attachment has an empty digest.
fn key_values(registry: &str, key: &AttachmentKey) -> [Value; 4] {
    let filtered_by = key.filtered_by.map(|digest| digest.to_vec());
    [
        registry.into(),
        key.location.as_str().into(),
        key.kind.name().into(),
        filtered_by.unwrap_or_default().into(),
    ]
}

fn attachment_from_row(row: &QueryResult) -> Result<Attachment, StoreError> {
    let kind: String = row.try_get_by_index(1)?;
    let filtered_by: Vec<u8> = row.try_get_by_index(2)?;
    let bytes: Option<Vec<u8>> = row.try_get_by_index(3)?;
    let parsed = bytes.map(|bytes| digest(bytes, TABLE, "digest"));
    let findings: JsonColumn<Vec<serde_json::Value>> = row.try_get_by_index(5)?;
    let key = AttachmentKey {
        location: row.try_get_by_index(0)?,
        kind: or_corrupt(AttachmentKind::from_name(&kind), TABLE, 0, "kind")?,
        filtered_by: filter_digest(filtered_by)?,
    };
    Ok(Attachment {
        key,
        digest: parsed.transpose()?,
        etag: row.try_get_by_index(4)?,
        findings: findings.0,
        fetched_at: row.try_get_by_index(6)?,
    })
}

fn filter_digest(bytes: Vec<u8>) -> Result<Option<ContentDigest>, StoreError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    digest(bytes, TABLE, "filtered_by").map(Some)
}
