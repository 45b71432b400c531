//! Users who log in with a password. Only the hash of the password is stored.

use evenkeel_domain::Time;
use evenkeel_kit::Secret;
use sea_orm::QueryResult;
use serde_json::json;
use uuid::Uuid;

use crate::changes::{self, EventKind};
use crate::error::StoreError;
use crate::rows::readable;
use crate::tx::{FleetTx, execute, query_all, query_one};

/// What a user is called in messages.
pub const RESOURCE: &str = "user";

const COLUMNS: &str = "name, roles, disabled_at, created_at, created_by, updated_at";

/// A user in the database, without the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredUser {
    /// Name to log in with; unique.
    pub name: String,
    /// Roles, as in a token.
    pub roles: Vec<String>,
    /// Since when the user cannot log in.
    pub disabled_at: Option<Time>,
    pub created_at: Time,
    /// Who created the user.
    pub created_by: String,
    pub updated_at: Time,
}

/// What a login needs of a user.
#[derive(Clone, Debug)]
pub struct UserLogin {
    pub password_hash: Secret,
    /// Roles, as in a token.
    pub roles: Vec<String>,
}

/// Creates a user. None if the name exists.
pub async fn create(
    tx: &FleetTx,
    name: &str,
    login: &UserLogin,
    by: &str,
    now: Time,
) -> Result<Option<StoredUser>, StoreError> {
    let sql = format!(
        "INSERT INTO users (name, password_hash, roles, created_at, created_by, updated_at) \
         VALUES ($1, $2, $3, $4, $5, $4) ON CONFLICT (name) DO NOTHING RETURNING {COLUMNS}"
    );
    let values = [
        name.into(),
        login.password_hash.reveal().into(),
        login.roles.clone().into(),
        now.into(),
        by.into(),
    ];
    query_one(tx.conn(), sql, values).await?.as_ref().map(read_user).transpose()
}

/// All users by name. Leaves out those that cannot be read.
pub async fn list(tx: &FleetTx) -> Result<Vec<StoredUser>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM users ORDER BY name");
    let rows = query_all(tx.conn(), sql, []).await?;
    Ok(rows.iter().filter_map(|row| readable(RESOURCE, read_user(row))).collect())
}

/// Waits until no other transaction changes users. Changes of users wait for each other, so that two
/// of them cannot disable the last two administrators.
pub async fn lock_changes(tx: &FleetTx) -> Result<(), StoreError> {
    execute(tx.conn(), "SELECT pg_advisory_xact_lock(7038)", []).await.map(drop)
}

/// The user of this name, locked until the end of the transaction. No other transaction changes users
/// meanwhile.
///
/// # Errors
/// The user does not exist.
pub async fn lock(tx: &FleetTx, name: &str) -> Result<StoredUser, StoreError> {
    lock_changes(tx).await?;
    let sql = format!("SELECT {COLUMNS} FROM users WHERE name = $1 FOR UPDATE");
    let row = query_one(tx.conn(), sql, [name.into()]).await?;
    read_user(&row.ok_or(StoreError::NotFound { what: RESOURCE })?)
}

/// What the login of a user needs. None if the user does not exist or is disabled.
pub async fn find_login(tx: &FleetTx, name: &str) -> Result<Option<UserLogin>, StoreError> {
    read_login(tx, name, "").await
}

/// As [`find_login`], but the user does not change until the end of the transaction.
pub async fn lock_login(tx: &FleetTx, name: &str) -> Result<Option<UserLogin>, StoreError> {
    read_login(tx, name, " FOR SHARE").await
}

async fn read_login(tx: &FleetTx, name: &str, lock: &str) -> Result<Option<UserLogin>, StoreError> {
    let sql = format!(
        "SELECT password_hash, roles FROM users WHERE name = $1 AND disabled_at IS NULL{lock}"
    );
    let Some(row) = query_one(tx.conn(), sql, [name.into()]).await? else {
        return Ok(None);
    };
    let password_hash: String = row.try_get_by_index(0)?;
    Ok(Some(UserLogin { password_hash: password_hash.into(), roles: row.try_get_by_index(1)? }))
}

/// The roles that a user with a token of a login has now. They do not change until the end of the
/// transaction. None if the user does not exist, or if the token is recorded: then it has its roles
/// from elsewhere.
pub async fn lock_login_roles(
    tx: &FleetTx,
    name: &str,
    token: Uuid,
) -> Result<Option<Vec<String>>, StoreError> {
    let sql = "SELECT roles FROM users WHERE name = $1 \
               AND NOT EXISTS (SELECT FROM operator_tokens WHERE id = $2) FOR SHARE";
    match query_one(tx.conn(), sql, [name.into(), token.into()]).await? {
        Some(row) => Ok(Some(row.try_get_by_index(0)?)),
        None => Ok(None),
    }
}

/// Whether a user is disabled. None if the user does not exist.
pub async fn is_disabled(tx: &FleetTx, name: &str) -> Result<Option<bool>, StoreError> {
    let sql = "SELECT disabled_at IS NOT NULL FROM users WHERE name = $1";
    let row = query_one(tx.conn(), sql, [name.into()]).await?;
    Ok(row.map(|row| row.try_get_by_index(0)).transpose()?)
}

/// Whether an enabled user other than this one has a role.
pub async fn has_other_with_role(tx: &FleetTx, name: &str, role: &str) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT FROM users WHERE name <> $1 AND disabled_at IS NULL \
               AND $2 = ANY(roles))";
    match query_one(tx.conn(), sql, [name.into(), role.into()]).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// Replaces the hash of the password, and records that. Logins with the old password end.
///
/// # Errors
/// The user does not exist.
pub async fn set_password(
    tx: &FleetTx,
    name: &str,
    password_hash: &Secret,
    now: Time,
) -> Result<StoredUser, StoreError> {
    let values = [name.into(), password_hash.reveal().into(), now.into()];
    let user = update(tx, "password_hash = $2, updated_at = $3", values).await?;
    let details = json!({"name": name});
    changes::record_fleet_event(tx, EventKind::PasswordChange, details).await?;
    Ok(user)
}

/// Replaces the roles.
///
/// # Errors
/// The user does not exist.
pub async fn set_roles(
    tx: &FleetTx,
    name: &str,
    roles: Vec<String>,
    now: Time,
) -> Result<StoredUser, StoreError> {
    update(tx, "roles = $2, updated_at = $3", [name.into(), roles.into(), now.into()]).await
}

/// Disables or enables a user. A disabled user stays disabled since the first time.
///
/// # Errors
/// The user does not exist.
pub async fn set_disabled(
    tx: &FleetTx,
    name: &str,
    disabled: bool,
    now: Time,
) -> Result<StoredUser, StoreError> {
    let change = "disabled_at = CASE WHEN $2 THEN coalesce(disabled_at, $3) END, \
                  updated_at = CASE WHEN (disabled_at IS NOT NULL) = $2 THEN updated_at ELSE $3 END";
    update(tx, change, [name.into(), disabled.into(), now.into()]).await
}

async fn update(
    tx: &FleetTx,
    change: &str,
    values: [sea_orm::Value; 3],
) -> Result<StoredUser, StoreError> {
    let sql = format!("UPDATE users SET {change} WHERE name = $1 RETURNING {COLUMNS}");
    let row = query_one(tx.conn(), sql, values).await?;
    read_user(&row.ok_or(StoreError::NotFound { what: RESOURCE })?)
}

/// Deletes a user.
///
/// # Errors
/// The user does not exist.
pub async fn delete(tx: &FleetTx, name: &str) -> Result<(), StoreError> {
    match execute(tx.conn(), "DELETE FROM users WHERE name = $1", [name.into()]).await? {
        0 => Err(StoreError::NotFound { what: RESOURCE }),
        _ => Ok(()),
    }
}

fn read_user(row: &QueryResult) -> Result<StoredUser, StoreError> {
    Ok(StoredUser {
        name: row.try_get_by_index(0)?,
        roles: row.try_get_by_index(1)?,
        disabled_at: row.try_get_by_index(2)?,
        created_at: row.try_get_by_index(3)?,
        created_by: row.try_get_by_index(4)?,
        updated_at: row.try_get_by_index(5)?,
    })
}
