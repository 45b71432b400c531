//! `/v1/users`: users who log in with a password. Administrators of a project manage the users who
//! have roles only in it.

use std::sync::Arc;

use evenkeel_api::Empty;
use evenkeel_api::user::{Password, UserInput, UserPasswordInput, UserResource, UserRolesInput};
use evenkeel_auth::roles::ADMINISTRATOR;
use evenkeel_auth::users::{check_new_password, hash_password, is_new_name};
use evenkeel_auth::{Caller, ProjectNames, Role, RoleGrant};
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Secret;
use evenkeel_store::operator_tokens::{self, RevokedSubject};
use evenkeel_store::users::{self, StoredUser, UserLogin};
use evenkeel_store::{FleetTx, StoreError, projects};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::call::{Call, with_current_roles};
use crate::extract::{Json, Params, Path};
use crate::problem::Problem;
use crate::role_names::RoleNames;
use crate::shape::Answer;

/// A user, by name.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
#[serde(rename_all = "camelCase")]
pub struct UserPath {
    /// Name of the user.
    user_name: String,
}

/// Query parameters of changes that may remove the last administrator.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the value")]
pub struct ForceParams {
    /// Whether to change the last enabled user with the role `evenkeel-admin` as well. By default
    /// false.
    force: Option<bool>,
}

/// List users
///
/// Returns the users in the database, by name, with the roles that the caller may give. Users of the
/// file of users are not listed. The list has no pages.
///
/// Role: `<project UUID>_administrator` for users with a role in the project, or `evenkeel-admin` for
/// all.
#[utoipa::path(
    get, path = "/v1/users", tag = "users",
    responses((status = 200, description = "The users.", body = Vec<UserResource>), Problem),
)]
pub async fn list_users(call: Call) -> Answer<Vec<UserResource>> {
    let (tx, caller) = call.as_any_administrator().await?;
    let names = RoleNames::load(&tx).await?;
    let all = users::list(&tx).await?;
    let visible = all.into_iter().filter(|user| is_visible(&caller, user));
    Ok(Json(visible.map(|user| resource(&caller, user, &names)).collect()))
}

/// Create a user
///
/// The user logs in with name and password. Tokens for automation cannot change users.
///
/// The server refuses a name that exists, also in the file of users, and a role in a project that does
/// not exist (`failed-precondition`), a weak password (`invalid-argument`), and roles that the caller
/// may not give (`missing-role`).
///
/// Role: `<project UUID>_administrator` for roles in the project, or `evenkeel-admin` for all.
#[utoipa::path(
    post, path = "/v1/users", tag = "users", request_body = UserInput,
    responses((status = 200, description = "The user.", body = UserResource), Problem),
)]
pub async fn create_user(call: Call, Json(body): Json<UserInput>) -> Answer<UserResource> {
    if !is_new_name(&body.name) {
        let why = "must be 1 to 128 lower-case letters, digits and `-_.+@`";
        return Err(Problem::invalid("name", why));
    }
    if body.roles.is_empty() {
        return Err(Problem::invalid("roles", "must not be empty"));
    }
    let grants = parse_grants(&body.roles)?;
    let password = checked_password(&body.name, &body.password)?;
    // The hash takes long, so it is computed only for callers who may create users.
    check_administrator(&call)?;
    let password_hash = hash_in_background(&call, password).await?;
    let (tx, caller) = open_as_person(&call).await?;
    let roles = resolve_grants(&tx, &caller, &grants).await?;
    let login = UserLogin { password_hash, roles: roles.iter().map(Role::to_string).collect() };
    let (by, now) = (caller.actor_name(), tx.database_time());
    check_name_is_free(&call, &tx, &caller, &body.name).await?;
    let created = users::create(&tx, &body.name, &login, &by, now).await?;
    let created = created
        .ok_or_else(|| Problem::precondition(format!("the user `{}` exists already", body.name)))?;
    let names = RoleNames::load(&tx).await?;
    tx.commit().await?;
    Ok(Json(resource(&caller, created, &names)))
}

/// Set the password of a user
///
/// Logins with the old password end within the lifetime of an access token. The server refuses a weak
/// password (`invalid-argument`).
///
/// Role: `<project UUID>_administrator` for users with roles only in the project, or `evenkeel-admin`
/// for all.
#[utoipa::path(
    put, path = "/v1/users/{userName}/password", tag = "users", params(UserPath),
    request_body = UserPasswordInput,
    responses((status = 200, description = "The password is set.", body = UserResource), Problem),
)]
pub async fn set_user_password(
    call: Call,
    Path(path): Path<UserPath>,
    Json(body): Json<UserPasswordInput>,
) -> Answer<UserResource> {
    let password = checked_password(&path.user_name, &body.password)?;
    check_administrator(&call)?;
    let password_hash = hash_in_background(&call, password).await?;
    let (tx, caller) = open_as_person(&call).await?;
    lock_managed(&tx, &caller, &path.user_name).await?;
    let now = tx.database_time();
    let user = users::set_password(&tx, &path.user_name, &password_hash, now).await?;
    let names = RoleNames::load(&tx).await?;
    tx.commit().await?;
    Ok(Json(resource(&caller, user, &names)))
}

/// Set the roles of a user
///
/// Replaces the roles that the caller may give; others stay. If a role is removed, all tokens of the
/// user are revoked within a second, including the tokens for automation that the user created. If the
/// user has roles that the caller may not give, only the tokens for automation in the projects of the
/// removed roles are revoked, and the roles end with the next access token.
///
/// The server refuses to remove the last user with the role `evenkeel-admin`, unless `force` is true
/// (`failed-precondition`).
///
/// Role: `<project UUID>_administrator` for roles in the project, or `evenkeel-admin` for all.
#[utoipa::path(
    put, path = "/v1/users/{userName}/roles", tag = "users", params(UserPath, ForceParams),
    request_body = UserRolesInput,
    responses((status = 200, description = "The roles are set.", body = UserResource), Problem),
)]
pub async fn set_user_roles(
    call: Call,
    Path(path): Path<UserPath>,
    params: Params,
    Json(body): Json<UserRolesInput>,
) -> Answer<UserResource> {
    let force = params.flag("force")?;
    let grants = parse_grants(&body.roles)?;
    let (tx, caller) = open_as_person(&call).await?;
    // The caller does not see users without a role in its projects, but their names are not secret:
    // they are refused when they are created again.
    let old = lock_user(&tx, &path.user_name).await?;
    if grants.is_empty() && !is_visible(&caller, &old) {
        return Err(StoreError::NotFound { what: users::RESOURCE }.into());
    }
    let given = resolve_grants(&tx, &caller, &grants).await?;
    let old_roles = parse_roles(&old);
    let kept = old_roles.iter().copied().filter(|role| !caller.may_give(*role));
    let mut roles: Vec<Role> = kept.collect();
    roles.extend(given);
    let removed: Vec<Role> =
        old_roles.iter().copied().filter(|role| !roles.contains(role)).collect();
    if removed.contains(&Role::Administrator) {
        check_not_last(&tx, &old, force).await?;
    }
    revoke_roles(&tx, &caller, &old, &removed).await?;
    let (texts, now) = (roles.iter().map(Role::to_string).collect(), tx.database_time());
    let user = users::set_roles(&tx, &path.user_name, texts, now).await?;
    let names = RoleNames::load(&tx).await?;
    tx.commit().await?;
    Ok(Json(resource(&caller, user, &names)))
}

/// Disable a user
///
/// The user cannot log in. All servers refuse its tokens within a second, including the tokens for
/// automation that the user created. A repeated request changes nothing.
///
/// The server refuses to disable the last user with the role `evenkeel-admin`, unless `force` is true
/// (`failed-precondition`).
///
/// Role: `<project UUID>_administrator` for users with roles only in the project, or `evenkeel-admin`
/// for all.
#[utoipa::path(
    put, path = "/v1/users/{userName}/disable", tag = "users", params(UserPath, ForceParams),
    responses((status = 200, description = "The user is disabled.", body = UserResource), Problem),
)]
pub async fn disable_user(
    call: Call,
    Path(path): Path<UserPath>,
    params: Params,
) -> Answer<UserResource> {
    let force = params.flag("force")?;
    let (tx, caller) = open_as_person(&call).await?;
    let user = lock_managed(&tx, &caller, &path.user_name).await?;
    check_not_last(&tx, &user, force).await?;
    let now = tx.database_time();
    let user = users::set_disabled(&tx, &path.user_name, true, now).await?;
    revoke_tokens(&tx, &caller, &user.name).await?;
    let names = RoleNames::load(&tx).await?;
    tx.commit().await?;
    Ok(Json(resource(&caller, user, &names)))
}

/// Enable a user
///
/// The user can log in again. Tokens that were issued before the user was disabled, or in the same
/// second, stay revoked. A repeated request changes nothing.
///
/// Role: `<project UUID>_administrator` for users with roles only in the project, or `evenkeel-admin`
/// for all.
#[utoipa::path(
    put, path = "/v1/users/{userName}/enable", tag = "users", params(UserPath),
    responses((status = 200, description = "The user is enabled.", body = UserResource), Problem),
)]
pub async fn enable_user(call: Call, Path(path): Path<UserPath>) -> Answer<UserResource> {
    let (tx, caller) = open_as_person(&call).await?;
    lock_managed(&tx, &caller, &path.user_name).await?;
    let now = tx.database_time();
    let user = users::set_disabled(&tx, &path.user_name, false, now).await?;
    let names = RoleNames::load(&tx).await?;
    tx.commit().await?;
    Ok(Json(resource(&caller, user, &names)))
}

/// Delete a user
///
/// All servers refuse its tokens within a second, as when the user is disabled.
///
/// The server refuses to delete the last user with the role `evenkeel-admin`, unless `force` is true
/// (`failed-precondition`).
///
/// Role: `<project UUID>_administrator` for users with roles only in the project, or `evenkeel-admin`
/// for all.
#[utoipa::path(
    delete, path = "/v1/users/{userName}", tag = "users", params(UserPath, ForceParams),
    responses((status = 200, description = "The user is deleted.", body = Empty), Problem),
)]
pub async fn delete_user(call: Call, Path(path): Path<UserPath>, params: Params) -> Answer<Empty> {
    let force = params.flag("force")?;
    let (tx, caller) = open_as_person(&call).await?;
    let user = lock_managed(&tx, &caller, &path.user_name).await?;
    check_not_last(&tx, &user, force).await?;
    users::delete(&tx, &user.name).await?;
    revoke_tokens(&tx, &caller, &user.name).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn parse_grants(texts: &[String]) -> Result<Vec<RoleGrant>, Problem> {
    let parse = |text: &String| text.parse::<RoleGrant>();
    let parsed = texts.iter().map(parse).collect::<Result<_, _>>();
    parsed.map_err(|why| Problem::invalid("roles", why))
}

pub fn checked_password(name: &str, password: &Password) -> Result<Secret, Problem> {
    let password = Secret::new(password.reveal());
    let checked = check_new_password(name, &password);
    checked.map_err(|why| Problem::invalid("password", why))?;
    Ok(password)
}

/// Opens a transaction of an administrator who is a person. No other transaction changes users until
/// its end.
async fn open_as_person(call: &Call) -> Result<(FleetTx, Arc<Caller>), Problem> {
    let person = call.caller()?;
    check_person(&person)?;
    let (tx, caller) = call.as_any_administrator().await?;
    users::lock_changes(&tx).await?;
    let caller = with_current_roles(&tx, caller).await?;
    check_manager(&caller)?;
    Ok((tx, caller))
}

/// Refuses a token for automation: a user would keep the rights of the token after its end.
fn check_person(caller: &Caller) -> Result<(), Problem> {
    if caller.token_name.is_none() {
        return Ok(());
    }
    Err(Problem::missing_role("a token for automation cannot change users; log in as a person"))
}

/// Refuses a caller who may not change users, without a connection to the database.
fn check_administrator(call: &Call) -> Result<(), Problem> {
    let caller = call.caller()?;
    check_person(&caller)?;
    check_manager(&caller)
}

fn check_manager(caller: &Caller) -> Result<(), Problem> {
    if caller.may_manage_any() {
        return Ok(());
    }
    Err(Problem::missing_role("only an administrator may change users"))
}

/// Hashes a password on a blocking thread, because that takes long on purpose. Waits while too many
/// others are hashed. A request that ends meanwhile keeps its permit until the hash is ready.
pub async fn hash_in_background(call: &Call, password: Secret) -> Result<Secret, Problem> {
    let permit = Arc::clone(&call.app.password_hashes).acquire_owned().await;
    let permit = permit.map_err(|error| hash_failure(&error))?;
    let hashed = tokio::task::spawn_blocking(move || {
        let hashed = hash_password(&password);
        drop(permit);
        hashed
    });
    let hashed = hashed.await.map_err(|error| hash_failure(&error))?;
    hashed.map(Secret::new).map_err(|error| hash_failure(&error))
}

fn hash_failure(error: &dyn std::error::Error) -> Problem {
    tracing::error!(%error, "cannot hash a password");
    Problem::internal()
}

/// The roles as tokens contain them, if their projects exist and the caller may give them.
async fn resolve_grants(
    tx: &FleetTx,
    caller: &Caller,
    grants: &[RoleGrant],
) -> Result<Vec<Role>, Problem> {
    let all = projects::list(tx).await?.into_iter();
    let names: ProjectNames =
        all.map(|project| (project.name.to_string(), project.id.uuid())).collect();
    let mut roles = Vec::new();
    for grant in grants {
        let role = names.resolve_grant(grant);
        // The same answer for a missing project and a missing role, so that callers cannot probe for
        // projects. An administrator of all projects sees them anyway.
        if caller.may_administrate() && role.is_none() {
            return Err(Problem::precondition(format!(
                "roles: `{grant}` names a project that does not exist"
            )));
        }
        let role = role.filter(|role| caller.may_give(*role)).ok_or_else(|| {
            Problem::missing_role(format!(
                "you may not give the role {grant}, or there is no such project"
            ))
        })?;
        if !roles.contains(&role) {
            roles.push(role);
        }
    }
    Ok(roles)
}

fn parse_roles(user: &StoredUser) -> Vec<Role> {
    user.roles.iter().filter_map(|role| Role::parse(role)).collect()
}

/// Whether the caller may give all roles of the user that are in effect. Only an administrator of all
/// projects may give a role in a deleted project.
async fn may_give_all(
    tx: &FleetTx,
    caller: &Caller,
    user: &StoredUser,
) -> Result<bool, StoreError> {
    let names = RoleNames::load(tx).await?;
    let mut roles = parse_roles(user).into_iter().filter(|role| names.is_in_effect(*role));
    Ok(roles.all(|role| caller.may_give(role)))
}

/// Whether the caller may give a role of the user, or sees all users.
fn is_visible(caller: &Caller, user: &StoredUser) -> bool {
    caller.may_administrate() || parse_roles(user).into_iter().any(|role| caller.may_give(role))
}

/// Locks a user. A name that no user can have gives "not found".
async fn lock_user(tx: &FleetTx, name: &str) -> Result<StoredUser, StoreError> {
    if is_new_name(name) {
        users::lock(tx, name).await
    } else {
        Err(StoreError::NotFound { what: users::RESOURCE })
    }
}

/// Locks a user whose roles the caller may all give. Otherwise an administrator of one project could
/// take over the account of an administrator of another one.
async fn lock_managed(tx: &FleetTx, caller: &Caller, name: &str) -> Result<StoredUser, Problem> {
    let user = lock_user(tx, name).await?;
    if !is_visible(caller, &user) {
        return Err(StoreError::NotFound { what: users::RESOURCE }.into());
    }
    if may_give_all(tx, caller, &user).await? {
        return Ok(user);
    }
    Err(Problem::missing_role(format!(
        "the user `{name}` has roles that you may not give; change its roles in your projects instead"
    )))
}

/// Refuses a change after which no enabled user has the role `evenkeel-admin`.
async fn check_not_last(tx: &FleetTx, user: &StoredUser, force: bool) -> Result<(), Problem> {
    let is_administrator = user.roles.iter().any(|role| role == ADMINISTRATOR);
    if force || !is_administrator || user.disabled_at.is_some() {
        return Ok(());
    }
    if users::has_other_with_role(tx, &user.name, ADMINISTRATOR).await? {
        return Ok(());
    }
    Err(Problem::precondition(format!(
        "`{}` is the last enabled user in the database with the role {ADMINISTRATOR}; add another one first, or \
         repeat the request with force=true",
        user.name
    )))
}

/// Refuses a name that belongs to somebody else. An administrator of one project could otherwise lock
/// out a person with another account by a user of the same name, and revoke the tokens of the person.
async fn check_name_is_free(
    call: &Call,
    tx: &FleetTx,
    caller: &Caller,
    name: &str,
) -> Result<(), Problem> {
    if call.app.reserved_names.contain(name).await {
        return Err(Problem::precondition(format!(
            "the name `{name}` is in the file of users; choose another name, or remove it from the file"
        )));
    }
    let is_used = operator_tokens::has_valid_records(tx, name, tx.database_time()).await?;
    if is_used && !caller.may_administrate() {
        return Err(Problem::precondition(format!(
            "tokens with the subject `{name}` are valid; choose another name, or ask an administrator of all projects"
        )));
    }
    Ok(())
}

/// Revokes the tokens that may contain removed roles. An administrator of one project does not end the
/// work of a user in other projects.
async fn revoke_roles(
    tx: &FleetTx,
    caller: &Caller,
    user: &StoredUser,
    removed: &[Role],
) -> Result<(), StoreError> {
    if removed.is_empty() {
        return Ok(());
    }
    if may_give_all(tx, caller, user).await? {
        return revoke_tokens(tx, caller, &user.name).await;
    }
    for project in removed.iter().filter_map(|role| role.project()) {
        let of_user = (user.name.as_str(), TenantId::new(project));
        let now = tx.database_time();
        operator_tokens::revoke_named(tx, of_user, &caller.actor_name(), now).await?;
    }
    Ok(())
}

/// Revokes all tokens of a user, and ends its logins. The caller has locked the user before, and a login
/// locks the user before it issues a token. So each token with the old rights is older than this time.
async fn revoke_tokens(tx: &FleetTx, caller: &Caller, name: &str) -> Result<(), StoreError> {
    let revoked = RevokedSubject {
        issuer: String::new(),
        subject: name.to_owned(),
        revoked_until: tx.read_database_time().await?,
    };
    operator_tokens::revoke_subject(tx, &revoked, &caller.actor_name()).await
}

/// The REST form of a user, with the roles that the caller may give.
fn resource(caller: &Caller, user: StoredUser, names: &RoleNames) -> UserResource {
    let mut roles = parse_roles(&user);
    roles.retain(|role| caller.may_give(*role));
    UserResource {
        name: user.name,
        roles: names.describe(&roles),
        disabled: user.disabled_at.is_some(),
        created_at: user.created_at,
        created_by: user.created_by,
        updated_at: user.updated_at,
    }
}
