//! `evenkeel logout`: revokes and removes the saved token.

use evenkeel_api::whoami::LogoutResult;
use evenkeel_kit::chain;

use crate::client::{Client, DEFAULT_PROJECT, Target};
use crate::contexts::{Context, Contexts};
use crate::http::{build_realm_client, parse_server_address};
use crate::options::GlobalOptions;
use crate::{Failure, System, sanitize_text};

/// Revokes the saved token at the server, ends its login, and removes it from the context. The token is
/// also removed if the server is unreachable. Refuses while the environment has a token: all other
/// commands use that one, so the user may mean it.
pub async fn log_out(globals: &GlobalOptions, system: &mut System<'_>) -> Result<(), Failure> {
    if system.environment.token.is_some() {
        return Err(Failure::usage_with(
            "EVENKEEL_TOKEN is set, but `evenkeel logout` revokes the saved token of the context, not that one",
            "unset EVENKEEL_TOKEN and run the command again; an administrator revokes other tokens with `evenkeel \
             token revoke`",
        ));
    }
    let path = system.environment.contexts.clone();
    let contexts = Contexts::load(&path)?;
    let context = contexts.select(globals.context.as_deref())?;
    let context = context.filter(|context| context.token.is_some() || context.login.is_some());
    let Some(context) = context.cloned() else {
        return Err(Failure::usage_with(
            "no token is saved in the context",
            "`evenkeel context list` shows the contexts with a token; select one with --context NAME",
        ));
    };
    let ended = end_login(&context).await;
    if let (Ok(false), Some(login)) = (&ended, &context.login) {
        let realm = sanitize_text(&login.realm);
        writeln!(
            system.notes,
            "note: {realm} offers no revocation, so its login was only removed here"
        )?;
    }
    for (what, error) in [
        ("the login was not ended", ended.err()),
        ("the token was not revoked", revoke_token(&context, globals).await.err()),
    ] {
        if let Some(error) = error {
            let why = sanitize_text(&chain(&error).to_string());
            writeln!(system.notes, "note: {what} at the server: {why}")?;
        }
    }
    // Another command may have changed the file in the meantime.
    let mut contexts = Contexts::load(&path)?;
    let (name, server) = (context.name.clone(), context.server.clone());
    contexts.upsert(Context { token: None, login: None, ..context });
    contexts.save(&path)?;
    Ok(writeln!(system.out, "logged out of {server} in context {name}")?)
}

/// Revokes the access token. An expired token need not be revoked, and the server cannot revoke one
/// of an identity provider.
async fn revoke_token(context: &Context, globals: &GlobalOptions) -> Result<(), Failure> {
    let Some(token) = context.token.clone() else {
        return Ok(());
    };
    let client = Client::new(Target {
        server: context.server.clone(),
        project: DEFAULT_PROJECT.to_owned(),
        token: Some(token),
        renewal: None,
        ca: context.ca.clone(),
        retry_for: globals.retry_for,
    })?;
    let body = serde_json::json!({});
    match client.post_global::<LogoutResult>(&["v1", "logout"], &body).await {
        Ok(_) | Err(Failure::Refused { status: 401, .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Ends the login at its identity provider, so that the refresh token is not valid any more. Returns
/// whether the provider offers this.
async fn end_login(context: &Context) -> Result<bool, Failure> {
    let Some(login) = &context.login else {
        return Ok(true);
    };
    let server = parse_server_address(&context.server)?;
    let http = build_realm_client(&login.realm, &server, context.ca.as_deref())?;
    login.end(&http).await
}
