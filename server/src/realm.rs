//! The endpoint for tokens: people log in with a password, without an identity provider (northbound section 5.2).
//!
//! Its paths and answers are those of the realm `master` that the ancestor's clients expect: a description of itself, a
//! token for a password, a further one for a refresh token, and the keys that verify them.

mod attempts;
mod people;

use std::net::IpAddr;
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
use evenkeel_auth::{Authority, Refresh, User};
use evenkeel_kit::{Clock, Secret};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::config::{Login, is_origin};
use crate::listen::Peer;
use attempts::Attempts;
use people::People;

/// The largest body, in bytes.
const LARGEST: usize = 16 * 1024;

/// How long a request may take, its body and its turn included.
const PATIENCE: Duration = Duration::from_secs(15);

/// How many passwords are checked at once: each takes a processor and some memory for a while.
const CHECKS: usize = 2;

/// The longest name of a client program, in bytes, and that of one that does not say its name.
const LONGEST_CLIENT: usize = 128;
const USUAL_CLIENT: &str = "evenkeel";

const REALM: &str = "/realms/master";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Gives tokens to people who have a password.
#[derive(Debug)]
pub(crate) struct Realm {
    authority: Arc<Authority>,
    clock: Arc<dyn Clock>,
    people: Arc<People>,
    attempts: Attempts,
    access_for: TimeDelta,
    refresh_for: TimeDelta,
    url: Option<String>,
    proxies: Vec<IpAddr>,
    checks: Arc<Semaphore>,
}

impl Realm {
    /// One for the people in a file, which must be usable.
    pub(crate) fn open(
        login: &Login,
        authority: &Arc<Authority>,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let delta = |length, name: &str| {
            TimeDelta::from_std(length).with_context(|| format!("auth.login.{name} is too long"))
        };
        Ok(Self {
            authority: Arc::clone(authority),
            clock: Arc::clone(clock),
            people: Arc::new(People::open(&login.users)?),
            attempts: Attempts::default(),
            access_for: delta(login.access_for, "access_for")?,
            refresh_for: delta(login.refresh_for, "refresh_for")?,
            url: login.url.clone(),
            proxies: login.proxies.iter().map(IpAddr::to_canonical).collect(),
            checks: Arc::new(Semaphore::new(CHECKS)),
        })
    }

    /// Puts the endpoint beside an API.
    pub(crate) fn beside(self, api: Router) -> Router {
        let protocol = format!("{REALM}/protocol/openid-connect");
        Router::new()
            .route(
                &format!("{REALM}/.well-known/openid-configuration"),
                get(describe),
            )
            .route(&format!("{protocol}/certs"), get(certs))
            .route(&format!("{protocol}/token"), post(token))
            .route_layer(DefaultBodyLimit::max(LARGEST))
            .route_layer(middleware::from_fn(around))
            .with_state(Arc::new(self))
            .fallback_service(api)
    }
}

/// What every request goes through: a limit of time, and no copy that somebody keeps.
async fn around(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let answered = timeout(PATIENCE, next.run(request)).await;
    let mut response = answered.unwrap_or_else(|_| Refusal::Busy.into_response());
    if let Some(route) = route {
        // For whoever counts answers by route outside of this router.
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

/// Where a request comes from and by which name it found the server.
#[derive(Debug)]
struct Way {
    client: Option<IpAddr>,
    endpoint: Option<String>,
}

impl Realm {
    /// A proxy is believed about whom it speaks for, nobody else.
    fn way(&self, peer: Option<Extension<Peer>>, headers: &HeaderMap) -> Way {
        let peer = peer.map(|Extension(Peer(address))| address.ip().to_canonical());
        let is_proxy = peer.is_some_and(|peer| self.proxies.contains(&peer));
        let forwarded = |name| last(headers, name).filter(|_| is_proxy);
        let client = forwarded(FORWARDED_FOR).and_then(|client| client.parse().ok());
        let scheme = match forwarded(FORWARDED_PROTO) {
            Some("https") => "https",
            _ => "http",
        };
        let host = last(headers, header::HOST);
        let origin = self.url.clone().or_else(|| {
            let origin = format!("{scheme}://{}", host?);
            is_origin(&origin).then_some(origin)
        });
        Way {
            client: client.or(peer),
            endpoint: origin.map(|origin| format!("{origin}{REALM}")),
        }
    }
}

/// The last value of a header: the one that was added last, by whoever is nearest.
fn last(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let value = headers.get_all(name).iter().next_back()?;
    value.to_str().ok()?.rsplit(',').next().map(str::trim)
}

async fn describe(
    State(realm): State<Arc<Realm>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refusal> {
    let endpoint = realm.way(peer, &headers).endpoint;
    let endpoint = endpoint.ok_or_else(no_host)?;
    let protocol = format!("{endpoint}/protocol/openid-connect");
    Ok(Json(json!({
        "issuer": endpoint,
        "token_endpoint": format!("{protocol}/token"),
        "jwks_uri": format!("{protocol}/certs"),
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

/// What is asked for. What else stands in the form, such as scopes and claims, changes nothing.
#[derive(Debug, Deserialize)]
struct Grant {
    #[serde(rename = "grant_type")]
    kind: String,
    #[serde(default)]
    client_id: String,
    #[serde(default)]
    username: String,
    password: Option<Secret>,
    refresh_token: Option<Secret>,
}

async fn token(
    State(realm): State<Arc<Realm>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    form: Result<Form<Grant>, FormRejection>,
) -> Result<Json<Value>, Refusal> {
    let Form(mut grant) = form.map_err(|why| invalid(why.body_text()))?;
    let way = realm.way(peer, &headers);
    if grant.client_id.is_empty() {
        USUAL_CLIENT.clone_into(&mut grant.client_id);
    }
    if grant.client_id.len() > LONGEST_CLIENT {
        let why = format!("client_id has at most {LONGEST_CLIENT} bytes");
        return Err(invalid(why));
    }
    match grant.kind.as_str() {
        "password" => realm.by_password(grant, way).await,
        "refresh_token" => realm.by_refresh(grant).await,
        _ => Err(Refusal::Request(
            "unsupported_grant_type",
            "the grants are password and refresh_token".to_owned(),
        )),
    }
}

impl Realm {
    async fn by_password(&self, grant: Grant, way: Way) -> Result<Json<Value>, Refusal> {
        let (name, client) = (grant.username, way.client);
        let password = grant.password.filter(|text| !text.reveal().is_empty());
        let Some(password) = password.filter(|_| !name.is_empty()) else {
            return Err(invalid("username and password are needed".to_owned()));
        };
        let endpoint = way.endpoint.ok_or_else(no_host)?;
        let begun = self.attempts.begin(&name, client, self.clock.now());
        begun.map_err(|wait| {
            tracing::debug!(user = cut(&name), ?client, ?wait, "a login must wait");
            Refusal::Later(wait)
        })?;
        let Some(user) = self.check(&name, password).await? else {
            tracing::warn!(user = cut(&name), ?client, "a login failed");
            return Err(wrong("the name or the password is wrong"));
        };
        self.attempts.succeeded(&name, client);
        tracing::info!(user = user.name, ?client, "somebody logged in");
        let now = self.clock.now();
        let refresh = Refresh {
            endpoint,
            client: grant.client_id,
            subject: user.name.clone(),
            session: user.session(),
        };
        let made = self
            .authority
            .issue_refresh(&refresh, self.refresh_for, now);
        let made = made.map_err(|error| broken(&error))?;
        self.answer(&user, &made.token, made.expires_at)
    }

    /// Who this is, if the password is right. Some are checked at a time, apart from the tasks that others wait for; the
    /// others wait for their turn.
    async fn check(&self, name: &str, password: Secret) -> Result<Option<User>, Refusal> {
        let turn = Arc::clone(&self.checks).acquire_owned().await;
        let turn = turn.map_err(|error| broken(&error))?;
        let (people, name) = (Arc::clone(&self.people), name.to_owned());
        let checked = tokio::task::spawn_blocking(move || {
            let user = people.now().log_in(&name, &password).cloned();
            drop(turn);
            user
        });
        checked.await.map_err(|error| broken(&error))
    }

    /// A refresh token counts while its owner is there with the same password and roles as they are now.
    async fn by_refresh(&self, grant: Grant) -> Result<Json<Value>, Refusal> {
        let Some(token) = grant.refresh_token else {
            return Err(invalid("refresh_token is needed".to_owned()));
        };
        let read = self
            .authority
            .verify_refresh(token.reveal(), self.clock.now());
        let (refresh, expires_at) = read.map_err(|error| wrong(&error.to_string()))?;
        if refresh.client != grant.client_id {
            return Err(wrong("the token is that of another client"));
        }
        let people = Arc::clone(&self.people);
        let users = tokio::task::spawn_blocking(move || people.now()).await;
        let users = users.map_err(|error| broken(&error))?;
        let user = users.find(&refresh.subject);
        let user = user.filter(|user| user.session() == refresh.session);
        let user = user.ok_or_else(|| wrong("log in again"))?;
        self.answer(user, &token, expires_at)
    }

    /// A token for the API, and the one to get further ones with.
    fn answer(
        &self,
        user: &User,
        refresh: &Secret,
        refresh_until: DateTime<Utc>,
    ) -> Result<Json<Value>, Refusal> {
        let now = self.clock.now();
        let access = self
            .authority
            .issue_operator(&user.name, &user.roles, self.access_for, now);
        let access = access.map_err(|error| broken(&error))?;
        Ok(Json(json!({
            "access_token": access.token.reveal(),
            "expires_in": (access.expires_at - now).num_seconds(),
            "refresh_token": refresh.reveal(),
            "refresh_expires_in": (refresh_until - now).num_seconds().max(0),
            "token_type": "Bearer",
        })))
    }
}

/// A name for the log: it may be anything.
fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(128)]
}

/// Why there is no token (RFC 6749, section 5.2).
#[derive(Debug)]
enum Refusal {
    /// The request cannot be met; the error's name and its description.
    Request(&'static str, String),
    /// There were too many attempts.
    Later(Duration),
    /// There are too many requests.
    Busy,
    /// Something went wrong here. The log says what.
    Broken,
}

fn no_host() -> Refusal {
    invalid("the header Host must say by which name the server was found".to_owned())
}

fn invalid(why: String) -> Refusal {
    Refusal::Request("invalid_request", why)
}

fn wrong(why: &str) -> Refusal {
    Refusal::Request("invalid_grant", why.to_owned())
}

fn broken(error: &dyn std::error::Error) -> Refusal {
    tracing::error!(%error, "a token cannot be made");
    Refusal::Broken
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, error, why, wait) = match self {
            Self::Request(error, why) => (StatusCode::BAD_REQUEST, error, why, None),
            Self::Later(wait) => {
                // Whole seconds, and never too few.
                let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
                let why = format!("too many attempts; try again in {seconds} s");
                let status = StatusCode::TOO_MANY_REQUESTS;
                (status, "slow_down", why, Some(seconds.max(1)))
            }
            Self::Busy => {
                let why = "too many people log in; try again in a moment".to_owned();
                let status = StatusCode::SERVICE_UNAVAILABLE;
                (status, "temporarily_unavailable", why, Some(1))
            }
            Self::Broken => {
                let why = "something went wrong on our side".to_owned();
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
