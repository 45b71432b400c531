//! `operator-tokens`: tokens for this API. Only administrators see, create and revoke them.

use chrono::TimeDelta;
use evenkeel_api::operator_token::{
    OperatorTokenInput, OperatorTokenResource, SubjectRevocationInput, SubjectRevocationResult,
};
use evenkeel_auth::{Caller, ProjectRole, Role};
use evenkeel_domain::Time;
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::StoreError;
use evenkeel_store::operator_tokens::{self, OperatorToken, RevokedSubject};
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use crate::call::Call;
use crate::extract::{Json, Path};
use crate::problem::Problem;
use crate::role_names::RoleNames;
use crate::shape::{Answer, InProject};

/// A token, by its ID.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
#[serde(rename_all = "camelCase")]
pub struct TokenPath {
    /// ID of the token: its claim `jti`.
    token_id: String,
}

/// List the tokens of operators
///
/// Returns the tokens for automation, and for `evenkeel-admin` also those that
/// `evenkeeld token operator` and the first start have issued, the latest first. Expired tokens are
/// left out. Tokens of logins with a password are valid for minutes and are not listed. The list has
/// no pages.
///
/// Role: `<project UUID>_administrator` for the tokens of the project, or `evenkeel-admin` for all.
#[utoipa::path(
    get, path = "/v1/operator-tokens", tag = "operator tokens",
    responses((status = 200, description = "The tokens.", body = Vec<OperatorTokenResource>), Problem),
)]
pub async fn list_operator_tokens(call: Call) -> Answer<Vec<OperatorTokenResource>> {
    let (tx, caller) = call.as_any_administrator().await?;
    let now = tx.database_time();
    let tokens = operator_tokens::list(&tx).await?;
    let names = RoleNames::load(&tx).await?;
    let visible = tokens
        .into_iter()
        .filter(|token| now < token.expires_at && may_manage_token(&caller, token));
    Ok(Json(visible.map(|token| resource(token, &names)).collect()))
}

/// Create a token for automation
///
/// The token has one role in the project. Only this response contains the token itself; the server
/// does not store it. The token is revoked with the tokens of the user who creates it.
///
/// The server refuses a name that another valid token of the project has (`failed-precondition`), a
/// lifetime of 0 or more than 31,536,000 seconds, and a token that would outlive the token for
/// automation that creates it (`invalid-argument`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/operator-tokens", tag = "operator tokens", params(InProject),
    request_body = OperatorTokenInput,
    responses((status = 200, description = "The token.", body = OperatorTokenResource), Problem),
)]
pub async fn create_operator_token(
    call: Call,
    Json(body): Json<OperatorTokenInput>,
) -> Answer<OperatorTokenResource> {
    let (name, role) = (Name::parse_given("name", &body.name)?, parse_role(&body.role)?);
    let lifetime = parse_lifetime(&body)?;
    let (tx, project, caller) = call.as_project_administrator().await?;
    let now = tx.database_time();
    let role = role.in_project(project.uuid());
    if !caller.may_give(role) {
        return Err(Problem::missing_role(format!(
            "the token lacks the rights of the role {role}"
        )));
    }
    check_outlives(&caller, now + lifetime)?;
    if operator_tokens::is_name_used(&tx, project, name.as_str(), now).await? {
        return Err(Problem::precondition(format!(
            "a valid token of the project has the name `{name}`; choose another name, or revoke that token"
        )));
    }
    // Revocations of the user apply to the token. Two issuers may have users of the same name.
    let subject = if caller.issued_by_us { caller.subject.clone() } else { caller.actor_name() };
    let issued = call.app.authority.issue_named((&subject, name.as_str()), &[role], lifetime, now);
    let issued = issued.map_err(|error| {
        tracing::error!(%error, "cannot create a token");
        Problem::internal()
    })?;
    let token = OperatorToken {
        id: issued.id,
        subject,
        roles: vec![role.to_string()],
        issued_at: now,
        expires_at: issued.expires_at,
        revoked_at: None,
        revoked_by: None,
        name: Some(name.to_string()),
        project: Some(project),
        last_used_at: None,
    };
    operator_tokens::record(&tx, &token).await?;
    let names = RoleNames::load(&tx).await?;
    tx.commit().await?;
    Ok(Json(OperatorTokenResource {
        token: Some(issued.token.reveal().to_owned()),
        ..resource(token, &names)
    }))
}

/// Revoke a token of an operator
///
/// All servers refuse the token within a second. A repeated request changes nothing.
///
/// For a token that is not in the list the problem is `not-found`. Revoke such tokens by their
/// subject.
///
/// Role: `<project UUID>_administrator` for the tokens of the project, or `evenkeel-admin` for all.
#[utoipa::path(
    put, path = "/v1/operator-tokens/{tokenId}/revoke", tag = "operator tokens", params(TokenPath),
    responses((status = 200, description = "The token is revoked.", body = OperatorTokenResource), Problem),
)]
pub async fn revoke_operator_token(
    call: Call,
    Path(path): Path<TokenPath>,
) -> Answer<OperatorTokenResource> {
    let (tx, caller) = call.as_any_administrator().await?;
    let id: Uuid =
        path.token_id.parse().map_err(|_| Problem::parameter("tokenId", "must be a UUID"))?;
    let token = operator_tokens::find(&tx, id).await?;
    if !may_manage_token(&caller, &token) {
        return Err(StoreError::NotFound { what: operator_tokens::RESOURCE }.into());
    }
    let now = tx.database_time();
    let token = operator_tokens::revoke(&tx, id, &caller.actor_name(), now).await?;
    let names = RoleNames::load(&tx).await?;
    tx.commit().await?;
    Ok(Json(resource(token, &names)))
}

/// Revoke all tokens of a subject
///
/// All servers refuse tokens of the subject that were issued until the end of the current second,
/// also those of an external issuer and those without a time of issue. Logins of the subject with a
/// password end. The subject can get new tokens unless you remove its account or its roles as well.
///
/// The revocation also takes effect if the server has no record of a token of the subject. The
/// response reports this, because the name may be wrong.
///
/// Role: `evenkeel-admin`.
#[utoipa::path(
    put, path = "/v1/operator-tokens/revoke", tag = "operator tokens",
    request_body = SubjectRevocationInput,
    responses(
        (status = 200, description = "The tokens are revoked.", body = SubjectRevocationResult),
        Problem,
    ),
)]
pub async fn revoke_operator_subject(
    call: Call,
    Json(body): Json<SubjectRevocationInput>,
) -> Answer<SubjectRevocationResult> {
    let (tx, administrator) = call.as_administrator().await?;
    for (field, text) in [("subject", &body.subject), ("issuer", &body.issuer)] {
        if text.len() > SubjectRevocationInput::MAX_TEXT_BYTES {
            let why = format!("has at most {} bytes", SubjectRevocationInput::MAX_TEXT_BYTES);
            return Err(Problem::invalid(field, why));
        }
    }
    if body.subject.is_empty() {
        return Err(Problem::invalid("subject", "must not be empty"));
    }
    let authority = &call.app.authority;
    if !body.issuer.is_empty() && !authority.accepts_issuer(&body.issuer) {
        let why = "the server accepts no tokens of this issuer; for its own tokens leave it empty";
        return Err(Problem::invalid("issuer", why));
    }
    let is_own = authority.own_issuer() == body.issuer;
    let revoked = RevokedSubject {
        issuer: if is_own { String::new() } else { body.issuer },
        subject: body.subject,
        revoked_until: tx.read_database_time().await?,
    };
    operator_tokens::revoke_subject(&tx, &revoked, &administrator).await?;
    let is_local = revoked.issuer.is_empty();
    let unknown_subject = is_local && !operator_tokens::has_records(&tx, &revoked.subject).await?;
    tx.commit().await?;
    Ok(Json(SubjectRevocationResult { unknown_subject }))
}

/// Whether the caller sees and revokes a token: tokens without a project are for administrators of
/// all projects.
fn may_manage_token(caller: &Caller, token: &OperatorToken) -> bool {
    let is_managed = |project: TenantId| caller.may_manage(project.uuid());
    caller.may_administrate() || token.project.is_some_and(is_managed)
}

fn parse_role(text: &str) -> Result<ProjectRole, Problem> {
    ProjectRole::parse(text).ok_or_else(|| {
        Problem::invalid("role", "must be viewer, operator, approver or administrator")
    })
}

fn parse_lifetime(body: &OperatorTokenInput) -> Result<TimeDelta, Problem> {
    let seconds = body.lifetime_seconds;
    if !(1..=OperatorTokenInput::MAX_LIFETIME_SECONDS).contains(&seconds) {
        let why = format!("must be from 1 to {}", OperatorTokenInput::MAX_LIFETIME_SECONDS);
        return Err(Problem::invalid("lifetimeSeconds", why));
    }
    Ok(TimeDelta::seconds(seconds.into()))
}

/// A token for automation creates no token that lives longer, because that one would keep the rights
/// of the first one after their end.
fn check_outlives(caller: &Caller, expires_at: Time) -> Result<(), Problem> {
    if caller.token_name.is_none() || expires_at <= caller.expires_at {
        return Ok(());
    }
    let why = format!(
        "the new token must not outlive the token for automation that creates it, which expires at {}",
        caller.expires_at
    );
    Err(Problem::invalid("lifetimeSeconds", why))
}

fn resource(token: OperatorToken, names: &RoleNames) -> OperatorTokenResource {
    let roles: Vec<Role> = token.roles.iter().filter_map(|role| Role::parse(role)).collect();
    let project = token.project.and_then(|project| names.project(project));
    OperatorTokenResource {
        token_id: token.id.to_string(),
        subject: token.subject,
        name: token.name.unwrap_or_default(),
        project: project.unwrap_or_default().to_owned(),
        named_roles: names.describe(&roles),
        roles: token.roles,
        issued_at: token.issued_at,
        expires_at: token.expires_at,
        revoked_at: token.revoked_at,
        revoked_by: token.revoked_by.unwrap_or_default(),
        last_used_at: token.last_used_at,
        token: None,
    }
}
