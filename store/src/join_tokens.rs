//! Join tokens. Only the digest of the secret is stored.

use evenkeel_domain::Time;
use evenkeel_domain::id::JoinTokenId;
use evenkeel_domain::join_token::{JoinToken, JoinTokenSpec};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, ConnectionTrait, EntityTrait, ExprTrait, QueryFilter,
    QuerySelect, QueryTrait, Set,
};

use crate::error::StoreError;
use crate::keyed::KeyedEntity;
use crate::rows::join_token::{ActiveModel, Column, Entity, Model};
use crate::tx::{FleetTx, Tx};
use crate::{ids, keyed};

/// Creates a token for a secret with this SHA-256 digest.
pub async fn create(
    tx: &Tx,
    spec: &JoinTokenSpec,
    digest: [u8; 32],
    now: Time,
) -> Result<JoinToken, StoreError> {
    let id = JoinTokenId::nth(ids::next(tx.conn(), "join_token_numbers").await?);
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(spec.name.to_string()),
        digest: Set(digest.to_vec()),
        expires_at: Set(spec.expires_at),
        one_time: Set(spec.one_time),
        may_create_hosts: Set(spec.may_create_hosts),
        may_replace_eim_agents: Set(spec.may_replace_eim_agents),
        used: Set(0),
        last_used_at: Set(None),
        revoked_at: Set(None),
        created_at: Set(now),
    };
    row.insert(tx.conn()).await?.try_into()
}

/// The tokens, by id. Leaves out those that cannot be read.
pub async fn all(tx: &Tx) -> Result<Vec<JoinToken>, StoreError> {
    let rows = tx.conn().query_all(&tx.scope::<Entity>().into_query()).await?;
    let mut tokens = keyed::readable_rows::<Model, JoinToken>(Entity::RESOURCE, &rows);
    tokens.sort_by_key(|token| token.id);
    Ok(tokens)
}

/// The token with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: JoinTokenId) -> Result<JoinToken, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// Revokes a token. Idempotent.
///
/// # Errors
/// It does not exist in the project.
pub async fn revoke(tx: &Tx, id: JoinTokenId, now: Time) -> Result<JoinToken, StoreError> {
    tx.change::<Entity>()
        .col_expr(Column::RevokedAt, Expr::value(now))
        .filter(Column::Id.eq(id.bits().cast_signed()))
        .filter(Column::RevokedAt.is_null())
        .exec(tx.conn())
        .await?;
    find(tx, id).await
}

/// The project of the token with this secret digest: when a machine joins, its project is not known
/// yet.
pub async fn find_tenant(tx: &FleetTx, digest: [u8; 32]) -> Result<Option<TenantId>, StoreError> {
    let row = Entity::find().filter(Column::Digest.eq(digest.to_vec())).one(tx.conn()).await?;
    Ok(row.map(|row| TenantId::new(row.tenant_id)))
}

/// The token with this secret digest, locked, so that simultaneous joins are handled one after the
/// other.
///
/// # Errors
/// It does not exist in the project.
pub async fn lock(tx: &Tx, digest: [u8; 32]) -> Result<JoinToken, StoreError> {
    let query = tx.scope::<Entity>().filter(Column::Digest.eq(digest.to_vec())).lock_exclusive();
    query.one(tx.conn()).await?.ok_or(StoreError::NotFound { what: Entity::RESOURCE })?.try_into()
}

/// Records that a machine has joined with the token. The transaction has locked the token.
pub async fn record_use(tx: &Tx, id: JoinTokenId, now: Time) -> Result<(), StoreError> {
    tx.change::<Entity>()
        .col_expr(Column::Used, Expr::col(Column::Used).add(1))
        .col_expr(Column::LastUsedAt, Expr::value(now))
        .filter(Column::Id.eq(id.bits().cast_signed()))
        .exec(tx.conn())
        .await?;
    Ok(())
}

impl TryFrom<Model> for JoinToken {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        Ok(Self {
            id: JoinTokenId::from_bits(row.id.cast_unsigned()),
            spec: JoinTokenSpec {
                name: Name::from_stored(&row.name),
                expires_at: row.expires_at,
                one_time: row.one_time,
                may_create_hosts: row.may_create_hosts,
                may_replace_eim_agents: row.may_replace_eim_agents,
            },
            used: row.used.cast_unsigned(),
            last_used_at: row.last_used_at,
            revoked_at: row.revoked_at,
            created_at: row.created_at,
        })
    }
}
