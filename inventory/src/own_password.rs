//! `/v1/whoami/password`: the password of the caller.

use evenkeel_api::Empty;
use evenkeel_api::user::OwnPasswordInput;
use evenkeel_auth::Caller;
use evenkeel_auth::users::is_new_name;
use evenkeel_kit::Secret;
use evenkeel_store::users::{self, UserLogin};
use evenkeel_store::{FleetTx, StoreError};

use crate::call::{Call, check_not_revoked};
use crate::extract::Json;
use crate::password_checker::{PasswordAttempt, PasswordCheck};
use crate::problem::Problem;
use crate::shape::Answer;
use crate::users::{checked_password, hash_in_background};

/// Set the own password
///
/// Refresh tokens of logins with the old password are refused at once, so these logins end within the
/// lifetime of an access token. The token of the request stays valid until it expires; log in with the
/// new password for further ones. Tokens for automation stay valid.
///
/// The server refuses a wrong old password and a weak new one (`invalid-argument`), an attempt too soon
/// after several failed ones, and callers whose password is in the file of users or at an identity
/// provider (`failed-precondition`). A wrong old password counts as a failed login. Tokens for
/// automation cannot change the password (`missing-role`).
///
/// Every token of a user with a password is sufficient.
#[utoipa::path(
    put, path = "/v1/whoami/password", tag = "users", request_body = OwnPasswordInput,
    responses((status = 200, description = "The password is set.", body = Empty), Problem),
)]
pub async fn set_own_password(call: Call, Json(body): Json<OwnPasswordInput>) -> Answer<Empty> {
    let caller = call.caller()?;
    let name = caller.subject.as_str();
    check_password_is_ours(&call, &caller).await?;
    let password = checked_password(name, &body.password)?;
    if body.old_password == body.password {
        return Err(Problem::invalid("password", "must differ from the old password"));
    }
    let checked = {
        let tx = call.as_caller(&caller).await?;
        check_not_revoked(&tx, &caller).await?;
        find_login(&tx, name).await?
    };
    let old_password = Secret::new(body.old_password.reveal());
    check_old_password(&call, name, old_password).await?;
    let password_hash = hash_in_background(&call, password).await?;
    let tx = call.as_caller(&caller).await?;
    check_not_revoked(&tx, &caller).await?;
    users::lock_changes(&tx).await?;
    let current = find_login(&tx, name).await?;
    // An administrator may have set another password, because another person knows the old one.
    if current.password_hash.reveal() != checked.password_hash.reveal() {
        return Err(Problem::precondition("the password was changed meanwhile; log in again"));
    }
    users::set_password(&tx, name, &password_hash, tx.database_time()).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// Refuses callers whose password is elsewhere, and says where to change it.
async fn check_password_is_ours(call: &Call, caller: &Caller) -> Result<(), Problem> {
    if caller.token_name.is_some() {
        return Err(Problem::missing_role(
            "a token for automation cannot change a password; log in as a person",
        ));
    }
    if !caller.issued_by_us {
        return Err(Problem::precondition(format!(
            "you log in at the identity provider {}; change the password there",
            caller.issuer
        )));
    }
    if call.app.reserved_names.contain(&caller.subject).await {
        return Err(Problem::precondition(format!(
            "the user `{}` is in the file of users of the server; ask its administrator to replace the hash in the \
             file by a hash from `evenkeeld hash-password`",
            caller.subject
        )));
    }
    Ok(())
}

/// The login of a user in the database. Tokens of `evenkeeld token` and of nodes have no user.
async fn find_login(tx: &FleetTx, name: &str) -> Result<UserLogin, Problem> {
    let found: Result<_, StoreError> =
        if is_new_name(name) { users::find_login(tx, name).await } else { Ok(None) };
    found?.ok_or_else(|| {
        Problem::precondition(format!(
            "`{name}` is no user with a password: only a token was issued"
        ))
    })
}

async fn check_old_password(call: &Call, name: &str, password: Secret) -> Result<(), Problem> {
    let attempt = PasswordAttempt { user: name.to_owned(), client: call.client(), password };
    match call.app.password_checker.check(attempt).await {
        Some(PasswordCheck::Correct) => Ok(()),
        Some(PasswordCheck::Wrong) => Err(Problem::invalid("oldPassword", "is wrong")),
        Some(PasswordCheck::TooManyAttempts(wait)) => {
            // Rounded up to whole seconds.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            let why = format!("too many failed attempts; try again in {seconds} s");
            Err(Problem::precondition(why))
        }
        Some(PasswordCheck::Refused(why)) => Err(Problem::precondition(why)),
        Some(PasswordCheck::Unavailable) => {
            Err(Problem::overloaded("the password cannot be checked now; try again in a moment"))
        }
        None => Err(Problem::precondition(
            "this server has no logins with a password (section [auth.login] of its configuration)",
        )),
    }
}
