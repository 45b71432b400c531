//! `join-tokens`: tokens with which machines join a project.

use chrono::TimeDelta;
use evenkeel_api::join_token::{JoinTokenInput, JoinTokenList, JoinTokenResource};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_auth::JoinToken as Secret;
use evenkeel_domain::Time;
use evenkeel_domain::id::JoinTokenId;
use evenkeel_domain::join_token::{JoinToken, JoinTokenSpec};
use evenkeel_domain::text::Name;
use evenkeel_store::join_tokens;

use crate::call::{Call, parse_resource_id};
use crate::extract::{Json, Params, Path};
use crate::listing::short_list::{PageParams, PageQuery};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};

const RESOURCE_KIND: &str = "join_token_resource";

/// List join tokens
///
/// Returns the tokens by ID, without their secrets. The list has no `filter` and no `orderBy`.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/join-tokens", tag = "join tokens", params(InProject, PageParams),
    responses((status = 200, description = "The join tokens, by id.", body = JoinTokenList), Problem),
)]
pub async fn list_join_tokens(call: Call, params: Params) -> Answer<JoinTokenList> {
    let page = PageQuery::from_params(&params)?;
    let tx = call.read().await?;
    let all = join_tokens::all(&tx).await?;
    let part = page.paginate(all);
    let now = tx.database_time();
    let resources = part.items.iter().map(|token| resource(token, now));
    Ok(Json(JoinTokenList {
        join_tokens: resources.collect(),
        total_elements: part.total_elements,
        has_next: part.has_next,
        next_page_token: part.next_page_token,
    }))
}

/// Create a join token
///
/// Only this response contains the token itself; the server stores its hash. Each request creates
/// another token.
///
/// The server refuses a lifetime of 0 or more than 31,536,000 seconds (`invalid-argument`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/join-tokens", tag = "join tokens", params(InProject),
    request_body = JoinTokenInput,
    responses((status = 200, description = "The join token, including its secret.", body = JoinTokenResource), Problem),
)]
pub async fn create_join_token(
    call: Call,
    Json(body): Json<JoinTokenInput>,
) -> Answer<JoinTokenResource> {
    let tx = call.write().await?;
    let now = tx.database_time();
    let spec = parse_spec(&body, now)?;
    let secret = Secret::generate(call.app.ca_digest.as_deref()).map_err(|error| {
        tracing::error!(%error, "cannot create a join token");
        Problem::internal()
    })?;
    let token = join_tokens::create(&tx, &spec, *secret.secret_hash().as_bytes(), now).await?;
    tx.commit().await?;
    Ok(Json(JoinTokenResource {
        token: Some(secret.text().reveal().to_owned()),
        ..resource(&token, now)
    }))
}

/// Get a join token
///
/// Returns the token without its secret. `usable` says whether a machine could join with it now.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/join-tokens/{resourceId}", tag = "join tokens", params(Item),
    responses((status = 200, description = "The join token.", body = JoinTokenResource), Problem),
)]
pub async fn get_join_token(call: Call, Path(path): Path<Item>) -> Answer<JoinTokenResource> {
    let tx = call.read().await?;
    let id: JoinTokenId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let token = join_tokens::find(&tx, id).await?;
    Ok(Json(resource(&token, tx.database_time())))
}

/// Revoke a join token
///
/// No machine can join with the token any more. Machines that joined with it stay enrolled. A
/// repeated request changes nothing.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/join-tokens/{resourceId}/revoke", tag = "join tokens", params(Item),
    responses((status = 200, description = "The join token is revoked.", body = Empty), Problem),
)]
pub async fn revoke_join_token(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: JoinTokenId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    join_tokens::revoke(&tx, id, tx.database_time()).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn parse_spec(body: &JoinTokenInput, now: Time) -> Result<JoinTokenSpec, Problem> {
    let seconds = body.lifetime_seconds;
    if !(1..=JoinTokenInput::MAX_LIFETIME_SECONDS).contains(&seconds) {
        let why = format!("must be from 1 to {}", JoinTokenInput::MAX_LIFETIME_SECONDS);
        return Err(Problem::invalid("lifetimeSeconds", why));
    }
    Ok(JoinTokenSpec {
        name: Name::parse("name", &body.name)?,
        expires_at: now + TimeDelta::seconds(seconds.into()),
        one_time: body.one_time,
        may_create_hosts: body.may_create_hosts,
        may_replace_eim_agents: body.may_replace_eim_agents,
    })
}

fn resource(token: &JoinToken, now: Time) -> JoinTokenResource {
    let changed = [token.last_used_at, token.revoked_at].into_iter().flatten().max();
    JoinTokenResource {
        resource_id: token.id.to_string(),
        name: token.spec.name.to_string(),
        expires_at: token.spec.expires_at,
        one_time: token.spec.one_time,
        may_create_hosts: token.spec.may_create_hosts,
        may_replace_eim_agents: token.spec.may_replace_eim_agents,
        used_count: token.used,
        last_used_at: token.last_used_at,
        revoked_at: token.revoked_at,
        usable: token.check(now).is_ok(),
        token: None,
        timestamps: Some(Timestamps::new(token.created_at, changed.unwrap_or(token.created_at))),
    }
}
