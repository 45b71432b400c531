//! End of a login: the client gives its refresh token back.

use std::sync::Arc;

use axum::Form;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::http::StatusCode;
use evenkeel_kit::Secret;
use evenkeel_store::logins;
use serde::Deserialize;

use super::{DEFAULT_CLIENT_ID, Realm, TokenError, invalid_grant, invalid_request, store_error};

/// Parameters of the end of a login. Others are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct LogoutRequest {
    #[serde(default)]
    client_id: String,
    refresh_token: Option<Secret>,
}

/// Ends the login of a refresh token: no refresh token of the login is valid any more. Access tokens
/// stay valid until they expire or are revoked.
pub(super) async fn log_out(
    State(realm): State<Arc<Realm>>,
    form: Result<Form<LogoutRequest>, FormRejection>,
) -> Result<StatusCode, TokenError> {
    let Form(request) = form.map_err(|why| invalid_request(why.body_text()))?;
    let Some(token) = request.refresh_token else {
        return Err(invalid_request("refresh_token is required".to_owned()));
    };
    let read = realm.authority.verify_refresh(token.reveal(), realm.clock.now());
    let (refresh, _) = read.map_err(|error| invalid_grant(&error.to_string()))?;
    let client = match request.client_id.as_str() {
        "" => DEFAULT_CLIENT_ID,
        client => client,
    };
    if refresh.client != client {
        return Err(invalid_grant("the token belongs to another client"));
    }
    let tx = realm.store_for(&refresh.subject).fleet().await;
    let tx = tx.map_err(|error| store_error(&error))?;
    let ended = logins::end(&tx, refresh.login, tx.database_time()).await;
    ended.map_err(|error| store_error(&error))?;
    tx.commit().await.map_err(|error| store_error(&error))?;
    tracing::info!(user = refresh.subject, "a user logged out");
    Ok(StatusCode::NO_CONTENT)
}
