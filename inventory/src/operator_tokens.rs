//! `/v1/operator-tokens`: tokens for this API. Only administrators see and revoke them.

use evenkeel_api::operator_token::{
    OperatorTokenResource, SubjectRevocationInput, SubjectRevocationResult,
};
use evenkeel_store::operator_tokens::{self, OperatorToken, RevokedSubject};
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use crate::call::Call;
use crate::extract::{Json, Path};
use crate::problem::Problem;
use crate::shape::Answer;

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
/// Returns the tokens that `evenkeeld token operator` and the first start have issued and that have
/// not expired, the latest first. Tokens of logins with a password are valid for minutes and are
/// not listed. The list has no pages.
///
/// Role: `evenkeel-admin`.
#[utoipa::path(
    get, path = "/v1/operator-tokens", tag = "operator tokens",
    responses((status = 200, description = "The tokens.", body = Vec<OperatorTokenResource>), Problem),
)]
pub async fn list_operator_tokens(call: Call) -> Answer<Vec<OperatorTokenResource>> {
    let (tx, _) = call.as_administrator().await?;
    let now = tx.database_time();
    let tokens = operator_tokens::list(&tx).await?;
    let valid = tokens.into_iter().filter(|token| now < token.expires_at);
    Ok(Json(valid.map(resource).collect()))
}

/// Revoke a token of an operator
///
/// All servers refuse the token within a second. A repeated request changes nothing.
///
/// For a token that is not in the list the problem is `not-found`. Revoke such tokens by their
/// subject.
///
/// Role: `evenkeel-admin`.
#[utoipa::path(
    put, path = "/v1/operator-tokens/{tokenId}/revoke", tag = "operator tokens", params(TokenPath),
    responses((status = 200, description = "The token is revoked.", body = OperatorTokenResource), Problem),
)]
pub async fn revoke_operator_token(
    call: Call,
    Path(path): Path<TokenPath>,
) -> Answer<OperatorTokenResource> {
    let (tx, administrator) = call.as_administrator().await?;
    let id: Uuid =
        path.token_id.parse().map_err(|_| Problem::parameter("tokenId", "must be a UUID"))?;
    let token = operator_tokens::revoke(&tx, id, &administrator, tx.database_time()).await?;
    tx.commit().await?;
    Ok(Json(resource(token)))
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
        revoked_until: tx.database_time(),
    };
    operator_tokens::revoke_subject(&tx, &revoked, &administrator).await?;
    let is_local = revoked.issuer.is_empty();
    let unknown_subject = is_local && !operator_tokens::has_records(&tx, &revoked.subject).await?;
    tx.commit().await?;
    Ok(Json(SubjectRevocationResult { unknown_subject }))
}

fn resource(token: OperatorToken) -> OperatorTokenResource {
    OperatorTokenResource {
        token_id: token.id.to_string(),
        subject: token.subject,
        roles: token.roles,
        issued_at: token.issued_at,
        expires_at: token.expires_at,
        revoked_at: token.revoked_at,
        revoked_by: token.revoked_by.unwrap_or_default(),
    }
}
