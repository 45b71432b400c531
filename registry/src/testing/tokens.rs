//! Access control of the test registry.

use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use url::form_urlencoded;

use super::TestRegistryState;

/// Who has access to a test registry.
#[derive(Clone, Debug)]
pub enum AccessRule {
    /// Everyone.
    Open,
    /// A user with a password.
    Basic(String, String),
    /// Holders of a token, which the registry issues itself.
    Tokens {
        /// User who gets a token; `None` issues tokens to everyone.
        user: Option<(String, String)>,
        /// Lifetime of a token as declared to the client, in seconds.
        expires_in: u64,
        /// Address of the token server in challenges, if it is not the registry itself.
        realm: Option<String>,
    },
    /// No one.
    Closed,
}

impl AccessRule {
    /// Access for holders of a token, issued to a user with a password.
    pub fn tokens(user: &str, password: &str) -> Self {
        Self::Tokens {
            user: Some((user.to_owned(), password.to_owned())),
            expires_in: 300,
            realm: None,
        }
    }
}

/// Refuses a request to a repository if it lacks access.
pub(super) fn refuse_unauthorized(
    state: &TestRegistryState,
    headers: &HeaderMap,
    repository: &str,
    writes: bool,
) -> Option<Response> {
    let authorization = headers.get(AUTHORIZATION);
    let authorization =
        authorization.and_then(|authorization| authorization.to_str().ok()).unwrap_or_default();
    let challenge = match &state.options.access {
        AccessRule::Open => return None,
        AccessRule::Basic(user, password) if authorization == basic(user, password) => return None,
        AccessRule::Basic(..) => "Basic realm=\"small\"".to_owned(),
        AccessRule::Tokens { realm, .. } => {
            let actions = if writes { "pull,push" } else { "pull" };
            let scope = format!("repository:{repository}:{actions}");
            if is_allowed(state, authorization, &scope) {
                return None;
            }
            let own = format!("http://{}/token", state.address);
            let realm = realm.as_ref().unwrap_or(&own);
            format!("Bearer realm=\"{realm}\",service=\"small\",scope=\"{scope}\"")
        }
        AccessRule::Closed => return Some(StatusCode::FORBIDDEN.into_response()),
    };
    let mut refused = StatusCode::UNAUTHORIZED.into_response();
    let challenge = HeaderValue::from_str(&challenge).expect("a value");
    refused.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    Some(refused)
}

/// Issues a token.
pub(super) fn issue_token(state: &TestRegistryState, headers: &HeaderMap, uri: &Uri) -> Response {
    let AccessRule::Tokens { user, expires_in, .. } = &state.options.access else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let authorization = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let is_known = user
        .as_ref()
        .is_none_or(|(user, password)| authorization == Some(basic(user, password).as_bytes()));
    if !is_known {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let query = uri.query().unwrap_or_default().as_bytes();
    let scope = form_urlencoded::parse(query).find(|(name, _)| name == "scope");
    let scope = scope.map(|(_, scope)| scope.into_owned());
    let mut data = state.lock();
    data.tokens.push(scope.unwrap_or_default());
    let token = format!("token-{}", data.tokens.len());
    axum::Json(json!({ "token": token, "expires_in": expires_in })).into_response()
}

/// Whether a token grants a scope. The number in a token is its position in the list of scopes.
fn is_allowed(state: &TestRegistryState, authorization: &str, scope: &str) -> bool {
    let number = authorization.strip_prefix("Bearer token-");
    let number = number.and_then(|number| number.parse::<usize>().ok());
    let data = state.lock();
    let granted = number.and_then(|number| data.tokens.get(number.checked_sub(1)?));
    granted.is_some_and(|granted| granted == scope || *granted == format!("{scope},push"))
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}
