//! `join-tokens`: leave for machines to join a project.

use axum::extract::State;
use chrono::TimeDelta;
use evenkeel_api::join_token::{JoinTokenInput, JoinTokenList, JoinTokenResource};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_auth::JoinToken as Secret;
use evenkeel_domain::Time;
use evenkeel_domain::id::JoinTokenId;
use evenkeel_domain::join_token::{JoinToken, JoinTokenSpec};
use evenkeel_domain::text::Name;
use evenkeel_store::join_tokens;

use crate::App;
use crate::call::{Call, id_of_path};
use crate::extract::{Json, Params, Path};
use crate::listing::few::{Page, PageParams};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};

const WHAT: &str = "join_token_resource";

/// List the join tokens, without the tokens themselves.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/join-tokens", tag = "join tokens", params(InProject, PageParams),
    responses((status = 200, description = "The join tokens, by id.", body = JoinTokenList), Problem),
)]
pub async fn list_join_tokens(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<JoinTokenList> {
    let page = Page::of(&params)?;
    let tx = app.read(&call).await?;
    let all = join_tokens::all(&tx).await?;
    let few = page.of_all(all);
    let now = app.clock.now();
    let shown = few.items.iter().map(|token| resource(token, now));
    Ok(Json(JoinTokenList {
        join_tokens: shown.collect(),
        total_elements: few.total_elements,
        has_next: few.has_next,
        next_page_token: few.next_page_token,
    }))
}

/// Make a join token. Only this answer shows it.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/join-tokens", tag = "join tokens", params(InProject),
    request_body = JoinTokenInput,
    responses((status = 200, description = "The join token with the token itself.", body = JoinTokenResource), Problem),
)]
pub async fn create_join_token(
    State(app): State<App>,
    call: Call,
    Json(body): Json<JoinTokenInput>,
) -> Answer<JoinTokenResource> {
    let tx = app.write(&call).await?;
    let now = app.clock.now();
    let spec = spec(&body, now)?;
    let secret = Secret::generate(app.ca_digest.as_deref()).map_err(|error| {
        tracing::error!(%error, "no join token can be made");
        Problem::internal()
    })?;
    let made = join_tokens::create(&tx, &spec, *secret.secret_hash().as_bytes(), now).await?;
    tx.commit().await?;
    Ok(Json(JoinTokenResource {
        token: Some(secret.text().reveal().to_owned()),
        ..resource(&made, now)
    }))
}

/// Show a join token, without the token itself.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/join-tokens/{resourceId}", tag = "join tokens", params(Item),
    responses((status = 200, description = "The join token.", body = JoinTokenResource), Problem),
)]
pub async fn get_join_token(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<JoinTokenResource> {
    let tx = app.read(&call).await?;
    let id: JoinTokenId = id_of_path(WHAT, &path.resource_id)?;
    let token = join_tokens::find(&tx, id).await?;
    Ok(Json(resource(&token, app.clock.now())))
}

/// Take a join token back. Machines that joined with it stay.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/join-tokens/{resourceId}/revoke", tag = "join tokens", params(Item),
    responses((status = 200, description = "It is worth nothing any more.", body = Empty), Problem),
)]
pub async fn revoke_join_token(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: JoinTokenId = id_of_path(WHAT, &path.resource_id)?;
    join_tokens::revoke(&tx, id, app.clock.now()).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn spec(body: &JoinTokenInput, now: Time) -> Result<JoinTokenSpec, Problem> {
    let seconds = body.lifetime_seconds;
    if !(1..=JoinTokenInput::MAX_LIFETIME).contains(&seconds) {
        let why = format!("must be from 1 to {}", JoinTokenInput::MAX_LIFETIME);
        return Err(Problem::invalid("lifetimeSeconds", why));
    }
    Ok(JoinTokenSpec {
        name: Name::parse("name", &body.name)?,
        expires_at: now + TimeDelta::seconds(seconds.into()),
        one_time: body.one_time,
        may_create_hosts: body.may_create_hosts,
    })
}

fn resource(token: &JoinToken, now: Time) -> JoinTokenResource {
    let changed = [token.last_used_at, token.revoked_at]
        .into_iter()
        .flatten()
        .max();
    JoinTokenResource {
        resource_id: token.id.to_string(),
        name: token.spec.name.to_string(),
        expires_at: token.spec.expires_at,
        one_time: token.spec.one_time,
        may_create_hosts: token.spec.may_create_hosts,
        used_count: token.used,
        last_used_at: token.last_used_at,
        revoked_at: token.revoked_at,
        usable: token.check(now).is_ok(),
        token: None,
        timestamps: Some(Timestamps::new(
            token.created_at,
            changed.unwrap_or(token.created_at),
        )),
    }
}
