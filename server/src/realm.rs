//! Token endpoint: login with a password, without an identity provider.
//!
//! Paths and responses are those of the Keycloak realm `master` that EIM clients expect: a
//! discovery document, tokens for a password, new tokens for a refresh token, and the keys to
//! verify tokens.

mod access_log;
mod attempts;
mod log_out;
mod login_record;
mod password_checks;
mod user_lookup;
mod user_roles;
pub(crate) mod user_store;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::rejection::FormRejection;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Form, Json, Router};
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::{Authority, IssueError, RefreshToken, Role};
use evenkeel_kit::{Clock, Secret, chain};
use evenkeel_store::logins::{self, LoginRefresh};
use evenkeel_store::{ConnectionShare, Store, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use uuid::Uuid;

use crate::config::{LoginConfig, is_origin};
use crate::listen::Peer;
use access_log::{TokenUser, UserTokens, log_request};
use attempts::LoginAttempts;
use login_record::FailureRecorder;
use password_checks::PasswordChecks;
use user_lookup::LoginUser;
use user_roles::resolve_roles;
use user_store::UserStore;

/// Maximum size of a request body in bytes.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// Maximum duration of a request, including its body and the wait for the password check.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum length of a client ID in bytes, and the client ID of clients that send none.
const MAX_CLIENT_ID_BYTES: usize = 128;
const DEFAULT_CLIENT_ID: &str = "evenkeel";

const REALM_PATH: &str = "/realms/master";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Issues tokens to users with a password.
#[derive(Clone, Debug)]
pub(crate) struct Realm {
    store: Store,
    authority: Arc<Authority>,
    clock: Arc<dyn Clock>,
    users: Arc<UserStore>,
    attempts: Arc<LoginAttempts>,
    failures: FailureRecorder,
    access_token_ttl: TimeDelta,
    refresh_token_ttl: TimeDelta,
    url: Option<String>,
    /// Whether the listener itself uses TLS.
    is_tls: bool,
    trusted_proxies: Vec<IpAddr>,
    reusable_token_clients: Vec<String>,
    password_checks: Arc<PasswordChecks>,
}

impl Realm {
    /// Creates the endpoint for the users in the database and in a file, which must be valid.
    pub(crate) fn open(
        login: &LoginConfig,
        store: &Store,
        authority: &Arc<Authority>,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let delta = |length, name: &str| {
            TimeDelta::from_std(length).with_context(|| format!("auth.login.{name} is too long"))
        };
        let users = Arc::new(UserStore::open(login.users.as_deref())?);
        Ok(Self {
            store: store.clone(),
            authority: Arc::clone(authority),
            clock: Arc::clone(clock),
            attempts: Arc::default(),
            failures: FailureRecorder::new(store, &users),
            users,
            access_token_ttl: delta(login.access_token_ttl, "access_token_ttl")?,
            refresh_token_ttl: delta(login.refresh_token_ttl, "refresh_token_ttl")?,
            url: login.url.clone(),
            is_tls: false,
            trusted_proxies: login.trusted_proxies.iter().map(IpAddr::to_canonical).collect(),
            reusable_token_clients: login.reusable_refresh_token_clients.clone(),
            password_checks: Arc::default(),
        })
    }

    /// The same endpoint on a listener with or without TLS.
    pub(crate) fn with_tls(self, is_tls: bool) -> Self {
        Self { is_tls, ..self }
    }

    /// Adds the endpoint to the router of the API.
    pub(crate) fn into_router(self, api: Router) -> Router {
        let protocol = format!("{REALM_PATH}/protocol/openid-connect");
        Router::new()
            .route(
                &format!("{REALM_PATH}/.well-known/openid-configuration"),
                get(openid_configuration),
            )
            .route(&format!("{protocol}/certs"), get(certs))
            .route(&format!("{protocol}/token"), post(issue_token))
            .route(&format!("{protocol}/logout"), post(log_out::log_out))
            .route_layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
            .route_layer(middleware::from_fn(apply_limits))
            .route_layer(middleware::from_fn(log_request))
            .with_state(Arc::new(self))
            .fallback_service(api)
    }
}

/// Applies a time limit to every request, and headers that prevent caching.
async fn apply_limits(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let answered = timeout(REQUEST_TIMEOUT, next.run(request)).await;
    let mut response = answered.unwrap_or_else(|_| TokenError::Overloaded.into_response());
    if let Some(route) = route {
        // The request counter outside of this router needs the route.
        response.extensions_mut().insert(route);
    }
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::PRAGMA, "no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// Address of the client, and the URL under which it reached the endpoint.
#[derive(Debug)]
struct RequestOrigin {
    client: Option<IpAddr>,
    endpoint: Option<String>,
}

impl Realm {
    /// Uses forwarded headers only if the peer is a trusted proxy.
    fn request_origin(&self, peer: Option<Extension<Peer>>, headers: &HeaderMap) -> RequestOrigin {
        let peer = peer.map(|Extension(Peer(address))| address.ip().to_canonical());
        let is_proxy = peer.is_some_and(|peer| self.trusted_proxies.contains(&peer));
        let forwarded = |name| last_header_value(headers, name).filter(|_| is_proxy);
        let client = forwarded(FORWARDED_FOR).and_then(parse_client_address);
        let scheme = match forwarded(FORWARDED_PROTO) {
            Some("https") => "https",
            None if self.is_tls => "https",
            Some(_) | None => "http",
        };
        let host = last_header_value(headers, header::HOST);
        let origin = self.url.clone().or_else(|| {
            let origin = format!("{scheme}://{}", host?);
            is_origin(&origin).then_some(origin)
        });
        RequestOrigin {
            client: client.or(peer),
            endpoint: origin.map(|origin| format!("{origin}{REALM_PATH}")),
        }
    }
}

/// Returns the last value of a header, which the nearest proxy added.
fn last_header_value(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let value = headers.get_all(name).iter().next_back()?;
    value.to_str().ok()?.rsplit(',').next().map(str::trim)
}

/// Parses an address of `X-Forwarded-For`. Some proxies add the port of the client, and brackets
/// around an IPv6 address.
fn parse_client_address(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    text.parse().ok().or_else(with_port).or_else(in_brackets)
}

async fn openid_configuration(
    State(realm): State<Arc<Realm>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
) -> Result<Json<Value>, TokenError> {
    let endpoint = realm.request_origin(peer, &headers).endpoint;
    let endpoint = endpoint.ok_or_else(missing_host)?;
    let protocol = format!("{endpoint}/protocol/openid-connect");
    Ok(Json(json!({
        "issuer": endpoint,
        "token_endpoint": format!("{protocol}/token"),
        "jwks_uri": format!("{protocol}/certs"),
        "end_session_endpoint": format!("{protocol}/logout"),
        "grant_types_supported": ["password", "refresh_token"],
        "response_types_supported": [],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["EdDSA"],
        "token_endpoint_auth_methods_supported": ["none"],
    })))
}

async fn certs(State(realm): State<Arc<Realm>>) -> Json<Value> {
    Json(realm.authority.jwks())
}

/// Parameters of a token request. Others, for example scopes and claims, are ignored.
#[derive(Debug, Deserialize)]
struct TokenRequest {
    #[serde(rename = "grant_type")]
    kind: String,
    #[serde(default)]
    client_id: String,
    #[serde(default)]
    username: String,
    password: Option<Secret>,
    refresh_token: Option<Secret>,
}

async fn issue_token(
    State(realm): State<Arc<Realm>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    form: Result<Form<TokenRequest>, FormRejection>,
) -> Result<UserTokens, TokenError> {
    let Form(mut grant) = form.map_err(|why| invalid_request(why.body_text()))?;
    let way = realm.request_origin(peer, &headers);
    if grant.client_id.is_empty() {
        DEFAULT_CLIENT_ID.clone_into(&mut grant.client_id);
    }
    if grant.client_id.len() > MAX_CLIENT_ID_BYTES {
        let why = format!("client_id has at most {MAX_CLIENT_ID_BYTES} bytes");
        return Err(invalid_request(why));
    }
    match grant.kind.as_str() {
        "password" => realm.grant_by_password(grant, way).await,
        "refresh_token" => realm.grant_by_refresh_token(grant).await,
        _ => Err(TokenError::BadRequest(
            "unsupported_grant_type",
            "supported grant types: password, refresh_token".to_owned(),
        )),
    }
}

impl Realm {
    async fn grant_by_password(
        &self,
        grant: TokenRequest,
        way: RequestOrigin,
    ) -> Result<UserTokens, TokenError> {
        let (name, client) = (grant.username, way.client);
        let password = grant.password.filter(|text| !text.reveal().is_empty());
        let Some(password) = password.filter(|_| !name.is_empty()) else {
            return Err(invalid_request("username and password are required".to_owned()));
        };
        let endpoint = way.endpoint.ok_or_else(missing_host)?;
        let Some(found) = self.attempt_password(&name, client, password).await? else {
            return Err(invalid_grant("the name or the password is wrong"));
        };
        tracing::info!(
            user = found.user.name,
            client = client.map(tracing::field::display),
            "a user logged in"
        );
        let refresh = RefreshToken {
            endpoint,
            client: grant.client_id,
            subject: found.user.name.clone(),
            session: found.user.session(),
            login: Uuid::new_v4(),
            generation: 0,
        };
        let (roles, now, expires_at) = self.begin_login(&refresh, found, client).await?;
        self.token_response(&roles, &refresh, expires_at, now)
    }

    /// The database, for logins of this user.
    fn store_for(&self, user: &str) -> Store {
        self.store.with_share(ConnectionShare::Logins, Some(user))
    }

    /// Records a login. Returns the roles of its tokens, when they are issued and when its refresh
    /// tokens expire, by the time of the database.
    async fn begin_login(
        &self,
        refresh: &RefreshToken,
        found: LoginUser,
        client: Option<IpAddr>,
    ) -> Result<(Vec<Role>, DateTime<Utc>, DateTime<Utc>), TokenError> {
        let actor = login_record::actor(&refresh.subject, client);
        let begun = self.store_for(&refresh.subject).fleet_as(&actor).await;
        let tx = begun.map_err(|error| store_error(&error))?;
        let user = found.lock(&tx).await.map_err(|error| store_error(&error))?;
        let user = user.ok_or_else(|| invalid_grant("the user was just changed; log in again"))?;
        let now = tx.database_time();
        let expires_at = now.checked_add_signed(self.refresh_token_ttl);
        let expires_at = expires_at.ok_or_else(|| internal_error(&IssueError::TooLong))?;
        let recorded = logins::begin(&tx, refresh.login, &refresh.subject, expires_at, now).await;
        recorded.map_err(|error| store_error(&error))?;
        let recorded = login_record::record_login(&tx, &refresh.subject).await;
        recorded.map_err(|error| store_error(&error))?;
        let roles = resolve_roles(&tx, &user).await.map_err(|error| store_error(&error))?;
        tx.commit().await.map_err(|error| store_error(&error))?;
        Ok((roles, now, expires_at))
    }

    /// Replaces a refresh token by the next one of its login, unless its client keeps the first one.
    /// Returns also the roles of the next tokens, and when they are issued, by the time of the
    /// database.
    async fn refresh_login(
        &self,
        refresh: &RefreshToken,
        found: LoginUser,
    ) -> Result<(LoginRefresh, Vec<Role>, DateTime<Utc>), StoreError> {
        let tx = self.store_for(&refresh.subject).fleet().await?;
        let Some(user) = found.lock(&tx).await? else {
            return Ok((LoginRefresh::Ended, Vec::new(), tx.database_time()));
        };
        // By the clock of the process, a token that is only sent again could seem stolen.
        let now = tx.database_time();
        let roles = resolve_roles(&tx, &user).await?;
        if self.reusable_token_clients.contains(&refresh.client) {
            let refreshed = if logins::is_open(&tx, refresh.login, now).await? {
                LoginRefresh::Continued(refresh.generation)
            } else {
                LoginRefresh::Ended
            };
            return Ok((refreshed, roles, now));
        }
        let refreshed = logins::refresh(&tx, refresh.login, refresh.generation, now).await?;
        tx.commit().await?;
        Ok((refreshed, roles, now))
    }

    /// A refresh token is valid while the user exists with the same password, and only once for
    /// most clients.
    async fn grant_by_refresh_token(&self, grant: TokenRequest) -> Result<UserTokens, TokenError> {
        let Some(token) = grant.refresh_token else {
            return Err(invalid_request("refresh_token is required".to_owned()));
        };
        let read = self.authority.verify_refresh(token.reveal(), self.clock.now());
        let (refresh, expires_at) = read.map_err(|error| invalid_grant(&error.to_string()))?;
        if refresh.client != grant.client_id {
            return Err(invalid_grant("the token belongs to another client"));
        }
        let found = self.find_user(&refresh.subject).await?;
        let found = found.filter(|found| found.user.session() == refresh.session);
        let found = found.ok_or_else(|| invalid_grant("log in again"))?;
        let refreshed = self.refresh_login(&refresh, found).await;
        let (refreshed, roles, now) = refreshed.map_err(|error| store_error(&error))?;
        match refreshed {
            LoginRefresh::Continued(generation) => {
                let next = RefreshToken { generation, ..refresh };
                self.token_response(&roles, &next, expires_at, now)
            }
            LoginRefresh::Ended => Err(invalid_grant("log in again")),
            LoginRefresh::Reused => {
                tracing::warn!(
                    user = refresh.subject,
                    "a refresh token was used twice, so the login was ended: another person may have a copy"
                );
                Err(invalid_grant("the token was used before; log in again"))
            }
        }
    }

    /// Returns an access token and a refresh token, issued at a time by the clock of the database. By
    /// the clock of a process that is ahead, the access token would survive a revocation soon after.
    fn token_response(
        &self,
        roles: &[Role],
        refresh: &RefreshToken,
        refresh_until: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<UserTokens, TokenError> {
        let refresh_token = self.authority.issue_refresh(refresh, refresh_until, now);
        let refresh_token = refresh_token.map_err(|error| internal_error(&error))?;
        let access =
            self.authority.issue_operator(&refresh.subject, roles, self.access_token_ttl, now);
        let access = access.map_err(|error| internal_error(&error))?;
        let body = json!({
            "access_token": access.token.reveal(),
            "expires_in": (access.expires_at - now).num_seconds(),
            "refresh_token": refresh_token.reveal(),
            "refresh_expires_in": (refresh_until - now).num_seconds().max(0),
            "token_type": "Bearer",
        });
        Ok((Extension(TokenUser(refresh.subject.clone())), Json(body)))
    }
}

/// Error response of the token endpoint (RFC 6749, section 5.2).
#[derive(Debug)]
enum TokenError {
    /// The request is invalid: error code and description.
    BadRequest(&'static str, String),
    /// Too many failed attempts.
    TooManyAttempts(Duration),
    /// Too many concurrent requests.
    Overloaded,
    /// The database cannot be used at the moment.
    Unavailable,
    /// Internal error. Details are in the log.
    Internal,
}

fn missing_host() -> TokenError {
    invalid_request("the Host header is missing or invalid".to_owned())
}

fn invalid_request(why: String) -> TokenError {
    TokenError::BadRequest("invalid_request", why)
}

fn invalid_grant(why: &str) -> TokenError {
    TokenError::BadRequest("invalid_grant", why.to_owned())
}

fn internal_error(error: &dyn std::error::Error) -> TokenError {
    tracing::error!(%error, "cannot issue a token");
    TokenError::Internal
}

fn store_error(error: &StoreError) -> TokenError {
    match error {
        StoreError::Unreachable(_) | StoreError::Busy(_) => {
            tracing::warn!(error = %chain(error), "a login was refused: the database cannot be used");
            TokenError::Unavailable
        }
        StoreError::ShareInUse { .. } => TokenError::Overloaded,
        error => internal_error(error),
    }
}

impl IntoResponse for TokenError {
    fn into_response(self) -> Response {
        let (status, error, why, wait) = match self {
            Self::BadRequest(error, why) => (StatusCode::BAD_REQUEST, error, why, None),
            Self::TooManyAttempts(wait) => {
                // Rounded up to whole seconds.
                let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
                let why = format!("too many attempts; try again in {seconds} s");
                let status = StatusCode::TOO_MANY_REQUESTS;
                (status, "slow_down", why, Some(seconds.max(1)))
            }
            Self::Overloaded => {
                let why = "too many concurrent logins; try again in a moment".to_owned();
                let status = StatusCode::SERVICE_UNAVAILABLE;
                (status, "temporarily_unavailable", why, Some(1))
            }
            Self::Unavailable => {
                let why = "the database cannot be reached; try again in a moment".to_owned();
                let status = StatusCode::SERVICE_UNAVAILABLE;
                (status, "temporarily_unavailable", why, Some(1))
            }
            Self::Internal => {
                let why = "internal server error".to_owned();
                (StatusCode::INTERNAL_SERVER_ERROR, "server_error", why, None)
            }
        };
        let body = json!({"error": error, "error_description": why});
        let mut response = (status, Json(body)).into_response();
        if let Some(wait) = wait {
            let wait = HeaderValue::from(wait);
            response.headers_mut().insert(header::RETRY_AFTER, wait);
        }
        response
    }
}

#[cfg(test)]
mod tests;
