//! Logins with a password, which refresh tokens continue. Each refresh replaces the refresh token
//! of the login: a generation counts them. No token is stored.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use uuid::Uuid;

use crate::error::StoreError;
use crate::tx::{FleetTx, execute, query_one};

/// How long a client may repeat a refresh, because the answer may have been lost.
const RETRY_PERIOD: TimeDelta = TimeDelta::seconds(30);

/// The result of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginRefresh {
    /// The login continues. The next refresh token has this generation.
    Continued(u32),
    /// The refresh token was used before. Another person may have a copy, so the login has ended.
    Reused,
    /// The login has ended.
    Ended,
}

/// Begins a login. Its first refresh token has generation 0.
pub async fn begin(
    tx: &FleetTx,
    id: Uuid,
    subject: &str,
    expires_at: Time,
    now: Time,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO logins (id, subject, generation, refreshed_at, expires_at) \
               VALUES ($1, $2, 0, $3, $4)";
    let values = [id.into(), subject.into(), now.into(), expires_at.into()];
    execute(tx.conn(), sql, values).await.map(drop)
}

/// Continues a login with a refresh token of a generation. Commit the transaction whatever the
/// result is: the reuse of a token ends the login.
pub async fn refresh(
    tx: &FleetTx,
    id: Uuid,
    generation: u32,
    now: Time,
) -> Result<LoginRefresh, StoreError> {
    let Ok(used) = i32::try_from(generation) else {
        return Ok(LoginRefresh::Ended);
    };
    let sql = "UPDATE logins SET generation = generation + 1, refreshed_at = $3 \
               WHERE id = $1 AND generation = $2 AND revoked_at IS NULL AND expires_at > $3";
    if execute(tx.conn(), sql, [id.into(), used.into(), now.into()]).await? > 0 {
        return Ok(LoginRefresh::Continued(generation + 1));
    }
    let sql = "SELECT generation, refreshed_at FROM logins \
               WHERE id = $1 AND revoked_at IS NULL AND expires_at > $2";
    let Some(row) = query_one(tx.conn(), sql, [id.into(), now.into()]).await? else {
        return Ok(LoginRefresh::Ended);
    };
    let (current, refreshed_at): (i32, Time) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
    if used >= current {
        // The database is older than the token: a backup was restored.
        return Ok(LoginRefresh::Ended);
    }
    if used + 1 == current && now - refreshed_at <= RETRY_PERIOD {
        return Ok(LoginRefresh::Continued(current.cast_unsigned()));
    }
    let sql = "UPDATE logins SET revoked_at = $2 WHERE id = $1";
    execute(tx.conn(), sql, [id.into(), now.into()]).await?;
    Ok(LoginRefresh::Reused)
}

/// Whether a login continues, for clients that use one refresh token for the whole login.
pub async fn is_open(tx: &FleetTx, id: Uuid, now: Time) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM logins WHERE id = $1 AND revoked_at IS NULL AND expires_at > $2";
    Ok(query_one(tx.conn(), sql, [id.into(), now.into()]).await?.is_some())
}

/// Ends a login. A login that has ended stays so since the first time.
pub async fn end(tx: &FleetTx, id: Uuid, now: Time) -> Result<(), StoreError> {
    let sql = "UPDATE logins SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL";
    execute(tx.conn(), sql, [id.into(), now.into()]).await.map(drop)
}

/// Deletes at most `limit` logins that expired before a time. Returns their number. Safe on several
/// replicas at once.
pub async fn delete_expired(tx: &FleetTx, before: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = "WITH old AS (SELECT id FROM logins WHERE expires_at < $1 \
               ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED) \
               DELETE FROM logins l USING old WHERE l.id = old.id";
    execute(tx.conn(), sql, [before.into(), i64::from(limit).into()]).await
}
