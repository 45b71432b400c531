//! Artifacts of tags.

use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::{CatalogFile, SignatureStatus};
use sea_orm::QueryResult;
use serde_json::Value;

use super::cycle::is_held;
use super::{Artifact, CycleClaim, digest};
use crate::error::StoreError;
use crate::rows::{JsonColumn, or_corrupt, readable};
use crate::tx::{FleetTx, execute, query_all};

const TABLE: &str = "os_artifacts";

/// The artifacts of the tags of these repositories, by repository and tag, including those of
/// deleted tags.
pub async fn list_artifacts(
    tx: &FleetTx,
    registry: &str,
    repositories: &[String],
) -> Result<Vec<Artifact>, StoreError> {
    let sql = "SELECT repository, tag, digest, moved_from, title, manifest, document, findings, trust, signature, \
               files, gone_at FROM os_artifacts \
               WHERE registry = $1 AND repository = ANY ($2) ORDER BY repository, tag";
    let values = [registry.into(), repositories.to_vec().into()];
    let rows = query_all(tx.conn(), sql, values).await?;
    // A row that cannot be read counts as missing: its artifact is fetched again.
    Ok(rows.iter().filter_map(|row| readable(TABLE, artifact_from_row(row))).collect())
}

/// Stores the artifact of a tag that exists. If the tag pointed to another readable manifest
/// before, that is recorded as its previous artifact and not lost later. Returns false and stores
/// nothing if the claim of the cycle was lost.
///
/// # Errors
/// A text is too long or contains a NUL, or the database cannot be reached.
pub async fn store_artifact(
    tx: &FleetTx,
    claim: &CycleClaim,
    artifact: &Artifact,
) -> Result<bool, StoreError> {
    if !is_held(tx, claim).await? {
        return Ok(false);
    }
    let sql = "INSERT INTO os_artifacts AS a (registry, repository, tag, digest, moved_from, title, manifest, \
               document, findings, trust, signature, files, last_cycle) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) \
               ON CONFLICT (registry, repository, tag) DO UPDATE SET digest = excluded.digest, \
               moved_from = CASE WHEN a.digest = excluded.digest OR a.manifest IS NULL \
               THEN coalesce(excluded.moved_from, a.moved_from) ELSE a.digest END, \
               title = excluded.title, manifest = excluded.manifest, document = excluded.document, \
               findings = excluded.findings, trust = excluded.trust, signature = excluded.signature, \
               files = excluded.files, last_cycle = excluded.last_cycle, gone_at = NULL";
    let values = [
        claim.registry.as_str().into(),
        artifact.repository.as_str().into(),
        artifact.tag.as_str().into(),
        artifact.digest.to_vec().into(),
        artifact.moved_from.map(|digest| digest.to_vec()).into(),
        artifact.title.as_deref().into(),
        artifact.manifest.as_deref().into(),
        artifact.document.as_deref().into(),
        JsonColumn(&artifact.findings).into(),
        artifact.trust.name().into(),
        artifact.signature.clone().into(),
        JsonColumn(&artifact.files).into(),
        claim.number.into(),
    ];
    execute(tx.conn(), sql, values).await?;
    Ok(true)
}

/// Records that these tags of a repository still have their known artifacts. False if the claim of
/// the cycle was lost.
pub async fn mark_seen(
    tx: &FleetTx,
    claim: &CycleClaim,
    repository: &str,
    tags: &[String],
) -> Result<bool, StoreError> {
    if !is_held(tx, claim).await? {
        return Ok(false);
    }
    let sql = "UPDATE os_artifacts SET last_cycle = $4, gone_at = NULL \
               WHERE registry = $1 AND repository = $2 AND tag = ANY ($3)";
    let values = [
        claim.registry.as_str().into(),
        repository.into(),
        tags.to_vec().into(),
        claim.number.into(),
    ];
    execute(tx.conn(), sql, values).await?;
    Ok(true)
}

/// Marks tags of the listed repositories as deleted if the cycle has not seen them. Returns the
/// number of newly marked tags; 0 if the claim of the cycle was lost.
pub async fn mark_gone(
    tx: &FleetTx,
    claim: &CycleClaim,
    listed: &[String],
    now: Time,
) -> Result<u64, StoreError> {
    if !is_held(tx, claim).await? {
        return Ok(0);
    }
    let sql = "UPDATE os_artifacts SET gone_at = $4 \
               WHERE registry = $1 AND repository = ANY ($2) AND last_cycle < $3 AND gone_at IS NULL";
    let values =
        [claim.registry.as_str().into(), listed.to_vec().into(), claim.number.into(), now.into()];
    execute(tx.conn(), sql, values).await
}

fn artifact_from_row(row: &QueryResult) -> Result<Artifact, StoreError> {
    let moved_from: Option<Vec<u8>> = row.try_get_by_index(3)?;
    let moved_from = moved_from.map(|from| digest(from, TABLE, "moved_from"));
    let findings: JsonColumn<Vec<Value>> = row.try_get_by_index(7)?;
    let files: JsonColumn<Vec<CatalogFile>> = row.try_get_by_index(10)?;
    Ok(Artifact {
        repository: row.try_get_by_index(0)?,
        tag: row.try_get_by_index(1)?,
        digest: digest(row.try_get_by_index(2)?, TABLE, "digest")?,
        moved_from: moved_from.transpose()?,
        title: row.try_get_by_index(4)?,
        manifest: row.try_get_by_index(5)?,
        document: row.try_get_by_index(6)?,
        findings: findings.0,
        trust: trust_from_row(row, 8)?,
        signature: row.try_get_by_index(9)?,
        files: files.0,
        gone_at: row.try_get_by_index(11)?,
    })
}

fn trust_from_row(row: &QueryResult, column: usize) -> Result<SignatureStatus, StoreError> {
    let name: String = row.try_get_by_index(column)?;
    or_corrupt(SignatureStatus::from_name(&name), TABLE, 0, "trust")
}
