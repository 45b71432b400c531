//! `/v1/whoami` and `/v1/logout`: the bearer of the token of the request.

use evenkeel_api::whoami::{LogoutResult, WhoamiResource};
use evenkeel_auth::{Caller, Role};
use evenkeel_store::ConnectionShare;
use evenkeel_store::operator_tokens::{self, OperatorToken};

use crate::call::Call;
use crate::extract::Json;
use crate::problem::Problem;
use crate::role_names::RoleNames;
use crate::shape::Answer;

/// Get the identity of the caller
///
/// Returns what the server knows about the token of the request. Every valid token is sufficient.
#[utoipa::path(
    get, path = "/v1/whoami", tag = "operator tokens",
    responses((status = 200, description = "The identity of the caller.", body = WhoamiResource), Problem),
)]
pub async fn get_whoami(call: Call) -> Answer<WhoamiResource> {
    let caller = call.caller()?;
    let roles = if caller.roles.is_empty() {
        Vec::new()
    } else {
        let tx = call.fleet(ConnectionShare::RestReads).await?;
        RoleNames::load(&tx).await?.describe(&caller.roles)
    };
    Ok(Json(WhoamiResource {
        subject: caller.subject.clone(),
        issuer: caller.issuer.to_string(),
        token_id: caller.token_id.map(|id| id.to_string()).unwrap_or_default(),
        token_name: caller.token_name.as_deref().unwrap_or_default().to_owned(),
        roles,
        expires_at: caller.expires_at,
    }))
}

/// Revoke the token of the request
///
/// All servers refuse the token within a second. A login with a password continues until its refresh
/// token is given back to the token endpoint. The server does not revoke tokens of identity
/// providers and of nodes; the response reports this. Every valid token is sufficient.
#[utoipa::path(
    post, path = "/v1/logout", tag = "operator tokens",
    responses((status = 200, description = "Whether the token is revoked.", body = LogoutResult), Problem),
)]
pub async fn log_out(call: Call) -> Answer<LogoutResult> {
    let caller = call.caller()?;
    let Some(id) = caller.token_id.filter(|_| is_revocable(&caller)) else {
        return Ok(Json(LogoutResult { revoked: false }));
    };
    let tx = call.as_caller(&caller).await?;
    let now = tx.database_time();
    let token = OperatorToken {
        id,
        subject: caller.subject.clone(),
        roles: caller.roles.iter().map(Role::to_string).collect(),
        issued_at: caller.issued_at.unwrap_or(now),
        expires_at: caller.expires_at,
        revoked_at: None,
        revoked_by: None,
        name: None,
        project: None,
        last_used_at: None,
    };
    operator_tokens::record_if_missing(&tx, &token).await?;
    operator_tokens::revoke(&tx, id, &caller.actor_name(), now).await?;
    tx.commit().await?;
    Ok(Json(LogoutResult { revoked: true }))
}

/// Whether the token is one of an operator that this server issued.
fn is_revocable(caller: &Caller) -> bool {
    caller.issued_by_us && !caller.roles.iter().any(|role| matches!(role, Role::Node(_)))
}
