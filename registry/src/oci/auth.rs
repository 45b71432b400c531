//! Authentication at a registry: HTTP basic authentication, or a bearer token from a token server.

use std::collections::{BTreeMap, HashMap};
use std::iter::Peekable;
use std::str::Chars;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::time::Instant;
use url::Url;

use super::send::{HttpRequest, HttpSender, check_status, forbidden_address};
use crate::address::{Access, Credentials};
use crate::error::{RegistryError, RegistryResult, malformed};

/// Lifetime of a token without `expires_in`.
const DEFAULT_TOKEN_SECONDS: u64 = 60;

/// Longest time that a token is cached.
const MAX_TOKEN_SECONDS: u64 = 24 * 60 * 60;

/// Time before its expiry at which a token is no longer used.
const EXPIRY_MARGIN: Duration = Duration::from_secs(10);

/// Number of cached tokens from which on expired ones are removed.
const TOKEN_CLEANUP_THRESHOLD: usize = 1_000;

/// An authentication challenge of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The authentication scheme in lowercase letters.
    pub scheme: String,
    /// The parameters; their names are in lowercase letters.
    pub parameters: BTreeMap<String, String>,
}

/// Parses the value of a `WWW-Authenticate` header. Invalid parts are skipped.
pub fn parse_challenges(text: &str) -> Vec<Challenge> {
    let mut challenges: Vec<Challenge> = Vec::new();
    let mut rest = text.chars().peekable();
    while rest.peek().is_some() {
        let token = take_token(&mut rest);
        if token.is_empty() {
            // A comma, a space, or an unexpected character.
            if rest.next() == Some('"') {
                take_quoted(&mut rest);
            }
            continue;
        }
        if rest.next_if_eq(&'=').is_none() {
            challenges.push(Challenge {
                scheme: token.to_ascii_lowercase(),
                parameters: BTreeMap::new(),
            });
            continue;
        }
        let value = if rest.next_if_eq(&'"').is_some() {
            take_quoted(&mut rest)
        } else {
            self::take_token(&mut rest)
        };
        if let Some(challenge) = challenges.last_mut() {
            challenge.parameters.insert(token.to_ascii_lowercase(), value);
        }
    }
    challenges
}

/// Takes all characters up to a space or a delimiter.
fn take_token(rest: &mut Peekable<Chars<'_>>) -> String {
    let is_inner = |c: &char| !c.is_whitespace() && !matches!(c, ',' | '=' | '"');
    std::iter::from_fn(|| rest.next_if(is_inner)).collect()
}

/// Takes all characters up to the closing quote.
fn take_quoted(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut text = String::new();
    while let Some(c) = rest.next() {
        match c {
            '"' => break,
            '\\' => text.extend(rest.next()),
            c => text.push(c),
        }
    }
    text
}

/// Parses the challenges in the headers of a response.
pub(super) fn challenges_in_headers(headers: &HeaderMap) -> Vec<Challenge> {
    let values = headers.get_all(WWW_AUTHENTICATE).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(parse_challenges).collect()
}

/// Credentials for a registry and what it accepted so far.
#[derive(Debug)]
pub(super) struct RegistryAuth {
    credentials: Credentials,
    /// Whether a token server may be contacted without TLS.
    plain_http: bool,
    state: Mutex<AuthState>,
}

#[derive(Debug, Default)]
struct AuthState {
    /// Whether the registry accepted basic authentication.
    accepts_basic: bool,
    /// Cached tokens by scope.
    tokens: HashMap<String, CachedToken>,
}

#[derive(Debug)]
struct CachedToken {
    header: HeaderValue,
    expires_at: Instant,
}

/// Response of a token server.
#[derive(Deserialize)]
struct TokenResponse {
    token: Option<SecretString>,
    access_token: Option<SecretString>,
    expires_in: Option<u64>,
}

impl RegistryAuth {
    /// Authentication with an empty cache.
    pub fn new(access: &Access, base: &Url) -> Self {
        Self {
            credentials: access.credentials.clone(),
            plain_http: access.plain_http && base.scheme() == "http",
            state: Mutex::default(),
        }
    }

    /// Header for a request, if the registry is known to accept it.
    pub fn cached_header(&self, scope: &str) -> Option<HeaderValue> {
        if let Credentials::Token(token) = &self.credentials {
            return bearer_header(token);
        }
        let state = self.lock();
        let token = state.tokens.get(scope);
        if let Some(token) = token.filter(|token| Instant::now() < token.expires_at) {
            return Some(token.header.clone());
        }
        if state.accepts_basic { basic_header(&self.credentials) } else { None }
    }

    /// Removes the cached token of a scope.
    pub fn forget_token(&self, scope: &str) {
        self.lock().tokens.remove(scope);
    }

    /// Header for a request after the registry denied access.
    pub async fn answer_challenges(
        &self,
        sender: &HttpSender,
        challenges: &[Challenge],
        scope: &str,
    ) -> RegistryResult<HeaderValue> {
        if matches!(self.credentials, Credentials::Token(_)) {
            return Err(RegistryError::Denied);
        }
        let of = |scheme: &str| challenges.iter().find(|one| one.scheme == scheme);
        if let Some(challenge) = of("bearer") {
            return self.fetch_token(sender, challenge, scope).await;
        }
        let header = of("basic").and_then(|_| basic_header(&self.credentials));
        let header = header.ok_or(RegistryError::Denied)?;
        self.lock().accepts_basic = true;
        Ok(header)
    }

    /// Requests a token from the server that a challenge names. One attempt only: the caller
    /// retries the whole request.
    async fn fetch_token(
        &self,
        sender: &HttpSender,
        challenge: &Challenge,
        scope: &str,
    ) -> RegistryResult<HeaderValue> {
        let request = HttpRequest::new(Method::GET, self.token_url(challenge, scope)?);
        let credentials = basic_header(&self.credentials);
        let text = match request_token(sender, &request, credentials.as_ref()).await {
            // A missing token server does not mean that the repository does not exist.
            Err(RegistryError::NotFound) => return Err(RegistryError::Denied),
            text => text?,
        };
        let response: TokenResponse = serde_json::from_slice(&text)
            // The parser error is dropped, because it may quote a token.
            .map_err(|_| malformed("token", "the response is not one with a token"))?;
        let token = response.token.or(response.access_token);
        let header = token.as_ref().and_then(bearer_header);
        let header = header.ok_or_else(|| malformed("token", "the response contains none"))?;
        let seconds = response.expires_in.unwrap_or(DEFAULT_TOKEN_SECONDS).min(MAX_TOKEN_SECONDS);
        self.cache_token(scope, &header, Duration::from_secs(seconds));
        Ok(header)
    }

    /// URL to request a token from.
    fn token_url(&self, challenge: &Challenge, scope: &str) -> RegistryResult<Url> {
        let realm_parameter = challenge.parameters.get("realm").map(String::as_str);
        let mut realm = realm_parameter
            .and_then(|realm_parameter| Url::parse(realm_parameter).ok())
            .ok_or_else(|| malformed("challenge", "it does not name a token server"))?;
        let may = match realm.scheme() {
            "https" => realm.has_host(),
            "http" => self.plain_http && realm.has_host(),
            _ => false,
        };
        let is_named = !realm.username().is_empty() || realm.password().is_some();
        if !may || is_named {
            return Err(forbidden_address(&realm));
        }
        let requested_scope = challenge.parameters.get("scope").map_or(scope, String::as_str);
        let mut pairs = realm.query_pairs_mut();
        if let Some(service) = challenge.parameters.get("service") {
            pairs.append_pair("service", service);
        }
        pairs.append_pair("scope", requested_scope);
        drop(pairs);
        Ok(realm)
    }

    fn cache_token(&self, scope: &str, header: &HeaderValue, lifetime: Duration) {
        let now = Instant::now();
        let token = CachedToken {
            header: header.clone(),
            expires_at: now + lifetime.saturating_sub(EXPIRY_MARGIN),
        };
        let mut state = self.lock();
        if state.tokens.len() >= TOKEN_CLEANUP_THRESHOLD {
            state.tokens.retain(|_, token| now < token.expires_at);
        }
        state.tokens.insert(scope.to_owned(), token);
    }

    fn lock(&self) -> MutexGuard<'_, AuthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests a token, in one attempt.
async fn request_token(
    sender: &HttpSender,
    request: &HttpRequest,
    credentials: Option<&HeaderValue>,
) -> RegistryResult<Bytes> {
    let answer = check_status(sender.send_once(request, credentials).await?)?;
    sender.read_body(answer, sender.limits.token_bytes).await
}

/// Header with a bearer token.
fn bearer_header(token: &SecretString) -> Option<HeaderValue> {
    let token = token.expose_secret();
    (!token.is_empty()).then(|| sensitive_header(&format!("Bearer {token}")))?
}

/// Header value that is hidden in debug output.
fn sensitive_header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Header with a user and a password.
fn basic_header(credentials: &Credentials) -> Option<HeaderValue> {
    let Credentials::Basic { username, password } = credentials else {
        return None;
    };
    let pair = STANDARD.encode(format!("{username}:{}", password.expose_secret()));
    sensitive_header(&format!("Basic {pair}"))
}

/// Header for files on the host of the registry, where no challenge is sent.
pub(super) fn preemptive_header(credentials: &Credentials) -> Option<HeaderValue> {
    match credentials {
        Credentials::Token(token) => bearer_header(token),
        Credentials::None | Credentials::Basic { .. } => basic_header(credentials),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Vec<(String, Vec<(String, String)>)> {
        parse_challenges(text)
            .into_iter()
            .map(|one| (one.scheme, one.parameters.into_iter().collect()))
            .collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn a_challenge_is_parsed() {
        let text = r#"Bearer realm="https://auth.example/token",service="a registry",scope="repository:a/b:pull,push""#;
        assert_eq!(
            parsed(text),
            [(
                "bearer".to_owned(),
                vec![
                    pair("realm", "https://auth.example/token"),
                    pair("scope", "repository:a/b:pull,push"),
                    pair("service", "a registry"),
                ]
            )]
        );
        assert_eq!(
            parsed("Basic realm=\"a \\\"quoted\\\" one\""),
            [("basic".to_owned(), vec![pair("realm", "a \"quoted\" one")])]
        );
    }

    #[test]
    fn several_challenges_in_one_header_are_separated() {
        let text = r#"Negotiate, Basic realm="a", BEARER Realm=b , service=c"#;
        assert_eq!(
            parsed(text),
            [
                ("negotiate".to_owned(), vec![]),
                ("basic".to_owned(), vec![pair("realm", "a")]),
                ("bearer".to_owned(), vec![pair("realm", "b"), pair("service", "c")]),
            ]
        );
    }

    #[test]
    fn invalid_challenges_are_skipped() {
        assert!(parsed("").is_empty());
        assert!(parsed(" , , ").is_empty());
        assert!(parsed("=\"a\"").is_empty());
        assert!(parsed("a=b").is_empty());
        assert_eq!(parsed("Bearer realm=\"open").len(), 1);
    }

    proptest! {
        #[test]
        fn any_text_can_be_parsed(text in "\\PC*") {
            parse_challenges(&text);
        }

        #[test]
        fn any_delimiters_can_be_parsed(text in "[a \",=\\\\]*") {
            parse_challenges(&text);
        }
    }
}
