//! Whom a small registry lets in.

use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use url::form_urlencoded;

use super::Held;

/// Whom a small registry lets in.
#[derive(Clone, Debug)]
pub enum Entry {
    /// Everybody.
    Open,
    /// A user with a password.
    Basic(String, String),
    /// Whoever has a token, which it gives itself.
    Tokens {
        /// To whom; none: everybody.
        user: Option<(String, String)>,
        /// How long it says that a token is good, in seconds.
        good_for: u64,
        /// Whom it names as the one who gives tokens, if not itself.
        realm: Option<String>,
    },
    /// Nobody.
    Closed,
}

impl Entry {
    /// Whoever has a token, which a user with a password gets.
    pub fn tokens(user: &str, password: &str) -> Self {
        Self::Tokens {
            user: Some((user.to_owned(), password.to_owned())),
            good_for: 300,
            realm: None,
        }
    }
}

/// Refuses a request about a repository, unless it may come in.
pub(super) fn refusal(
    held: &Held,
    headers: &HeaderMap,
    repository: &str,
    writes: bool,
) -> Option<Response> {
    let said = headers.get(AUTHORIZATION);
    let said = said.and_then(|said| said.to_str().ok()).unwrap_or_default();
    let challenge = match &held.manners.entry {
        Entry::Open => return None,
        Entry::Basic(user, password) if said == basic(user, password) => return None,
        Entry::Basic(..) => "Basic realm=\"small\"".to_owned(),
        Entry::Tokens { realm, .. } => {
            let actions = if writes { "pull,push" } else { "pull" };
            let scope = format!("repository:{repository}:{actions}");
            if may(held, said, &scope) {
                return None;
            }
            let own = format!("http://{}/token", held.at);
            let realm = realm.as_ref().unwrap_or(&own);
            format!("Bearer realm=\"{realm}\",service=\"small\",scope=\"{scope}\"")
        }
        Entry::Closed => return Some(StatusCode::FORBIDDEN.into_response()),
    };
    let mut refused = StatusCode::UNAUTHORIZED.into_response();
    let challenge = HeaderValue::from_str(&challenge).expect("a value");
    refused.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    Some(refused)
}

/// Gives a token.
pub(super) fn give(held: &Held, headers: &HeaderMap, uri: &Uri) -> Response {
    let Entry::Tokens { user, good_for, .. } = &held.manners.entry else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let said = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let is_known = user
        .as_ref()
        .is_none_or(|(user, password)| said == Some(basic(user, password).as_bytes()));
    if !is_known {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let query = uri.query().unwrap_or_default().as_bytes();
    let scope = form_urlencoded::parse(query).find(|(name, _)| name == "scope");
    let scope = scope.map(|(_, scope)| scope.into_owned());
    let mut inside = held.lock();
    inside.tokens.push(scope.unwrap_or_default());
    let token = format!("token-{}", inside.tokens.len());
    axum::Json(json!({ "token": token, "expires_in": good_for })).into_response()
}

/// Whether a token gives a right. A token is the place of what it is good for.
fn may(held: &Held, said: &str, scope: &str) -> bool {
    let number = said.strip_prefix("Bearer token-");
    let number = number.and_then(|number| number.parse::<usize>().ok());
    let inside = held.lock();
    let given = number.and_then(|number| inside.tokens.get(number.checked_sub(1)?));
    given.is_some_and(|given| given == scope || *given == format!("{scope},push"))
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}
