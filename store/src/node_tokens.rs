//! Bindings of EIM node tokens, and of their subjects, to hosts. Only digests are stored.

use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use sea_orm::sea_query::OnConflict;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, Set};

use crate::error::StoreError;
use crate::keyed::KeyedEntity;
use crate::rows::host;
use crate::rows::node_token::{ActiveModel, Column, Entity};
use crate::tx::{FleetTx, Tx, execute, query_one};

/// SHA-256 of the signed part of a token.
pub type TokenDigest = [u8; 32];

/// SHA-256 of the issuer and the subject of a token.
pub type SubjectDigest = [u8; 32];

/// A token of an EIM node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeToken {
    pub digest: TokenDigest,
    /// The subject, whose tokens all belong to one host; none if several hosts share it.
    pub subject: Option<SubjectDigest>,
    pub expires_at: Time,
}

/// Binds a token and its subject to a host unless one of them is already bound. Returns the host to
/// which the token is bound.
///
/// # Errors
/// The host does not exist in the project.
pub async fn bind(
    tx: &Tx,
    token: &NodeToken,
    host: HostId,
    now: Time,
) -> Result<HostId, StoreError> {
    let NodeToken { digest, subject, expires_at } = token;
    if let Some(bound) = find(tx, digest).await? {
        return Ok(bound);
    }
    let host = match subject {
        Some(subject) => bind_subject(tx, subject, host, now).await?,
        None => host,
    };
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        digest: Set(digest.to_vec()),
        host_id: Set(host.bits().cast_signed()),
        first_used_at: Set(now),
        expires_at: Set(*expires_at),
    };
    // Of several simultaneous requests, one is first.
    let ignore_existing =
        OnConflict::columns([Column::TenantId, Column::Digest]).do_nothing().to_owned();
    let bound =
        Entity::insert(row).on_conflict(ignore_existing).exec_without_returning(tx.conn()).await?;
    if bound > 0 {
        return Ok(host);
    }
    let first = find(tx, digest).await?;
    first.ok_or(StoreError::NotFound { what: host::Entity::RESOURCE })
}

/// Binds a subject to a host unless it is already bound. Returns the host to which it is bound.
async fn bind_subject(
    tx: &Tx,
    subject: &SubjectDigest,
    host: HostId,
    now: Time,
) -> Result<HostId, StoreError> {
    if let Some(bound) = find_subject(tx, subject).await? {
        return Ok(bound);
    }
    let sql = "INSERT INTO node_subjects (tenant_id, digest, host_id, first_used_at) \
               VALUES ($1, $2, $3, $4) ON CONFLICT (tenant_id, digest) DO NOTHING";
    let values = [
        tx.tenant().uuid().into(),
        subject.to_vec().into(),
        host.bits().cast_signed().into(),
        now.into(),
    ];
    if execute(tx.conn(), sql, values).await? > 0 {
        return Ok(host);
    }
    let first = find_subject(tx, subject).await?;
    first.ok_or(StoreError::NotFound { what: host::Entity::RESOURCE })
}

async fn find_subject(tx: &Tx, subject: &SubjectDigest) -> Result<Option<HostId>, StoreError> {
    let sql = "SELECT host_id FROM node_subjects WHERE tenant_id = $1 AND digest = $2";
    let values = [tx.tenant().uuid().into(), subject.to_vec().into()];
    let Some(row) = query_one(tx.conn(), sql, values).await? else {
        return Ok(None);
    };
    let host: i32 = row.try_get_by_index(0)?;
    Ok(Some(HostId::from_bits(host.cast_unsigned())))
}

/// The host to which a token is bound, if it is bound.
pub async fn find(tx: &Tx, digest: &TokenDigest) -> Result<Option<HostId>, StoreError> {
    let row =
        tx.scope::<Entity>().filter(Column::Digest.eq(digest.to_vec())).one(tx.conn()).await?;
    Ok(row.map(|row| HostId::from_bits(row.host_id.cast_unsigned())))
}

/// The host to which a token or its subject is bound, if one of them is bound.
pub async fn find_with_subject(tx: &Tx, token: &NodeToken) -> Result<Option<HostId>, StoreError> {
    if let Some(bound) = find(tx, &token.digest).await? {
        return Ok(Some(bound));
    }
    match &token.subject {
        Some(subject) => find_subject(tx, subject).await,
        None => Ok(None),
    }
}

/// Deletes at most `limit` bindings of all projects whose tokens expired before a time. Returns
/// their number. Safe on several replicas at once.
pub async fn delete_expired(tx: &FleetTx, before: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = "WITH old AS (SELECT tenant_id, digest FROM node_tokens WHERE expires_at < $1 \
               ORDER BY tenant_id, expires_at LIMIT $2 FOR UPDATE SKIP LOCKED) \
               DELETE FROM node_tokens t USING old WHERE t.tenant_id = old.tenant_id AND t.digest = old.digest";
    execute(tx.conn(), sql, [before.into(), i64::from(limit).into()]).await
}
