//! Bindings of EIM node tokens to hosts. Only the digest of a token is stored.

use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use sea_orm::sea_query::OnConflict;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, Set};

use crate::error::StoreError;
use crate::keyed::KeyedEntity;
use crate::rows::host;
use crate::rows::node_token::{ActiveModel, Column, Entity};
use crate::tx::{FleetTx, Tx, execute};

/// SHA-256 of the signed part of a token.
pub type TokenDigest = [u8; 32];

/// Binds a token to a host unless it is already bound. Returns the host to which it is bound.
///
/// # Errors
/// The host does not exist in the project.
pub async fn bind(
    tx: &Tx,
    digest: &TokenDigest,
    host: HostId,
    expires_at: Time,
    now: Time,
) -> Result<HostId, StoreError> {
    if let Some(bound) = find(tx, digest).await? {
        return Ok(bound);
    }
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        digest: Set(digest.to_vec()),
        host_id: Set(host.bits().cast_signed()),
        first_used_at: Set(now),
        expires_at: Set(expires_at),
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

/// The host to which a token is bound, if it is bound.
pub async fn find(tx: &Tx, digest: &TokenDigest) -> Result<Option<HostId>, StoreError> {
    let row =
        tx.scope::<Entity>().filter(Column::Digest.eq(digest.to_vec())).one(tx.conn()).await?;
    Ok(row.map(|row| HostId::from_bits(row.host_id.cast_unsigned())))
}

/// Deletes at most `limit` bindings of all projects whose tokens expired before a time. Returns
/// their number. Safe on several replicas at once.
pub async fn delete_expired(tx: &FleetTx, before: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = "WITH old AS (SELECT tenant_id, digest FROM node_tokens WHERE expires_at < $1 \
               ORDER BY tenant_id, expires_at LIMIT $2 FOR UPDATE SKIP LOCKED) \
               DELETE FROM node_tokens t USING old WHERE t.tenant_id = old.tenant_id AND t.digest = old.digest";
    execute(tx.conn(), sql, [before.into(), i64::from(limit).into()]).await
}
