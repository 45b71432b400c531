//! Tokens of operators that were issued, and the revoked ones. No token is stored.

use evenkeel_domain::Time;
use evenkeel_domain::tenant::TenantId;
use sea_orm::QueryResult;
use serde_json::json;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::changes::{self, EventKind};
use crate::contacts::time_array;
use crate::error::StoreError;
use crate::pool::{IS_READ_ONLY, Store};
use crate::rows::readable;
use crate::tx::{FleetTx, execute, query_all, query_one};

/// What a token is called in messages.
pub const RESOURCE: &str = "operator token";

const COLUMNS: &str = "id, subject, roles, issued_at, expires_at, revoked_at, revoked_by, name, project_id, \
                       last_used_at";

/// A token that was issued to an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorToken {
    /// The claim `jti` of the token.
    pub id: Uuid,
    pub subject: String,
    /// Roles, as in the token.
    pub roles: Vec<String>,
    pub issued_at: Time,
    pub expires_at: Time,
    pub revoked_at: Option<Time>,
    /// Who revoked it.
    pub revoked_by: Option<String>,
    /// Name of a token for automation. Then `subject` is the user who created it.
    pub name: Option<String>,
    /// Project of a token for automation.
    pub project: Option<TenantId>,
    /// About when the token was used last; recorded only for tokens for automation.
    pub last_used_at: Option<Time>,
}

/// A subject whose tokens are revoked if they were issued up to some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedSubject {
    /// The issuer of the tokens; empty for our own.
    pub issuer: String,
    pub subject: String,
    /// Tokens that were issued up to this time are revoked.
    pub revoked_until: Time,
}

/// Everything that is revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevokedTokens {
    /// The ids of the tokens. Expired ones are left out once they are removed.
    pub ids: Vec<Uuid>,
    pub subjects: Vec<RevokedSubject>,
}

/// Records a token that was issued.
pub async fn record(tx: &FleetTx, token: &OperatorToken) -> Result<(), StoreError> {
    insert(tx, token, "").await
}

/// Records a token unless it is recorded already. Tokens of logins are recorded only when they are
/// revoked.
pub async fn record_if_missing(tx: &FleetTx, token: &OperatorToken) -> Result<(), StoreError> {
    insert(tx, token, " ON CONFLICT (id) DO NOTHING").await
}

async fn insert(tx: &FleetTx, token: &OperatorToken, conflict: &str) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT INTO operator_tokens (id, subject, roles, issued_at, expires_at, name, project_id) \
         VALUES ($1, $2, $3, $4, $5, $6, $7){conflict}"
    );
    let values = [
        token.id.into(),
        token.subject.clone().into(),
        token.roles.clone().into(),
        token.issued_at.into(),
        token.expires_at.into(),
        token.name.clone().into(),
        token.project.map(TenantId::uuid).into(),
    ];
    execute(tx.conn(), sql, values).await.map(drop)
}

/// Whether a valid token for automation has this name in a project. Locks the project until the end
/// of the transaction, so that no other one gets the name meanwhile.
///
/// # Errors
/// The project does not exist.
pub async fn is_name_used(
    tx: &FleetTx,
    project: TenantId,
    name: &str,
    now: Time,
) -> Result<bool, StoreError> {
    let sql =
        "SELECT 1 FROM projects WHERE tenant_id = $1 AND removed_at IS NULL FOR NO KEY UPDATE";
    let locked = query_one(tx.conn(), sql, [project.uuid().into()]).await?;
    locked.ok_or(StoreError::NotFound { what: "project" })?;
    let sql = "SELECT EXISTS (SELECT FROM operator_tokens WHERE project_id = $1 AND name = $2 \
               AND revoked_at IS NULL AND expires_at > $3)";
    let values = [project.uuid().into(), name.into(), now.into()];
    match query_one(tx.conn(), sql, values).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// The token with this id.
///
/// # Errors
/// It is not recorded.
pub async fn find(tx: &FleetTx, id: Uuid) -> Result<OperatorToken, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM operator_tokens WHERE id = $1");
    let row = query_one(tx.conn(), sql, [id.into()]).await?;
    read_token(&row.ok_or(StoreError::NotFound { what: RESOURCE })?)
}

/// Records uses of tokens. A use within a minute of the recorded one changes nothing, so several
/// processes together write each token at most once a minute.
pub async fn record_uses(tx: &FleetTx, mut uses: Vec<(Uuid, Time)>) -> Result<u64, StoreError> {
    // Sorted: two batches in different orders could deadlock.
    uses.sort_unstable();
    let (ids, times): (Vec<Uuid>, Vec<Time>) = uses.into_iter().unzip();
    let sql = "UPDATE operator_tokens t SET last_used_at = u.at \
               FROM unnest($1::uuid[], $2::timestamptz[]) AS u (id, at) WHERE t.id = u.id \
               AND (t.last_used_at IS NULL OR t.last_used_at <= u.at - interval '1 minute')";
    execute(tx.conn(), sql, [ids.into(), time_array(times.into_iter())]).await
}

/// The recorded tokens, the latest first. Leaves out those that cannot be read.
pub async fn list(tx: &FleetTx) -> Result<Vec<OperatorToken>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM operator_tokens ORDER BY issued_at DESC, id");
    let rows = query_all(tx.conn(), sql, []).await?;
    Ok(rows.iter().filter_map(|row| readable(RESOURCE, read_token(row))).collect())
}

/// Revokes a token. Idempotent: the first revocation stays.
///
/// # Errors
/// It is not recorded.
pub async fn revoke(
    tx: &FleetTx,
    id: Uuid,
    by: &str,
    now: Time,
) -> Result<OperatorToken, StoreError> {
    let sql = format!(
        "UPDATE operator_tokens SET revoked_at = coalesce(revoked_at, $2), \
         revoked_by = coalesce(revoked_by, $3) WHERE id = $1 RETURNING {COLUMNS}"
    );
    let row = query_one(tx.conn(), sql, [id.into(), now.into(), by.into()]).await?;
    read_token(&row.ok_or(StoreError::NotFound { what: RESOURCE })?)
}

/// Revokes all tokens of a subject that were issued up to a time. Of our own tokens also those that
/// are recorded, and the logins. Tokens for automation that a user of another issuer created have
/// the name of the user with its issuer as their subject, and are revoked as well.
///
/// Housekeeping never removes this: an external issuer does not say for how long its tokens live, and
/// of our own tokens those that were issued after a backup are not recorded once it is restored.
/// There is one row per subject.
pub async fn revoke_subject(
    tx: &FleetTx,
    revoked: &RevokedSubject,
    by: &str,
) -> Result<(), StoreError> {
    let RevokedSubject { issuer, subject, revoked_until } = revoked;
    let sql = "INSERT INTO revoked_subjects (issuer, subject, revoked_until, revoked_by) \
               VALUES ($1, $2, $3, $4) ON CONFLICT (issuer, subject) DO UPDATE SET \
               revoked_until = greatest(revoked_subjects.revoked_until, excluded.revoked_until), \
               revoked_by = excluded.revoked_by";
    let values =
        [issuer.as_str().into(), subject.as_str().into(), (*revoked_until).into(), by.into()];
    execute(tx.conn(), sql, values).await?;
    let details =
        json!({"subject": subject, "issuer": issuer, "revoked_until": revoked_until.to_rfc3339()});
    changes::record_fleet_event(tx, EventKind::SubjectRevocation, details).await?;
    let creator = match issuer.as_str() {
        "" => subject.clone(),
        issuer => format!("{subject} ({issuer})"),
    };
    let sql = "UPDATE operator_tokens SET revoked_at = $2, revoked_by = $3 \
               WHERE subject = $1 AND revoked_at IS NULL";
    let values = [creator.into(), (*revoked_until).into(), by.into()];
    execute(tx.conn(), sql, values).await?;
    if !issuer.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE logins SET revoked_at = $2 WHERE subject = $1 AND revoked_at IS NULL";
    let values = [subject.as_str().into(), (*revoked_until).into()];
    execute(tx.conn(), sql, values).await.map(drop)
}

/// Whether a token or a login of a subject is recorded, also a revoked one. Housekeeping removes the
/// records of expired tokens and logins.
pub async fn has_records(tx: &FleetTx, subject: &str) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT FROM operator_tokens WHERE subject = $1) \
               OR EXISTS (SELECT FROM logins WHERE subject = $1)";
    match query_one(tx.conn(), sql, [subject.into()]).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// Whether a valid token or login of a subject is recorded.
pub async fn has_valid_records(tx: &FleetTx, subject: &str, now: Time) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT FROM operator_tokens WHERE subject = $1 \
               AND revoked_at IS NULL AND expires_at > $2) \
               OR EXISTS (SELECT FROM logins WHERE subject = $1 \
               AND revoked_at IS NULL AND expires_at > $2)";
    match query_one(tx.conn(), sql, [subject.into(), now.into()]).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// Revokes the tokens for automation that a subject has created in a project.
pub async fn revoke_named(
    tx: &FleetTx,
    (subject, project): (&str, TenantId),
    by: &str,
    now: Time,
) -> Result<u64, StoreError> {
    let sql = "UPDATE operator_tokens SET revoked_at = $3, revoked_by = $4 \
               WHERE subject = $1 AND project_id = $2 AND revoked_at IS NULL";
    let values = [subject.into(), project.uuid().into(), now.into(), by.into()];
    execute(tx.conn(), sql, values).await
}

/// Revokes the tokens for automation of a project, because it is deleted.
pub async fn revoke_of_project(
    tx: &FleetTx,
    project: TenantId,
    by: &str,
    now: Time,
) -> Result<u64, StoreError> {
    let sql = "UPDATE operator_tokens SET revoked_at = $2, revoked_by = $3 \
               WHERE project_id = $1 AND revoked_at IS NULL";
    execute(tx.conn(), sql, [project.uuid().into(), now.into(), by.into()]).await
}

/// Whether a token is revoked now. Processes know this up to a second later, in which a revoked token
/// could issue another one. The issuer is empty for our own tokens; only their ids are unique.
pub async fn is_revoked(
    tx: &FleetTx,
    id: Option<Uuid>,
    (issuer, subject): (&str, &str),
    issued_at: Option<Time>,
) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT FROM operator_tokens WHERE id = $1 AND revoked_at IS NOT NULL) \
               OR EXISTS (SELECT FROM revoked_subjects WHERE issuer = $2 AND subject = $3 \
               AND ($4::timestamptz IS NULL \
               OR date_trunc('second', $4::timestamptz) <= date_trunc('second', revoked_until)))";
    let values = [id.into(), issuer.into(), subject.into(), issued_at.into()];
    match query_one(tx.conn(), sql, values).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// Reads everything that is revoked, in one statement without a transaction.
pub async fn load_revoked(store: &Store) -> Result<RevokedTokens, StoreError> {
    let sql = format!(
        "SELECT ids, issuers, subjects, revoked_until, {IS_READ_ONLY} FROM read_revocations()"
    );
    let row = store.query_alone(AssertSqlSafe(sql)).await?;
    // Another server may be the primary by now, with other revocations.
    store.note_read_only(row.try_get_by_index(4)?)?;
    let issuers: Vec<String> = row.try_get_by_index(1)?;
    let subjects: Vec<String> = row.try_get_by_index(2)?;
    let revoked_until: Vec<Time> = row.try_get_by_index(3)?;
    let subjects = issuers.into_iter().zip(subjects).zip(revoked_until);
    let subjects = subjects.map(|((issuer, subject), revoked_until)| RevokedSubject {
        issuer,
        subject,
        revoked_until,
    });
    Ok(RevokedTokens { ids: row.try_get_by_index(0)?, subjects: subjects.collect() })
}

/// Deletes at most `limit` tokens that expired before a time. Returns their number. Safe on several
/// replicas at once.
pub async fn delete_expired(tx: &FleetTx, before: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = "WITH old AS (SELECT id FROM operator_tokens WHERE expires_at < $1 \
               ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED) \
               DELETE FROM operator_tokens t USING old WHERE t.id = old.id";
    execute(tx.conn(), sql, [before.into(), i64::from(limit).into()]).await
}

fn read_token(row: &QueryResult) -> Result<OperatorToken, StoreError> {
    Ok(OperatorToken {
        id: row.try_get_by_index(0)?,
        subject: row.try_get_by_index(1)?,
        roles: row.try_get_by_index(2)?,
        issued_at: row.try_get_by_index(3)?,
        expires_at: row.try_get_by_index(4)?,
        revoked_at: row.try_get_by_index(5)?,
        revoked_by: row.try_get_by_index(6)?,
        name: row.try_get_by_index(7)?,
        project: row.try_get_by_index::<Option<Uuid>>(8)?.map(TenantId::new),
        last_used_at: row.try_get_by_index(9)?,
    })
}
