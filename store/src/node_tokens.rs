//! Which host a token of one of the ancestor's nodes speaks for. Only the digest of a token is kept.

use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use sea_orm::sea_query::OnConflict;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, Set};

use crate::error::StoreError;
use crate::keyed::Keyed;
use crate::rows::host;
use crate::rows::node_token::{ActiveModel, Column, Entity};
use crate::tx::{FleetTx, Tx, execute};

/// The SHA-256 of what is signed in a token.
pub type Digest = [u8; 32];

/// Binds a token to a host, unless it is bound. Says to which host it is bound now.
///
/// # Errors
/// There is no such host in the project.
pub async fn bind(
    tx: &Tx,
    digest: &Digest,
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
    // Of several who use it at once, one is the first.
    let taken = OnConflict::columns([Column::TenantId, Column::Digest])
        .do_nothing()
        .to_owned();
    let bound = Entity::insert(row)
        .on_conflict(taken)
        .exec_without_returning(tx.conn())
        .await?;
    if bound > 0 {
        return Ok(host);
    }
    let first = find(tx, digest).await?;
    first.ok_or(StoreError::NotFound {
        what: host::Entity::WHAT,
    })
}

/// The host that a token is bound to, if it is bound.
///
/// # Errors
/// The database cannot be reached.
pub async fn find(tx: &Tx, digest: &Digest) -> Result<Option<HostId>, StoreError> {
    let found = tx
        .scope::<Entity>()
        .filter(Column::Digest.eq(digest.to_vec()))
        .one(tx.conn())
        .await?;
    Ok(found.map(|row| HostId::from_bits(row.host_id.cast_unsigned())))
}

/// Forgets tokens of all projects that expired before an instant, at most so many. Says how many. Safe on several replicas
/// at once.
///
/// # Errors
/// The database cannot be reached.
pub async fn clean(tx: &FleetTx, before: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = "WITH old AS (SELECT tenant_id, digest FROM node_tokens WHERE expires_at < $1 \
               ORDER BY tenant_id, expires_at LIMIT $2 FOR UPDATE SKIP LOCKED) \
               DELETE FROM node_tokens t USING old WHERE t.tenant_id = old.tenant_id AND t.digest = old.digest";
    execute(tx.conn(), sql, [before.into(), i64::from(limit).into()]).await
}
